"""The spectral start against plain eigenproblems."""

import numpy as np
import pytest
import scipy.linalg
import torch

from dish import codes
from dish.io.rows import RowSource
from dish.kernel import features, spectral, squaring
from dish.kernel.fit_data import Problem
from dish.similarity import LowRank, from_labels
from helpers.similarities import KINDS

RNG = np.random.default_rng(5)
CPU = torch.device("cpu")


def reference_start(K, dense_S, group, r, rho):
    """r plain generalised eigenproblems, each with the codes of the bits before it.

    Codes are the signs of F, or of the mean F of a row's group.
    """
    n, m = K.shape
    H, W = np.zeros((n, 0)), []
    for _ in range(r):
        M = K.T @ (r * dense_S - H @ H.T) @ K
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
def test_spectral_start_is_r_generalised_eigenproblems(kind, r):
    n, m = 300, 20
    rng = np.random.default_rng(2)
    y = rng.integers(0, 7, n)
    X = rng.standard_normal((n, 10)) + 1.5 * rng.standard_normal((7, 10))[y]
    Y = (rng.random((n, 5)) < 0.3).astype(float)
    S = {
        "classes": lambda: from_labels(y),
        "counts": lambda: from_labels(Y),
        "share_one": lambda: from_labels(Y, multilabel="share_one"),
        "low_rank": lambda: __import__("dish.similarity").similarity.LowRank(X, X),
    }[kind]()
    K = features.FeatureMap("rbf", torch.from_numpy(X[:m]), 0.05).fit_rows(RowSource(torch.from_numpy(X)), CPU)
    of = Problem.of(S, K)
    W, packed = spectral.spectral_start(of, r)
    expected, H = reference_start(
        K.numpy(), S.dense(), S.row_group.numpy() if kind == "classes" else None, r, of.white.rho
    )
    F, G = K.numpy() @ W.numpy(), K.numpy() @ expected
    assert (abs((codes.unpack(packed, r) * H).sum(0)) == n).all()  # the same bits, up to the sign of a bit
    for k in range(r):
        sign = np.sign(F[:, k] @ G[:, k])
        np.testing.assert_allclose(sign * F[:, k], G[:, k], atol=1e-5 * np.abs(G).max())
        assert (F[:, k] ** 2).sum() == pytest.approx(n, rel=1e-3)  # the constraint, up to rho


def test_rows_without_shared_groups_start_by_rows(monkeypatch):
    """A similarity of more groups than are kept: the codes are the signs of F."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 6))
    K = features.FeatureMap("rbf", torch.from_numpy(X[:30]), 0.1).fit_rows(RowSource(X), CPU)
    S = LowRank(X, X)
    W, packed = spectral.spectral_start(Problem.of(S, K), 3)
    np.testing.assert_array_equal(packed, np.packbits((K @ W).numpy() >= 0, axis=1))
    assert np.linalg.norm(codes.unpack(packed, 3).T @ X) > 1000  # and follow S


def test_lanczos_and_eigh_find_the_same_eigenvector():
    A = RNG.standard_normal((300, 300))
    T = A + A.T
    x = spectral.leading_eigenvector(T)
    np.testing.assert_allclose(T @ x, np.linalg.eigvalsh(T)[-1] * x, atol=1e-6)


def test_a_sampled_start_is_close_to_the_exact_one(digits, monkeypatch):
    X, y, _, _ = digits
    K = features.FeatureMap("rbf", torch.from_numpy(X[:50]), 1e-3).fit_rows(RowSource(torch.from_numpy(X)), CPU)
    S = from_labels(y)

    def by_rows():
        of = Problem.of(S, K)
        return spectral._start_by_rows(spectral.Relaxation(of, 4), of, 4)

    exact = by_rows()
    monkeypatch.setattr(spectral, "START_ROWS", 800)
    sampled = by_rows()
    agree = ((K @ exact >= 0) == (K @ sampled >= 0)).double().mean(0)
    assert (agree.numpy() > 0.9).all()
    assert not torch.equal(exact, sampled)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_signs_product(dtype):
    K, w = RNG.standard_normal((500, 33)).astype(dtype), RNG.standard_normal(33).astype(dtype)
    expected = K.T @ np.where(K @ w >= 0, 1, -1)
    np.testing.assert_allclose(
        spectral.signs_product(torch.from_numpy(K), torch.from_numpy(w)),
        expected,
        atol=2e-4 if dtype == np.float32 else 1e-10,
    )


def test_every_similarity_kind_gives_a_start():
    for S, _ in KINDS.values():
        K = torch.from_numpy(RNG.standard_normal((12, 4)))
        W, _ = spectral.spectral_start(Problem.of(S, K), 9)
        assert W.shape == (4, 9)
        assert torch.isfinite(W).all()


@pytest.mark.parametrize("n_classes", [12, 130])
def test_bits_on_the_device_are_those_of_the_host(n_classes):
    """Tensors on the CPU take the place of a GPU's: the same bits by squaring as by eigh or Lanczos."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, 3000)
    K = torch.from_numpy(rng.standard_normal((n_classes, 40))[y] + rng.standard_normal((3000, 40)))
    problem = Problem.of(from_labels(y), K)
    X, H = spectral._start_by_classes(spectral.Relaxation(problem, 8), 8)
    X_device, H_device = spectral._start_by_classes_on_device(spectral.Relaxation(problem, 8), 8)
    np.testing.assert_array_equal(H, H_device)
    np.testing.assert_allclose(X, X_device, atol=1e-3 * X.abs().max())


def test_a_bit_that_adds_nothing_leaves_the_basis_alone():
    rng = np.random.default_rng(0)
    B = np.linalg.qr(rng.standard_normal((6, 3)))[0].T
    T = np.diag([3.0, 2.0, 1.0])
    bits = squaring.DeviceBits(np.vstack([B, np.zeros((2, 6))]), np.pad(T, (0, 2)), 3, 4, CPU)
    np.testing.assert_allclose(abs(bits.best()), abs(2 * B[0]), atol=1e-9)
    bits.deflate(torch.from_numpy(B[0] + B[1]))  # inside the basis
    assert not bits.Bt[3].any()
    bits.deflate(torch.from_numpy(rng.standard_normal(6)))
    np.testing.assert_allclose(bits.Bt[[0, 1, 2, 4]] @ bits.Bt[[0, 1, 2, 4]].T, np.eye(4), atol=1e-12)
    expected = bits.Bt.T @ torch.linalg.eigh(bits.T)[1][:, -1]
    np.testing.assert_allclose(abs(bits.best()), abs(2 * expected), atol=1e-9)
