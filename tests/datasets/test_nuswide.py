"""NUS-WIDE from small files in the official layout."""

import numpy as np
import pytest

from dish.datasets import load_nuswide
from dish.datasets import nuswide as module
from dish.errors import DataFileError
from helpers.nuswide import write_nuswide


@pytest.fixture
def nuswide(tmp_path):
    """60 images with 25 concepts; the last ten have no frequent concept."""
    rng = np.random.default_rng(0)
    n, root = 60, tmp_path / "nus"
    Y = (rng.random((n, 25)) < np.linspace(0.6, 0.2, 25)).astype(int)
    Y[:, 21:] = 0
    Y[-10:] = 0
    Y[-10:, 22] = [1] + 9 * [0]
    counts = rng.poisson(0.3, (n, 500))
    write_nuswide(root, Y, counts)
    return root, Y, counts


@pytest.mark.parametrize("lines", [7, 20, 10_000])
def test_frequent_concepts_and_labelled_images_are_kept(nuswide, monkeypatch, lines):
    monkeypatch.setattr(module, "READ_LINES", lines)
    root, Y, counts = nuswide
    data = load_nuswide(root)
    kept = Y[:, :21].any(1)
    assert data.X.shape == (kept.sum(), 500)
    assert np.array_equal(data.rows(), counts[kept])
    assert len(data.label_names) == 21
    order = [24 - int(name[1:]) for name in data.label_names]
    assert sorted(order) == list(range(21))
    assert np.array_equal(data.y.toarray(), Y[kept][:, order])
    assert (np.diff(data.y.toarray().sum(0)) <= 0).all()
    assert data.ids[0] == "actor\\0000_0.jpg"
    assert len(data.ids) == len(data)
    assert (module.is_nuswide(root), module.is_nuswide(root / "ImageList")) == (True, False)


def line(file, number, text):
    lines = file.read_text().split("\n")
    lines[number] = text
    file.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("BoW_int.dat", lambda f: f.write_text(f.read_text()[:-800]), "BoW_int.dat"),
        ("BoW_int.dat", lambda f: line(f, 59, ""), "BoW_int.dat has 59 rows, but Imagelist.txt has 60"),
        ("BoW_int.dat", lambda f: f.write_text(f.read_text() + "1 " * 500), "has 61 rows"),
        ("BoW_int.dat", lambda f: line(f, 7, "1 2 3"), "BoW_int.dat, in the rows after 0"),
        ("BoW_int.dat", lambda f: line(f, 7, "x " * 500), "BoW_int.dat, in the rows after 0"),
        ("BoW_int.dat", lambda f: line(f, 7, "-1 " * 500), "negative counts"),
        ("BoW_int.dat", lambda f: f.write_text("1 2 3\n" * 60), "must have 500 numbers per row, got 3"),
        ("BoW_int.dat", lambda f: f.unlink(), "exactly one BoW_int.dat.*found none"),
        ("Labels_c05.txt", lambda f: line(f, 3, "2"), "Labels_c05.txt must hold one 0 or 1.*'2'"),
        ("Labels_c05.txt", lambda f: line(f, 3, ""), "Labels_c05.txt has 59 labels.*60 images"),
        ("Labels_c05.txt", lambda f: f.write_bytes(b"\xff\xfe"), "Labels_c05.txt is not a text file"),
        ("Imagelist.txt", lambda f: f.write_text("a.jpg\n"), "60 labels, but Imagelist.txt has 1 images"),
    ],
)
def test_damaged_files_are_rejected(nuswide, name, change, message):
    (file,) = nuswide[0].rglob(name)
    change(file)
    with pytest.raises(DataFileError, match=message):
        load_nuswide(nuswide[0])


def test_missing_files_are_named(nuswide, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_nuswide(tmp_path / "nowhere")
    with pytest.raises(DataFileError, match=r"must contain 26 files Labels_<concept>\.txt, found 25"):
        load_nuswide(nuswide[0], n_concepts=26)
    (nuswide[0] / "ImageList" / "Imagelist.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"Imagelist\.txt"):
        load_nuswide(nuswide[0])
