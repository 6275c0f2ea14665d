"""The posterior hash function: its regression, its frame, its codes; several processes are in test_parallel."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from dish.kernel.functions import Posterior
from sklearn.linear_model import LogisticRegression

import dish
from dish import DISH, codes, metrics
from dish.cbcd.algorithm1 import PackedColumns
from dish.kernel.fit_data import Problem
from dish.posterior import projection, regression
from dish.similarity import from_labels, nystroem


def blobs(n, l, d=6, seed=0, spread=1.0):  # noqa: E741
    """n rows around l centres that overlap a little."""
    rng = np.random.default_rng(seed)
    centres = 2.5 * np.random.default_rng(99).standard_normal((l, d))
    y = rng.integers(l, size=n)
    return (centres[y] + spread * rng.standard_normal((n, d))).astype(np.float32), y


def codes_of(y, r):
    """A random codeword per class."""
    C = np.where(np.random.default_rng(5).random((y.max() + 1, r)) < 0.5, -1, 1)
    return PackedColumns(codes.pack(C[y]), r)


def problem_of(X, y):
    K = torch.from_numpy(X.astype(np.float64) - X.mean(0))
    return Problem.of(from_labels(y), K)


def test_the_regression_is_that_of_scikit_learn(monkeypatch):
    monkeypatch.setattr(regression, "PRIORS", (1.0,))
    monkeypatch.setattr(regression, "SHARPER", (1.0,))
    X, y = blobs(900, 4)
    problem = problem_of(X, y)
    found = regression.fit_posterior(problem_of(X, y), codes_of(y, 16))
    centred = X.astype(np.float64) - X.mean(0)
    T = regression.whitening(problem).numpy()  # the prior is on W = T⁻¹B
    decay = regression.weight_decay(len(X), 4)
    exact = LogisticRegression(C=1 / (decay * len(X)), tol=1e-8, max_iter=5000).fit(centred @ T, y)
    logits = (torch.from_numpy(centred) @ found.B + found.b) / regression.sharpness(16)
    p = torch.softmax(logits, 1).numpy()
    np.testing.assert_allclose(p, exact.predict_proba(centred @ T), atol=0.02)


def test_labels_of_several_per_row_have_a_logistic_regression_each(monkeypatch):
    monkeypatch.setattr(regression, "PRIORS", (1.0,))
    X, y = blobs(900, 4)
    Y = np.eye(4)[y]
    Y[:, 3] = X[:, 0] > 0
    problem = problem_of(X, sp.csr_array(Y))
    found = regression.fit_posterior(problem_of(X, Y), codes_of(y, 16))
    assert found.link in ("sigmoid", "sigmoid_1")
    centred = X.astype(np.float64) - X.mean(0)
    T = regression.whitening(problem).numpy()
    exact = LogisticRegression(C=1 / (regression.weight_decay(900, 4, False) * 900), tol=1e-8, max_iter=5000)
    p = exact.fit(centred @ T, Y[:, 3]).predict_proba(centred @ T)[:, 1]
    found_p = torch.sigmoid(torch.from_numpy(centred) @ found.B + found.b)[:, 3].numpy()
    np.testing.assert_allclose(found_p, p, atol=0.02)


def test_held_out_rows_choose_the_prior(monkeypatch):
    """Rows that are told apart with ease: the usual prior for so few of them is too strong."""
    X, y = blobs(1000, 4, spread=0.5)
    monkeypatch.setattr(regression, "PRIORS", (1.0, 50.0))
    taken = []
    regress = regression.regress
    monkeypatch.setattr(
        regression, "regress", lambda *args, **named: taken.append(args[5:]) or regress(*args, **named)
    )
    regression.fit_posterior(problem_of(X, y), codes_of(y, 16))
    assert taken[-1] == (1.0,)  # of 1 and 50 times the usual
    monkeypatch.setattr(regression, "FEW", 999)
    count = len(taken)
    regression.fit_posterior(problem_of(X, y), codes_of(y, 16))
    assert taken[count:] == [(), (1.0,)]  # with more rows nothing is tried before the last


def test_the_prior_is_stronger_for_few_rows_of_few_classes():
    assert regression.weight_decay(100_000, 200) == pytest.approx(110 / 100_000, rel=0.02)
    assert regression.weight_decay(20_000, 10) == pytest.approx(0.011)  # twice 110/n
    assert regression.weight_decay(5_000, 10) == pytest.approx(0.06)  # at most 0.6/l
    assert regression.weight_decay(2_000, 50) == pytest.approx(0.012)
    assert regression.weight_decay(500, 2) == 0.06  # and never more
    assert regression.weight_decay(50_000, 100, one_label=False) == pytest.approx(110 / 50_000)


@pytest.mark.parametrize(("link", "power"), [("sigmoid", 2), ("sigmoid_1", 1)])
def test_the_link_says_the_power(link, power):
    rng = torch.Generator().manual_seed(0)
    K, B, b, V, offset = (torch.randn(*s, generator=rng) for s in ((7, 3), (3, 4), (4,), (4, 6), (6,)))
    F = torch.sigmoid(K @ B + b) ** power @ V + offset
    np.testing.assert_allclose(Posterior(B, b, V, offset, link)(K), F.numpy(), atol=1e-5)


@pytest.mark.parametrize(("l", "r"), [(40, 16), (10, 32), (20, 20)])
def test_a_frame_has_the_signs_of_the_codewords_and_is_nearly_orthogonal(l, r):  # noqa: E741
    C = np.where(np.random.default_rng(0).random((l, r)) < 0.5, -1.0, 1.0)
    V = projection.frame(C, np.random.RandomState(0)).numpy()
    np.testing.assert_array_equal(np.sign(V), C)
    gram = V.T @ V if r <= l else V @ V.T
    gram /= np.diag(gram).mean()
    assert np.abs(gram - np.eye(len(gram))).max() < 0.5
    magnitudes = C * np.abs(np.random.default_rng(1).standard_normal(C.shape))  # what it starts from
    before = magnitudes.T @ magnitudes if r <= l else magnitudes @ magnitudes.T
    before /= np.diag(before).mean()
    assert np.linalg.norm(gram - np.eye(len(gram))) < 0.6 * np.linalg.norm(before - np.eye(len(gram)))


def test_principal_frames_keep_the_scores_that_rows_have():
    """Of 30 labels 6 occur: with r = 8 bits their frames keep the products of scores, a random one does not."""
    G = torch.zeros(400, 30)
    G[:, 10:16] = torch.rand(400, 6, generator=torch.Generator().manual_seed(0))
    *rotated, spread = projection.principal_frames(G, 8, np.random.RandomState(0))
    for V in (rotated[0], spread):
        torch.testing.assert_close(G @ V @ V.T @ G.T, G @ G.T, atol=1e-4, rtol=1e-4)
    assert all(V.shape == (30, 8) for V in (*rotated, spread))
    random = projection.frame(
        np.where(np.random.RandomState(0).rand(30, 8) < 0.5, -1.0, 1.0), np.random.RandomState(0)
    )
    assert float((G @ random.float()).norm() / G.norm()) < 0.8


def test_codewords_are_the_majority_of_a_labels_rows():
    y = np.array([0, 0, 0, 1, 1, 2])
    H = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1], [-1, 1], [1, -1]])
    problem = problem_of(np.random.default_rng(0).random((6, 3)), y)
    found = regression.codewords(problem, PackedColumns(codes.pack(H), 2))
    np.testing.assert_array_equal(found, [[1, -1], [-1, 1], [1, -1]])
    Y = np.array([[1, 0], [1, 0], [1, 1], [0, 1], [0, 1], [0, 1]])
    problem = problem_of(np.random.default_rng(0).random((6, 3)), Y)
    np.testing.assert_array_equal(
        regression.codewords(problem, PackedColumns(codes.pack(H), 2)), np.where(Y.T @ H >= 0, 1, -1)
    )


def test_queries_find_learned_codes(digits):
    X, y, Xq, yq = digits
    for labels, asked in ((y, yq), (np.eye(10)[y], np.eye(10)[yq])):
        hasher = DISH(32, n_anchors=200).fit(X, labels)
        assert metrics.mean_average_precision(hasher.transform(Xq), asked, hasher.codes_, labels) > 0.95


def ranking_loss(V, log_beta, G, y, q):
    """As ``ranking_slopes`` has it, one query at a time; the first q rows ask."""
    Phi = torch.tanh(G @ V)
    scores = log_beta.exp() / V.shape[1] * (Phi[:q] @ Phi.T)
    loss = torch.zeros((), dtype=V.dtype)
    for i in range(q):
        others = [j for j in range(len(G)) if j != i]
        mine = [k for k, j in enumerate(others) if y[j] == y[i]]
        if mine:
            loss = loss - torch.log_softmax(scores[i, others], 0)[mine].mean() / q
    return loss


@pytest.mark.parametrize("at_a_time", [4, 128])
def test_slopes_of_the_ranking_loss_are_those_of_autograd(at_a_time, monkeypatch):
    monkeypatch.setattr(projection, "QUERIES", at_a_time)
    rng = torch.Generator().manual_seed(0)
    G, y = torch.rand(15, 4, generator=rng, dtype=torch.float64), torch.randint(3, (15,), generator=rng)
    y[1] = 3  # alone in its class
    V = torch.randn(4, 5, generator=rng, dtype=torch.float64).requires_grad_(True)
    log_beta = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    ranking_loss(V, log_beta, G, y, 6).backward()
    slopes = projection.ranking_slopes(V.detach(), log_beta.detach(), (G[:6], y[:6]), (G[6:], y[6:]))
    torch.testing.assert_close(slopes[0], V.grad)
    torch.testing.assert_close(slopes[1], log_beta.grad)


def test_turning_the_frame_lowers_the_loss():
    rng = np.random.RandomState(0)
    G, y = torch.rand(300, 12), torch.from_numpy(rng.randint(12, size=300))
    G[torch.arange(300), y] += 1
    V = projection.frame(np.where(rng.rand(12, 8) < 0.5, -1.0, 1.0), rng).float()
    first = V / (G @ V).square().mean().sqrt()
    turned = projection.turn_frame(V, (G[:150], y[:150]), (G[150:], y[150:]), rng)
    losses = [ranking_loss(W, torch.tensor(10.0).log(), G, y, 150) for W in (first, turned)]
    assert losses[1] < losses[0]


@pytest.mark.slow
def test_many_classes_are_where_it_wins():
    X, y = blobs(4000, 60, d=12, spread=2.0)
    Xq, yq = blobs(500, 60, d=12, seed=1, spread=2.0)

    def score(**params):
        hasher = DISH(32, n_anchors=200, **params).fit(X, y)
        return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y)

    assert score() > score(loss="ridge", similar_weight=2.0) + 0.1


def test_two_classes_keep_an_order():
    X, y = blobs(1500, 2, d=3, spread=3.0)
    codes = DISH(32, n_anchors=50).fit(X, y).transform(X)
    assert len(np.unique(codes, axis=0)) > 4  # sure and doubtful rows of a class have different codes


def test_what_auto_stands_for(blobs):
    X, y = blobs
    S = nystroem(X, 10)
    assert DISH(8, n_anchors=20).fit(X, y).frame_.shape == (3, 8)
    assert DISH(8, n_anchors=20).fit(X, y).mean_.shape == (20 + 6,)
    assert DISH(8, n_anchors=5).fit(X, y).mean_.shape == (5,)  # more features than anchors: they are left out
    for linear in (
        DISH(8, n_anchors=20).fit(X, S),
        DISH(8, n_anchors=20, polish=2).fit(X, y),
        DISH(8, n_anchors=20, loss="ridge").fit(X, y),
    ):
        assert not hasattr(linear, "frame_")
        assert linear.W_.shape == (20, 8)
    with pytest.raises(ValueError, match="loss='posterior'"):
        DISH(8, n_anchors=20, loss="posterior").fit(X, S)
    with pytest.raises(ValueError, match="polish"):
        DISH(8, n_anchors=20, loss="posterior", polish=1).fit(X, y)


def test_a_second_fit_forgets_the_first(blobs):
    X, y = blobs
    hasher = DISH(8, n_anchors=20).fit(X, y)
    hasher.set_params(loss="ridge").fit(X, y)
    np.testing.assert_array_equal(hasher.transform(X), DISH(8, n_anchors=20, loss="ridge").fit(X, y).transform(X))


@pytest.mark.parametrize("labels", ["classes", "sets"])
def test_saved_and_loaded_it_gives_the_same_codes(tmp_path, blobs, labels):
    X, y = blobs
    hasher = DISH(20, n_anchors=20).fit(X, y if labels == "classes" else np.eye(3)[y])
    hasher.save(tmp_path / "m.dish")
    same = dish.load(tmp_path / "m.dish")
    np.testing.assert_array_equal(same.transform(X), hasher.transform(X))
    assert same.fingerprint_ == hasher.fingerprint_
    assert hasher.fingerprint_ != DISH(20, n_anchors=20, random_state=1).fit(X, y).fingerprint_


@pytest.mark.slow
def test_features_that_do_not_fit_in_memory_give_a_sample():
    X, y = blobs(3000, 5)
    Xq, yq = blobs(300, 5, seed=1)
    scores = []
    for budget in ("1GB", "300KB"):
        hasher = DISH(16, n_anchors=60, memory_budget=budget).fit(X, y)
        scores.append(metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y))
    assert scores[1] == pytest.approx(scores[0], abs=0.02)


def test_a_row_far_out_does_not_make_steps_overshoot():
    X, y = blobs(1200, 4)
    X[7] *= 300
    hasher = DISH(16, n_anchors=40, gamma=0.05, kernel="rbf+linear").fit(X, y)
    assert np.isfinite(hasher.posterior_B_).all()
    codes = hasher.transform(X)
    assert metrics.mean_average_precision(codes[:200], y[:200], codes[200:], y[200:]) > 0.8


def test_probabilities_and_frame_make_F(blobs):
    X, y = blobs
    hasher = DISH(12, n_anchors=20).fit(X, y)
    K = hasher._features()(torch.from_numpy(X))
    p = torch.softmax(
        K @ torch.from_numpy(hasher.posterior_B_).to(K) + torch.from_numpy(hasher.posterior_b_).to(K), 1
    )
    F = p.numpy() @ hasher.frame_ + hasher.offset_
    np.testing.assert_allclose(hasher.offset_, -0.25 * hasher.frame_.sum(0), atol=1e-5)
    np.testing.assert_allclose(hasher.decision_function(X), F, atol=1e-4)
    assert isinstance(hasher._function(), Posterior)


def test_label_sets_are_found_better_than_by_the_rows_themselves(digits):
    X, y, Xq, yq = digits
    Y, Yq = (np.eye(10)[c] + np.eye(10)[(c + 3) % 10] for c in (y, yq))  # a digit, and one three further on
    hasher = DISH(32, n_anchors=200).fit(X, Y)
    found = metrics.mean_average_precision(hasher.transform(Xq), Yq, hasher.transform(X), Y)
    assert found > metrics.l2_mean_average_precision(Xq, Yq, X, Y) + 0.2


def test_label_probabilities_are_those_that_the_codes_are_made_of(digits):
    X, y, Xq, yq = digits
    hasher = DISH(16, n_anchors=100).fit(X[:600], y[:600])
    p = hasher.label_probabilities(Xq)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(hasher.decision_function(Xq), p @ hasher.frame_ + hasher.offset_, atol=1e-4)
    assert (p.argmax(1) == yq).mean() > 0.9  # columns are the sorted classes
    with pytest.raises(TypeError, match="linear hash function"):
        DISH(16, n_anchors=100, loss="ridge").fit(X[:600], y[:600]).label_probabilities(Xq)
