"""The GIST descriptor of Oliva and Torralba (2001): where in an image which edges lie, in 512 numbers.

A grey image is evened out in local contrast, passed through a bank of log-Gabor-like filters (4 scales × 8
orientations), and the magnitude of every response is averaged over a 4 × 4 grid of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dish.checks import check_integer
from dish.errors import InputError

N_SCALES = 4
N_ORIENTATIONS = 8
GRID = 4
VERSION = 1  # part of the name of cached features: raised whenever the numbers change
N_FEATURES = N_SCALES * N_ORIENTATIONS * GRID * GRID

TOP_FREQUENCY = 0.4  # centre of the finest scale, cycles per pixel
SCALE_STEP = 2.0  # from one scale to the next coarser one
RADIAL_WIDTH = 0.378  # standard deviation along the frequency, as a share of the centre
ANGULAR_WIDTH = 0.282  # standard deviation across orientations, in radians
CUTOFF = 6.0  # of the prefilter, cycles per image: what is coarser counts as lighting
CONTRAST_FLOOR = 0.1  # local contrast (of the log image) below which the prefilter no longer amplifies

BLOCK = 256  # images at a time


def gist(
    images: Any,
    *,
    normalize: bool = False,
    size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """GIST of images, uint8 (n, H, W) grey or (n, H, W, 3) colour → float32 (n, 512).

    Column ``((scale * 8) + orientation) * 16 + 4 * row + column`` is the mean response of one filter in one
    block; scale 0 is the finest, orientation o the gratings whose brightness changes along the direction
    o·π/8, counted from the horizontal axis towards the lower edge.

    ``size``: images of another shape are resized to size × size (a multiple of 8) first; by default the
    shorter side, rounded to a multiple of 8, at most 128. ``normalize`` divides every row by its l2 norm.
    ``progress`` is called with the number of images done since the last call.
    """
    images = _check_images(images)
    size = _working_size(images.shape[1:3]) if size is None else _check_size(size)
    bank = _FilterBank(size)
    features = np.empty((len(images), N_FEATURES), np.float32)
    for start in range(0, len(images), BLOCK):
        rows = slice(start, start + BLOCK)
        grey = _grey(images[rows], size)  # (b, size, size)
        features[rows] = bank(prefilter(grey)).numpy()
        if progress is not None:
            progress(len(grey))
    if normalize:
        features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return features


def prefilter(grey: Tensor) -> Tensor:
    """Local contrast normalisation of grey images (b, s, s) of 0 … 255.

    With a Gaussian low pass L and x = log(1 + grey): (x − L x) / (floor + √L (x − L x)²).
    """
    size = grey.shape[-1]
    margin = size // 4
    x = mirror(torch.log1p(grey), margin)
    side = x.shape[-1]
    sigma = CUTOFF / size / math.sqrt(math.log(2))  # gain one half at the cutoff
    f_row, f_column = torch.fft.fftfreq(side)[:, None], torch.fft.rfftfreq(side)
    gain = torch.exp(-(f_row**2 + f_column**2) / sigma**2)

    def low_pass(a: Tensor) -> Tensor:
        return torch.fft.irfft2(torch.fft.rfft2(a) * gain, s=(side, side))

    detail = x - low_pass(x)
    contrast = low_pass(detail**2).clamp_(min=0).sqrt_()
    inside = slice(margin, margin + size)
    return (detail / (CONTRAST_FLOOR + contrast))[:, inside, inside]


def mirror(x: Tensor, margin: int) -> Tensor:
    """Images (b, s, s) with a symmetric border: the edge row itself is repeated first."""
    size = x.shape[-1]
    at = torch.arange(-margin, size + margin)
    at = torch.where(at < 0, -1 - at, torch.where(at >= size, 2 * size - 1 - at, at))
    return x[:, at][:, :, at]


class _FilterBank:
    """The 32 filters of one image size, applied in the frequency domain.

    A filter lives on one small patch of the spectrum. Only that patch, half the spectrum wide and centred on
    the filter, is transformed back: that gives the response at every second pixel, up to a phase that the
    magnitude does not see, at a quarter of the cost.
    """

    STRIDE = 2

    def __init__(self, size: int) -> None:
        self.margin = size // 4
        side = size + 2 * self.margin
        self.width = side // self.STRIDE  # of a patch
        half = self.width // 2
        cycles = (torch.arange(self.width) + half) % self.width - half  # in the padded image, −w/2 … w/2 − 1
        patches, gains = [], []
        for scale in range(N_SCALES):
            centre = TOP_FREQUENCY / SCALE_STEP**scale
            for orientation in range(N_ORIENTATIONS):
                angle = math.pi * orientation / N_ORIENTATIONS
                row = cycles + round(centre * math.sin(angle) * side)
                column = cycles + round(centre * math.cos(angle) * side)
                patches.append((row[:, None] % side) * side + column % side)
                gains.append(_gain(_alias(row, side)[:, None], _alias(column, side), centre, angle))
        self.patch = torch.stack(patches).ravel()  # (32·w·w,) places in the flat spectrum
        self.gain = torch.stack(gains) / self.STRIDE**2  # (32, w, w)

    def __call__(self, x: Tensor) -> Tensor:
        """Prefiltered images (b, s, s) → descriptors (b, 512)."""
        spectrum = torch.fft.fft2(mirror(x, self.margin)).flatten(1)
        patches = spectrum[:, self.patch].view(len(x), *self.gain.shape)  # (b, 32, w, w)
        response = torch.fft.ifft2(patches.mul_(self.gain)).abs()
        edge = self.margin // self.STRIDE
        response = response[:, :, edge:-edge, edge:-edge]
        cell = response.shape[-1] // GRID
        return response.unflatten(3, (GRID, cell)).unflatten(2, (GRID, cell)).mean((3, 5)).flatten(1)


def _alias(cycles: Tensor, side: int) -> Tensor:
    """Whole cycles per image → cycles per pixel in [−½, ½), as the discrete spectrum holds them."""
    return torch.remainder(cycles / side + 0.5, 1.0) - 0.5


def _gain(f_row: Tensor, f_column: Tensor, centre: float, angle: float) -> Tensor:
    """Gaussian in frequency around ``centre`` and in direction around ``angle``; one side only."""
    radius = torch.hypot(f_row, f_column)
    turn = torch.remainder(torch.atan2(f_row, f_column) - angle + math.pi, 2 * math.pi) - math.pi
    return torch.exp(-0.5 * ((radius / centre - 1) / RADIAL_WIDTH) ** 2 - 0.5 * (turn / ANGULAR_WIDTH) ** 2)


def _grey(images: NDArray[np.uint8], size: int) -> Tensor:
    """Mean of the colours, float32 (b, size, size) of 0 … 255."""
    x = torch.from_numpy(np.ascontiguousarray(images)).float()
    if x.ndim == 4:
        x = x.mean(-1)
    if x.shape[1:] != (size, size):
        x = torch.nn.functional.interpolate(
            x[:, None], (size, size), mode="bilinear", antialias=True, align_corners=False
        )[:, 0]
    return x


def _check_images(images: Any) -> NDArray[np.uint8]:
    if hasattr(images, "detach"):
        images = images.detach().cpu().numpy()
    images = np.asanyarray(images)
    shape = images.shape
    if images.dtype != np.uint8:
        raise InputError(f"images must be uint8 (0 … 255), got {images.dtype}")
    if not (images.ndim == 3 or (images.ndim == 4 and shape[3] == 3)):
        raise InputError(f"images must be of shape (n, H, W) or (n, H, W, 3), got {shape}")
    if min(shape[1:3]) < 8:
        raise InputError(f"images must be at least 8 × 8 pixels, got {shape[1]} × {shape[2]}")
    return images


def _working_size(shape: tuple[int, ...]) -> int:
    return min(128, max(16, 8 * round(min(shape) / 8)))


def _check_size(size: Any) -> int:
    size = check_integer("size", size, low=16)
    if size % 8:
        raise InputError(f"size must be a multiple of 8, got {size}")
    return size
