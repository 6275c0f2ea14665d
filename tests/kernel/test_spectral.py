"""The spectral start against plain eigenproblems."""

import numpy as np
import pytest
import scipy.linalg
import torch

from dish import codes
from dish.encoder import FeatureMap
from dish.errors import InputError
from dish.io.rows import RowSource
from dish.kernel import features, spectral
from dish.kernel.fit_data import FitData
from dish.similarity import LowRank, from_labels
from helpers.similarities import KINDS

RNG = np.random.default_rng(5)
CPU = torch.device("cpu")


def rbf_features(X, m, gamma):
    X = torch.from_numpy(X)
    return features.compute_features(FeatureMap("rbf", X[:m], gamma, X[:m].mean(0)), RowSource(X), CPU)[1]


def reference_start(K, dense_S, group, r, rho, factor=None):
    """r plain generalised eigenproblems, each with the codes of the bits before it.

    Codes are the signs of F, or of the mean F of a row's group. ``factor`` of S: r, if not given.
    """
    n, m = K.shape
    H, W = np.zeros((n, 0)), []
    for _ in range(r):
        M = K.T @ ((factor or r) * dense_S - H @ H.T) @ K
        values, vectors = scipy.linalg.eigh((M + M.T) / 2, K.T @ K + rho * np.eye(m))
        assert values[-1] > 0  # the leading eigenvector is well defined
        assert values[-1] - values[-2] > 1e-6 * abs(values[-1])
        w = np.sqrt(n) * vectors[:, -1]
        W.append(w)
        F = K @ w if group is None else np.bincount(group, K @ w)[group]
        H = np.column_stack([H, np.where(F >= 0, 1, -1)])
    return np.stack(W, 1), H


@pytest.mark.parametrize("r", [1, 6])
@pytest.mark.parametrize("kind", ["classes", "counts", "share_one", "low_rank"])
def test_the_spectral_start_solves_r_generalised_eigenproblems(kind, r):
    n, m = 300, 20
    rng = np.random.default_rng(2)
    y = rng.integers(0, 7, n)
    X = rng.standard_normal((n, 10)) + 1.5 * rng.standard_normal((7, 10))[y]
    Y = (rng.random((n, 5)) < 0.3).astype(float)
    S = {
        "classes": lambda: from_labels(y),
        "counts": lambda: from_labels(Y),
        "share_one": lambda: from_labels(Y, multilabel="share_one"),
        "low_rank": lambda: LowRank(X, X),
    }[kind]()
    K = rbf_features(X, m, 0.05)
    data = FitData.of(S, K)
    W, packed = spectral.spectral_start(data, r)
    group = S.row_group.numpy() if kind == "classes" else None
    check_start(K, W, packed, *reference_start(K.numpy(), S.dense(), group, r, data.white.rho))


def check_start(K, W, packed, expected, H):
    """W and the codes are those of the reference, up to the sign of a bit."""
    n, r = H.shape
    F, G = K.numpy() @ W.numpy(), K.numpy() @ expected
    assert (abs((codes.unpack(packed, r) * H).sum(0)) == n).all()  # the same bits, up to the sign of a bit
    for k in range(r):
        sign = np.sign(F[:, k] @ G[:, k])
        np.testing.assert_allclose(sign * F[:, k], G[:, k], atol=1e-5 * np.abs(G).max())
        assert (F[:, k] ** 2).sum() == pytest.approx(n, rel=1e-3)  # the constraint, up to rho


def rows_of_classes(n=300, n_classes=4):
    """Rows (n, 10) and their classes."""
    rng = np.random.default_rng(2)
    y = rng.integers(0, n_classes, n)
    return rng.standard_normal((n, 10)) + rng.standard_normal((n_classes, 10))[y], y


def literal_data(K, y, ridge=1e-6):
    data = FitData.of(from_labels(y), torch.zeros(len(y), 1), ridge)
    data.K = K
    return data


@pytest.mark.parametrize("memory", ["all rows", "a block at a time"])
@pytest.mark.parametrize("ridge", [0.0, 1e-6])
def test_the_literal_start_is_that_of_the_paper(ridge, memory, monkeypatch):
    """Eq. 22 and 23: S without r, signs row by row; with more bits than S has positive directions."""
    X, y = rows_of_classes()
    made = FeatureMap("rbf", torch.from_numpy(X[:20]), 0.05, torch.from_numpy(X[:20].mean(0)))
    monkeypatch.setattr(features, "ROWS_IN_CACHE", 8)  # several blocks
    budget = None if memory == "all rows" else 1
    whole, K = (features.compute_features(made, RowSource(X), CPU, size)[1] for size in (None, budget))
    assert isinstance(K, torch.Tensor) == (budget is None)
    W, packed = spectral.spectral_start(literal_data(K, y, ridge), 8, literal=True)
    rho = ridge * float((whole**2).sum()) / 20
    check_start(whole, W, packed, *reference_start(whole.numpy(), from_labels(y).dense(), None, 8, rho, factor=1))


