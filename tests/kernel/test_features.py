import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics.pairwise import rbf_kernel

from dish import codes
from dish.io.rows import RowSource
from dish.kernel import anchors, features, fstep, polish, problem, spectral, whitening
from dish.similarity import LowRank, from_labels
from dish.solver import cbcd
from helpers.similarities import KINDS

RNG = np.random.default_rng(5)
CPU = torch.device("cpu")


def rbf(X, A, gamma):
    return features.rbf(torch.from_numpy(X), features.prepare_rbf(torch.from_numpy(A), gamma), gamma)


def test_rbf_equals_scikit_learn():
    X, A = RNG.standard_normal((30, 4)), RNG.standard_normal((7, 4))
    np.testing.assert_allclose(rbf(X, A, 0.7), rbf_kernel(X, A, gamma=0.7), atol=1e-12)


def test_rbf_in_float32_survives_an_offset():
    """Squared distances come from norms; far from the origin that would cancel, so both are centred first."""
    X, A = RNG.standard_normal((30, 4)) + 1000, RNG.standard_normal((7, 4)) + 1000
    X, A = X.astype(np.float32), A.astype(np.float32)
    exact = rbf_kernel(X.astype(np.float64), A.astype(np.float64), gamma=0.7)
    np.testing.assert_allclose(rbf(X, A, 0.7), exact, atol=1e-5)


@pytest.mark.parametrize("name", ["rbf", "linear", "function"])
def test_features_are_centred_and_blocks_do_not_matter(name, monkeypatch):
    X = torch.from_numpy(RNG.standard_normal((100, 5)))
    phi = (lambda X, A: (X @ A.T + 1) ** 2) if name == "function" else name
    whole = features.FeatureMap(phi, X[:9], 0.3)
    K = whole.fit_rows(RowSource(X), CPU)
    np.testing.assert_allclose(K.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(whole(X), K, atol=1e-12)
    monkeypatch.setattr(features, "ROWS_IN_CACHE", 7)
    monkeypatch.setattr(features.row_blocks, "__defaults__", (7,))
    np.testing.assert_allclose(features.FeatureMap(phi, X[:9], 0.3).fit_rows(RowSource(X), CPU), K, atol=1e-12)


def test_a_kernel_function_of_the_wrong_shape_is_named():
    X = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="kernel must return"):
        features.FeatureMap(lambda X, A: np.zeros(3), X, 1.0).raw(X)


def test_mean_squared_distance_and_gram():
    X, A = RNG.standard_normal((50, 3)), RNG.standard_normal((20, 3)) + 2
    expected = ((X[:, None] - A[None]) ** 2).sum(2).mean()
    assert anchors.mean_squared_distance(RowSource(X), torch.from_numpy(A)) == pytest.approx(expected)
    for m in (1, 3, 50):
        K = RNG.standard_normal((500, m))
        np.testing.assert_allclose(whitening.gram(torch.from_numpy(K)), K.T @ K, atol=1e-10)


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
    of = problem.Problem.of(S, K)
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
    W, packed = spectral.spectral_start(problem.Problem.of(S, K), 3)
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
        of = problem.Problem.of(S, K)
        return spectral._start_by_rows(spectral.Relaxation(of, 4), of, 4)

    exact = by_rows()
    monkeypatch.setattr(spectral, "START_ROWS", 800)
    sampled = by_rows()
    agree = ((K @ exact >= 0) == (K @ sampled >= 0)).double().mean(0)
    assert (agree.numpy() > 0.9).all()
    assert not torch.equal(exact, sampled)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_signs_product(dtype):
    K, w = RNG.standard_normal((500, 33)).astype(dtype), RNG.standard_normal(33).astype(dtype)
    expected = K.T @ np.where(K @ w >= 0, 1, -1)
    np.testing.assert_allclose(
        spectral.signs_product(torch.from_numpy(K), torch.from_numpy(w)),
        expected,
        atol=2e-4 if dtype == np.float32 else 1e-10,
    )


LITERAL = {
    "ridge": lambda h, f: (h - f) ** 2,
    "hinge": lambda h, f: np.maximum(0, 1 - h * f) ** 2,
    "logistic": lambda h, f: np.log1p(np.exp(-h * f)),
}


@pytest.mark.parametrize("name", LITERAL)
def test_linear_and_constant_terms_are_the_loss(name):
    """l(b, f) = ½[l(1,f) − l(−1,f)] b + ½[l(1,f) + l(−1,f)] for b = ±1."""
    f = torch.linspace(-3, 3, 101, dtype=torch.float64)
    loss, literal = fstep.LOSSES[name], LITERAL[name]
    for b in (-1, 1):
        np.testing.assert_allclose(loss.half_difference(f) * b + loss.half_sum(f), literal(b, f.numpy()), atol=1e-12)


@pytest.mark.parametrize("name", LITERAL)
def test_working_target_bounds_the_loss_from_above(name):
    loss, literal = fstep.LOSSES[name], LITERAL[name]
    at = torch.linspace(-3, 3, 25, dtype=torch.float64)
    for h in (-1.0, 1.0):
        t = loss.target(torch.full_like(at, h), at).numpy()
        c = loss.curvature
        bound = literal(h, at.numpy())[:, None] + c / 2 * (
            (at.numpy()[None] - t[:, None]) ** 2 - (at.numpy() - t)[:, None] ** 2
        )
        assert (bound >= literal(h, at.numpy())[None] - 1e-9).all()


