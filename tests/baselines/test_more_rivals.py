"""HC-SDH, FSSH, logistic regression, signs and rotated principal components against explicit formulas."""

import itertools

import numpy as np
import pytest
import torch

from dish import codes, metrics
from dish.baselines import FSSH, HCSDH, PCARR, REGISTRY, CentredSign, LogisticClass, LogisticLSH, fssh
from dish.baselines._hadamard import codewords
from dish.similarity import from_labels

SUPERVISED = ("hc_sdh", "fssh", "logistic_class", "logistic_lsh")


# --- Hadamard codewords ---


@pytest.mark.parametrize(("n", "r"), [(10, 64), (64, 64), (16, 16), (2, 4)])
def test_whole_rows_differ_in_half_of_the_bits(n, r):
    C = codewords(n, r, np.random.RandomState(0))
    assert C.shape == (n, r)
    np.testing.assert_array_equal(C @ C.T, r * np.eye(n))


@pytest.mark.parametrize(("n", "r"), [(200, 32), (200, 64), (1000, 128), (3, 2), (5, 3), (1, 1)])
def test_fewer_columns_keep_codewords_apart(n, r):
    C = codewords(n, r, np.random.RandomState(0))
    assert set(np.unique(C)) <= {-1.0, 1.0}
    distance = (r - C @ C.T) / 2
    distance[np.diag_indices(n)] = r
    drawn = np.random.RandomState(1).choice([-1.0, 1.0], (n, r))
    random = (r - drawn @ drawn.T) / 2
    random[np.diag_indices(n)] = r
    assert distance.min() >= max(1, random.min())  # distinct, and no nearer than random ones


# --- HC-SDH ---


def test_hc_sdh_is_ridge_regression_on_the_codewords(blobs):
    X, y = blobs
    hasher = HCSDH(n_bits=8, n_anchors=30, ridge=1e-3).fit(X, y)
    B = codes.unpack(hasher.codes_, 8).astype(float)
    words = np.stack([B[y == c][0] for c in range(3)])
    assert all((B[y == c] == words[c]).all() for c in range(3))
    np.testing.assert_array_equal(words @ words.T, 8 * np.eye(3))
    K = hasher._features()(torch.from_numpy(X)).numpy()
    rho = 1e-3 * np.square(K).sum(0).mean()
    P = np.linalg.solve(K.T @ K + rho * np.eye(30), K.T @ B)
    np.testing.assert_allclose(hasher.decision_function(X), K @ P + B.mean(0), atol=1e-4)


def test_no_codewords_have_a_lower_sdh_objective_than_hadamard_ones():
    """Equal classes, ν = 0, against all codewords of four bits for three classes."""
    y, lam = np.repeat([0, 1, 2], 5), 1.0
    Y = np.eye(3)[y]

    def objective(C):
        B = C[y]
        W = np.linalg.solve(B.T @ B + lam * np.eye(4), B.T @ Y)
        return np.square(Y - B @ W).sum() + lam * np.square(W).sum()

    every = (np.reshape(bits, (3, 4)) for bits in itertools.product((-1.0, 1.0), repeat=12))
    found = objective(codewords(3, 4, np.random.RandomState(0)))
    assert found == pytest.approx(min(map(objective, every)))


def test_several_labels_get_the_majority_of_their_codewords(blobs):
    X, y = blobs
    Y = np.eye(3, dtype=int)[y]
    Y[:5] = 1
    hasher = HCSDH(n_bits=8, n_anchors=30).fit(X, Y)
    B = codes.unpack(hasher.codes_, 8)
    words = np.stack([B[5:][y[5:] == c][0] for c in range(3)])
    np.testing.assert_array_equal(B[0], np.sign(words.sum(0)))


# --- FSSH ---


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    Y = np.eye(3)[rng.integers(3, size=40)]
    Y[:4, 1] = 1
    K = rng.standard_normal((40, 5))
    K -= K.mean(0)
    return K, Y, rng.standard_normal((5, 4)), rng.standard_normal((3, 4)), rng.choice([-1.0, 1.0], (40, 4))


def fssh_objective(K, Y, W, G, B, mu, theta):
    S = 2 * Y @ Y.T - 1
    fit = np.square(B.shape[1] * S - (K @ W) @ (Y @ G).T).sum()
    return fit + mu * np.square(B - Y @ G).sum() + theta * np.square(B - K @ W).sum()


