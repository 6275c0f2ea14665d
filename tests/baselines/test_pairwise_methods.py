"""BRE, MLH, TSH, LFH and COSDISH: their steps against brute force, and what they reach on easy data."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dish import codes, metrics
from dish.baselines import REGISTRY, bre, cosdish, lfh, mlh, tsh
from dish.baselines import _pairs as pairs
from dish.similarity import from_labels

pytestmark = pytest.mark.slow

NAMES = ("bre", "mlh", "tsh", "lfh", "cosdish")


def all_signs(n):
    return np.array(list(itertools.product((-1.0, 1.0), repeat=n)))


@pytest.fixture(scope="module")
def groups():
    """Four groups of 100 rows and 40 queries, far apart."""
    rng = np.random.default_rng(0)
    y = np.arange(560) % 4
    X = rng.standard_normal((560, 8)) + 6 * np.eye(4, 8)[y]
    return X[:400], y[:400], X[400:], y[400:]


@pytest.fixture
def label_sets():
    """(30, 5) labels of 0 and 1 and what "share a label" says of every pair."""
    Y = (np.random.default_rng(3).random((30, 5)) < 0.3).astype(float)
    return Y, Y @ Y.T > 0


# --- pairs ---


def test_columns_and_pairs_agree_with_the_labels(label_sets):
    Y, share = label_sets
    S = from_labels(sp.csr_array(Y))
    columns = torch.tensor([4, 0, 17])
    table = pairs.similar_columns(S, columns)[S.row_group.long()].numpy()
    np.testing.assert_array_equal(table, share[:, [4, 0, 17]])
    i, j, similar = pairs.sample_pairs(S, 3, np.random.RandomState(0))
    np.testing.assert_array_equal(similar, share[i, j])
    assert (i != j).all()
    assert len(set(zip(i, j, strict=True))) == len(i)
    others = share & ~np.eye(30, dtype=bool)
    np.testing.assert_array_equal(np.bincount(i[similar], minlength=30), np.minimum(3, others.sum(1)))
    np.testing.assert_array_equal(np.bincount(i[~similar], minlength=30), np.minimum(3, (~share).sum(1)))


@pytest.mark.parametrize(("y", "kind"), [(np.arange(20), "dissimilar"), (np.ones((20, 2)) * [1, 0], "same labels")])
def test_labels_without_both_kinds_of_pairs_are_refused(y, kind):
    with pytest.raises(ValueError, match=kind):
        bre.BRE(n_anchors=10).fit(np.random.default_rng(0).standard_normal((20, 4)), y)


@pytest.mark.parametrize("name", NAMES)
def test_separable_groups_are_found(name, groups):
    X, y, Xq, yq = groups
    params = {"n_iter": 4} if name == "mlh" else {}
    hasher = REGISTRY[name](n_bits=24, n_anchors=100, **params).fit(X, y)
    assert metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y) > 0.95


@pytest.mark.parametrize("name", NAMES)
def test_label_sets_and_no_labels(name, groups, label_sets):
    X, Y = groups[0][:30], label_sets[0]
    first, second = (
        REGISTRY[name](n_bits=9, n_anchors=20).fit(X, labels).transform(X) for labels in (Y, sp.csr_array(Y))
    )
    assert len(np.unique(first, axis=0)) > 3
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="requires y"):
        REGISTRY[name](n_anchors=20).fit(X)


@pytest.mark.parametrize("name", ["tsh", "lfh", "cosdish"])
def test_learned_codes_separate_the_classes(name, groups):
    """The codes are learned from the labels: between classes they differ more than within one."""
    X, y, _, _ = groups
    learned = REGISTRY[name](n_bits=24, n_anchors=100).fit(X, y).codes_
    assert learned.shape == (400, 3)
    distance, same = codes.hamming(learned, learned), y[:, None] == y[None, :]
    assert distance[same].mean() < 3
    assert distance[~same].mean() > 8


# --- BRE ---


def bre_cost(bits, i, j, weight):
    return weight[bits[i] != bits[j]].sum()


@pytest.mark.parametrize("seed", range(5))
def test_bre_step_is_the_best_over_all_thresholds(seed):
    rng = np.random.default_rng(seed)
    n = 25
    i, j = np.triu_indices(n, 1)
    weight, k, f = rng.standard_normal(len(i)), rng.standard_normal(n), rng.standard_normal(n)
    k[3] = 0  # a row that this weight cannot move
    start, neighbour, pair = bre._adjacency(i, j, n)
    step = bre.best_step(k, f, start, neighbour, weight[pair])
    crossing = np.sort(-f[k != 0] / k[k != 0])
    places = np.concatenate([[crossing[0] - 1], (crossing[:-1] + crossing[1:]) / 2, [crossing[-1] + 1]])
    every = [bre_cost(f + z * k >= 0, i, j, weight) for z in places]
    assert bre_cost(f + step * k >= 0, i, j, weight) == pytest.approx(min(every))


def test_bre_objective_is_the_error_over_pairs_and_never_rises(groups):
    X, y, _, _ = groups
    hasher = bre.BRE(n_bits=12, n_anchors=60, pairs_per_row=400).fit(X, y)  # 400: every pair there is
    assert (np.diff(hasher.objective_) <= 0).all()
    assert hasher.objective_[-1] < hasher.objective_[0]
    H = hasher.transform(X)
    error = ((y[:, None] != y[None, :]) - codes.hamming(H, H) / 12) ** 2
    assert hasher.objective_[-1] == pytest.approx(error[~np.eye(400, dtype=bool)].mean(), rel=1e-3)


# --- MLH ---


def test_mlh_loss_counts_bits_beyond_rho():
    far, near = mlh.losses(r=6, rho=2, lam=0.5).numpy()
    np.testing.assert_allclose(near, np.array([0, 0, 1, 2, 3, 4, 5]) / 5)
    np.testing.assert_allclose(far, 0.5 * np.array([3, 2, 1, 0, 0, 0, 0]) / 3)


@pytest.mark.parametrize("similar", [0, 1])
def test_mlh_inference_is_the_best_of_all_pairs_of_codes(similar):
    r, rng = 4, np.random.default_rng(similar)
    f, f2 = (torch.from_numpy(rng.standard_normal((20, r)) / 3) for _ in range(2))
    loss = mlh.losses(r, 2, 0.7)[similar].expand(20, -1)
    g, g2, value = mlh.loss_adjusted(f, f2, loss)
    G = all_signs(r)
    for row in range(20):
        score = (G @ f[row].numpy())[:, None] + (G @ f2[row].numpy())[None, :]
        score += loss[row].numpy()[(G[:, None] != G[None, :]).sum(2)]
        assert float(value[row]) == pytest.approx(score.max())
        a, b = (int(np.flatnonzero((z[row].numpy() == G).all(1))[0]) for z in (g, g2))
        assert score[a, b] == pytest.approx(score.max())


def test_mlh_bounds_its_loss_and_lowers_the_bound(groups):
    X, y, _, _ = groups
    hasher = mlh.MLH(n_bits=16, n_iter=4).fit(X, y)
    assert hasher.bound_[-1] < 0.5 * hasher.bound_[0]
    i, j, similar = pairs.sample_pairs(from_labels(y), 20, np.random.RandomState(1))
    distance = np.diagonal(codes.hamming(*(hasher.transform(X[rows]) for rows in (i, j))))
    loss = mlh.losses(16, hasher.rho_, 1.0).numpy()[similar.astype(int), distance]
    assert loss.mean() <= hasher.bound_[-1] + 0.02


# --- TSH ---


def tsh_problem(loss, n, rng):
    S = from_labels(rng.integers(0, 3, n))
    if loss == "ksh":
        return tsh.AllPairs(S)
    return tsh.SampledPairs(n, *pairs.sample_pairs(S, 4, np.random.RandomState(0)), tsh.LOSSES[loss])


@pytest.mark.parametrize("loss", ["ksh", *tsh.LOSSES])
def test_tsh_quadratic_form_is_the_loss_up_to_a_constant(loss):
    rng = np.random.default_rng(5)
    problem = tsh_problem(loss, 20, rng)
    H = rng.choice((-1.0, 1.0), (20, 5))
    product = problem.product(H)
    factor = 2.0 if loss == "ksh" else 0.5  # −2 zᵀ(tS − H'H'ᵀ)z; a sampled pair is in zᵀA z as ij and as ji
    offsets = []
    for z in rng.choice((-1.0, 1.0), (8, 20)):
        offsets.append(problem.loss(np.column_stack([H, z])) - factor * (z @ product(z)))
    np.testing.assert_allclose(offsets, offsets[0])


def test_tsh_losses_by_hand():
    """One similar and one dissimilar pair, three bits: d = 1 and d = 2."""
    H = np.array([[1.0, 1, 1], [1, 1, -1], [1, -1, 1], [-1, -1, -1]])
    i, j, similar = np.array([0, 2]), np.array([1, 3]), np.array([True, False])
    value = {name: tsh.SampledPairs(4, i, j, similar, loss).loss(H) for name, loss in tsh.LOSSES.items()}
    assert value["hinge"] == 1 + 0
    assert value["bre"] == 1 + 1
    assert value["ee"] == pytest.approx(1 + 100 * np.exp(-2 / 3))
    S = from_labels(np.array([0, 0, 1, 2]))
    assert tsh.AllPairs(S).loss(H) == pytest.approx(((3 * S.dense() - H @ H.T) ** 2).sum())


@pytest.mark.parametrize("loss", ["ksh", *tsh.LOSSES])
def test_tsh_bit_is_near_the_optimum_and_passes_never_raise_the_loss(loss):
    rng = np.random.default_rng(6)
    problem = tsh_problem(loss, 12, rng)
    product = problem.product(rng.choice((-1.0, 1.0), (12, 3)))
    A = np.stack([product(e) for e in np.eye(12)])
    Z = all_signs(12)
    values = np.einsum("zi,ij,zj->z", Z, A, Z)
    start = rng.choice((-1.0, 1.0), 12)
    z = tsh.solve_bit(product, 12, [start], np.random.RandomState(0))
    assert z @ A @ z <= start @ A @ start
    assert z @ A @ z <= values.min() + 0.1 * (values.max() - values.min())
    _, losses = tsh.infer_codes(problem, 6, 4, np.random.RandomState(0))
    assert (np.diff(losses) <= 1e-9 * losses[0]).all()


@pytest.mark.parametrize("params", [{"loss": "hinge"}, {"loss": "bre"}, {"loss": "ee"}, {"classifier": "svm"}])
def test_tsh_losses_and_classifiers_all_learn(groups, params):
    X, y, Xq, yq = groups
    hasher = tsh.TSH(n_bits=16, n_anchors=100, **params).fit(X, y)
    assert metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y) > 0.95


# --- LFH ---


def test_lfh_step_is_the_gradient_over_a_bound_of_the_hessian():
    rng = np.random.default_rng(7)
    U = torch.from_numpy(rng.standard_normal((9, 3))).requires_grad_()
    s = torch.from_numpy((lambda A: (A + A.T > 0).astype(float))(rng.standard_normal((9, 9))))
    (gradient,) = torch.autograd.grad(lfh.log_posterior(U, s, 5.0), U)
    others = torch.arange(9) != 4
    u, V = U[4].detach(), U[others].detach()
    step = lfh.newton_step(u[None], V, s[4][others][None], 5.0)[0]
    bound = V.T @ V / 8 + torch.eye(3) / 5
    torch.testing.assert_close(bound @ step, gradient[4])

    def of_row(row):
        return lfh.log_posterior(torch.cat([U[:4].detach(), row[None], U[5:].detach()]), s, 5.0)

    hessian = torch.autograd.functional.hessian(of_row, u)
    assert float(torch.linalg.eigvalsh(hessian + bound).min()) >= -1e-12  # −bound is below the Hessian


def test_lfh_likelihood_never_falls_row_by_row():
    """With all columns known the rows move one after the other, and the paper promises that no step goes down."""
    y = np.random.default_rng(8).integers(0, 3, 25)
    S = from_labels(y)
    s = torch.from_numpy((y[:, None] == y[None, :]).astype(float))
    U = torch.from_numpy(np.random.default_rng(9).standard_normal((25, 4)))
    values = [float(lfh.log_posterior(U, s, 30.0))]
    for _ in range(10):
        lfh.update_factors(U, S, torch.arange(25), 30.0)
        values.append(float(lfh.log_posterior(U, s, 30.0)))
    assert (np.diff(values) >= 0).all()
    assert values[-1] > 0.3 * values[0]  # both negative


def test_lfh_rows_outside_the_columns_gain_too():
    y = np.random.default_rng(10).integers(0, 3, 40)
    S = from_labels(y)
    U = torch.from_numpy(np.random.default_rng(11).standard_normal((40, 4)))
    columns = torch.tensor([3, 8, 20, 21, 33])
    V, s = U[columns].clone(), torch.from_numpy((y[:, None] == y[columns.numpy()]).astype(float))

    def likelihood(U):
        Theta = U @ V.T / 2
        return 2 * (s * Theta - torch.nn.functional.softplus(Theta)).sum(1) - U.square().sum(1) / 60

    before = likelihood(U)
    lfh.update_factors(U, S, columns, 30.0)
    outside = ~torch.isin(torch.arange(40), columns)
    assert (likelihood(U)[outside] >= before[outside] - 1e-12).all()


# --- COSDISH ---


@pytest.mark.parametrize("seed", range(6))
def test_cosdish_local_maximum_against_brute_force(seed):
    rng = np.random.default_rng(seed)
    M, c, b = rng.standard_normal((8, 8)), rng.standard_normal(8), rng.choice((-1.0, 1.0), 8)
    M = (M + M.T) / 2

    def value(z):
        return z @ M @ z + 2 * c @ z

    found = cosdish.local_maximum(M, c, b)
    assert value(found) >= value(b)
    assert all(value(found * np.where(np.arange(8) == i, -1, 1)) <= value(found) + 1e-9 for i in range(8))
    every = np.array([value(z) for z in all_signs(8)])
    assert value(found) >= every.mean() + 0.7 * (every.max() - every.mean())


def test_cosdish_classes_that_were_not_drawn_share_a_code(blobs):
    """As its formula has it: a row of S^Γ without a similar column is the same for all classes."""
    y = np.repeat(np.arange(40), 3)
    few = cosdish.COSDISH(16, 20, n_columns=16).fit(blobs[0], y)
    many = cosdish.COSDISH(16, 20, n_columns=120).fit(blobs[0], y)
    assert len(blobs[0]) == 120
    _, sizes = np.unique(few.codes_, axis=0, return_counts=True)
    assert sizes.max() >= 3 * (40 - 16)
    _, sizes = np.unique(many.codes_, axis=0, return_counts=True)
    assert sizes.max() <= 3 * 4


def cosdish_objective(draw, B, n):
    r = B.shape[1]
    S = draw.table[draw.row_group].numpy()
    return ((r * S - B.numpy() @ B[draw.columns].numpy().T) ** 2).sum()


def test_cosdish_drawn_rows_never_raise_the_objective():
    rng = np.random.default_rng(12)
    y = rng.integers(0, 3, 60)
    B = torch.from_numpy(rng.choice((-1.0, 1.0), (60, 8)))
    draw = cosdish.Draw(from_labels(y), torch.from_numpy(rng.choice(60, 10, replace=False)))
    values = [cosdish_objective(draw, B, 60)]
    for _ in range(4):
        draw.update_drawn(B)
        values.append(cosdish_objective(draw, B, 60))
    assert (np.diff(values) <= 1e-9).all()
    assert values[1] < values[0]


def test_cosdish_one_bit_is_solved_as_the_objective_says():
    """With one bit the quadratic problem is the whole objective: no other b for one drawn row is better."""
    rng = np.random.default_rng(13)
    y = rng.integers(0, 3, 30)
    B = torch.from_numpy(rng.choice((-1.0, 1.0), (30, 1)))
    columns = torch.tensor([2, 7, 11, 29])
    draw = cosdish.Draw(from_labels(y), columns)
    draw.update_drawn(B)
    value = cosdish_objective(draw, B, 30)
    for row in columns:
        other = B.clone()
        other[row] *= -1
        assert cosdish_objective(draw, other, 30) >= value - 1e-9


def test_cosdish_other_rows_minimise_the_l1_distance():
    rng = np.random.default_rng(14)
    y = rng.integers(0, 3, 40)
    B = torch.from_numpy(rng.choice((-1.0, 1.0), (40, 3)))
    columns = torch.tensor([1, 5, 6, 18, 30])
    draw = cosdish.Draw(from_labels(y), columns)
    S = draw.table[draw.row_group].numpy()
    same = y[:, None] == y[columns.numpy()]
    assert S[same] == pytest.approx(1.0)
    assert S.sum() == pytest.approx(0.0)  # both kinds weigh the same
    drawn = B[columns].clone()
    draw.update_others(B)
    torch.testing.assert_close(B[columns], drawn)
    for i in set(range(40)) - set(columns.tolist()):
        every = [np.abs(3 * S[i] - z @ drawn.numpy().T).sum() for z in all_signs(3)]
        ours = np.abs(3 * S[i] - B[i].numpy() @ drawn.numpy().T).sum()
        assert ours <= 2 * min(every) + 1e-9  # the paper's bound for the ℓ₁ step
