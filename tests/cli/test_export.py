"""`dish export`."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from dish import codes
from dish.io.code_files import SUFFIXES
from dish.io.code_provenance import note_model
from helpers.codes import make_codes


@pytest.fixture
def B(tmp_path):
    """Codes of 20 bits in a file with a note, ids and labels."""
    B = make_codes("random", 30, 20)
    np.save(tmp_path / "codes.npy", B)
    note_model(tmp_path / "codes.npy", "0123456789abcdef", 20)
    (tmp_path / "ids.txt").write_text("".join(f"row {i}\n" for i in range(30)))
    np.save(tmp_path / "y.npy", np.arange(30) % 3)
    return B


@pytest.mark.parametrize("form", codes.FORMS)
def test_a_form_is_written_next_to_the_codes(cli, tmp_path, B, form):
    path = tmp_path / f"codes.{form}{SUFFIXES[form][0]}"
    done = cli("export", tmp_path / "codes.npy", "--to", form)
    assert done == (0, f"{path}: 30 codes of 20 bits as {form}\n", "")
    assert path.exists()


def test_length_and_model_come_from_the_note(cli, tmp_path, B):
    out = tmp_path / "out.txt"
    assert cli("export", tmp_path / "codes.npy", "--to", "bits", "-o", out)[0] == 0
    np.testing.assert_array_equal(codes.parse(out.read_text().split(), 20, "bits"), B)
    assert cli("export", tmp_path / "codes.npy", "--to", "bits", "--bits", 24, "-o", out)[0] == 0
    np.testing.assert_array_equal(codes.parse(out.read_text().split(), 24, "bits"), B)
    assert cli("export", tmp_path / "codes.npy", "--to", "arrow", "-o", tmp_path / "out.parquet")[0] == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.metadata == {b"dish.n_bits": b"20", b"dish.model": b"0123456789abcdef"}


def test_files_of_an_engine(cli, tmp_path, B):
    folder = tmp_path / "products"
    code, out, _ = cli(
        "export", tmp_path / "codes.npy", "--engine", "elasticsearch", "--ids", tmp_path / "ids.txt",
        "--labels", tmp_path / "y.npy", "--name", "products", "-o", folder,
    )  # fmt: skip
    assert code == 0
    assert out.startswith(f"{folder}: 30 codes of 20 bits for Elasticsearch; start with {folder / 'README.md'}\n")
    assert "follow the engine's documentation" in out
    assert sorted(one.name for one in folder.iterdir()) == ["README.md", "bulk.ndjson", "index.json", "query.json"]
    lines = [json.loads(line) for line in (folder / "bulk.ndjson").read_text().splitlines()]
    assert [one["index"]["_id"] for one in lines[::2]] == [f"row {i}" for i in range(30)]
    assert [one["code"] for one in lines[1::2]] == codes.export(B, 20, "hex")
    assert [one["label"] for one in lines[1::2]] == [i % 3 for i in range(30)]


def test_errors_are_one_line_and_write_nothing(cli, tmp_path, B):
    before = sorted(tmp_path.iterdir())
    for message, options in {
        "either --to FORM or --engine": (),
        "either --to FORM or": ("--to", "hex", "--engine", "vespa"),
        "--to must be one of 'bits'": ("--to", "octal"),
        "engine must be one of 'elasticsearch'": ("--engine", "solr", "-o", tmp_path / "out"),
        "needs a folder": ("--engine", "vespa"),
        "are for --engine": ("--to", "hex", "--ids", tmp_path / "ids.txt"),
        "is written to a .txt file": ("--to", "hex", "-o", tmp_path / "out.npy"),
        "one of the inputs": ("--to", "ubinary", "-o", tmp_path / "codes.npy"),
        "have 2": ("--to", "hex", "--bits", 16),
        "beyond the first 17": ("--to", "hex", "--bits", 17),
    }.items():
        code, _, err = cli("export", tmp_path / "codes.npy", *options)
        assert (code, len(err.strip().splitlines())) == (2, 1), err
        assert message in err
    assert sorted(tmp_path.iterdir()) == before


def test_help_has_examples(cli):
    code, out, _ = cli("export", "--help")
    assert code == 0
    assert "dish export codes.npy --to hex" in out
