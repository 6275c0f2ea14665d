"""Choices on held-out rows: features, prior, sharpness and projection."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dish
from dish import DISH, codes
from dish.cbcd.codewords import class_codewords
from dish.encoder import raised
from dish.io.rows import RowSource
from dish.kernel.fit_data import FitData
from dish.posterior import multilabel, projection, regression, selection
from dish.similarity import from_labels


def noisy_rows(n=1200, d=300, seed=0):
    """Classes by the distance from the origin in two dimensions; the other dimensions are noise."""
    rng = np.random.default_rng(seed)
    X = 0.02 * rng.standard_normal((n, d))
    X[:, :2] = rng.standard_normal((n, 2))
    radius = np.linalg.norm(X[:, :2], axis=1)
    return X.astype(np.float32), np.digitize(radius, [0.7, 1.2, 1.7])


def linear_rows(n=1200, d=20, seed=0):
    """Classes by linear directions."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    w = rng.standard_normal((d, 3))
    return X, (X @ w).argmax(1)


def errors(K, y, m):
    """The held-out errors of both feature sets, by a ridge regression per class."""
    n = len(K)
    held = np.zeros(n, bool)
    held[np.random.RandomState(0).permutation(n)[: int(0.15 * n)]] = True
    T = np.eye(y.max() + 1)[y]
    T = T - T.mean(0)
    found = []
    for A in (K[:, :m], K):
        seen, T_seen = A[~held], T[~held]
        G = seen.T @ seen
        ridges = [*(ridge / n for ridge in selection.RIDGES), *selection.STRONG_RIDGES]
        ridges = [ridge * np.trace(G) / len(G) for ridge in ridges]
        solved = [np.linalg.solve(G + rho * np.eye(len(G)), seen.T @ T_seen) for rho in ridges]
        found.append(min(((A[held] @ W - T[held]) ** 2).sum() for W in solved))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_held_out_errors_are_those_of_ridge_regressions(seed):
    rng = np.random.default_rng(seed)
    K, y = rng.standard_normal((400, 60)), rng.integers(0, 3, 400)
    K[:, :5] += 0.6 * np.eye(3)[y] @ rng.standard_normal((3, 5))
    K[:, 40:] += 0.05 * seed * np.eye(3)[y] @ rng.standard_normal((3, 20))
    K -= K.mean(0)
    alone, both = errors(K, y, 40)
    found = selection.held_out_errors(FitData.of(from_labels(y), torch.from_numpy(K)), 40)
    assert found == [(60, pytest.approx(both)), (40, pytest.approx(alone))]


def test_the_kernel_is_narrower_if_that_predicts_better(monkeypatch):
    """Classes in small patches: the usual kernel blurs them."""
    rng = np.random.default_rng(0)
    X = rng.random((1500, 1)).astype(np.float32)
    y = (np.floor(8 * X[:, 0]) % 2).astype(int)
    usual = DISH(16, n_anchors=50, kernel="rbf").fit(X, y).gamma_
    assert DISH(16, n_anchors=50).fit(X, y).gamma_ == pytest.approx(2 * usual)
    assert DISH(16, n_anchors=50, gamma=usual).fit(X, y).gamma_ == usual  # it was asked for
    monkeypatch.setattr(selection, "FEW_ROWS", 1499)
    assert DISH(16, n_anchors=50).fit(X, y).gamma_ == usual


def test_x_is_left_out_if_a_small_training_set_overfits_it(tmp_path):
    X, y = noisy_rows()
    hasher = DISH(16, n_anchors=300).fit(X, y)
    assert len(hasher.mean_) == len(hasher.anchors_) == 300
    same = DISH(16, n_anchors=300, kernel="rbf", gamma=hasher.gamma_).fit(X, y)
    assert np.array_equal(hasher.transform(X), same.transform(X))
    hasher.save(tmp_path / "model.dish")
    assert np.array_equal(dish.load(tmp_path / "model.dish").transform(X), hasher.transform(X))


def test_x_is_kept_if_it_helps_or_was_asked_for():
    X, y = linear_rows()
    assert len(DISH(16, n_anchors=30).fit(X, y).mean_) == 50
    X, y = noisy_rows()
    assert len(DISH(16, n_anchors=300, kernel="rbf+linear").fit(X, y).mean_) == 600