def test_the_literal_start_keeps_all_directions_of_the_labels(monkeypatch):
    monkeypatch.setattr(spectral, "LEADING", 2)
    X, y = rows_of_classes(n_classes=9)
    data = FitData.of(from_labels(y), rbf_features(X, 20, 0.05))
    relaxed = spectral.Relaxation(data, 1, literal=True)
    assert relaxed.p == 8  # nine classes, and the features are centred
    assert spectral.Relaxation(data, 1).p == 2


def test_the_codes_of_a_similarity_without_classes_are_the_signs_of_F():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 6))
    K = rbf_features(X, 30, 0.1)
    S = LowRank(X, X)
    W, packed = spectral.spectral_start(FitData.of(S, K), 3)
    np.testing.assert_array_equal(packed, np.packbits((K @ W).numpy() >= 0, axis=1))
    assert np.linalg.norm(codes.unpack(packed, 3).T @ X) > 1000  # and follow S


def test_lanczos_and_eigh_find_the_same_eigenvector():
    A = RNG.standard_normal((300, 300))
    T = A + A.T
    x = spectral.leading_eigenvector(T)
    np.testing.assert_allclose(T @ x, np.linalg.eigvalsh(T)[-1] * x, atol=1e-6)


def test_a_sampled_start_is_close_to_the_exact_one(digits, monkeypatch):
    X, y, _, _ = digits
    K = rbf_features(X, 50, 1e-3)
    S = from_labels(y)

    def by_rows():
        data = FitData.of(S, K)
        return spectral._start_by_rows(spectral.Relaxation(data, 4), data, 4)

    exact = by_rows()
    monkeypatch.setattr(spectral, "START_ROWS", 800)
    sampled = by_rows()
    agree = ((K @ exact >= 0) == (K @ sampled >= 0)).double().mean(0)
    assert (agree.numpy() > 0.9).all()
    assert not torch.equal(exact, sampled)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_product_with_signs_in_threads_and_without(dtype, monkeypatch):
    K, w = RNG.standard_normal((500, 33)).astype(dtype), RNG.standard_normal(33).astype(dtype)
    expected = K.T @ np.where(K @ w >= 0, 1, -1)
    tolerance = 2e-4 if dtype == np.float32 else 1e-10
    for forked in (False, True):  # a forked process has lost its threads
        monkeypatch.setattr(spectral, "lost_threads", lambda forked=forked: forked)
        found = spectral.signs_product(torch.from_numpy(K), torch.from_numpy(w))
        np.testing.assert_allclose(found, expected, atol=tolerance)


def test_every_similarity_kind_gives_a_start():
    for S, _ in KINDS.values():
        K = torch.from_numpy(RNG.standard_normal((12, 4)))
        W, _ = spectral.spectral_start(FitData.of(S, K), 9)
        assert W.shape == (4, 9)
        assert torch.isfinite(W).all()


# --- Initial codes that are not spectral ---


def test_random_codes_are_balanced_and_the_seed_decides():
    data = [FitData.of(LowRank(np.eye(7), np.eye(7)), torch.zeros(7, 2), seed=seed) for seed in (0, 0, 1)]
    first, again, other = (spectral.first_codes(each, "random", 10) for each in data)
    np.testing.assert_array_equal(codes.unpack(first, 10).sum(0), 1)  # of 7 rows 4 are +1
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_given_codes_are_checked():
    data = FitData.of(LowRank(np.eye(7), np.eye(7)), torch.zeros(7, 2))
    given = np.full((7, 2), 255, np.uint8)
    np.testing.assert_array_equal(spectral.first_codes(data, given, 9), [[255, 128]] * 7)  # unused bits are cleared
    assert (given == 255).all()
    with pytest.raises(InputError, match="init has 5 codes, but X has 7 rows"):
        spectral.first_codes(data, given[:5], 9)
    with pytest.raises(InputError, match="init"):
        spectral.first_codes(data, given, 20)


# --- What a GPU does without waiting for the host, on tensors of the CPU ---


@pytest.mark.parametrize("n_classes", [12, 130])
def test_the_start_by_classes_on_a_device_has_the_same_bits(n_classes):
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, 3000)
    K = torch.from_numpy(rng.standard_normal((n_classes, 40))[y] + rng.standard_normal((3000, 40)))
    data = FitData.of(from_labels(y), K)
    X, H = spectral._start_by_classes(spectral.Relaxation(data, 8), 8)
    X_device, H_device = spectral._start_by_classes_on_device(spectral.Relaxation(data, 8), 8)
    np.testing.assert_array_equal(H, H_device)
    np.testing.assert_allclose(X, X_device, atol=1e-3 * X.abs().max())


