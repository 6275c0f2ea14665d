"""Fast C-BCD against brute force: the explicit n×n objective, the enumerated optimum, the paper's own formula."""

from itertools import product

import numpy as np
import pytest
import torch

from dish import codes, parallel
from dish.cbcd import algorithm1
from dish.cbcd.inner import InnerLoop
from dish.similarity import Classes, from_labels
from helpers.similarities import KINDS

RNG = np.random.default_rng(3)
FORMS = {
    "packed": algorithm1.PackedColumns,
    "dense": algorithm1.DenseColumns,
    "device": lambda packed, r: algorithm1.DeviceColumns(torch.from_numpy(packed), r),
}


def random_codes(n, r, rng=RNG):
    """Balanced random columns, ±1 (n, r)."""
    half = np.where(np.arange(n) < (n + 1) // 2, 1, -1)
    return np.stack([rng.permutation(half) for _ in range(r)], 1)


def explicit_objective(dense_S, H, q, r):
    return ((r * dense_S - H @ H.T) ** 2).sum() + (q * H.T).sum()


def explicit_g(dense_S, H, k, b, q, r):
    rest = np.delete(H, k, axis=1)
    Q = r * dense_S - rest @ rest.T
    return -2 * b @ Q @ b + q @ b


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", KINDS)
def test_objective_equals_the_explicit_formula_and_never_rises(name, form):
    S, dense = KINDS[name]
    r = 5
    H = FORMS[form](codes.pack(random_codes(12, r)), r)
    q = torch.from_numpy(RNG.standard_normal((r, 12)))
    values = []
    for _ in range(4):
        done = algorithm1.sweep(H, S, q)
        values.append(algorithm1.objective(done, (dense**2).sum(), r))
        now = codes.unpack(H.packed(), r).astype(float)
        assert values[-1] == pytest.approx(explicit_objective(dense, now, q.numpy(), r), rel=1e-12)
        np.testing.assert_array_equal(now.sum(0), 0)  # every bit is balanced
    assert (np.diff(values) <= 1e-9).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*KINDS, "odd"])
def test_no_column_beats_the_enumerated_optimum_or_loses_to_its_start(name, form):
    if name == "odd":
        y = RNG.integers(0, 3, 11)
        S, dense = from_labels(y), 2.0 * (y[:, None] == y[None]) - 1
    else:
        S, dense = KINDS[name]
    n, r, k = S.n, 4, 2
    start = random_codes(n, r)
    q = RNG.standard_normal(n) * 3
    H = FORMS[form](codes.pack(start), r)
    result = algorithm1.Sweep(np.zeros(r), np.zeros(r), np.zeros((r, r)))
    algorithm1.update_column(H, k, S, torch.from_numpy(q), result, n=len(q), diag=r * S.diag - (r - 1))
    b = codes.unpack(H.packed(), r)[:, k].astype(float)
    best = min(
        explicit_g(dense, start, k, np.array(c), q, r) for c in product([-1.0, 1.0], repeat=n) if sum(c) == n % 2
    )
    reached = explicit_g(dense, start, k, b, q, r)
    assert b.sum() == n % 2
    assert reached >= best - 1e-9
    assert reached <= explicit_g(dense, start, k, start[:, k].astype(float), q, r) + 1e-9


