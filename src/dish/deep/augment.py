"""Random augmentation of training images, a batch at a time on their device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

SAMPLING = "bicubic"  # interpolation of images that keep their size
SHIFT, ROTATION, ZOOM, LIGHT, HOLE = 0.125, 0.15, 0.15, 0.3, 0.2  # shares of a side, radians, factors

Draw = Callable[[], Tensor]  # a random number from 0 to 1 for each image, (n,)


def augment(images: Tensor, draw: Draw, size: int = 0) -> Tensor:
    """Flip, shift, rotate, zoom, relight and cut a hole: (n, H, W, 3) of 0 … 255 → the same shape, float32.

    The result should be as sharp as the images that are encoded later. So squares smaller than ``size``, the input
    side of the network, are enlarged bilinearly like those, (n, size, size, 3); others are resampled bicubically.
    """
    x = images.permute(0, 3, 1, 2).float()
    enlarge = x.shape[2] == x.shape[3] < size
    grid = _grid([*x.shape[:2], size, size] if enlarge else list(x.shape), draw)
    mode = "bilinear" if enlarge else SAMPLING
    x = functional.grid_sample(x, grid, mode, padding_mode="reflection", align_corners=False)
    return _cut(_light(x, draw), draw).permute(0, 2, 3, 1)


def _between(low: float, high: float, draw: Draw) -> Tensor:
    return draw() * (high - low) + low


def _grid(shape: list[int], draw: Draw) -> Tensor:
    """Sampling positions (n, H, W, 2) that flip, shift, rotate and zoom at once."""
    n = shape[0]
    angle = _between(-ROTATION, ROTATION, draw)
    zoom = 1 + _between(-ZOOM, ZOOM, draw)
    flip = 1 - 2 * (_between(0, 1, draw) < 0.5).float()
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    dx, dy = (_between(-2 * SHIFT, 2 * SHIFT, draw) for _ in range(2))
    theta = torch.stack([flip * cos, -sin, dx, flip * sin, cos, dy], 1).view(n, 2, 3)
    return functional.affine_grid(theta, shape, align_corners=False)


def _light(x: Tensor, draw: Draw) -> Tensor:
    """Change brightness, contrast and saturation, each by a factor near one."""
    n = len(x)
    bright, contrast, colour = (1 + _between(-LIGHT, LIGHT, draw).view(n, 1, 1, 1) for _ in range(3))
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (x - mean) * contrast + mean * bright
    grey = x.mean(1, keepdim=True)
    return ((x - grey) * colour + grey).clamp(0, 255)


def _cut(x: Tensor, draw: Draw) -> Tensor:
    """Put a grey square somewhere in every image."""
    n, _, height, width = x.shape
    rows, cols = (torch.arange(s, device=x.device).view(1, -1) for s in (height, width))
    top, left = (_between(0, s, draw).view(n, 1) for s in (height, width))
    half = HOLE * min(height, width)
    inside = ((rows - top).abs() < half)[:, None, :, None] & ((cols - left).abs() < half)[:, None, None, :]
    return torch.where(inside, x.new_full((), 127.0), x)
