"""Encoding of files, block by block."""

import numpy as np
import pytest

from dish import DISHK
from dish.errors import InputError
from dish.io import batch_jobs
from dish.io.batch_jobs import encode_file
from dish.io.rows import RowSource
from dish.parallel import ALONE


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1, 2], 100)
    X = rng.standard_normal((300, 6)) + 3 * np.eye(3, 6)[y]
    return X, y


@pytest.fixture(scope="module")
def hasher(data):
    return DISHK(n_bits=12, n_anchors=30, n_iter=2).fit(*data)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(batch_jobs, "BLOCK_ROWS", 64)


@pytest.mark.parametrize("kind", ["array", "map", "shards"])
def test_encode_file_equals_transform(kind, data, hasher, tmp_path):
    X, _ = data
    np.save(tmp_path / "X.npy", X)
    given = {
        "array": lambda: X,
        "map": lambda: np.load(tmp_path / "X.npy", mmap_mode="r"),
        "shards": lambda: RowSource.of(np.array_split(X, [70, 71])).array,
    }[kind]
    assert encode_file(hasher, given(), tmp_path / "codes.npy", ALONE) == (300, 2)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), hasher.transform(X))


def test_a_failed_encoding_leaves_no_file(data, hasher, tmp_path):
    bad = data[0].copy()
    bad[250] = np.nan
    with pytest.raises(InputError, match="row 250"):
        encode_file(hasher, bad, tmp_path / "codes.npy", ALONE)
    assert list(tmp_path.iterdir()) == []