def test_fssh_steps_are_the_minima_of_its_objective(small):
    """With S = 2YYᵀ − 1 whole: no small change of G or W, and no flip of B, lowers it."""
    K, Y, W, G, B = small
    mu, theta = 7.0, 3.0
    S = from_labels(Y.astype(int))
    K_t, B_t = torch.from_numpy(K), torch.from_numpy(B)
    KtK = K_t.T @ K_t
    sums = fssh.Sums.of(K_t, S, KtK, 4)
    rng = np.random.default_rng(1)

    G = sums.g_step(torch.from_numpy(W), fssh.YtB(S, B_t), mu).numpy()
    least = fssh_objective(K, Y, W, G, B, mu, theta)
    for _ in range(20):
        assert least < fssh_objective(K, Y, W, G + 0.05 * rng.standard_normal(G.shape), B, mu, theta)
    W = torch.linalg.solve(KtK, sums.w_step(torch.from_numpy(G), fssh.KtB(K_t, B_t), theta)).numpy()
    least = fssh_objective(K, Y, W, G, B, mu, theta)
    for _ in range(20):
        assert least < fssh_objective(K, Y, W + 0.05 * rng.standard_normal(W.shape), G, B, mu, theta)
    YG = sums.Y_g @ torch.from_numpy(G)
    flips = fssh.b_step(B_t, K_t, torch.from_numpy(W), YG, S, mu, theta)  # B is B_t: in place
    np.testing.assert_array_equal(B, np.where(mu * Y @ G + theta * K @ W >= 0, 1, -1))
    assert flips > 0
    assert fssh_objective(K, Y, W, G, B, mu, theta) < least


# --- logistic regression ---


def test_the_code_of_a_class_is_its_codeword(digits):
    X, y, Xq, yq = digits
    hasher = LogisticClass(n_bits=16, n_anchors=100).fit(X[:600], y[:600])
    p = hasher.label_probabilities(Xq)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(hasher.codewords_ @ hasher.codewords_.T, 16 * np.eye(10))
    best = p.argmax(1)
    np.testing.assert_allclose(hasher.decision_function(Xq), p.max(1)[:, None] * hasher.codewords_[best], atol=1e-6)
    assert (best == yq).mean() > 0.9
    distance = metrics.histograms(hasher.transform(Xq), yq, hasher.transform(X), y, 16).all_
    assert (distance[:, [0, 8]].sum(1) == len(X)).all()  # the same class, or half of the bits


def test_lsh_of_probabilities_is_the_sign_of_centred_projections(digits):
    X, y, Xq, _ = digits
    hasher = LogisticLSH(n_bits=16, n_anchors=100).fit(X[:600], y[:600])
    p, p_train = hasher.label_probabilities(Xq), hasher.label_probabilities(X[:600])
    expected = (p - p_train.mean(0)) @ hasher.frame_
    np.testing.assert_allclose(hasher.decision_function(Xq), expected, atol=1e-4)
    assert np.abs(hasher.frame_.mean()) < 0.3
    assert hasher.frame_.std() == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("kernel", ["auto", "rbf"])
def test_its_features_and_its_regression_are_those_of_dish(digits, kernel):
    """The same anchors and scale for the same seed; both tell the classes of new rows apart equally well."""
    from dish import DISH

    X, y, Xq, yq = digits
    rival, ours = (kind(8, n_anchors=100, kernel=kernel).fit(X[:600], y[:600]) for kind in (LogisticLSH, DISH))
    for name in ("anchors_", "mean_", "gamma_"):
        np.testing.assert_array_equal(getattr(rival, name), getattr(ours, name))
    right = [(hasher.label_probabilities(Xq).argmax(1) == yq).mean() for hasher in (rival, ours)]
    assert right[0] == pytest.approx(right[1], abs=0.02)


# --- signs and rotations ---


def test_signs_of_the_features_that_vary_most():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3)) * [1, 5, 2] + 7
    F = CentredSign(n_bits=5).fit(X).decision_function(X)
    np.testing.assert_allclose(F, (X - X.mean(0))[:, [1, 2, 0, 1, 2]], rtol=1e-5)


@pytest.mark.parametrize("r", [4, 9])
def test_a_random_rotation_keeps_distances_of_principal_components(r):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 6)) * np.arange(1, 7)
    F = PCARR(n_bits=r).fit(X).decision_function(X).astype(float)
    U, s, _ = np.linalg.svd(X - X.mean(0), full_matrices=False)
    V = (U * s)[:, : min(r, 6)]
    np.testing.assert_allclose(F @ F.T, V @ V.T, atol=1e-3)
    other = PCARR(n_bits=r, random_state=1).fit(X).decision_function(X)
    assert np.abs(F - other).max() > 0.1


# --- all of them ---


@pytest.mark.parametrize("name", SUPERVISED)
def test_separable_groups_are_told_apart(name, blobs):
    X, y = blobs
    for labels in (y, np.eye(3, dtype=int)[y]):
        packed = REGISTRY[name](n_bits=16, n_anchors=60).fit(X, labels).transform(X)
        assert metrics.mean_average_precision(packed, y, packed, y) > 0.95


@pytest.mark.parametrize("name", SUPERVISED)
def test_labels_are_needed(name, blobs):
    with pytest.raises(ValueError, match="requires y"):
        REGISTRY[name](n_anchors=60).fit(blobs[0])


@pytest.mark.parametrize("bad", [{"mu": 0}, {"theta": -1}, {"n_iter": 0}])
def test_bad_parameters_are_named(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FSSH(n_anchors=60, **bad).fit(*blobs)
