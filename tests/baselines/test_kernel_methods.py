"""KSH, SDH and FastH against brute force, explicit n×n matrices and finite differences."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import dish
from dish import codes, metrics
from dish.baselines import REGISTRY, fasth, ksh, sdh
from dish.baselines import _trees as trees
from dish.kernel.fit_data import Problem
from dish.kernel.whitening import Whitening, gram
from dish.similarity import from_labels

pytestmark = pytest.mark.slow

KERNEL = ("ksh", "sdh", "fasth")


def all_signs(n):
    """Every vector of {−1, 1}ⁿ, (2ⁿ, n)."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=n)))


@pytest.fixture
def problem():
    """Centred features of 40 rows, float64, with labels of three classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=40)
    K = torch.from_numpy(rng.standard_normal((40, 6)) + np.eye(3, 6)[y])
    K -= K.mean(0)
    return K, Whitening.of(gram(K), 1e-6), y


@pytest.fixture
def label_sets():
    """120 rows in three groups; a row has the label of its group and perhaps a fourth one."""
    rng = np.random.default_rng(3)
    y = np.repeat([0, 1, 2], 40)
    Y = np.hstack([np.eye(3, dtype=int)[y], rng.integers(2, size=(120, 1))])
    return rng.standard_normal((120, 6)) + 6 * Y @ np.eye(4, 6), Y


# --- all ---


@pytest.mark.parametrize("name", KERNEL)
def test_separable_groups_are_told_apart(name):
    rng = np.random.default_rng(5)
    y = rng.integers(8, size=600)
    X = rng.standard_normal((600, 10)) + 5 * np.eye(8, 10)[y]
    hasher = REGISTRY[name](n_bits=16, n_anchors=100).fit(X[:400], y[:400])
    q, b = hasher.transform(X[400:]), hasher.transform(X[:400])
    assert metrics.mean_average_precision(q, y[400:], b, y[:400]) > 0.95


@pytest.mark.parametrize("name", KERNEL)
def test_several_labels_a_row_dense_or_sparse(name, label_sets):
    X, Y = label_sets
    dense, sparse = (REGISTRY[name](n_bits=16, n_anchors=60).fit(X, Z).transform(X) for Z in (Y, sp.csr_array(Y)))
    np.testing.assert_array_equal(dense, sparse)
    assert metrics.mean_average_precision(dense, Y, dense, Y) > 0.97


@pytest.mark.parametrize("name", ["ksh", "sdh"])  # FastH draws the blocks' signs in another order
def test_one_label_a_row_as_a_matrix_is_the_same_as_classes(name, blobs):
    X, y = blobs
    classes, matrix = (REGISTRY[name](n_bits=12, n_anchors=60).fit(X, Z) for Z in (y, np.eye(3, dtype=int)[y]))
    same = np.unpackbits(classes.transform(X), axis=1) == np.unpackbits(matrix.transform(X), axis=1)
    assert same.mean() > 0.99  # the two add up in another order, no more


@pytest.mark.parametrize("name", KERNEL)
def test_labels_are_needed(name, blobs):
    X, y = blobs
    hasher = REGISTRY[name](n_anchors=60)
    with pytest.raises(ValueError, match="requires y"):
        hasher.fit(X)
    with pytest.raises(ValueError, match="1 class"):
        hasher.fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match=r"119.*120|120.*119"):
        hasher.fit(X, y[:-1])


@pytest.mark.parametrize("name", ["sdh", "fasth"])
def test_a_similarity_is_not_labels(name, blobs):
    X, _ = blobs
    with pytest.raises(ValueError, match="not a LowRank"):
        REGISTRY[name](n_anchors=60).fit(X, dish.similarity.LowRank(X, X))


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("ksh", {"n_steps": -1}),
        ("sdh", {"lam": 0}),
        ("sdh", {"nu": -1}),
        ("sdh", {"n_iter": 0}),
        ("fasth", {"loss": "forest"}),
        ("fasth", {"n_trees": 0}),
        ("fasth", {"depth": 0}),
    ],
)
def test_bad_parameters_are_named(name, bad, blobs):
    X, y = blobs
    with pytest.raises(ValueError, match=next(iter(bad))):
        REGISTRY[name](n_anchors=60, **bad).fit(X, y)


# --- KSH ---


def residue_of(y, r, H, K):
    Q = ksh.Residue(from_labels(y), r, K)
    for h in H.T:
        Q.subtract(torch.from_numpy(h))
    return Q


def test_the_residue_is_r_S_minus_H_Ht(problem):
    K, _, y = problem
    rng = np.random.default_rng(1)
    H = rng.choice([-1.0, 1.0], (40, 3))
    explicit = 8 * np.where(y[:, None] == y, 1.0, -1.0) - H @ H.T
    z = rng.standard_normal(40)
    Q = residue_of(y, 8, H, K)
    np.testing.assert_allclose(Q @ torch.from_numpy(z), explicit @ z, atol=1e-10)
    assert Q.quadratic(torch.from_numpy(z)) == pytest.approx(z @ explicit @ z)


def test_the_smoothed_slope_is_the_derivative(problem):
    K, _, y = problem
    rng = np.random.default_rng(2)
    Q = residue_of(y, 8, rng.choice([-1.0, 1.0], (40, 2)), K)
    F = torch.from_numpy(rng.standard_normal(40))
    g, slope = ksh.smoothed(Q, F)
    h = ksh.signs(F)
    assert ksh.smoothed(Q, 1e3 * h)[0] == pytest.approx(-Q.quadratic(h))  # a steep sigmoid is the sign
    for i in range(0, 40, 7):
        e = torch.zeros(40, dtype=torch.float64)
        e[i] = 1e-5
        difference = (ksh.smoothed(Q, F + e)[0] - ksh.smoothed(Q, F - e)[0]) / 2e-5
        assert slope[i].item() == pytest.approx(difference, rel=1e-5, abs=1e-4)
    assert g == pytest.approx(-Q.quadratic(torch.tanh(F / 2)))


@pytest.mark.parametrize("whiten", [True, False])
def test_climbing_lowers_the_smoothed_objective(problem, whiten):
    K, white, y = problem
    Q, L_inv = ksh.Residue(from_labels(y), 8, K), white.inverse_factor() if whiten else None
    w = torch.ones(6, dtype=torch.float64)
    values = [ksh.smoothed(Q, ksh.climb(K, L_inv, Q, w, K @ w, n)[1])[0] for n in (0, 1, 5, 50)]
    assert values[0] > values[1] > values[2] > values[3]
    w_up, F_up = ksh.climb(K, L_inv, Q, w, K @ w, 50)
    np.testing.assert_allclose(K @ w_up, F_up, atol=1e-8)


def test_every_bit_of_ksh_brings_H_Ht_nearer_to_r_S(problem):
    K, _, y = problem
    r = 8
    H = np.where(K @ ksh.learn(Problem.of(from_labels(y), K), r, 20) >= 0, 1.0, -1.0)
    S = np.where(y[:, None] == y, 1.0, -1.0)
    distance = [np.square(r * S - H[:, :k] @ H[:, :k].T).sum() for k in range(r + 1)]
    assert (np.diff(distance) < 0).all()


# --- SDH ---


def sdh_row_loss(b, q, M):
    return b @ M @ b - 2 * q @ b


@pytest.fixture(params=["loops", "tensors"])
def descend(request):
    """The two forms of discrete cyclic coordinate descent: B in place, for max_passes passes."""
    if request.param == "loops":
        return lambda B, Q, M: sdh._descend(B, Q, M, sdh.MAX_PASSES)
    return lambda B, Q, M: sdh.descend(torch.from_numpy(B), torch.from_numpy(Q), torch.from_numpy(M))


def test_one_bit_of_sdh_is_the_best_of_all_columns(descend, monkeypatch):
    """Bit k of n rows: over {−1, 1}ⁿ, no column has a lower ‖Y − BW‖² − 2ν⟨F, B⟩."""
    monkeypatch.setattr(sdh, "MAX_PASSES", 1)
    rng = np.random.default_rng(4)
    n, r, nu = 6, 3, 0.3
    Y, W, F = np.eye(2)[rng.integers(2, size=n)], rng.standard_normal((r, 2)), rng.standard_normal((n, r))
    B = rng.choice([-1, 1], (n, r)).astype(np.int8)

    def loss(B):
        return np.square(Y - B @ W).sum() + nu * np.square(B - F).sum()

    expected = B.copy()
    for k in range(r):
        columns = []
        for column in all_signs(n):
            expected[:, k] = column
            columns.append((loss(expected), tuple(column)))
        expected[:, k] = min(columns)[1]
    flips = descend(B, Y @ W.T + nu * F, W @ W.T)
    np.testing.assert_array_equal(B, expected)
    assert flips > 0


def test_the_descent_of_sdh_stops_where_no_bit_wants_to_flip(descend):
    rng = np.random.default_rng(6)
    A = rng.standard_normal((5, 3))
    M, Q = A @ A.T, rng.standard_normal((30, 5))
    B = rng.choice([-1, 1], (30, 5)).astype(np.int8)
    before = B.copy()
    assert descend(B, Q, M) == (before != B).sum()
    for b0, b, q in zip(before, B, Q, strict=True):
        value = sdh_row_loss(b, q, M)
        assert value <= sdh_row_loss(b0, q, M)
        assert all(value <= sdh_row_loss(b * (1 - 2 * np.eye(5)[k]), q, M) for k in range(5))


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_objective_of_sdh_is_what_its_parts_say_and_never_rises(digits, label_sets, multilabel):
    X, Y = label_sets if multilabel else (digits[0][:500], digits[1][:500])
    lam, nu = 2.0, 0.01
    hasher = sdh.SDH(n_bits=10, n_anchors=50, lam=lam, nu=nu, n_iter=8).fit(X.astype(np.float64), Y)
    assert len(hasher.objective_) >= 2
    assert (np.diff(hasher.objective_) <= 1e-9 * hasher.objective_[0]).all()

    # the same from explicit matrices: the last round's W belongs to the codes of the round before it
    Y = Y if multilabel else np.eye(10)[Y]
    B = codes.unpack(hasher.codes_, 10).astype(float)
    K = hasher._features()(torch.from_numpy(X.astype(np.float64))).numpy()
    rho = 1e-6 * np.square(K).sum() / K.shape[1]
    former = sdh.SDH(n_bits=10, n_anchors=50, lam=lam, nu=nu, n_iter=len(hasher.objective_) - 1)
    B_former = codes.unpack(former.fit(X.astype(np.float64), Y).codes_, 10).astype(float)
    W = np.linalg.solve(B_former.T @ B_former + lam * np.eye(10), B_former.T @ Y)
    to_rows = np.square(B - K @ hasher.W_ - hasher.intercept_).sum() + rho * np.square(hasher.W_).sum()
    expected = np.square(Y - B @ W).sum() + lam * np.square(W).sum() + nu * to_rows
    assert hasher.objective_[-1] == pytest.approx(expected, rel=1e-6)


# --- FastH ---


def pair_loss(z, y, H, r):
    """−zᵀ(rS − HHᵀ)z from the explicit matrix."""
    S = np.where(y[:, None] == y, 1.0, -1.0)
    return -z @ (r * S - H @ H.T) @ z


@pytest.mark.parametrize("k", [0, 1, 4])
def test_the_inference_of_fasth_never_raises_its_loss(k):
    rng = np.random.default_rng(k)
    y = rng.integers(4, size=50)
    H = rng.choice([-1, 1], (50, 6)).astype(np.int8)
    pairs = fasth.Pairs(from_labels(y), 6)
    z = rng.choice([-1.0, 1.0], 50)
    before = pair_loss(z, y, H[:, :k], 6)
    after = pairs.descend(z, np.ones(50), H, k, pairs.row_group)
    assert after == pytest.approx(pair_loss(z, y, H[:, :k], 6))
    assert after < before
    flipped = [pair_loss(z * (1 - 2 * e), y, H[:, :k], 6) for e in np.eye(50)]
    assert after <= min(flipped) + 1e-9


def test_blocks_of_fasth_are_the_rows_they_stand_for():
    """A block's loss is its rows' loss, and no block of rows with equal bits has a better labelling, split or not."""
    rng = np.random.default_rng(7)
    y = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    H = rng.choice([-1, 1], (3, 5)).astype(np.int8)[y]  # equal within a block
    pairs, k = fasth.Pairs(from_labels(y), 5), 3
    H_g = np.stack([H[y == g].sum(0) for g in range(3)]).astype(float)
    x = np.array([1.0, 1.0, 1.0])
    loss = pairs.descend(x, pairs.size, H_g, k, np.arange(3))
    z = x[y]
    assert loss == pytest.approx(pair_loss(z, y, H[:, :k], 5))
    for g in range(3):
        others = []
        for part in all_signs((y == g).sum()):
            z_other = z.copy()
            z_other[y == g] = part
            others.append(pair_loss(z_other, y, H[:, :k], 5))
        assert loss == pytest.approx(min(others))


def test_the_first_bit_of_fasth_is_the_best_of_all():
    y = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
    pairs, none = fasth.Pairs(from_labels(y), 4), np.zeros((10, 4), np.int8)
    z = pairs.infer(none, 0, np.random.RandomState(0))
    best = min(pair_loss(other, y, none, 4) for other in all_signs(10))
    assert pair_loss(z, y, none, 4) == pytest.approx(best)


def test_fasth_counts_shared_labels(label_sets):
    _, Y = label_sets
    rng = np.random.default_rng(8)
    H, z = rng.choice([-1, 1], (120, 4)).astype(np.int8), rng.choice([-1.0, 1.0], 120)
    pairs = fasth.Pairs(from_labels(Y), 4)
    loss = pairs.descend(z, np.ones(120), H, 2, pairs.row_group)
    explicit = 4 * (2 * Y @ Y.T - 1) - H[:, :2].astype(int) @ H[:, :2].T
    assert loss == pytest.approx(-z @ explicit @ z)


def test_trees_are_those_of_scikit_learn_and_boosting_lowers_the_error():
    from sklearn.tree import DecisionTreeRegressor

    rng = np.random.default_rng(9)
    X = rng.standard_normal((300, 5)).astype(np.float32)
    z = np.where(X[:, 0] + X[:, 1] - X[:, 2] >= 0, 1.0, -1.0)
    tree = DecisionTreeRegressor(max_depth=4, min_samples_leaf=30, random_state=0).fit(X, z)  # some leaves early
    f = trees.evaluate(X, *(part[None, None] for part in trees._complete(tree.tree_, 4, 0.5)))[:, 0]
    np.testing.assert_allclose(f, np.where(tree.predict(X) >= 0, 0.5, -0.5))
    errors = []
    for n_trees in (1, 50):
        boosted = trees.boost(X, z, n_trees, 2, np.random.RandomState(0))
        errors.append((np.sign(trees.evaluate(X, *(part[None] for part in boosted))[:, 0]) != z).mean())
    assert errors[1] < errors[0] / 2


def test_fasth_with_trees(digits, tmp_path):
    X, y, Xq, yq = digits
    hasher = fasth.FastH(n_bits=12, loss="trees", n_trees=10).fit(X, y)
    q = hasher.transform(Xq)
    assert metrics.mean_average_precision(q, yq, hasher.transform(X), y) > 0.9
    hasher.save(tmp_path / "trees.dish")
    np.testing.assert_array_equal(dish.load(tmp_path / "trees.dish").transform(Xq), q)