def test_features_outside_of_memory_are_computed_again_without_x():
    X, y = noisy_rows()
    made = [
        selection.prepare_features(
            RowSource(X),
            from_labels(y),
            kernel="auto",
            gamma="auto",
            anchors="random",
            n_anchors=300,
            rng=np.random.RandomState(0),
            device=torch.device("cpu"),
            budget=budget,
        )
        for budget in (None, 1)
    ]
    in_memory, outside = (data.features for data in made)
    assert in_memory.kernel == outside.kernel == "rbf"
    assert in_memory.gamma == outside.gamma
    assert isinstance(made[0].K, torch.Tensor)
    np.testing.assert_allclose(made[1].K[torch.arange(5)], made[0].K[:5], atol=1e-5)


def test_a_row_counts_once_per_label():
    Y = np.zeros((60, 3), np.uint8)
    Y[:30, :2] = Y[30:, 1:] = 1  # two labels per row: forty rows per label
    S, one = from_labels(Y), from_labels(np.arange(60) % 3)
    assert selection.can_decide(150, S)
    assert not selection.can_decide(149, S)
    assert selection.can_decide(300, one)
    assert not selection.can_decide(299, one)


@pytest.mark.parametrize(
    ("kernel", "d", "expected"),
    [
        ("auto", 5, "rbf+linear"),
        ("auto", 20, "rbf+linear"),
        ("auto", 21, "rbf"),
        ("linear", 5, "linear"),
        (max, 5, max),
    ],
)
def test_auto_adds_x_if_it_has_no_more_features_than_there_are_anchors(kernel, d, expected):
    assert selection.first_kernel(kernel, d, 20) == expected


def test_the_chosen_kernel_is_stored(blobs):
    X, y = blobs
    assert DISH(8, n_anchors=20).fit(X, y).kernel_ == "rbf+linear"  # too few rows to choose
    assert DISH(8, n_anchors=5).fit(X, y).kernel_ == "rbf"
    assert DISH(8, n_anchors=20, kernel="linear").fit(X, y).kernel_ == "linear"


def test_features_without_the_linear_part_are_the_first_ones():
    X, y = linear_rows(300)
    data = selection.prepare_features(
        RowSource(X),
        from_labels(y),
        kernel="rbf+linear",
        gamma=0.1,
        anchors="random",
        n_anchors=10,
        rng=np.random.RandomState(0),
        device=torch.device("cpu"),
    )
    K = data.K.clone()
    alone = selection.without_linear_part(data, 10)
    assert torch.equal(data.K, K)
    np.testing.assert_array_equal(alone.K, K[:, :10])
    assert alone.features.kernel == "rbf"
    np.testing.assert_allclose(alone.features(torch.from_numpy(X)), alone.K, atol=1e-6)


# --- Prior, sharpness and projection ---


def clusters(n, l, spread):  # noqa: E741
    rng = np.random.default_rng(0)
    y = rng.integers(l, size=n)
    return 2.5 * np.random.default_rng(99).standard_normal((l, 6))[y] + spread * rng.standard_normal((n, 6)), y


def whitened(X, y):
    data = FitData.of(from_labels(y), torch.from_numpy(X - X.mean(0)))
    return regression.WhitenedRows.of(data, regression.Whiteners(data)(0.01), np.random.RandomState(0))


def plain_choice(l, r, one_label=True):  # noqa: E741
    C = np.where(np.random.default_rng(0).random((l, r)) < 0.5, -1.0, 1.0)
    V = projection.signed_projection(C, np.random.RandomState(0))
    if not one_label:
        return selection.Choice(V, torch.zeros_like(V[0]), 1.0)
    return selection.Choice(*projection.centred(V), selection.SHARP)


def fitted_choice(X, y, r=16, geometry=0):
    data = FitData.of(from_labels(y), torch.from_numpy(X - X.mean(0)))
    choose = selection.choose_for_classes if y.ndim == 1 else selection.choose_for_label_sets
    l = len(np.unique(y)) if y.ndim == 1 else y.shape[1]  # noqa: E741
    plain, rng = (lambda bits: plain_choice(l, bits, y.ndim == 1)), np.random.RandomState(0)
    return choose(data, regression.Whiteners(data), plain, r, None, geometry, rng, None)


