"""Features of images: the last hidden layer of a network with published weights.

``file_features`` computes those of image files and caches them, so that the next call, or one after a crash, computes
only what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dish import nets
from dish.deep.model import make_model
from dish.errors import ImageError
from dish.io import images
from dish.io.feature_cache import NET, FeatureCache, Stamp
from dish.machine import resolve_device, usable_cores
from dish.progress import progress

BATCH = 16
MOST_PIXELS = 150_000_000  # of the largest photos of phones; JPEGs are decoded at a reduced size, in little memory

Features = NDArray[np.float32]


class Extractor:
    """A named network with ImageNet weights: uint8 images (n, side, side, 3) → Φ/‖Φ‖ (n, D)."""

    def __init__(self, net: str = NET, weights: str = "imagenet", device: str = "auto") -> None:
        self.device = resolve_device(device)
        self.side = nets.spec(net).size
        blank = torch.zeros(1, self.side, self.side, 3, dtype=torch.uint8)
        model, _ = make_model(net, weights, None, 1, blank)
        self.model = model.to(self.device).eval()
        self.width = model.width

    def __call__(self, pixels: images.Pixels) -> Features:
        """Features of images, in one batch."""
        x = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
        with torch.inference_mode():
            phi = self.model.body(self.model.prepare(x).contiguous(memory_format=torch.channels_last))
        rows: Features = phi.float().cpu().numpy()
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.maximum(length, np.finfo(np.float32).tiny)


@cache
def extractor(net: str = NET) -> Extractor:
    """The network with its weights, loaded once per process."""
    return Extractor(net)


def file_features(files: Mapping[str, Path], cached: FeatureCache, net: str = NET) -> list[str]:
    """Update the cache for ``files``, name → path; returns the names whose features are new.

    Files that changed are computed again, names that are not in ``files`` are deleted, and files that cannot be read
    are recorded with the reason.
    """
    known = cached.stamps()
    cached.forget(known.keys() - files.keys())
    stamps = {name: Stamp.of(path) for name, path in files.items()}
    new = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    done: list[str] = []
    if not new:
        return done
    phi = extractor(net)
    with progress("computing features", len(new)) as step:
        for names, read in _read_ahead({name: files[name] for name in new}, phi.side):
            readable = {n: pixels for n, pixels in zip(names, read, strict=True) if not isinstance(pixels, str)}
            rows = phi(np.stack(list(readable.values()))) if readable else np.empty((0, phi.width), np.float32)
            bad = {n: problem for n, problem in zip(names, read, strict=True) if isinstance(problem, str)}
            cached.put(stamps, dict(zip(readable, rows, strict=True)), bad)
            done += list(readable)
            step(len(names))
    return done


def _read_ahead(files: Mapping[str, Path], side: int) -> Iterator[tuple[list[str], list[images.Pixels | str]]]:
    """Batches of images, or the reason why one cannot be read. The next batch is read while one is processed."""
    names = list(files)
    batches = [names[i : i + BATCH] for i in range(0, len(names), BATCH)]
    with ThreadPoolExecutor(usable_cores()) as pool:

        def submit(batch: list[str]) -> list[Future[images.Pixels | str]]:
            return [pool.submit(_read, files[name], side) for name in batch]

        ahead = submit(batches[0])
        for i, batch in enumerate(batches):
            current, ahead = ahead, submit(batches[i + 1]) if i + 1 < len(batches) else []
            yield batch, [one.result() for one in current]


def _read(path: Path, side: int) -> images.Pixels | str:
    try:
        return images.decode(path, side, max_pixels=MOST_PIXELS)
    except ImageError as error:
        return str(error)
