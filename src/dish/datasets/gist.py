"""The GIST descriptor of Oliva and Torralba (2001): 512 numbers that say which edges are where in an image.

A grey image is normalised for local contrast and filtered by a bank of Gabor-like filters (4 scales × 8
orientations). The magnitude of every response is averaged over a 4 × 4 grid of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.checks import check_integer
from dish.errors import InputError
from dish.lazy import Tensor, torch

N_SCALES = 4
N_ORIENTATIONS = 8
GRID = 4
VERSION = 1  # part of the name of cached features; increased when the descriptor changes
N_FEATURES = N_SCALES * N_ORIENTATIONS * GRID * GRID

TOP_FREQUENCY = 0.4  # centre frequency of the finest scale, in cycles per pixel
SCALE_STEP = 2.0  # ratio of the centre frequencies of neighbouring scales
RADIAL_WIDTH = 0.378  # standard deviation in frequency, relative to the centre
ANGULAR_WIDTH = 0.282  # standard deviation in orientation, in radians
CUTOFF = 6.0  # the prefilter removes lower frequencies as lighting, in cycles per image
CONTRAST_FLOOR = 0.1  # the prefilter does not amplify lower local contrast (of the log image)

BLOCK = 256  # images processed at a time


def gist(
    images: Any,
    *,
    normalize: bool = False,
    size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Return the GIST descriptors, float32 (n, 512), of images, uint8 (n, H, W) grey or (n, H, W, 3) colour.

    Column ``((scale * 8) + orientation) * 16 + 4 * row + column`` is the mean response of one filter in one
    block. Scale 0 is the finest. Orientation o responds to gratings whose brightness changes in the direction
    o·π/8, measured from the horizontal axis towards the lower edge.

    ``size`` is the side to which images are resized, a multiple of 8; None: the shorter side rounded to a multiple
    of 8, at most 128. ``normalize`` divides every row by its l2 norm. ``progress`` is called with the number of
    images done since its last call.
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
    """Normalise the local contrast of grey images (b, s, s) with values 0 … 255.

    The result is (x − L x) / (floor + √L (x − L x)²) for x = log(1 + grey) and a Gaussian low-pass filter L.
    """
    size = grey.shape[-1]
    margin = size // 4
    x = mirror(torch.log1p(grey), margin)
    side = x.shape[-1]
    sigma = CUTOFF / size / math.sqrt(math.log(2))  # the gain is one half at the cutoff
    f_row, f_column = torch.fft.fftfreq(side)[:, None], torch.fft.rfftfreq(side)
    gain = torch.exp(-(f_row**2 + f_column**2) / sigma**2)

    def low_pass(a: Tensor) -> Tensor:
        return torch.fft.irfft2(torch.fft.rfft2(a) * gain, s=(side, side))

    detail = x - low_pass(x)
    contrast = low_pass(detail**2).clamp_(min=0).sqrt_()
    inside = slice(margin, margin + size)
    return (detail / (CONTRAST_FLOOR + contrast))[:, inside, inside]


def mirror(x: Tensor, margin: int) -> Tensor:
    """Pad images (b, s, s) symmetrically: the border repeats the edge pixels first."""
    size = x.shape[-1]
    at = torch.arange(-margin, size + margin)
    at = torch.where(at < 0, -1 - at, torch.where(at >= size, 2 * size - 1 - at, at))
    return x[:, at][:, :, at]


class _FilterBank:
    """The 32 filters for one image size, applied in the frequency domain.

    A filter is non-zero only on a small patch of the spectrum. Transforming back only that patch, half the spectrum
    wide and centred on the filter, gives the response at every second pixel at a quarter of the cost. Its phase
    differs, which does not change the magnitude.
    """

    STRIDE = 2

    def __init__(self, size: int) -> None:
        self.margin = size // 4
        side = size + 2 * self.margin
        self.width = side // self.STRIDE  # width of a patch
        half = self.width // 2
        cycles = (torch.arange(self.width) + half) % self.width - half  # −w/2 … w/2 − 1, per padded image
        patches, gains = [], []
        for scale in range(N_SCALES):
            centre = TOP_FREQUENCY / SCALE_STEP**scale
            for orientation in range(N_ORIENTATIONS):
                angle = math.pi * orientation / N_ORIENTATIONS
                row = cycles + round(centre * math.sin(angle) * side)
                column = cycles + round(centre * math.cos(angle) * side)
                patches.append((row[:, None] % side) * side + column % side)
                gains.append(_gain(_alias(row, side)[:, None], _alias(column, side), centre, angle))
        self.patch = torch.stack(patches).ravel()  # (32·w·w,) indices into the flat spectrum
        self.gain = torch.stack(gains) / self.STRIDE**2  # (32, w, w)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the descriptors (b, 512) of prefiltered images (b, s, s)."""
        spectrum = torch.fft.fft2(mirror(x, self.margin)).flatten(1)
        patches = spectrum[:, self.patch].view(len(x), *self.gain.shape)  # (b, 32, w, w)
        response = torch.fft.ifft2(patches.mul_(self.gain)).abs()
        edge = self.margin // self.STRIDE
        response = response[:, :, edge:-edge, edge:-edge]
        cell = response.shape[-1] // GRID
        return response.unflatten(3, (GRID, cell)).unflatten(2, (GRID, cell)).mean((3, 5)).flatten(1)


def _alias(cycles: Tensor, side: int) -> Tensor:
    """Convert cycles per image to cycles per pixel in [−½, ½), the range of the discrete spectrum."""
    return torch.remainder(cycles / side + 0.5, 1.0) - 0.5


def _gain(f_row: Tensor, f_column: Tensor, centre: float, angle: float) -> Tensor:
    """Return a filter's gain: Gaussian in frequency around ``centre`` and in direction around ``angle``."""
    radius = torch.hypot(f_row, f_column)
    turn = torch.remainder(torch.atan2(f_row, f_column) - angle + math.pi, 2 * math.pi) - math.pi
    return torch.exp(-0.5 * ((radius / centre - 1) / RADIAL_WIDTH) ** 2 - 0.5 * (turn / ANGULAR_WIDTH) ** 2)


def _grey(images: NDArray[np.uint8], size: int) -> Tensor:
    """Return the mean of the colour channels, float32 (b, size, size) with values 0 … 255."""
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
