"""Formulas of AGH and DGH, which cut a graph of rows and anchors, against direct readings of their papers."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from dish import codes, metrics
from dish.baselines import AGH, DGH, LSH, _anchorgraph, dgh

pytestmark = pytest.mark.slow


def score(hasher, X, y, Xq, yq):
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y)


@pytest.fixture(scope="module")
def graph():
    """Rows, a fitted two-layer AGH, its Z and the explicit A (n, n)."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((90, 4)) + 2 * np.repeat(np.eye(3, 4), 30, axis=0)
    hasher = AGH(n_bits=7, n_anchors=12, n_neighbors=3).fit(X)
    Z = hasher._weights(X)
    dense = Z.toarray()
    return X, hasher, Z, dense @ np.diag(1 / dense.sum(0)) @ dense.T


def test_weights_of_the_nearest_anchors(graph):
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


def test_eigenvectors_of_the_explicit_graph(graph):
    _, hasher, Z, A = graph
    Y = Z @ hasher.W_
    assert Y.shape == (90, 4)
    np.testing.assert_allclose(A @ Y, Y * hasher.eigenvalues_, atol=1e-9)
    np.testing.assert_allclose(Y.T @ Y, 90 * np.eye(4), atol=1e-7)
    np.testing.assert_allclose(Y.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose(hasher.eigenvalues_, np.linalg.eigvalsh(A)[::-1][1:5], atol=1e-10)


def test_thresholds_minimise_the_two_layer_objective(graph):
    """ȳᵀLȳ over b⁺ by a scan, with b⁻ given by 1ᵀȳ = 0 and the explicit L = I − A."""
    _, hasher, Z, A = graph
    Y = Z @ hasher.W_
    for y, upper, lower in zip(Y.T, hasher.upper_, hasher.lower_, strict=False):
        above = y >= 0

        def objective(b, y=y, above=above):
            b_below = (b * above.sum() - np.abs(y).sum()) / (~above).sum()  # 1ᵀȳ = 0
            y_bar = np.where(above, y - b, b_below - y)
            return y_bar @ y_bar - y_bar @ A @ y_bar, b_below

        value, b_below = objective(upper)
        assert b_below == pytest.approx(lower)
        assert value <= min(objective(b)[0] for b in np.linspace(upper - 3, upper + 3, 4001)) + 1e-12
    assert len(hasher.upper_) == 3  # 7 bits: the fourth eigenvector is cut once


def test_agh_bits_are_the_two_layers(graph):
    X, hasher, Z, _ = graph
    Y = Z @ hasher.W_
    bits = codes.unpack(hasher.transform(X), 7)
    np.testing.assert_array_equal(bits[:, :4], np.where(Y >= 0, 1, -1))
    for k in range(3):
        second = [np.sign(v - hasher.upper_[k]) if v >= 0 else np.sign(hasher.lower_[k] - v) for v in Y[:, k]]
        np.testing.assert_array_equal(bits[:, 4 + k], second)


def test_more_bits_than_the_graph_has_are_refused(graph):
    with pytest.raises(ValueError, match=r"n_bits=40 needs 20 eigenvectors.*n_bits can be at most 22"):
        AGH(n_bits=40, n_anchors=12).fit(graph[0])
    with pytest.warns(UserWarning, match="n_anchors=300 is more than the 90 rows"):
        assert len(AGH(n_bits=4).fit(graph[0]).anchors_) <= 90


def test_a_graph_in_two_parts_gives_the_parts():
    """Eigenvalue 1 twice: the constant vector is left out, the cut between the parts is the first bit."""
    rng = np.random.default_rng(0)
    part = np.repeat([0, 1], [30, 50])
    X = rng.standard_normal((80, 3)) + 100 * part[:, None]
    hasher = AGH(n_bits=4, n_anchors=16, n_neighbors=2).fit(X)
    assert hasher.eigenvalues_[0] == pytest.approx(1)
    first = hasher.transform(X)[:, 0] >> 7
    assert (first == part).all() or (first != part).all()


# --- DGH ---


@pytest.mark.parametrize("repeated", [False, True])
def test_y_step_is_balanced_uncorrelated_and_the_best(repeated):
    rng = np.random.default_rng(0)
    B = np.where(rng.random((90, 5)) < 0.4, -1.0, 1.0)
    if repeated:
        B[:, 3], B[:, 4] = B[:, 0], 1.0
    Y = dgh.y_step(B, np.random.RandomState(0))
    np.testing.assert_allclose(Y.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose(Y.T @ Y, 90 * np.eye(5), atol=1e-7)
    # max tr(BᵀY) is √n times the sum of the singular values of JB
    assert (B * Y).sum() == pytest.approx(np.sqrt(90) * scipy.linalg.svdvals(B - B.mean(0)).sum())


def test_b_step_is_the_signs_of_the_gradient_and_rises_to_a_fixed_point(graph):
    _, _, Z, A = graph
    rng = np.random.default_rng(0)
    B = np.where(rng.random((90, 5)) < 0.5, -1.0, 1.0)
    Y, rho = dgh.y_step(B, np.random.RandomState(0)), 0.3

    def objective(B):
        return np.trace(B.T @ A @ B) + rho * (B * Y).sum()

    graph, values, expected = dgh.Graph(Z), [objective(B)], B
    for most in range(1, 6):
        expected = np.sign(2 * A @ expected + rho * Y)
        found = dgh.b_step(graph, B, Y, rho, most)
        np.testing.assert_array_equal(found, expected)
        assert graph.quadratic(found) == pytest.approx(np.trace(found.T @ A @ found))
        values.append(objective(found))
    assert values[1] > values[0]
    assert (np.diff(values) >= -1e-9).all()
    end = dgh.b_step(graph, B, Y, rho, 300)
    np.testing.assert_array_equal(end, np.sign(2 * A @ end + rho * Y))


@pytest.mark.parametrize("init", ["rotated", "spectral"])
@pytest.mark.parametrize("r", [6, 40])
def test_dgh_objective_never_falls_and_is_the_one_of_its_codes(digits, init, r):
    """With 40 bits on 30 anchors, random columns fill the first Y up."""
    X = digits[0][:400]
    hasher = DGH(n_bits=r, n_anchors=30, init=init, rho=1.0, n_iter=6).fit(X)
    assert len(hasher.objective_) == hasher.n_iter_ + 1 >= 3
    assert (np.diff(hasher.objective_) >= -1e-9 * hasher.objective_[-1]).all()
    B = codes.unpack(hasher.codes_, r).astype(float)
    Z = hasher._weights(X)
    A = Z @ sp.diags_array(1 / _anchorgraph.mass(Z)) @ Z.T
    Y = dgh.y_step(B, np.random.RandomState(0))
    assert hasher.objective_[-1] == pytest.approx(np.trace(B.T @ (A @ B)) + (B * Y).sum(), rel=1e-9)
    # a new row gets the vote of its neighbours, b(x) = sgn(Σ A(x, i) b_i)
    np.testing.assert_allclose(hasher.decision_function(X), A @ B, atol=1e-5)


def test_rho_balances_and_decorrelates_the_bits(digits):
    imbalance, correlation = [], []
    for rho in (0.0, 0.5, 5.0):
        B = codes.unpack(DGH(n_bits=48, n_anchors=100, rho=rho).fit(digits[0]).codes_, 48).astype(float)
        imbalance.append(np.abs(B.mean(0)).mean())
        correlation.append(np.abs(B.T @ B / len(B) - np.eye(48)).mean())
    assert imbalance[2] < 0.05 < imbalance[0]
    assert (np.diff(imbalance) < 0).all()
    assert (np.diff(correlation) < 0).all()


def test_dgh_needs_more_rows_than_bits(graph):
    with pytest.raises(ValueError, match="n_bits=90"):
        DGH(n_bits=90, n_anchors=12).fit(graph[0])


@pytest.mark.parametrize("kind", [AGH, DGH])
def test_graph_methods_beat_random_directions(digits, kind):
    found = score(kind(n_bits=16, n_anchors=100).fit(digits[0]), *digits)
    assert found > score(LSH(n_bits=16).fit(digits[0]), *digits) + 0.2
