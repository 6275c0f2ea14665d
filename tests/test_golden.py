"""Files that earlier versions wrote load and give the same codes. ``golden/make.py`` says how they were made."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import dish
from dish import DISH, HammingIndex

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = dict(np.load(GOLDEN / "expected.npz"))


FINGERPRINTS = {
    "dish": "f81619bbff1a54b5",
    "dish_linear": "e470a7c8ff73b490",
    "deep": "60b9742a2843d796",
    "pca_itq": "fce973aa4e819559",
    "sdh": "cdf87099d3b1ac5d",
    "lsh": "0740aaeec88be097",
}


@pytest.fixture(scope="module")
def rows():
    X, y = load_digits(return_X_y=True)
    return X[:400].astype(np.float32) / 16, y[:400]


@pytest.mark.parametrize("name", ["dish", "dish_linear", "deep", "pca_itq", "sdh", "lsh"])
def test_an_old_model_gives_its_old_codes(name, rows):
    hasher = dish.load(GOLDEN / f"{name}.dish")
    np.testing.assert_array_equal(hasher.transform(rows[0][:50]), EXPECTED[name])


def test_fingerprints_stay():
    """Indexes and tables keep them: another way to compute them would part every index from its model."""
    marks = {name: dish.load(GOLDEN / f"{name}.dish").fingerprint_ for name in FINGERPRINTS}
    assert marks == FINGERPRINTS


@pytest.mark.parametrize("mmap", [False, True])
def test_an_old_index_gives_its_old_answers(mmap):
    index = HammingIndex.load(GOLDEN / "index.dish", mmap=mmap)
    assert len(index) == 398
    distances, ids = index.search(EXPECTED["dish"], k=5)
    np.testing.assert_array_equal(distances, EXPECTED["index_distances"])
    np.testing.assert_array_equal(ids, EXPECTED["index_ids"])
    assert index.labels_of(["row 0"]).tolist() == ["0"]


def test_an_old_checkpoint_is_resumed(tmp_path, rows):
    shutil.copytree(GOLDEN / "checkpoint", tmp_path / "c")
    resumed = DISH(n_bits=16, n_anchors=40, n_iter=3, checkpoint=tmp_path / "c").fit(*rows)
    whole = DISH(n_bits=16, n_anchors=40, n_iter=3).fit(*rows)
    np.testing.assert_array_equal(resumed.codes_, whole.codes_)
    np.testing.assert_allclose(resumed.objective_, whole.objective_, rtol=1e-9)  # its first: of another machine


def test_an_old_journal_is_replayed(tmp_path):
    from dish.web.server import open_collection

    for name in ("dish.dish", "index.dish", "index.dish.journal"):
        shutil.copy(GOLDEN / name, tmp_path)
    collection = open_collection(tmp_path / "dish.dish", tmp_path / "index.dish", writable=True)
    assert len(collection) == 401
    np.testing.assert_array_equal(collection.code_of("new 1"), EXPECTED["dish"][1:2])
    assert collection.index.labels_of(["new 1"]).tolist() == ["1"]
    collection.close()
    assert len(HammingIndex.load(tmp_path / "index.dish")) == 401
