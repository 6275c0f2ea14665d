"""CCA-ITQ against dense covariances."""

import numpy as np
import pytest
import scipy.linalg

from dish import similarity
from dish.baselines.cca_itq import CCAITQ
from helpers.rivals import label_data, map_of


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_canonical_directions_solve_the_generalised_eigenproblem(kind):
    """C_xy (C_yy + ρI)⁻¹ C_yx w = λ² (C_xx + ρI) w."""
    X, y, Y = label_data(kind)
    ridge, p = 0.1, 3 if kind == "classes" else 4
    hasher = CCAITQ(n_bits=5, ridge=ridge).fit(X, y)
    Xc, Yc = X - X.mean(0), Y - Y.mean(0)
    C_xx, C_xy, C_yy = Xc.T @ Xc / 150, Xc.T @ Yc / 150, Yc.T @ Yc / 150
    C_xx += ridge * C_xx.diagonal().mean() * np.eye(6)
    C_yy += ridge * C_yy.diagonal().mean() * np.eye(4)
    squared, w = scipy.linalg.eigh(C_xy @ np.linalg.solve(C_yy, C_xy.T), C_xx)
    squared, w = squared[::-1][:p], w[:, ::-1][:, :p]
    np.testing.assert_allclose(hasher.correlations_, np.sqrt(squared), rtol=1e-9)
    scaled = w * np.sqrt(squared)  # W = scaled R with RRᵀ = I
    W = hasher.hash_function_.W
    np.testing.assert_allclose(W @ W.T, scaled @ scaled.T, atol=1e-9)
    assert (np.diff(hasher.objective_) <= 1e-9 * hasher.objective_[0]).all()


def test_correlations_without_ridge_are_canonical_correlations():
    X, y, Y = label_data("classes")
    hasher = CCAITQ(n_bits=3, ridge=1e-9).fit(X, y)
    Q_x, Q_y = (scipy.linalg.orth(A - A.mean(0)) for A in (X, Y))
    np.testing.assert_allclose(hasher.correlations_, scipy.linalg.svdvals(Q_x.T @ Q_y)[:3], rtol=1e-6)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_ranks_digits_well(digits, kernel):
    X, y, _, _ = digits
    hasher = CCAITQ(n_bits=32, kernel=kernel, n_anchors=200).fit(X, y)
    assert map_of(hasher, *digits) > 0.85


def test_rejects_a_similarity_without_labels(blobs):
    with pytest.raises(ValueError, match="labels"):
        CCAITQ().fit(blobs[0], similarity.LowRank(np.ones((120, 1)), np.ones((120, 1))))


def test_rejects_rows_that_are_all_equal():
    with pytest.raises(ValueError, match="all rows are equal"):
        CCAITQ(n_bits=4).fit(np.full((20, 3), 0.1, np.float32), np.arange(20) % 2)


@pytest.mark.parametrize("bad", [{"ridge": 0}, {"kernel": "poly"}, {"n_iter": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        CCAITQ(n_anchors=60, **bad).fit(*blobs)