def test_enumerated_optimum_is_often_reached():
    """The step is an optimiser, not a no-op: from random starts it finds the best column most of the time."""
    S, dense = KINDS["classes"]
    r, hits = 4, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        start, q = random_codes(12, r, rng), rng.standard_normal(12)
        H = algorithm1.PackedColumns(codes.pack(start), r)
        result = algorithm1.Sweep(np.zeros(r), np.zeros(r), np.zeros((r, r)))
        algorithm1.update_column(H, 0, S, torch.from_numpy(q), result, n=len(q), diag=r * S.diag - (r - 1))
        b = codes.unpack(H.packed(), r)[:, 0].astype(float)
        best = min(
            explicit_g(dense, start, 0, np.array(c), q, r) for c in product([-1.0, 1.0], repeat=12) if sum(c) == 0
        )
        hits += explicit_g(dense, start, 0, b, q, r) <= best + 1e-9
    assert hits >= 10


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("lam", [0.0, 7.5])
def test_sim_is_the_papers_formula(name, form, lam):
    """Eq. (sim): 8 d₀ + q₀, less 8 Q_ii − λ on the rows in the set, with d₀ and q₀ spelled out."""
    S, dense = KINDS[name]
    n, r, k = 12, 6, 3
    H = random_codes(n, r)
    q = RNG.standard_normal(n)
    rest = np.delete(H, k, axis=1)
    Q = r * dense - rest @ rest.T
    chosen = H[:, k] == 1
    d0 = r * dense[:, chosen].sum(1) - rest @ rest[chosen].sum(0)
    q0 = -4 * (Q - np.diag(np.diag(Q))) @ np.ones(n) - q
    literal = 8 * d0 + q0 + np.where(chosen, -8 * np.diag(Q) + lam, 0)

    columns = FORMS[form](codes.pack(H), r)
    group = S.row_group
    sums, u = columns.sums(k, group, S.n_groups)
    u[k] = 0
    diag = r * S.diag - (r - 1)
    sim, qb = columns.scores(k, u, r * S.P(S.Rt(sums)), diag, group, torch.from_numpy(q), lam, n)
    np.testing.assert_allclose(sim.numpy(), literal, atol=1e-9)
    b = H[:, k].astype(float)
    assert r * sums @ S.P(S.Rt(sums)) - u @ u == pytest.approx(b @ Q @ b)
    assert qb == pytest.approx(q @ b)


def test_a_large_lambda_makes_every_step_monotone_without_the_guard():
    """With 8 Q₀ + λI positive semidefinite the step is a k-means step (Theorem 1)."""
    dense = KINDS["counts"][1]
    n, r, k = 12, 5, 1
    H = random_codes(n, r)
    q = RNG.standard_normal(n)
    rest = np.delete(H, k, axis=1)
    Q0 = r * dense - rest @ rest.T
    np.fill_diagonal(Q0, 0)
    lam = -8 * np.linalg.eigvalsh(Q0)[0]
    b, values = H[:, k].astype(float), []
    for _ in range(10):
        values.append(explicit_g(dense, H, k, b, q, r))
        sim = 4 * Q0 @ b - q + lam * (b + 1) / 2
        b = np.full(n, -1.0)
        b[np.argsort(-sim, kind="stable")[: n // 2]] = 1
    assert (np.diff(values) <= 1e-9).all()


@pytest.mark.parametrize("r", [3, 8, 19])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 20_001])
def test_all_forms_agree(n, r):
    rng = np.random.default_rng(n)
    y = rng.integers(0, 7, n)
    S = Classes(y)
    start = codes.pack(rng.standard_normal((n, r)))  # not balanced
    q = torch.from_numpy(5 * rng.standard_normal((r, n))).float()
    dense, others = algorithm1.DenseColumns(start, r), [FORMS[form](start, r) for form in ("packed", "device")]
    for _ in range(2):
        b = algorithm1.sweep(dense, S, q)
        for other in others:
            a = algorithm1.sweep(other, S, q)
            np.testing.assert_array_equal(other.packed(), dense.packed())
            np.testing.assert_array_equal(other.signs(slice(0, n), q), dense.H.float())
            assert (a.steps, a.flips) == (b.steps, b.flips)
            np.testing.assert_array_equal(a.gram, b.gram)
            np.testing.assert_allclose(a.hSh, b.hSh, rtol=1e-12)
            np.testing.assert_allclose(a.qh, b.qh, rtol=1e-9)


