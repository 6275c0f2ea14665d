"""COSDISH: its steps against brute force."""

import numpy as np
import pytest
import torch

from dish.baselines import cosdish
from dish.baselines.cosdish import COSDISH
from dish.similarity import from_labels
from helpers.rivals import all_signs


@pytest.mark.parametrize("seed", range(6))
def test_local_maximum_is_close_to_the_global_one(seed):
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


def test_classes_missing_from_the_last_draw_share_a_code(blobs):
    """A row of S^Γ without a similar column is the same for all classes."""
    y = np.repeat(np.arange(40), 3)
    few = COSDISH(16, n_anchors=20, n_columns=16).fit(blobs[0], y)
    many = COSDISH(16, n_anchors=20, n_columns=120).fit(blobs[0], y)
    _, sizes = np.unique(few.codes_, axis=0, return_counts=True)
    assert sizes.max() >= 3 * (40 - 16)
    _, sizes = np.unique(many.codes_, axis=0, return_counts=True)
    assert sizes.max() <= 3 * 4


def objective(draw, B):
    r = B.shape[1]
    S = draw.table[draw.row_group].numpy()
    return ((r * S - B.numpy() @ B[draw.columns].numpy().T) ** 2).sum()


def test_updates_of_drawn_rows_never_raise_the_objective():
    rng = np.random.default_rng(12)
    y = rng.integers(0, 3, 60)
    B = torch.from_numpy(rng.choice((-1.0, 1.0), (60, 8)))
    draw = cosdish.Draw(from_labels(y), torch.from_numpy(rng.choice(60, 10, replace=False)))
    values = [objective(draw, B)]
    for _ in range(4):
        draw.update_drawn(B)
        values.append(objective(draw, B))
    assert (np.diff(values) <= 1e-9).all()
    assert values[1] < values[0]


def test_no_flip_of_a_drawn_row_improves_a_one_bit_code():
    rng = np.random.default_rng(13)
    y = rng.integers(0, 3, 30)
    B = torch.from_numpy(rng.choice((-1.0, 1.0), (30, 1)))
    columns = torch.tensor([2, 7, 11, 29])
    draw = cosdish.Draw(from_labels(y), columns)
    draw.update_drawn(B)
    value = objective(draw, B)
    for row in columns:
        other = B.clone()
        other[row] *= -1
        assert objective(draw, other) >= value - 1e-9


def test_update_of_other_rows_is_within_twice_the_best_l1_distance():
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
        assert ours <= 2 * min(every) + 1e-9  # the paper's bound


@pytest.mark.parametrize("bad", [{"n_draws": 0}, {"n_alternations": 0}, {"n_columns": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        COSDISH(n_anchors=60, **bad).fit(*blobs)
