"""The projection that ranks held-out rows of multi-label data best."""

import numpy as np
import pytest
import torch

from dish import codes, metrics
from dish.posterior import multilabel


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


def test_the_best_of_the_given_projections_wins(rng):
    """Labels are certain, so that the identity separates all label sets; zeros separate none."""
    sets = np.unique((rng.random((40, 6)) < 0.4).astype(np.uint8), axis=0)
    groups = [torch.from_numpy(rng.integers(0, len(sets), n)) for n in (200, 150)]
    held, seen = ((torch.from_numpy(sets[g.numpy()] * 0.9 + 0.05), g) for g in groups)
    zero = torch.zeros(6, dtype=torch.float64)
    good, bad = torch.eye(6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64)
    offset = zero - 0.2

    def labels(group):
        return sets[group.numpy()]

    power, V, found_offset, found = multilabel.best_projection(
        labels, [(bad, zero), (good, offset)], held, seen, np.random.RandomState(0)
    )
    assert power in (1, 2)
    assert found >= multilabel.held_out_map(labels, good, offset, held, seen)
    assert found > multilabel.held_out_map(labels, bad, zero, held, seen) + 0.05
    assert V.shape == (6, 6)
    assert found_offset.shape == (6,)
    scores = [(p**power, g) for p, g in (held, seen)]
    assert multilabel.held_out_map(labels, V, found_offset, *scores) == pytest.approx(found)


def test_projections_that_are_given_are_not_changed(rng):
    held, seen = scored(60, rng), scored(40, rng)
    V, offset = torch.from_numpy(rng.standard_normal((7, 5))), torch.zeros(5, dtype=torch.float64)
    before = V.clone()
    multilabel.best_projection(lambda g: g.numpy(), [(V, offset)], held, seen, np.random.RandomState(0))
    assert torch.equal(V, before)