def test_held_out_rows_choose_the_prior_of_well_separated_classes(monkeypatch):
    """A prior that is 5,000 times stronger makes p useless."""
    monkeypatch.setattr(selection, "PRIORS", (5000.0,))
    choice, rows, judged = fitted_choice(*clusters(1000, 4, spread=0.5))
    assert choice.prior == 1.0
    assert choice.rho in selection.RHOS
    assert rows.n == 1000
    assert not torch.equal(choice.V, plain_choice(4, 16).V)  # refined
    assert choice.sharp / judged.temperature() in [pytest.approx(a) for a in selection.COOLER]


def test_every_row_is_held_out_once_if_there_are_few():
    X, y = clusters(300, 4, spread=1.0)
    rows = whitened(X, y)
    judged = selection.judge(rows, np.random.RandomState(0), 1.0, 0.5)
    assert sorted(np.concatenate(judged.indices)) == list(range(300))
    for (z, group), indices in zip((judged.first, judged.second), judged.indices, strict=True):
        np.testing.assert_array_equal(group, y[indices])
        assert (z.argmax(1) == group).double().mean() > 0.8


def test_many_rows_are_held_out_in_part(monkeypatch):
    monkeypatch.setattr(selection, "CROSS", 299)
    judged = selection.judge(whitened(*clusters(300, 4, spread=1.0)), np.random.RandomState(0), 1.0, 0.5)
    assert [len(each) for each in judged.indices] == [45, 45]
    assert not set(judged.indices[0]) & set(judged.indices[1])
    assert judged.start is not None


def test_classes_of_one_row_cannot_be_judged():
    choice, _, judged = fitted_choice(np.random.default_rng(0).standard_normal((60, 6)), np.arange(60))
    assert judged is None
    assert choice.rho == selection.SAFE_RHO


def test_the_temperature_makes_labels_likely():
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(0, 3, 3000))
    z = torch.log(0.8 * torch.eye(3, dtype=torch.float64)[y] + 0.1)  # calibrated if 1 in 5 labels were drawn anew
    noisy = torch.where(torch.from_numpy(rng.random(3000)) < 0.3, torch.from_numpy(rng.integers(0, 3, 3000)), y)
    judged = selection.Judged((z / 3, noisy), (z / 3, noisy), (np.arange(3000),) * 2)
    assert 2.4 < judged.temperature() < 3.6


def overlapping_sets(n, spread):
    """Rows with two of four labels each."""
    X, y = clusters(n, 4, spread)
    return X, np.eye(4, dtype=int)[y] | np.eye(4, dtype=int)[(y + 1) % 4]


def test_the_choice_for_label_sets_ranks_held_out_rows_better_than_the_plain_projection():
    X, Y = overlapping_sets(700, spread=2.0)
    choice, rows, judged = fitted_choice(X, Y)
    assert choice.rho in selection.RHOS
    assert (choice.sharp, choice.V.shape, rows.n) == (1.0, (4, 16), 700)
    assert choice.power in (1, 2)
    plain = plain_choice(4, 16, one_label=False)

    def held_out_map(V, offset):
        (p, group), (_, group_seen) = judged.scored()
        Y_seen = torch.from_numpy(rows.labels(group_seen)).to(p)
        scores = raised(p, choice.power), group
        return multilabel.held_out_map(rows.labels, V, offset, scores, (Y_seen, group_seen))

    assert held_out_map(choice.V, choice.offset) > held_out_map(plain.V, plain.offset)


@pytest.mark.parametrize("name", ["RHOS", "PRIORS"])
def test_the_likelihood_of_held_out_label_sets_chooses(name, monkeypatch):
    """Far too strong a ridge or prior makes all labels as likely as they are frequent."""
    usual = getattr(selection, name)
    monkeypatch.setattr(selection, name, (1e6, *usual))
    choice, _, _ = fitted_choice(*overlapping_sets(700, spread=0.5))
    assert getattr(choice, {"RHOS": "rho", "PRIORS": "prior"}[name]) in (*usual, 1.0)


