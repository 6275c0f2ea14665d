"""DGH against a direct reading of its paper."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from dish import codes
from dish.baselines import dgh
from dish.baselines._anchorgraph import mass
from dish.baselines.dgh import DGH
from dish.baselines.lsh import LSH
from helpers.rivals import map_of


@pytest.mark.parametrize("repeated", [False, True])
def test_y_step_is_the_best_balanced_and_uncorrelated_matrix(repeated):
    rng = np.random.default_rng(0)
    B = np.where(rng.random((90, 5)) < 0.4, -1.0, 1.0)
    if repeated:
        B[:, 3], B[:, 4] = B[:, 0], 1.0
    Y = dgh.y_step(B, np.random.RandomState(0))
    np.testing.assert_allclose(Y.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose(Y.T @ Y, 90 * np.eye(5), atol=1e-7)
    # max tr(BᵀY) is √n times the sum of the singular values of JB
    assert (B * Y).sum() == pytest.approx(np.sqrt(90) * scipy.linalg.svdvals(B - B.mean(0)).sum())


def test_b_step_follows_the_signs_of_the_gradient_to_a_fixed_point(graph):
    _, _, Z, A = graph
    rng = np.random.default_rng(0)
    B = np.where(rng.random((90, 5)) < 0.5, -1.0, 1.0)
    Y, rho = dgh.y_step(B, np.random.RandomState(0)), 0.3

    def objective(B):
        return np.trace(B.T @ A @ B) + rho * (B * Y).sum()

    graph, values, expected = dgh.AnchorGraph(Z), [objective(B)], B
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
def test_objective_never_falls_and_belongs_to_the_codes(digits, init, r):
    """With 40 bits and 30 anchors, random columns complete the initial Y."""
    X = digits[0][:400]
    hasher = DGH(n_bits=r, n_anchors=30, init=init, rho=1.0, n_iter=6).fit(X)
    assert len(hasher.objective_) == hasher.n_iter_ + 1 >= 3
    assert (np.diff(hasher.objective_) >= -1e-9 * hasher.objective_[-1]).all()
    B = codes.unpack(hasher.codes_, r).astype(float)
    Z = hasher._weights(X)
    A = Z @ sp.diags_array(1 / mass(Z)) @ Z.T
    Y = dgh.y_step(B, np.random.RandomState(0))
    assert hasher.objective_[-1] == pytest.approx(np.trace(B.T @ (A @ B)) + (B * Y).sum(), rel=1e-9)
    # out of sample: b(x) = sgn(Σ A(x, i) b_i)
    np.testing.assert_allclose(hasher.decision_function(X), A @ B, atol=1e-5)


def test_larger_rho_balances_and_decorrelates_the_bits(digits):
    imbalance, correlation = [], []
    for rho in (0.0, 0.5, 5.0):
        B = codes.unpack(DGH(n_bits=48, n_anchors=100, rho=rho).fit(digits[0]).codes_, 48).astype(float)
        imbalance.append(np.abs(B.mean(0)).mean())
        correlation.append(np.abs(B.T @ B / len(B) - np.eye(48)).mean())
    assert imbalance[2] < 0.05 < imbalance[0]
    assert (np.diff(imbalance) < 0).all()
    assert (np.diff(correlation) < 0).all()


def test_rejects_as_many_bits_as_rows(graph):
    with pytest.raises(ValueError, match="n_bits=90"):
        DGH(n_bits=90, n_anchors=12).fit(graph[0])


@pytest.mark.parametrize("bad", [{"rho": -1}, {"init": "random"}, {"n_iter": -1}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        DGH(**bad).fit(blobs[0])


def test_ranks_better_than_lsh(digits):
    found = map_of(DGH(n_bits=16, n_anchors=100).fit(digits[0]), *digits)
    assert found > map_of(LSH(n_bits=16).fit(digits[0]), *digits) + 0.2
