"""All classes of columns against the readable one and plain NumPy."""

import numpy as np
import pytest
import torch

from dish import cbcd, codes, parallel
from dish.similarity import Classes
from helpers.columns import FORMS


@pytest.mark.parametrize("r", [3, 8, 19])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 20_001])
def test_all_classes_give_the_same_sweeps(n, r):
    rng = np.random.default_rng(n)
    y = rng.integers(0, 7, n)
    S = Classes(y)
    start = codes.pack(rng.standard_normal((n, r)))  # not balanced
    q = torch.from_numpy(5 * rng.standard_normal((r, n))).float()
    dense, others = cbcd.DenseColumns(start, r), [FORMS[form](start, r) for form in ("packed", "torch")]
    for _ in range(2):
        b = cbcd.sweep(dense, S, q)
        for other in others:
            a = cbcd.sweep(other, S, q)
            np.testing.assert_array_equal(other.packed(), dense.packed())
            np.testing.assert_array_equal(other.signs(slice(0, n), q), dense.H.float())
            assert (a.steps, a.flips) == (b.steps, b.flips)
            np.testing.assert_array_equal(a.gram, b.gram)
            np.testing.assert_allclose(a.hSh, b.hSh, rtol=1e-12)
            np.testing.assert_allclose(a.qh, b.qh, rtol=1e-9)


@pytest.mark.parametrize("n_groups", [1, 40, 2897, 2999, 20_000, 70_000])
def test_sums_by_group_are_exact(n_groups):
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


@pytest.mark.parametrize("form", FORMS)
def test_sums_follow_a_column_that_changes(form):
    rng = np.random.default_rng(4)
    n, r = 1000, 5
    row_group = torch.from_numpy(rng.integers(0, 7, n).astype(np.int32))
    H = FORMS[form](codes.pack(rng.standard_normal((n, r))), r)
    for k in (1, 1, 1, 3, 1):
        threshold, ties = H.kth_largest(sim := torch.from_numpy(rng.standard_normal(n)), n // 2)
        H.set_largest(k, sim, threshold, ties)
        sums, against = H.sums(k, row_group, 7)
        now = codes.unpack(H.packed(), r).astype(float)
        np.testing.assert_array_equal(sums, np.bincount(row_group.numpy(), now[:, k], 7))
        np.testing.assert_array_equal(against, now.T @ now[:, k])


@pytest.mark.parametrize("n", [1, 2, 1000, 16_385, 40_000, 500_000])
@pytest.mark.parametrize("values", ["normal", "ties", "constant", "sorted", "two_scales", "wide_band", "signed_zero"])
def test_selection_equals_a_stable_sort(n, values):
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


def test_integer_part_of_scores_is_exact():
    """Within-class order comes from q, many orders of magnitude below Qb: nothing may be lost in rounding."""
    n, r = 30_000, 16
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    H = np.repeat(np.where(y == 0, 1, -1)[:, None], r, 1)
    q = torch.from_numpy(1e-6 * rng.standard_normal((r, n)))
    columns = cbcd.PackedColumns(codes.pack(H), r)
    S = Classes(y)
    sums, u = columns.sums(0, S.row_group, 2)
    u[0] = 0
    sim, _ = columns.scores(0, u, r * S.P(S.Rt(sums)), r * S.diag - (r - 1), S.row_group, q[0], 0.0, n)
    rows = y == 0
    assert np.ptp(sim.numpy()[rows]) > 1e-6  # q separates the rows of a class …
    assert np.ptp((sim + q[0]).numpy()[rows]) < 1e-8  # … and nothing else does