@pytest.mark.parametrize("n_groups", [1, 40, 2897, 2999, 20_000, 70_000])
def test_sums_by_group_are_exact_for_many_groups(n_groups):
    rng = np.random.default_rng(0)
    row_group = rng.integers(0, n_groups, 60_001).astype(np.int32)
    H = np.where(rng.random((60_001, 2)) < 0.5, -1, 1)
    expected = np.bincount(row_group, H[:, 1], n_groups)
    for form, make in FORMS.items():
        columns = make(codes.pack(H), 2)
        for threads in (1, 3):
            columns.threads = threads
            sums, against = columns.sums(1, torch.from_numpy(row_group), n_groups)
            np.testing.assert_array_equal(sums, expected, err_msg=form)
            np.testing.assert_array_equal(against, H.T @ H[:, 1], err_msg=form)


@pytest.mark.parametrize("where", [0, 7])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("form", FORMS)
def test_linear_terms_that_are_not_finite_are_refused(form, value, where):
    q = torch.zeros(5, 12, dtype=torch.float64)
    q[2, where] = value
    H = FORMS[form](codes.pack(random_codes(12, 5)), 5)
    with pytest.raises(ValueError, match=r"bit 2: the objective is .*NaN or infinity"):
        algorithm1.sweep(H, KINDS["classes"][0], q)


@pytest.mark.parametrize("n", [1, 2, 1000, 16_385, 40_000, 500_000])
@pytest.mark.parametrize("values", ["normal", "ties", "constant", "sorted", "two_scales", "wide_band", "signed_zero"])
def test_selection_is_a_stable_sort(n, values):
    rng = np.random.default_rng(n)
    v = {
        "normal": rng.standard_normal(n),
        "ties": rng.integers(0, 5, n).astype(float),
        "constant": np.zeros(n),
        "sorted": np.sort(rng.standard_normal(n)),
        "two_scales": 1e7 * rng.integers(0, 10, n) + rng.standard_normal(n),
        "wide_band": rng.choice([-1.0, 0.0, 1.0, 2.0], p=[0.10, 0.42, 0.42, 0.06], size=n),
        "signed_zero": np.where(rng.random(n) < 0.5, -0.0, 0.0),
    }[values]
    count = (n + 1) // 2
    expected = np.zeros(n, bool)
    expected[np.argsort(-v, kind="stable")[:count]] = True
    sim, threshold = torch.from_numpy(v), np.sort(v)[n - count]
    ties = count - (v > threshold).sum()
    assert parallel.kth_largest(sim, count, parallel.ALONE) == (threshold, ties)
    start = rng.random(n) < 0.5
    for form, make in FORMS.items():
        H = make(np.packbits(start[:, None], axis=1), 1)
        assert H.kth_largest(sim, count) == (threshold, ties), form
        assert H.set_largest(0, sim, threshold, ties) == (start != expected).sum(), form
        np.testing.assert_array_equal(H.packed()[:, 0] > 0, expected, err_msg=form)
        assert H.set_largest(0, sim, threshold, ties) == 0, form
    np.testing.assert_array_equal(H.largest(sim, count) > 0, expected)  # on a GPU without a word to the host


def test_integers_of_the_similarity_part_stay_exact():
    """Within-class order comes from q, many orders of magnitude below Qb: nothing may be lost in rounding."""
    n, r = 30_000, 16
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    H = np.repeat(np.where(y == 0, 1, -1)[:, None], r, 1)
    q = torch.from_numpy(1e-6 * rng.standard_normal((r, n)))
    columns = algorithm1.PackedColumns(codes.pack(H), r)
    S = Classes(y)
    sums, u = columns.sums(0, S.row_group, 2)
    u[0] = 0
    sim, _ = columns.scores(0, u, r * S.P(S.Rt(sums)), r * S.diag - (r - 1), S.row_group, q[0], 0.0, n)
    rows = y == 0
    assert np.ptp(sim.numpy()[rows]) > 1e-6  # q does tell the rows of a class apart …
    assert np.ptp((sim + q[0]).numpy()[rows]) < 1e-8  # … and is all that does


