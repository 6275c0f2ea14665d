"""Formulas of the methods that learn from rows alone, and of CCA-ITQ, against direct readings of their papers."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import torch
from sklearn.decomposition import PCA

from dish import codes, metrics, similarity
from dish.baselines import (
    AGH,
    CCAITQ,
    DGH,
    LSH,
    PCAITQ,
    SH,
    IsoH,
    MinHash,
    WhitenedITQ,
    isoh,
    itq,
    minhash,
    sh,
)
from dish.baselines._pca import principal

pytestmark = pytest.mark.slow


@pytest.fixture
def cloud():
    """200 rows with very different variances along 5 skew directions, in 7 features of which one is constant."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5)) * [5, 3, 2, 1, 0.5] @ rng.standard_normal((5, 7))
    X[:, 2] = 4.0
    return X


def score(hasher, X, y, Xq, yq):
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y)


# --- principal components ---


def test_principal_directions_are_scikit_learns(cloud):
    mean, W, variance = principal(cloud.astype(np.float32), 3)
    pca = PCA(3).fit(cloud)
    np.testing.assert_allclose(mean, cloud.mean(0), rtol=1e-5)
    np.testing.assert_allclose(np.abs(W.T @ pca.components_.T), np.eye(3), atol=1e-4)
    np.testing.assert_allclose(variance, pca.explained_variance_ * 199 / 200, rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions_without_variance_are_left_out(cloud, dtype):
    _, W, variance = principal(cloud.astype(dtype), 7)
    assert W.shape == (7, len(variance)) == (7, 5)
    with pytest.raises(ValueError, match="all alike"):
        principal(np.ones((9, 3), dtype), 2)


# --- ITQ ---


def test_rotation_is_the_best_angle_in_the_plane():
    """Two clusters pairs off the axes: no rotation of a fine scan quantises better."""
    rng = np.random.default_rng(0)
    V = rng.choice([-1.0, 1.0], (300, 2)) + 0.2 * rng.standard_normal((300, 2))
    V = V @ turn(0.6)
    R, loss = itq.rotation(torch.from_numpy(V), 2, 50, np.random.RandomState(0))

    def quantisation_loss(R):
        return ((np.where(V @ R >= 0, 1, -1) - V @ R) ** 2).sum()

    scan = min(quantisation_loss(turn(angle)) for angle in np.linspace(0, np.pi / 2, 2000))
    np.testing.assert_allclose(R @ R.T, np.eye(2), atol=1e-12)
    assert quantisation_loss(R) == pytest.approx(loss[-1])
    assert loss[-1] <= scan * (1 + 1e-9)
    assert loss[-1] == pytest.approx(scan, rel=1e-3)
    assert quantisation_loss(turn(0.2)) > 1.5 * scan  # the angle matters


def turn(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


@pytest.mark.parametrize("r", [3, 5, 11])
def test_itq_loss_never_rises_and_is_the_one_of_its_codes(cloud, r):
    """With r = 11 bits on rows of rank 5, R has orthonormal rows."""
    hasher = PCAITQ(n_bits=r, n_iter=30).fit(cloud)
    assert (np.diff(hasher.objective_) <= 1e-9 * hasher.objective_[0]).all()
    assert hasher.objective_[-1] < hasher.objective_[0]
    _, W, _ = principal(cloud, r)
    R = W.T @ hasher.W_  # (p, r)
    np.testing.assert_allclose(R @ R.T, np.eye(min(r, 5)), atol=1e-10)
    V = (cloud - cloud.mean(0)) @ W
    best = ((codes.unpack(hasher.transform(cloud), r) - V @ R) ** 2).sum()  # B-step of the last R
    before = PCAITQ(n_bits=r, n_iter=31).fit(cloud).objective_[-1]
    assert before <= best * (1 + 1e-9) <= hasher.objective_[-1] * (1 + 2e-9)


def test_itq_beats_no_rotation_and_random_directions(digits):
    found = score(PCAITQ(n_bits=32).fit(digits[0]), *digits)
    assert found > score(LSH(n_bits=32).fit(digits[0]), *digits) + 0.05
    assert found > score(PCAITQ(n_bits=32, n_iter=1).fit(digits[0]), *digits) + 0.01


# --- CCA-ITQ ---


def label_data(kind):
    rng = np.random.default_rng(3)
    if kind == "classes":
        y = rng.integers(0, 4, 150)
        Y = np.eye(4)[y]
    else:
        y = Y = (rng.random((150, 4)) < 0.4).astype(float)
    X = Y @ rng.standard_normal((4, 6)) + rng.standard_normal((150, 6))
    return X, y, Y


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_canonical_directions_solve_the_generalised_eigenproblem(kind):
    """C_xy (C_yy + ρI)⁻¹ C_yx w = λ² (C_xx + ρI) w with dense covariances."""
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
    scaled = w * np.sqrt(squared)  # the directions by their correlations; W_ is them times R, RRᵀ = I
    np.testing.assert_allclose(hasher.W_ @ hasher.W_.T, scaled @ scaled.T, atol=1e-9)
    assert (np.diff(hasher.objective_) <= 1e-9 * hasher.objective_[0]).all()


def test_with_little_ridge_the_correlations_are_real_ones():
    """λ is the correlation of the best pair of a projection of X and one of Y."""
    X, y, Y = label_data("classes")
    hasher = CCAITQ(n_bits=3, ridge=1e-9).fit(X, y)
    Q_x, Q_y = (scipy.linalg.orth(A - A.mean(0)) for A in (X, Y))
    np.testing.assert_allclose(hasher.correlations_, scipy.linalg.svdvals(Q_x.T @ Q_y)[:3], rtol=1e-6)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_cca_itq_learns_from_labels(digits, kernel):
    X, y, _, _ = digits
    hasher = CCAITQ(n_bits=32, kernel=kernel, n_anchors=200).fit(X, y)
    assert score(hasher, *digits) > 0.85
    with pytest.raises(ValueError, match="y is None"):
        CCAITQ().fit(X)
    with pytest.raises(ValueError, match="labels"):
        CCAITQ().fit(X[:50], similarity.LowRank(np.ones((50, 1)), np.ones((50, 1))))


# --- whitened ITQ ---


def test_rows_are_whitened_within_their_classes():
    """With W of full rank, (x − mean)W has WᵀS_wW + ρWᵀW = I: the definition, by loops over classes."""
    X, y, _ = label_data("classes")
    d = X.shape[1]
    hasher = WhitenedITQ(n_bits=d, shrinkage=0.5).fit(X, y)
    S_w = sum(np.cov(X[y == c].T, bias=True) * (y == c).mean() for c in np.unique(y))
    S_w += 0.5 * np.trace(S_w) / d * np.eye(d)
    np.testing.assert_allclose(hasher.W_.T @ S_w @ hasher.W_, np.eye(d), atol=1e-6)
    assert (np.diff(hasher.objective_) <= 1e-9 * hasher.objective_[0]).all()


def test_classes_never_seen_gain_from_whitening():
    """Noise of 12 shared directions hides what tells classes apart; half of the classes are not trained on."""
    rng = np.random.default_rng(0)
    centres = np.zeros((20, 24))
    centres[:, :12] = rng.standard_normal((20, 12))
    y = np.repeat(np.arange(20), 60)
    X = centres[y] + rng.standard_normal((1200, 24)) * np.r_[np.full(12, 0.3), np.full(12, 2.0)]
    seen, query = y < 10, (y >= 10) & (np.arange(1200) % 6 == 0)
    base = (y >= 10) & ~query

    def found(hasher):
        hasher.fit(X[seen], y[seen])
        return metrics.mean_average_precision(
            hasher.transform(X[query]), y[query], hasher.transform(X[base]), y[base]
        )

    assert found(WhitenedITQ(16, shrinkage=0.05)) > found(PCAITQ(16)) + 0.2


# --- SH ---


def test_smallest_modes_by_enumeration():
    side = np.array([7.0, 3.0, 2.9])
    omega, direction = sh.smallest_modes(side, 9)
    everything = sorted((k * np.pi / side[j], j) for j in range(3) for k in range(1, 30))
    np.testing.assert_allclose(omega, [w for w, _ in everything[:9]])
    np.testing.assert_array_equal(direction, [j for _, j in everything[:9]])


def test_bits_cut_a_box_along_its_longest_sides():
    """Box 4 × 3 × ½, uniform: halves of the long side, halves of the second, then quarters of the long side."""
    rng = np.random.default_rng(0)
    X = rng.random((6000, 3)) * [4, 3, 0.5]
    bits = codes.unpack(SH(n_bits=4).fit(X).transform(X), 4) > 0

    def same(bit, expected):
        share = (bit == expected).mean()
        return max(share, 1 - share)

    x, y = X[:, 0], X[:, 1]
    assert same(bits[:, 0], x < 2) > 0.97
    assert same(bits[:, 1], y < 1.5) > 0.97
    assert same(bits[:, 2], (x > 1) & (x < 3)) > 0.95  # cos(2πx/4)
    assert same(bits[:, 3], (y > 0.75) & (y < 2.25)) > 0.95


def test_eigenfunctions_are_one_at_the_corner_of_the_box(cloud):
    hasher = SH(n_bits=20).fit(cloud)
    V = (cloud - cloud.mean(0)) @ hasher.W_
    F = hasher.decision_function(cloud)
    for j, column in zip(hasher.direction_, F.T, strict=True):
        assert column[V[:, j].argmin()] == pytest.approx(1, abs=1e-6)
        assert abs(column[V[:, j].argmax()]) == pytest.approx(1, abs=1e-6)  # whole half-waves fit the side


# --- IsoH ---


@pytest.mark.parametrize("r", [1, 2, 5, 12])
def test_variances_are_equal(cloud, r):
    hasher = IsoH(n_bits=r, tol=1e-4, n_iter=3000).fit(cloud)
    _, W, variance = principal(cloud, r)
    F = hasher.decision_function(cloud).astype(float)
    np.testing.assert_allclose(F.var(axis=0), variance.sum() / r, rtol=1e-3)
    Q = W.T @ hasher.W_  # (p, r)
    np.testing.assert_allclose(Q @ Q.T, np.eye(len(variance)), atol=1e-9)
    assert (np.diff(hasher.objective_) <= 1e-12).all()


def test_lift_and_projection_keeps_the_eigenvalues():
    lam = np.array([9.0, 4.0, 1.0, 0.5, 0.0])
    Q, distance = isoh.equalise(lam, 5000, 1e-6, np.random.RandomState(0))
    M = (Q * lam) @ Q.T
    np.testing.assert_allclose(M.diagonal(), lam.mean(), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.eigvalsh(M)[::-1], lam, atol=1e-12)
    assert len(distance) < 5000


# --- MinHash ---


@pytest.mark.parametrize("neighbours", [False, True])
def test_share_of_equal_bits_is_half_of_one_plus_jaccard(neighbours):
    """20,000 bits: five standard deviations of the share are 0.0177. Neighbouring features are no exception."""
    n_bits = 20_000
    members = np.arange(200) if neighbours else np.random.default_rng(0).choice(1000, 200, replace=False)
    X = np.zeros((4, 1000))
    for row, (low, high) in enumerate([(0, 100), (50, 150), (20, 100), (100, 200)]):
        X[row, members[low:high]] = 1
    bits = np.unpackbits(MinHash(n_bits=n_bits).fit(X).transform(X), axis=1)
    sets = [set(np.flatnonzero(x)) for x in X]
    for a in range(4):
        for b in range(a):
            jaccard = len(sets[a] & sets[b]) / len(sets[a] | sets[b])
            assert (bits[a] == bits[b]).mean() == pytest.approx((1 + jaccard) / 2, abs=0.0177)
    assert np.abs(bits.mean(1) - 0.5).max() < 0.0177


def test_bits_are_of_the_minimum():
    """One set, with the polynomials evaluated in Python's own integers."""
    hasher = MinHash(n_bits=50, random_state=2).fit(np.zeros((1, 3000)))
    x = np.zeros((1, 3000))
    x[0, [3, 70, 2999]] = [0.5, 2, 1]
    expected = []
    for a, b, c, d in hasher.coefficients_.T.tolist():
        expected.append(min((a * i**3 + b * i**2 + c * i + d) % minhash.PRIME for i in (3, 70, 2999)) % 2)
    np.testing.assert_array_equal(np.unpackbits(hasher.transform(x), count=50), expected)


def test_sparse_rows_and_what_is_a_member():
    """Explicit zeros and negative values are no members; rows without members have all bits 0."""
    X = np.array([[0, 1.5, 0, 2], [0, 1, -3, 1], [0, 0, 0, 0], [-1, 0, 0, 0], [1, 1, 0, 1]])
    sparse = sp.csr_matrix(([1.5, 2, 0.0], [1, 3, 0], [0, 3]), shape=(1, 4))
    hasher = MinHash(n_bits=32).fit(X)
    packed = hasher.transform(X)
    np.testing.assert_array_equal(packed[0], packed[1])
    np.testing.assert_array_equal(packed[2:4], 0)
    assert (packed[4] != packed[0]).any()
    np.testing.assert_array_equal(hasher.transform(sp.csr_array(X)), packed)
    np.testing.assert_array_equal(MinHash(n_bits=32).fit(sp.csc_matrix(X)).transform(sparse), packed[:1])
    assert set(np.unique(hasher.decision_function(X))) == {-1.0, 1.0}


# --- all of them ---


@pytest.mark.parametrize("kind", [SH, IsoH, PCAITQ, CCAITQ])
def test_rows_that_are_all_alike_are_refused(kind):
    with pytest.raises(ValueError, match="all alike"):
        kind(n_bits=4).fit(np.full((20, 3), 0.1, np.float32), np.arange(20) % 2)


@pytest.mark.parametrize(
    ("hasher", "name"),
    [
        (PCAITQ(n_iter=0), "n_iter"),
        (CCAITQ(ridge=0), "ridge"),
        (CCAITQ(kernel="poly"), "kernel"),
        (IsoH(tol=-1), "tol"),
        (IsoH(n_iter=0), "n_iter"),
        (AGH(n_anchors=1), "n_anchors"),
        (AGH(n_neighbors=0), "n_neighbors"),
        (DGH(rho=-1), "rho"),
        (DGH(init="random"), "init"),
        (DGH(n_iter=-1), "n_iter"),
    ],
)
def test_bad_parameters_are_named(digits, hasher, name):
    with pytest.raises(ValueError, match=name):
        hasher.fit(digits[0][:100], digits[1][:100])
