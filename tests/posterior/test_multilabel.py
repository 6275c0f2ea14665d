"""The power of p and the projection that rank held-out rows of multi-label data best."""

import numpy as np
import pytest
import torch

from dish import codes, metrics
from dish.encoder import raised
from dish.posterior import multilabel
from dish.posterior.projection import refine_for_sets, signed_projection


def scored(n, rng, l=7, g=9):  # noqa: E741
    return torch.from_numpy(rng.random((n, l))), torch.from_numpy(rng.integers(0, g, n))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("many", [False, True])
def test_the_held_out_map_is_that_of_the_metrics(many, rng):
    held, seen = scored(60, rng), scored(40, rng)
    V, offset = torch.from_numpy(rng.standard_normal((7, 12))), torch.from_numpy(rng.standard_normal(12))
    sets = (rng.random((9, 7)) < 0.3).astype(np.uint8)

    def labels(group):
        return sets[group.numpy()] if many else group.numpy()

    def labels_on_device(group):
        return torch.from_numpy(labels(group)).double()

    packed, Y = (
        np.concatenate(parts)
        for parts in zip(
            *((codes.pack((p[:k] @ V + offset).numpy()), labels(g[:k])) for (p, g), k in ((held, 60), (seen, 30))),
            strict=True,
        )
    )
    expected = metrics.mean_average_precision(packed[:30], Y[:30], packed[30:], Y[30:])
    assert 0.1 < expected < 0.9
    found = multilabel.held_out_map(labels, V, offset, held, seen)
    on_device = multilabel.held_out_map(labels_on_device, V, offset, held, seen)
    assert found == pytest.approx(expected, abs=1e-12)
    assert on_device == pytest.approx(expected, abs=1e-12)


def rows_for_power(power, rng, n=600, l=8, r=16):  # noqa: E741
    """Label sets, scored rows that one power of p suits, and a projection.

    Where labels that a row does not have get up to 0.6, squares suppress them. Where labels that it has get as little
    as 0.1, and others less, squares suppress those that it has.
    """
    sets = np.unique((rng.random((60, l)) < 0.25).astype(np.uint8), axis=0)
    sets = sets[sets.any(1)]
    low, high = ((0, 0.1), (0.1, 1)) if power == 1 else ((0, 0.6), (0.8, 1))
    scored = []
    for _ in range(2):
        group = rng.integers(0, len(sets), n)
        p = np.where(sets[group] == 1, rng.uniform(*high, (n, l)), rng.uniform(*low, (n, l)))
        scored.append((torch.from_numpy(p), torch.from_numpy(group)))
    V = signed_projection(np.where(rng.random((l, r)) < 0.5, -1.0, 1.0), np.random.RandomState(0))
    return lambda group: sets[group.numpy()], (V, torch.zeros_like(V[0])), *scored


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_held_out_rows_choose_the_power(power, seed, all_steps):
    labels, start, held, seen = rows_for_power(power, np.random.default_rng(seed))
    inputs = (*start, *held, *seen)
    before = [each.clone() for each in inputs]
    found, (V, offset) = multilabel.best_power(labels, start, held, seen)
    assert found == power
    assert all(map(torch.equal, inputs, before))
    by_label = (torch.from_numpy(labels(seen[1])).double(), seen[1])
    scores = raised(held[0], power), held[1]
    assert multilabel.held_out_map(labels, V, offset, scores, by_label) > 0.02 + multilabel.held_out_map(
        labels, *start, scores, by_label
    )


def test_a_refined_projection_is_that_of_the_power_and_the_labels(rng):
    labels, start, held, seen = rows_for_power(2, rng)
    Y, Y_seen = (torch.from_numpy(labels(group)).double() for _, group in (held, seen))
    expected = refine_for_sets(*start, (held[0] ** 2, Y), Y_seen, np.random.RandomState(3))
    found = multilabel.refined(labels, 2, start, held, seen, np.random.RandomState(3))
    assert all(map(torch.equal, found, expected))