def test_few_rows_of_a_gpu_are_swept_on_the_cpu(monkeypatch):
    """The form is chosen by where the codes are, and by how many; all forms give the same codes."""
    seen = {n: type(algorithm1.columns_for(torch.zeros(n, 1, dtype=torch.uint8), 8)) for n in (10, 1 << 15, 1 << 16)}
    assert seen == {10: algorithm1.DenseColumns, 1 << 15: algorithm1.DenseColumns, 1 << 16: algorithm1.PackedColumns}

    class OnGpu:
        device = torch.device("cuda")

        def __init__(self, n):
            self.packed = torch.zeros(n, 1, dtype=torch.uint8)

        def __len__(self):
            return len(self.packed)

        def cpu(self):
            return self.packed

    monkeypatch.setattr(algorithm1, "DeviceColumns", lambda packed, r: "on the GPU")
    assert isinstance(algorithm1.columns_for(OnGpu(10), 8), algorithm1.DenseColumns)
    assert isinstance(algorithm1.columns_for(OnGpu(1 << 15), 8), algorithm1.DenseColumns)
    assert algorithm1.columns_for(OnGpu((1 << 15) + 1), 8) == "on the GPU"


@pytest.mark.parametrize(("lam", "max_steps"), [(0.0, 20), (3.0, 2)])
@pytest.mark.parametrize("several", [False, True])
def test_steps_of_a_gpu_are_those_of_the_loop(several, lam, max_steps):
    """Tensors on the CPU take the place of a GPU's: the same steps, those taken back too."""
    rng = np.random.default_rng(1)
    y = (rng.random((2001, 9)) < 0.2).astype(int) if several else rng.integers(0, 5, 2001)
    start, q = codes.pack(rng.standard_normal((2001, 11))), torch.from_numpy(5 * rng.standard_normal((11, 2001)))
    forms = [FORMS[form](start, 11) for form in ("packed", "device")]
    for _ in range(2):
        a, b = (algorithm1.sweep(H, from_labels(y), q, lam=lam, max_steps=max_steps) for H in forms)
        np.testing.assert_array_equal(forms[0].packed(), forms[1].packed())
        assert (a.steps, a.flips) == (b.steps, b.flips)
        np.testing.assert_array_equal(a.hSh, b.hSh)
        np.testing.assert_allclose(a.qh, b.qh)
    assert a.steps > 0


@pytest.mark.parametrize(("lam", "max_steps"), [(0.0, 20), (3.0, 2)])
@pytest.mark.parametrize("labels", ["classes", "several", "weighted"])
def test_the_loop_of_labels_is_the_loop_of_any_similarity(labels, lam, max_steps, monkeypatch):
    rng = np.random.default_rng(2)
    n, r = 20_001, 70  # so many rows that thresholds are looked for between bounds; codes of two words
    y = rng.integers(0, 5, n) if labels == "classes" else rng.random((n, 9)) < 0.2
    S = from_labels(y, similar_weight=2.7 if labels == "weighted" else 2.0)
    start, q = codes.pack(rng.standard_normal((n, r))), torch.from_numpy(5 * rng.standard_normal((r, n))).float()
    q[3] = torch.round(q[3])  # many are equal
    fast, slow = algorithm1.PackedColumns(start, r), algorithm1.PackedColumns(start, r)
    assert InnerLoop.of(fast, S, lam, max_steps)
    for _ in range(2):
        a = algorithm1.sweep(fast, S, q, lam=lam, max_steps=max_steps)
        with monkeypatch.context() as patch:
            patch.setattr(InnerLoop, "of", lambda *given: None)
            b = algorithm1.sweep(slow, S, q, lam=lam, max_steps=max_steps)
        np.testing.assert_array_equal(fast.packed(), slow.packed())
        np.testing.assert_array_equal(fast.cols, slow.cols)
        assert (a.steps, a.flips) == (b.steps, b.flips)
        np.testing.assert_allclose(a.hSh, b.hSh, rtol=1e-12)
        np.testing.assert_array_equal(a.qh, b.qh)
    assert a.steps > 0
    q[5, 7] = torch.nan
    with pytest.raises(ValueError, match="bit 5: the objective is nan"):
        algorithm1.sweep(fast, S, q)
