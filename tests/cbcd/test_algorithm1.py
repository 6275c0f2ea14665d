"""Fast C-BCD against brute force: the explicit n×n objective, the enumerated optimum, the paper's own formula."""

from itertools import product

import numpy as np
import pytest
import torch

from dish import cbcd, codes
from dish.cbcd import algorithm1
from dish.similarity import from_labels
from helpers.columns import FORMS
from helpers.similarities import KINDS

RNG = np.random.default_rng(3)


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
def test_objective_equals_explicit_formula_and_never_rises(name, form):
    S, dense = KINDS[name]
    r = 5
    H = FORMS[form](codes.pack(random_codes(12, r)), r)
    q = torch.from_numpy(RNG.standard_normal((r, 12)))
    values = []
    for _ in range(4):
        done = cbcd.sweep(H, S, q)
        values.append(cbcd.objective(done, (dense**2).sum(), r))
        now = codes.unpack(H.packed(), r).astype(float)
        assert values[-1] == pytest.approx(explicit_objective(dense, now, q.numpy(), r), rel=1e-12)
        np.testing.assert_array_equal(now.sum(0), 0)  # every bit is balanced
    assert (np.diff(values) <= 1e-9).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*KINDS, "odd"])
def test_column_is_between_its_start_and_the_enumerated_optimum(name, form):
    if name == "odd":
        y = RNG.integers(0, 3, 11)
        S, dense = from_labels(y), 2.0 * (y[:, None] == y[None]) - 1
    else:
        S, dense = KINDS[name]
    n, r, k = S.n, 4, 2
    start = random_codes(n, r)
    q = RNG.standard_normal(n) * 3
    H = FORMS[form](codes.pack(start), r)
    result = cbcd.Sweep(np.zeros(r), np.zeros(r), np.zeros((r, r)))
    cbcd.update_column(H, k, S, torch.from_numpy(q), result, n=len(q), diag=r * S.diag - (r - 1))
    b = codes.unpack(H.packed(), r)[:, k].astype(float)
    best = min(
        explicit_g(dense, start, k, np.array(c), q, r) for c in product([-1.0, 1.0], repeat=n) if sum(c) == n % 2
    )
    reached = explicit_g(dense, start, k, b, q, r)
    assert b.sum() == n % 2
    assert reached >= best - 1e-9
    assert reached <= explicit_g(dense, start, k, start[:, k].astype(float), q, r) + 1e-9


def test_step_often_reaches_the_enumerated_optimum():
    """The step is an optimiser, not a no-op: from random starts it finds the best column most of the time."""
    S, dense = KINDS["classes"]
    r, hits = 4, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        start, q = random_codes(12, r, rng), rng.standard_normal(12)
        H = cbcd.PackedColumns(codes.pack(start), r)
        result = cbcd.Sweep(np.zeros(r), np.zeros(r), np.zeros((r, r)))
        cbcd.update_column(H, 0, S, torch.from_numpy(q), result, n=len(q), diag=r * S.diag - (r - 1))
        b = codes.unpack(H.packed(), r)[:, 0].astype(float)
        best = min(
            explicit_g(dense, start, 0, np.array(c), q, r) for c in product([-1.0, 1.0], repeat=12) if sum(c) == 0
        )
        hits += explicit_g(dense, start, 0, b, q, r) <= best + 1e-9
    assert hits >= 10


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("lam", [0.0, 7.5])
def test_sim_equals_the_formula_of_the_paper(name, form, lam):
    """Eq. (sim): 8 d₀ + q₀, less 8 Q_ii − λ on the rows in the set, with d₀ and q₀ written out."""
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


def literal_sweep(dense_S, start, q, lam, max_steps):
    """Algorithm 1 as printed: every step stands, until no row moves."""
    H, r = start.astype(float), start.shape[1]
    for k in range(r):
        rest = np.delete(H, k, axis=1)
        Q0 = r * dense_S - rest @ rest.T
        np.fill_diagonal(Q0, 0)
        for _ in range(max_steps):
            b = H[:, k].copy()
            sim = 4 * Q0 @ b - q[k] + lam * (b + 1) / 2
            chosen = np.isin(np.arange(len(b)), np.argsort(-sim, kind="stable")[: (len(b) + 1) // 2])
            H[:, k] = np.where(chosen, 1, -1)
            if (H[:, k] == b).all():
                break
    return H


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["classes", "counts", "low_rank"])
def test_without_taking_back_every_step_stands_as_in_the_paper(name, form):
    (S, dense), r, rises = KINDS[name], 5, 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        start, q = random_codes(12, r, rng), rng.standard_normal((r, 12))
        expected = literal_sweep(dense, start, q, 1.5, 7)
        H, guarded = (FORMS[form](codes.pack(start), r) for _ in range(2))
        done = cbcd.sweep(H, S, torch.from_numpy(q), lam=1.5, max_steps=7, take_back=False)
        np.testing.assert_array_equal(codes.unpack(H.packed(), r), expected)
        value = cbcd.objective(done, (dense**2).sum(), r)
        assert value == pytest.approx(explicit_objective(dense, expected, q, r), rel=1e-12)
        cbcd.sweep(guarded, S, torch.from_numpy(q), lam=1.5, max_steps=7)
        rises += (guarded.packed() != H.packed()).any()
    assert rises > 0  # the guard does change something


def test_the_kernel_of_a_gpu_is_used_only_where_steps_may_be_taken_back(monkeypatch):
    """It knows no other way."""
    monkeypatch.setattr(algorithm1, "can_sweep", lambda H, S: True)
    monkeypatch.setattr(algorithm1, "CudaSweep", None)
    S, q, H = KINDS["classes"][0], torch.zeros(5, 12), FORMS["torch"](codes.pack(random_codes(12, 5)), 5)
    assert cbcd.sweep(H, S, q, take_back=False).steps > 0
    with pytest.raises(AttributeError):
        cbcd.sweep(H, S, q)


@pytest.mark.parametrize("where", [0, 7])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("form", FORMS)
def test_rejects_linear_terms_that_are_not_finite(form, value, where):
    q = torch.zeros(5, 12, dtype=torch.float64)
    q[2, where] = value
    H = FORMS[form](codes.pack(random_codes(12, 5)), 5)
    with pytest.raises(ValueError, match=r"bit 2: the objective is .*NaN or infinity"):
        cbcd.sweep(H, KINDS["classes"][0], q)


def test_columns_for_chooses_by_device_and_size(monkeypatch):
    """Small data stays on the CPU even if the codes are on a GPU."""
    seen = {n: type(cbcd.columns_for(torch.zeros(n, 1, dtype=torch.uint8), 8)) for n in (10, 1 << 15, 1 << 16)}
    assert seen == {10: cbcd.DenseColumns, 1 << 15: cbcd.DenseColumns, 1 << 16: cbcd.PackedColumns}

    class OnGpu:
        device = torch.device("cuda")

        def __init__(self, n):
            self.packed = torch.zeros(n, 1, dtype=torch.uint8)

        def __len__(self):
            return len(self.packed)

        def cpu(self):
            return self.packed

    monkeypatch.setattr(algorithm1, "TorchColumns", lambda packed, r: "on the GPU")
    assert isinstance(cbcd.columns_for(OnGpu(10), 8), cbcd.DenseColumns)
    assert isinstance(cbcd.columns_for(OnGpu(1 << 15), 8), cbcd.DenseColumns)
    assert cbcd.columns_for(OnGpu((1 << 15) + 1), 8) == "on the GPU"