def linear_step(name, n=400, m=12, r=3, ridge=1e-3):
    X = RNG.standard_normal((n, m))
    K = torch.from_numpy(X - X.mean(0))
    H = np.where(K.numpy() @ RNG.standard_normal((m, r)) + RNG.standard_normal((n, r)) >= 0, 1, -1)
    of = problem.Problem.of(LowRank(X, X), K, ridge)
    return fstep.LinearStep(of, fstep.LOSSES[name], r), K.numpy(), H, of.white.rho


def test_ridge_step_is_ridge_regression():
    step, K, H, rho = linear_step("ridge")
    step.fit(cbcd.PackedColumns(codes.pack(H), H.shape[1]))
    expected = Ridge(alpha=rho, fit_intercept=False).fit(K, H).coef_.T
    np.testing.assert_allclose(step.W, expected, atol=1e-9)


@pytest.mark.parametrize("name", ["hinge", "logistic"])
def test_iterated_steps_never_raise_the_loss_and_reach_its_minimum(name):
    step, K, H, rho = linear_step(name)
    c = step.loss.curvature

    def total(W):
        return LITERAL[name](H, K @ W).sum() + c / 2 * rho * (W**2).sum()

    step.N_STEPS = 1
    values = [total(step.W.numpy())]
    for _ in range(1500):
        step.fit(cbcd.PackedColumns(codes.pack(H), H.shape[1]))
        values.append(total(step.W.numpy()))
    assert (np.diff(values) <= 1e-9).all()
    if name == "logistic":
        for k in range(3):
            model = LogisticRegression(C=1 / (c * rho), fit_intercept=False, tol=1e-10, max_iter=1000)
            np.testing.assert_allclose(step.W[:, k], model.fit(K, H[:, k]).coef_[0], atol=1e-3)
    else:
        W = step.W.numpy()
        gradient = -2 * K.T @ (H * np.maximum(0, 1 - H * (K @ W))) + c * rho * W
        assert np.abs(gradient).max() < 1e-4 * np.abs(2 * K.T @ H).max()  # beside the gradient at W = 0


def test_linear_terms_sum_to_the_whole_loss():
    step, K, H, rho = linear_step("hinge")
    step.fit(cbcd.PackedColumns(codes.pack(H), H.shape[1]))
    q, constant = step.linear_terms(scale=2.5)
    W = step.W.numpy()
    expected = 2.5 * (LITERAL["hinge"](H, K @ W).sum() + step.loss.curvature / 2 * rho * (W**2).sum())
    assert (q.numpy() * H.T).sum() + constant == pytest.approx(expected)


def test_whitening_copes_with_repeated_anchors():
    K = RNG.standard_normal((50, 4))
    K = torch.from_numpy(np.hstack([K, K]))
    white = whitening.Whitening.of(whitening.gram(K), 0.0 + 1e-12)
    assert torch.isfinite(white.L).all()


def test_every_similarity_kind_gives_a_start():
    for S, _ in KINDS.values():
        K = torch.from_numpy(RNG.standard_normal((12, 4)))
        W, _ = spectral.spectral_start(problem.Problem.of(S, K), 9)
        assert W.shape == (4, 9)
        assert torch.isfinite(W).all()


@pytest.mark.parametrize("name", KINDS)
def test_the_smooth_loss_is_the_distance_to_S_and_its_slope_is_right(name):
    S, dense = KINDS[name]
    r = 5
    F = torch.from_numpy(RNG.standard_normal((12, r))).requires_grad_()
    phi = torch.tanh(F)
    direct = (r * torch.from_numpy(dense) - phi @ phi.T).square().sum()
    direct.backward()
    loss, slope = polish.smooth_loss(F.detach(), S)
    assert loss + r * r * (dense**2).sum() == pytest.approx(direct.item())
    np.testing.assert_allclose(slope, F.grad, atol=1e-9)


def polished(n=200, n_steps=15):
    X = torch.from_numpy(RNG.standard_normal((n, 6)))
    y = (X[:, 0] * X[:, 1] > 0).numpy().astype(int)
    S = from_labels(y)
    K = features.FeatureMap("rbf", X[:20], 0.3).fit_rows(RowSource(X), CPU)
    W = torch.from_numpy(RNG.standard_normal((20, 4)))
    return K, S, W, polish.polish(problem.Problem.of(S, K), W, n_steps)


def unit(F):
    return F / F.square().mean().sqrt()


def test_polish_lowers_the_smooth_loss():
    K, S, W, after = polished()
    assert polish.smooth_loss(K @ after, S)[0] < polish.smooth_loss(unit(K @ W), S)[0]
    few = polish.polish(problem.Problem.of(S, K), W, 3)
    assert polish.smooth_loss(K @ after, S)[0] < polish.smooth_loss(K @ few, S)[0]


def test_polish_of_a_sample_of_the_rows_helps_all_rows(monkeypatch):
    monkeypatch.setattr(polish, "POLISH_ROWS", 120)
    K, S, W, after = polished(n=400, n_steps=3)  # few: more of them would learn 120 rows by heart
    assert polish.smooth_loss(K @ after, S)[0] < polish.smooth_loss(unit(K @ W), S)[0]


def test_a_gram_matrix_comes_back_from_its_factor():
    K = torch.from_numpy(RNG.standard_normal((30, 5)))
    G = whitening.gram(K)
    np.testing.assert_allclose(whitening.Whitening.of(G.clone(), 1e-3).gram(), G, atol=1e-9)
