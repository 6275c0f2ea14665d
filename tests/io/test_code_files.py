"""Files of every form hold the codes that were written, block by block, and readers of their formats take them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dish import codes
from dish.errors import InputError
from dish.io import code_files
from dish.io.code_files import SUFFIXES, write_form
from helpers.codes import make_codes


def read(path, form):
    """The data of ``codes.export`` from a file, without the library's functions."""
    if path.suffix == ".txt":
        return path.read_text().splitlines()
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".arrow":
        return pa.ipc.open_file(str(path)).read_all()
    if path.suffix == ".parquet":
        return pq.read_table(path)
    return [one["code"] for one in documents(path)]


def documents(path):
    """The documents of a .bson file that has the fields _id (int64) and code (binary), in that order."""
    data, start = path.read_bytes(), 0
    while start < len(data):
        length = int.from_bytes(data[start : start + 4], "little")
        one, start = data[start : start + length], start + length
        assert (one[4:9], one[17:23], one[-1]) == (b"\x12_id\0", b"\x05code\0", 0)
        size = int.from_bytes(one[23:27], "little")
        assert (one[27], 28 + size + 1) == (9, length)
        yield {"_id": int.from_bytes(one[9:17], "little"), "code": one[28:-1]}


CASES = [(form, suffix) for form, suffixes in SUFFIXES.items() for suffix in suffixes]


def test_every_form_has_a_file():
    assert set(SUFFIXES) == set(codes.FORMS)


@pytest.mark.parametrize("n", [0, 1, 25])
@pytest.mark.parametrize(("form", "suffix"), CASES)
def test_files_hold_the_codes(form, suffix, n, tmp_path, monkeypatch):
    monkeypatch.setattr(code_files, "BLOCK_ROWS", 10)
    for r in (20, 64):
        B, path = make_codes("random", n, r), tmp_path / f"codes{suffix}"
        assert write_form(path, B, r, form) == n
        data = read(path, form)
        np.testing.assert_array_equal(codes.parse(data, r, form), B)
        if suffix == ".npy":
            np.testing.assert_array_equal(data, codes.export(B, r, form), strict=True)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_the_model_is_in_the_metadata_and_rows_have_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(code_files, "BLOCK_ROWS", 10)
    B = make_codes("random", 25, 20)
    for name in ("c.arrow", "c.parquet"):
        write_form(tmp_path / name, B, 20, "arrow", model="0123456789abcdef")
        wanted = {b"dish.n_bits": b"20", b"dish.model": b"0123456789abcdef"}
        assert read(tmp_path / name, "arrow").schema.metadata == wanted
    write_form(tmp_path / "c.bson", B, 20, "bson")
    assert [one["_id"] for one in documents(tmp_path / "c.bson")] == list(range(25))


def test_wrong_names_and_codes_write_nothing(tmp_path):
    B = np.full((3, 1), 255, np.uint8)
    with pytest.raises(InputError, match=r"'hex' is written to a .txt file, got 'c.npy'"):
        write_form(tmp_path / "c.npy", B, 8, "hex")
    with pytest.raises(InputError, match=r"'arrow' is written to a .arrow or .parquet file"):
        write_form(tmp_path / "c.feather", B, 8, "arrow")
    with pytest.raises(InputError, match="form must be one of"):
        write_form(tmp_path / "c.txt", B, 8, "octal")
    for form, (suffix, *_) in SUFFIXES.items():
        with pytest.raises(InputError, match="bits set beyond the first 5"):
            write_form(tmp_path / f"c{suffix}", B, 5, form)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engines
def test_pymongo_reads_the_documents(tmp_path):
    bson = pytest.importorskip("bson")
    B = make_codes("random", 25, 20)
    write_form(tmp_path / "c.bson", B, 20, "bson")
    with open(tmp_path / "c.bson", "rb") as file:
        found = list(bson.decode_file_iter(file))
    assert [one["_id"] for one in found] == list(range(25))
    assert [bytes(one["code"].as_vector().data) for one in found] == [code.tobytes() for code in B]
    np.testing.assert_array_equal(codes.parse([one["code"] for one in found], 20, "bson"), B)
