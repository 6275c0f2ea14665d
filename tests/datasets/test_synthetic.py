"""Synthetic stand-ins: seeded, sparse or in blocks, and named synthetic."""

import numpy as np
import pytest

from dish.datasets import SyntheticImageNet, synthetic_imagenet, synthetic_nuswide
from dish.errors import DataFileError


@pytest.mark.slow
def test_synthetic_nuswide_is_sparse_and_its_concepts_are_correlated():
    data = synthetic_nuswide(12_000)
    assert data.synthetic
    assert data.name == "synthetic_nuswide"
    assert data.X.shape == (12_000, 500)
    assert data.y.shape == (12_000, 21)
    assert np.array_equal(data.X.data, np.rint(data.X.data))
    assert 0.02 < data.X.nnz / np.prod(data.X.shape) < 0.3
    Y = data.y.toarray()
    assert set(np.unique(Y)) == {0, 1}
    assert (Y.sum(1) >= 1).all()
    assert 1.3 < Y.sum(1).mean() < 4
    share = Y.mean(0)
    expected = 12_000 * np.outer(share, share)
    lift = (Y.T @ Y / expected)[~np.eye(21, dtype=bool)]
    assert (lift > 1.5).mean() > 0.05  # pairs that occur together often
    assert (lift < 0.7).mean() > 0.05  # pairs that rarely occur together
    assert len(data.split().query) == 2100
    again, other = synthetic_nuswide(300), synthetic_nuswide(300, seed=1)
    assert (data.X[:300] != again.X).nnz == 0
    assert (other.X != again.X).nnz > 0
    assert (data.X[10_000:10_300] != again.X).nnz > 0


def test_the_words_of_synthetic_nuswide_depend_on_its_concepts():
    data = synthetic_nuswide(4000)
    X, Y = data.rows(), data.y.toarray()
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    near = np.argsort(-(X[:200] @ X.T), axis=1)[:, 1:21]
    shares = (Y[:200] @ Y.T) > 0
    assert np.take_along_axis(shares, near, axis=1).mean() > shares.mean() + 0.1


@pytest.mark.slow
def test_synthetic_imagenet_blocks_do_not_depend_on_their_order(tmp_path):
    source = SyntheticImageNet(n=10_400, seed=2)
    assert source.n_blocks == 2
    late_first = SyntheticImageNet(n=20_000, seed=2).block(1)
    X0, y0 = source.block(0)
    X1, y1 = source.block(1)
    assert X1.shape == (400, 4096)
    assert np.abs(X1 - X0[:400]).max() > 0.01  # another block, other rows
    np.testing.assert_allclose(X1, late_first[0][:400], atol=1e-6)
    assert np.array_equal(y1, late_first[1][:400])
    assert np.bincount(y0).tolist() == [10] * 1000
    assert np.array_equal(source.labels(), np.concatenate([y0, y1]))
    np.testing.assert_allclose(np.linalg.norm(X0[:500], axis=1), 1, rtol=1e-4)
    assert not np.allclose(SyntheticImageNet(n=100, seed=3).block(0)[0], X0[:100])
    with pytest.raises(ValueError, match="i must be"):
        source.block(2)


@pytest.mark.slow
def test_rows_of_a_class_of_synthetic_imagenet_are_near_each_other():
    X, y = SyntheticImageNet(n=3000).block(0)
    similarity = X @ X.T
    same = (y[:, None] == y) & ~np.eye(len(y), dtype=bool)
    assert similarity[same].mean() > similarity[~same].mean() + 0.05
    assert abs(X.mean(axis=0)).max() < 0.01  # the mean is subtracted


@pytest.mark.slow
def test_synthetic_imagenet_on_disk(tmp_path):
    path = tmp_path / "rows.npy"
    made = synthetic_imagenet(600, path=path)
    memory = synthetic_imagenet(600)
    assert isinstance(made.X, np.memmap)
    assert made.synthetic
    assert made.name == "synthetic_imagenet"
    assert np.array_equal(made.X, memory.X)
    assert np.array_equal(made.y, memory.y)
    stamp = path.stat().st_mtime_ns
    synthetic_imagenet(600, path=path)
    assert path.stat().st_mtime_ns == stamp
    assert [f.name for f in tmp_path.iterdir()] == ["rows.npy"]
    with pytest.raises(DataFileError, match="another seed than 1"):
        synthetic_imagenet(600, seed=1, path=path)
    with pytest.raises(DataFileError, match=r"must hold float32 \(500, 4096\)"):
        synthetic_imagenet(500, path=path)


def test_an_interrupted_write_leaves_no_file(tmp_path, monkeypatch):
    def stop(self, i):
        raise KeyboardInterrupt

    monkeypatch.setattr(SyntheticImageNet, "block", stop)
    with pytest.raises(KeyboardInterrupt):
        SyntheticImageNet(n=100).write(tmp_path / "rows.npy")
    assert list(tmp_path.iterdir()) == []