@pytest.mark.parametrize("literal", [False, True])
def test_the_start_by_rows_on_a_device_has_the_same_weights(literal):
    rng = np.random.default_rng(0)
    Y = (rng.random((2000, 9)) < 0.2).astype(int)
    K = torch.from_numpy(Y @ rng.standard_normal((9, 30)) + rng.standard_normal((2000, 30)))
    data = FitData.of(from_labels(Y), K - K.mean(0))
    W = spectral._start_by_rows(spectral.Relaxation(data, 8, literal), data, 8, literal)
    product = spectral.SignsProduct.of(data, literal)
    found = spectral._start_by_rows_on_device(spectral.Relaxation(data, 8, literal), product, 8)
    np.testing.assert_allclose(found, W, atol=1e-3 * W.abs().max())


def test_a_pass_over_rows_on_disk_is_not_recorded(monkeypatch):
    """Reading a file cannot be part of a CUDA graph; the result is that of rows in memory."""
    X, y = rows_of_classes()
    made, rows = FeatureMap("linear", torch.zeros(0, 10).double(), 1.0, torch.zeros(10).double()), RowSource(X)
    starts = []
    for budget in (None, 1):
        data = literal_data(features.compute_features(made, rows, CPU, budget)[1], y)
        product = spectral.SignsProduct.of(data, literal=True)
        starts.append(spectral._start_by_rows_on_device(spectral.Relaxation(data, 5, literal=True), product, 5))
        monkeypatch.setattr(spectral.CudaGraph, "__call__", None)
    np.testing.assert_allclose(starts[1], starts[0], atol=1e-9)


def test_a_bit_inside_the_basis_does_not_extend_it():
    rng = np.random.default_rng(0)
    B = np.linalg.qr(rng.standard_normal((6, 3)))[0].T
    T = np.diag([3.0, 2.0, 1.0])
    bits = spectral.DeviceRelaxation(np.vstack([B, np.zeros((2, 6))]), np.pad(T, (0, 2)), 3, 4, CPU)
    np.testing.assert_allclose(abs(bits.best()), abs(2 * B[0]), atol=1e-9)
    bits.deflate(torch.from_numpy(B[0] + B[1]))
    assert not bits.Bt[3].any()
    bits.deflate(torch.from_numpy(rng.standard_normal(6)))
    np.testing.assert_allclose(bits.Bt[[0, 1, 2, 4]] @ bits.Bt[[0, 1, 2, 4]].T, np.eye(4), atol=1e-12)
    expected = bits.Bt.T @ torch.linalg.eigh(bits.T)[1][:, -1]
    np.testing.assert_allclose(abs(bits.best()), abs(2 * expected), atol=1e-9)


def test_squaring_finds_the_leading_eigenvector():
    A = RNG.standard_normal((30, 30))
    T = torch.from_numpy(A + A.T)
    x = spectral.eigenvector_by_squaring(T, torch.cos(torch.arange(30.0).double()) + 2)
    np.testing.assert_allclose(T @ x, torch.linalg.eigvalsh(T)[-1] * x, atol=1e-6)


@pytest.mark.parametrize("shape", [(100, 16), (16, 100), (24, 24), (5, 1)])
def test_the_polar_factor_is_that_of_the_singular_values(shape):
    rng = np.random.default_rng(0)
    V = rng.standard_normal(shape) * np.logspace(0, -2, shape[1])
    left, _, right = np.linalg.svd(V, full_matrices=False)
    np.testing.assert_allclose(spectral.polar_factor(torch.from_numpy(V)), left @ right, atol=1e-9)


def test_the_polar_factor_of_a_singular_matrix_is_singular():
    V = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 3)) @ np.ones((3, 6)))
    found = torch.linalg.svdvals(spectral.polar_factor(V))
    np.testing.assert_allclose(found, [1, 0, 0, 0, 0, 0], atol=1e-6)


def test_the_leading_space_contains_the_leading_eigenvectors():
    rng = np.random.default_rng(0)
    C = torch.from_numpy(rng.standard_normal((60, 40)) * np.logspace(0, -3, 40))
    B = spectral._leading_space(C, C, 10)
    np.testing.assert_allclose(B.T @ B, np.eye(10), atol=1e-10)
    leading = torch.linalg.eigh(C @ C.T)[1][:, -5:]
    np.testing.assert_allclose(B @ (B.T @ leading), leading, atol=1e-3)
