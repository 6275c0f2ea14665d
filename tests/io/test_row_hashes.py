"""Hashes of rows: equal for equal values of any number type, and different for different rows."""

import hashlib

import numpy as np
import pytest
import scipy.sparse as sp

from dish.errors import ModelFileError
from dish.io import row_hashes as module
from dish.io.row_hashes import check_remembered, remembered, row_hashes

X = np.random.default_rng(0).integers(-9, 9, (50, 5)).astype(np.float32) / 8


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble, ">f8"])
def test_a_hash_is_that_of_the_float32_values(kind):
    expected = [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little") for row in X + 0.0]
    found = row_hashes(X.astype(kind))
    assert found.dtype == np.uint64
    assert found.tolist() == expected


def test_sparse_rows_images_and_columns_in_memory_order():
    np.testing.assert_array_equal(row_hashes(sp.csr_array(X)), row_hashes(X))
    np.testing.assert_array_equal(row_hashes(np.asfortranarray(X)), row_hashes(X))
    images = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    np.testing.assert_array_equal(row_hashes(images), row_hashes(images.reshape(2, -1)))


def test_minus_zero_is_zero_and_other_rows_differ(monkeypatch):
    assert row_hashes(np.array([[-0.0, 1.0]])) == row_hashes(np.array([[0.0, 1.0]]))
    distinct = np.unique(X, axis=0)
    assert len(np.unique(row_hashes(distinct))) == len(distinct)
    assert row_hashes(np.array([[1.0, 2.0]])) != row_hashes(np.array([[2.0, 1.0]]))
    whole = row_hashes(X)
    monkeypatch.setattr(module, "BLOCK", 7)
    np.testing.assert_array_equal(row_hashes(X), whole)
    assert len(row_hashes(X[:0])) == 0


def test_numbers_beyond_float32_are_hashed_without_a_warning():
    assert row_hashes(np.array([[1e300, 1.0]])) == row_hashes(np.array([[1e301, 1.0]]))


def test_remembered_hashes_are_distinct_and_ascending():
    hashes = remembered([np.array([5, 3], np.uint64), np.array([3, 9], np.uint64)])
    assert hashes.tolist() == [3, 5, 9]
    assert remembered([]).dtype == np.uint64
    check_remembered(hashes)
    check_remembered(None)
    for damaged in (hashes[::-1], hashes.astype(np.int64), hashes[None], hashes[[0, 0]]):
        with pytest.raises(ModelFileError, match="row hashes of the model must be distinct"):
            check_remembered(damaged)
