"""Augmentation: what it leaves unchanged, and the sharpness of its images."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dish import nets
from dish.deep import augment as module
from dish.deep.augment import augment
from dish.deep.model import HashingNet
from helpers.deep import patches


@pytest.fixture
def images():
    return torch.from_numpy(patches(6, 0)[0])


def unchanged(n):
    """Draws from the middle of every range, which do not rotate, shift or zoom."""
    return lambda: torch.full((n,), 0.5)


def test_images_are_unchanged_in_the_middle_of_every_range(images, monkeypatch):
    monkeypatch.setattr(module, "HOLE", 0.0)
    same = augment(images, unchanged(6))
    np.testing.assert_allclose(same, images, atol=0.1)
    np.testing.assert_allclose(augment(images, unchanged(6), 8), images, atol=0.1)  # prepare shrinks them


def test_small_images_are_enlarged_like_encoded_images(images, monkeypatch):
    monkeypatch.setattr(module, "HOLE", 0.0)
    model = HashingNet(nn.Flatten(), 1, 1, 40, nets.NETS["6conv"].normal)
    large = augment(images, unchanged(6), 40)
    assert large.shape == (6, 40, 40, 3)
    np.testing.assert_allclose(model.prepare(large), model.prepare(images), atol=1e-2)


def test_shifted_images_stay_sharp(images):
    """A shift by half a pixel: the mean of two neighbours would lose most of their difference."""
    noise = torch.rand(6, 16, 16, 3, generator=torch.Generator().manual_seed(0)) * 100 + 77
    draws = [torch.full((6,), value) for value in (0.5, 0.5, 0.5, 0.5 + 0.5 / 16 / (2 * module.SHIFT), 0.5)]

    def spread(x):
        return float((x[:, :, 2:-2] - x[:, :, 2:-2].mean(2, keepdim=True)).square().mean())

    def move(mode):
        grid = module._grid([6, 3, 16, 16], iter(draws).__next__)
        x = noise.permute(0, 3, 1, 2)
        return functional.grid_sample(x, grid, mode, padding_mode="reflection", align_corners=False)

    assert spread(move("bilinear")) < 0.6 * spread(noise.permute(0, 3, 1, 2))
    assert spread(move(module.SAMPLING)) > 0.65 * spread(noise.permute(0, 3, 1, 2))


def test_images_that_are_not_square_keep_their_shape(images):
    assert augment(images[:, :10], lambda: torch.rand(6), 40).shape == (6, 10, 16, 3)
