"""The anchor graph of AGH and DGH against explicit matrices."""

import numpy as np
import pytest

from dish.baselines.agh import AGH


def test_weights_are_those_of_the_nearest_anchors(graph):
    X, hasher, Z, A = graph
    Z = Z.toarray()
    assert (Z >= 0).all()
    assert ((Z > 0).sum(1) == 3).all()
    np.testing.assert_allclose(Z.sum(1), 1)
    squared = ((X[:, None] - hasher.anchors_[None]) ** 2).sum(2)
    for i in range(len(X)):
        near = np.argsort(squared[i])[:3]
        weight = np.exp(-squared[i, near] / hasher.width_)
        np.testing.assert_allclose(Z[i, near], weight / weight.sum(), rtol=1e-9)
    assert hasher.width_ == pytest.approx(np.sort(squared, 1)[:, 2].mean())
    np.testing.assert_allclose(A.sum(1), 1)


def test_eigenvectors_are_those_of_the_explicit_graph(graph):
    _, hasher, Z, A = graph
    Y = Z @ hasher.W_
    assert Y.shape == (90, 4)
    np.testing.assert_allclose(A @ Y, Y * hasher.eigenvalues_, atol=1e-9)
    np.testing.assert_allclose(Y.T @ Y, 90 * np.eye(4), atol=1e-7)
    np.testing.assert_allclose(Y.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose(hasher.eigenvalues_, np.linalg.eigvalsh(A)[::-1][1:5], atol=1e-10)


def test_first_bit_separates_the_two_components_of_a_graph():
    """Eigenvalue 1 occurs twice; the constant eigenvector is left out."""
    rng = np.random.default_rng(0)
    part = np.repeat([0, 1], [30, 50])
    X = rng.standard_normal((80, 3)) + 100 * part[:, None]
    hasher = AGH(n_bits=4, n_anchors=16, n_neighbors=2).fit(X)
    assert hasher.eigenvalues_[0] == pytest.approx(1)
    first = hasher.transform(X)[:, 0] >> 7
    assert (first == part).all() or (first != part).all()


@pytest.mark.parametrize("bad", [{"n_anchors": 1}, {"n_neighbors": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        AGH(**bad).fit(blobs[0])


def test_warns_of_more_anchors_than_rows(graph):
    with pytest.warns(UserWarning, match="n_anchors=300 is more than the 90 rows"):
        assert len(AGH(n_bits=4).fit(graph[0]).anchors_) <= 90
