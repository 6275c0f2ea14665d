"""Files that an earlier version wrote are read and give the same results; ``golden/make.py`` wrote them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import dish
from dish import DISHK, HammingIndex
from dish.web.server import open_collection

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = dict(np.load(GOLDEN / "expected.npz"))
MODELS = [name.removesuffix(" fingerprint") for name in EXPECTED if name.endswith(" fingerprint")]


@pytest.fixture(scope="module")
def rows():
    X, y = load_digits(return_X_y=True)
    return X[:400].astype(np.float32) / 16, y[:400]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_the_same_codes(name, rows):
    hasher = dish.load(GOLDEN / f"{name}.dish")
    np.testing.assert_array_equal(hasher.transform(rows[0][:50]), EXPECTED[name])


def test_a_model_may_have_parameters_that_are_gone():
    content = (GOLDEN / "dish.dish").read_bytes()
    assert b"checkpoint" in content
    assert not {"checkpoint", "verbose"} & set(dish.load(GOLDEN / "dish.dish").get_params())


@pytest.mark.parametrize("name", MODELS)
def test_fingerprints_do_not_change(name):
    """Indexes and tables store them: computed in another way, they would not match their models any more."""
    assert dish.load(GOLDEN / f"{name}.dish").fingerprint_ == EXPECTED[f"{name} fingerprint"]


@pytest.mark.parametrize("mmap", [False, True])
def test_an_index_gives_the_same_results(mmap):
    index = HammingIndex.load(GOLDEN / "index.dish", mmap=mmap)
    assert len(index) == 398
    assert index.model == EXPECTED["dish fingerprint"]
    distances, ids = index.search(EXPECTED["dish"], k=5)
    np.testing.assert_array_equal(distances, EXPECTED["index_distances"])
    np.testing.assert_array_equal(ids, EXPECTED["index_ids"])
    assert index.labels_of(["row 0"]).tolist() == ["0"]


def test_a_checkpoint_is_resumed(tmp_path, rows):
    shutil.copytree(GOLDEN / "checkpoint", tmp_path / "c")
    resumed = DISHK(n_bits=16, n_anchors=40, n_iter=3, checkpoint=tmp_path / "c").fit(*rows)
    whole = DISHK(n_bits=16, n_anchors=40, n_iter=3).fit(*rows)
    np.testing.assert_array_equal(resumed.codes_, whole.codes_)
    np.testing.assert_allclose(resumed.objective_, whole.objective_, rtol=1e-9)  # the first is of another machine


def test_a_journal_is_replayed(tmp_path):
    for file in (GOLDEN / "dish.dish", *GOLDEN.glob("index.dish*")):
        shutil.copy(file, tmp_path)
    collection = open_collection(tmp_path / "dish.dish", tmp_path / "index.dish", writable=True)
    assert len(collection) == 401
    np.testing.assert_array_equal(collection.code_of("new 1"), EXPECTED["dish"][1:2])
    assert collection.index.labels_of(["new 1"]).tolist() == ["1"]
    collection.close()
    assert len(HammingIndex.load(tmp_path / "index.dish")) == 401