def test_held_out_labels_choose_rho_with_many_rows(monkeypatch):
    """The first ρ makes all classes as likely as they are frequent. The second is better, the third is worse."""
    monkeypatch.setattr(selection, "FEW", 999)
    monkeypatch.setattr(selection, "RHOS_OF_MANY", (1e6, 0.1, 1e5, 0.1))
    tried = []
    loss = selection._held_out_loss
    monkeypatch.setattr(selection, "_held_out_loss", lambda rows, *a: tried.append(rows) or loss(rows, *a))
    choice, _, _ = fitted_choice(*clusters(1000, 4, spread=1.0))
    assert (choice.rho, choice.prior, len(tried)) == (0.1, 1.0, 3)


def test_whitened_rows_are_rescaled_to_another_rho(monkeypatch):
    X, y = clusters(300, 4, spread=1.0)
    data = FitData.of(from_labels(y), torch.from_numpy(X - X.mean(0)))
    monkeypatch.setattr(regression, "FEW", 299)
    T = regression.Whiteners(data)
    by_rho = selection._whitened_by(data, T, 0, None)
    monkeypatch.setattr(regression, "FEW", 300)
    anew = selection._whitened_by(data, regression.Whiteners(data), 0, None)
    for rho in (0.1, 0.01, 0.01, 1.0):
        rows = by_rho(rho)
        np.testing.assert_allclose(rows.U, anew(rho).U, rtol=1e-12)
        np.testing.assert_allclose(rows.weight, anew(rho).weight, rtol=1e-12)
    assert rows.U.data_ptr() == by_rho(0.1).U.data_ptr()


def test_the_held_out_loss_of_classes_is_that_of_the_likelihood():
    rows = whitened(*clusters(300, 4, spread=2.0))
    judged = selection.judge(rows, np.random.RandomState(5), 2.0, selection.TRIAL, 2)
    p, y = judged.scored(judged.temperature())[0]
    expected = -torch.log(p[torch.arange(len(y)), y]).mean()
    assert selection._held_out_loss(rows, 5, 2.0) == pytest.approx(float(expected))


def test_the_held_out_loss_is_that_of_the_likelihood():
    X, Y = overlapping_sets(300, spread=1.0)
    rows = whitened(X, Y)
    judged = selection.judge(rows, np.random.RandomState(5), 2.0, selection.TRIAL, 2)
    (p, group), _ = judged.scored()
    Y_held = rows.labels(group)
    expected = -np.log(np.where(Y_held == 1, p, 1 - p)).mean()
    assert selection._held_out_loss(rows, 5, 2.0) == pytest.approx(expected)


def test_few_rows_of_label_sets_are_not_judged():
    X, Y = overlapping_sets(30, spread=1.0)
    choice, _, judged = fitted_choice(X, Y, geometry=2)
    assert judged is None
    assert torch.equal(choice.V, plain_choice(4, 14, one_label=False).V)


def test_a_projection_that_held_out_rows_do_not_confirm_is_not_refined(monkeypatch):
    """With fewer classes than bits, refinement may only overfit."""
    rows, judged, plain = refinable_rows()
    monkeypatch.setattr(selection, "refine", lambda V, *_: torch.ones_like(V))
    kept = selection.refined_choice(plain, rows, judged, np.random.RandomState(0))
    assert torch.equal(kept.V, plain.V)
    assert torch.equal(kept.offset, plain.offset)
    plain = dataclasses.replace(plain, V=torch.ones_like(plain.V), offset=torch.zeros_like(plain.offset))
    monkeypatch.setattr(selection, "refine", lambda V, *_: good_projection(V))
    refined = selection.refined_choice(plain, rows, judged, np.random.RandomState(0))
    assert torch.equal(refined.V, good_projection(plain.V))


def good_projection(V):
    signs = codes.unpack(class_codewords(*V.shape, np.random.RandomState(0))[0], V.shape[1])
    return torch.from_numpy(signs).to(V)


def refinable_rows():
    """400 rows of 5 classes whose logits tell the class, in two halves, and 16 bits."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(5, size=400))
    z = torch.from_numpy(rng.standard_normal((400, 5))).float() + 3 * torch.eye(5)[y]
    judged = selection.Judged((z[:200], y[:200]), (z[200:], y[200:]), (np.arange(200), np.arange(200, 400)))
    rows = SimpleNamespace(n=400, labels=lambda group: group.numpy())
    V, offset = projection.centred(good_projection(torch.zeros(5, 16)))
    return rows, judged, selection.Choice(V, offset, 1.0)
