"""The schedule of the learning rate, and optimisers that resume."""

import numpy as np
import pytest
import torch

from dish.deep.optimiser import Group, Optimiser


def make(steps, seed=0):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    groups = [Group(list(layer.parameters()), rate, 1e-3) for layer, rate in zip(layers, (0.1, 0.01), strict=True)]
    return layers, Optimiser.one_cycle(groups, steps, None)


def step(layers, optimiser, x):
    optimiser.sgd.zero_grad()
    layers[1](layers[0](x)).square().mean().backward()
    optimiser.sgd.step()
    optimiser.schedule.step()


@pytest.mark.parametrize("steps", [1, 8, 9, 10, 100])
def test_the_rate_rises_and_falls_to_zero(steps):
    layers, optimiser = make(steps)
    rates = []
    for _ in range(steps):
        rates.append(optimiser.rates)
        step(layers, optimiser, torch.ones(4, 3))
    assert np.all(np.isfinite(rates))
    assert max(rate for rate, _ in rates) <= 0.1 + 1e-9
    np.testing.assert_allclose([a for a, _ in rates], [10 * b for _, b in rates])
    if steps == 100:
        assert int(np.argmax([a for a, _ in rates])) in (9, 10)
        assert rates[-1][0] < 1e-3


def test_a_resumed_optimiser_takes_the_same_steps():
    x = torch.rand(6, 4, 3, generator=torch.Generator().manual_seed(1))
    layers, optimiser = make(6)
    for batch in x[:3]:
        step(layers, optimiser, batch)
    state = [layer.state_dict() for layer in layers]
    kept = [{k: v.clone() for k, v in each.items()} for each in state]
    rates, momentum = optimiser.rates, [m.copy() for m in optimiser.momentum]
    again, resumed = make(6, seed=5)
    for layer, tensors in zip(again, kept, strict=True):
        layer.load_state_dict(tensors)
    resumed.resume(rates, momentum, 3)
    for batch in x[3:]:
        step(layers, optimiser, batch)
        step(again, resumed, batch)
        assert resumed.rates == pytest.approx(optimiser.rates)
    for a, b in zip(optimiser.params, resumed.params, strict=True):
        torch.testing.assert_close(a, b)
