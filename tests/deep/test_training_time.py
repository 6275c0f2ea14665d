"""The time of a training step, and the number of epochs that it allows."""

import itertools

import pytest
import torch

from dish.deep import training_time
from dish.deep.training_time import affordable_epochs, seconds_per_image


@pytest.mark.parametrize(("side", "images"), [(None, 64), (32, 64), (100, 8)])
def test_the_time_per_image_is_that_of_a_step(side, images, monkeypatch):
    clock, seen = itertools.count(), []

    def build(name, num_classes):
        net = torch.nn.Conv2d(3, 1, 3)
        net.register_forward_hook(lambda layer, given, out: seen.append(tuple(given[0].shape)))
        return net

    monkeypatch.setattr(training_time.time, "perf_counter", lambda: next(clock))  # a step takes one second
    monkeypatch.setattr(training_time.nets, "build", build)
    assert seconds_per_image("6conv", side, "cpu") == 1 / images
    assert seen == 2 * [(images, 3, side or 32, side or 32)]


def test_epochs_fill_a_minute_within_limits():
    assert affordable_epochs(300, 4, 0.005) == 10  # 300 · 4 · 10 · 0.005 s = 60 s
    assert affordable_epochs(300, 1, 0.005) == 40
    assert affordable_epochs(300, 4, 1e-6) == 60
    assert affordable_epochs(10**6, 4, 0.005) == 2
