"""Geometry bits: their directions, their number and their places in a code."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dish import DISH, HammingIndex, metrics
from dish.encoder import geometry_positions, interleaved
from dish.errors import InputError
from dish.io.rows import RowSource
from dish.kernel.fit_data import prepare
from dish.posterior import geometry
from dish.posterior.geometry import PER_CLASS, SAMPLE, Geometry, candidates, sample_by_class, within_covariance
from dish.similarity import from_labels


def rows(n=900, d=12, classes=6, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    return (2 * np.random.default_rng(9).standard_normal((classes, d))[y] + rng.standard_normal((n, d))).astype(
        np.float32
    ), y


def data_of(X, y):
    return prepare(
        RowSource(X), from_labels(y), n_anchors=30, rng=np.random.RandomState(0), device=torch.device("cpu")
    )


@pytest.mark.parametrize(("r", "g"), [(64, 16), (64, 8), (13, 5), (8, 1), (7, 0), (10, 9)])
def test_prefixes_have_the_same_share(r, g):
    at = geometry_positions(r, g)
    assert len(at) == g
    for t in range(1, r + 1):
        assert (at < t).sum() == t * g // r


def test_both_kinds_of_bits_are_found_again_in_a_code():
    F, G = np.split(np.random.default_rng(0).random((3, 13)), [9], axis=1)
    for both in (interleaved(F, G), interleaved(torch.from_numpy(F), torch.from_numpy(G)).numpy()):
        at = geometry_positions(13, 4)
        np.testing.assert_array_equal(both[:, at], G)
        np.testing.assert_array_equal(np.delete(both, at, axis=1), F)


def test_candidates():
    assert candidates(64) == [16, 8]
    assert candidates(4) == [1, 0]


def test_covariance_within_classes_is_that_of_rows_minus_their_class_means():
    X, y = rows()
    data = data_of(X, y)
    Z = torch.from_numpy(X - X.mean(0)).double()
    means = np.stack([Z[y == c].mean(0) for c in range(6)])
    R = Z.numpy() - means[y]
    np.testing.assert_allclose(within_covariance(Z, data, data.S.row_group.numpy()), R.T @ R / (900 - 6), rtol=1e-9)


def test_covariance_that_label_sets_do_not_explain():
    X, y = rows()
    Y = np.eye(6)[y]
    Y[:, 0] = np.arange(900) % 3 == 0
    data = data_of(X, Y.astype(int))
    Z = torch.from_numpy(X - X.mean(0)).double()
    left = Z.numpy() - Y @ np.linalg.lstsq(Y - Y.mean(0), Z.numpy())[0]
    left -= left.mean(0)
    found = within_covariance(Z, data, data.S.row_group.numpy())
    np.testing.assert_allclose(found, left.T @ left / 900, atol=1e-8)


def test_a_sample_has_as_many_rows_of_every_class():
    few = sample_by_class(np.repeat(np.arange(10), 5000).astype(np.int32), SAMPLE)
    counts = np.bincount(np.repeat(np.arange(10), 5000)[few])
    assert len(set(counts)) == 1
    assert SAMPLE <= len(few) < SAMPLE + 10
    many = np.repeat(np.arange(20000), 10).astype(np.int32)
    counts = np.bincount(many[sample_by_class(many, SAMPLE)])
    assert set(counts[counts > 0]) == {PER_CLASS}


def test_bits_are_balanced_and_outputs_have_half_the_size_of_signs():
    X, y = rows()
    data = data_of(X, y)
    geometry = Geometry.of(data, 8)
    F = geometry.bits(8)(data.features.centred(torch.from_numpy(X)))
    assert float(F.square().mean()) == pytest.approx(0.25, rel=1e-3)
    assert float((F >= 0).float().mean(0).sub(0.5).abs().max()) < 0.25


def test_geometry_bits_find_neighbours_and_classes_that_were_not_learned():
    X, y = rows(3000, 16, 40)
    old = y < 30
    found, unseen = [], []
    for g in (0, 32):
        hasher = DISH(64, n_anchors=100, geometry=g).fit(X[old], y[old])
        packed = hasher.transform(X)
        index = HammingIndex(64)
        index.add(packed[200:])
        near = np.argsort(((X[:200, None] - X[None, 200:]) ** 2).sum(2), axis=1)[:, :10]
        _, ids = index.search(packed[:200], k=100)
        found.append(np.mean([np.isin(a, b).mean() for a, b in zip(near, ids, strict=True)]))
        new = np.flatnonzero(~old)
        q, base = new[:100], new[100:]
        unseen.append(metrics.mean_average_precision(packed[q], y[q], packed[base], y[base]))
    assert found[1] > found[0] + 0.1
    assert unseen[1] > unseen[0]


def test_auto_takes_bits_that_classes_do_not_need():
    X, y = rows(1500, 12, 3)
    assert DISH(32, n_anchors=60).fit(X, y).geometry_.n_bits == 8
    assert DISH(32, n_anchors=60, geometry=0).fit(X, y).geometry_ is None


@pytest.mark.parametrize("geometry", [-1, 16, 2.5, "some"])
def test_other_values_are_refused(geometry):
    with pytest.raises(InputError, match="geometry must be"):
        DISH(16, geometry=geometry).fit(*rows(60))


def test_a_prefix_is_a_code_of_fewer_bits():
    X, y = rows()
    hasher = DISH(64, n_anchors=60, geometry=16).fit(X, y)
    np.testing.assert_array_equal(hasher.transform(X, n_bits=32), hasher.transform(X)[:, :4])
    packed = hasher.transform(X, n_bits=32)
    assert metrics.mean_average_precision(packed[:200], y[:200], packed[200:], y[200:]) > 0.8


@pytest.mark.parametrize("bad", ["outlier", "huge", "constant", "equal rows", "one feature"])
def test_odd_rows_have_geometry_bits_too(bad):
    X, y = rows(200)
    if bad == "outlier":
        X[3] = 1e30
    elif bad == "huge":
        X[3, 2] = 3e38
    elif bad == "constant":
        X[:, 1:] = 0
    elif bad == "equal rows":
        X[50:] = X[50]
    else:
        X = X[:, :1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hasher = DISH(16, n_anchors=30, geometry=6).fit(X, y)
    F = hasher.decision_function(X[4:])
    assert np.isfinite(F).all()
    assert np.isfinite(hasher.geometry_.W).all()


def test_many_features_need_no_square_matrix_of_them(monkeypatch):
    """The span of the sample has the same best directions as all features, up to the strength of the shrinkage."""
    rng = np.random.default_rng(0)
    y = np.arange(300) % 5
    X = (rng.standard_normal((5, 40))[y] + 0.3 * rng.standard_normal((300, 40))).astype(np.float32)
    found = []
    for wide in (geometry.WIDE, 30):
        monkeypatch.setattr(geometry, "WIDE", wide)
        found.append(DISH(16, n_anchors=50, geometry=4).fit(X, y).geometry_.W)
    both = np.linalg.svd(np.hstack([W / np.linalg.norm(W) for W in found]), compute_uv=False)
    assert both[3] > 1e-2
    assert both[4] < 1e-4  # the same span


@pytest.mark.long
def test_fifty_thousand_features_are_learned_in_little_memory():
    X, y = sp.random_array((120, 50_000), density=0.01, rng=np.random.default_rng(0)).toarray(), np.arange(120) % 3
    X[np.arange(120), y] = 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hasher = DISH(16, n_anchors=20).fit(X.astype(np.float32), y)
    assert hasher.geometry_.W.shape[0] == 50_000
