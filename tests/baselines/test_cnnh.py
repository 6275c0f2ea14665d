"""CNNH: its first stage against the objective, and learning in both stages."""

import numpy as np
import pytest
import torch

from dish.baselines.cnnh import CNNH, _newton_column, factorise
from dish.similarity import from_labels
from helpers.deep import patches, score, tiny


def objective(S, H):
    return ((S - H @ H.T / H.shape[1]) ** 2).sum()


def table_of(S):
    return S.P(S.Rt(torch.eye(S.n_groups, dtype=torch.float64))).numpy()


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_objective_never_rises(multilabel):
    rng = np.random.default_rng(0)
    S = from_labels(rng.integers(2, size=(30, 3)) if multilabel else rng.integers(3, size=30))
    H, values = np.random.RandomState(1).uniform(-1, 1, (30, 8)), []
    for k in [*range(8), *range(8)]:
        values.append(objective(S.dense(), H))
        _newton_column(H, k, S.row_group.numpy(), table_of(S), S.diag.numpy())
    assert np.abs(H).max() <= 1
    assert (np.diff(values) < 0).all()
    np.testing.assert_array_equal(H, factorise(S, 8, np.random.RandomState(1), 2))


def test_the_newton_step_equals_numeric_differentiation():
    """The first entry of the first column moves by −f'/f'', clipped to [−1, 1], or stays if that does not help."""
    S = from_labels(np.arange(12) % 3)
    dense, r, e, moved = S.dense(), 4, 1e-4, 0
    for seed in range(10):
        start = np.random.RandomState(seed).uniform(-1, 1, (12, r))
        H = start.copy()
        _newton_column(H, 0, S.row_group.numpy(), table_of(S), S.diag.numpy())

        def f(value, start=start):
            changed = start.copy()
            changed[0, 0] = value
            return r * r * objective(dense, changed)

        h = start[0, 0]
        gradient, curvature = (f(h + e) - f(h - e)) / (2 * e), (f(h + e) - 2 * f(h) + f(h - e)) / e**2
        if curvature <= 0:
            continue
        wanted = np.clip(h - gradient / curvature, -1, 1)
        moved += f(wanted) < f(h)
        assert H[0, 0] == pytest.approx(wanted if f(wanted) < f(h) else h, abs=1e-4)
    assert moved >= 5


def test_codes_retrieve():
    (X, y), (Xq, yq) = patches(200, 0), patches(100, 1)
    assert score(tiny(CNNH, epochs=12).fit(X, y), X, y, Xq, yq) > 0.8


def test_codes_are_kept_in_a_checkpoint(tmp_path):
    X, y = patches(60, 0)
    first, second = (tiny(CNNH, epochs=1, checkpoint=tmp_path / "c").fit(X, y) for _ in range(2))
    assert "round 0" not in second.timings_
    np.testing.assert_array_equal(first.codes_, second.codes_)
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
