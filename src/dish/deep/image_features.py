"""Features of images by a network with published weights: its last hidden layer, of arrays and of files.

``file_features`` is what ``dish photos`` and every other reader of a folder of images call: it keeps what it has
computed, so that the next call, or one after a crash, computes only what is new.
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
MOST_PIXELS = 150_000_000  # phones go that far; what is decoded at a fraction of its size needs little memory

Features = NDArray[np.float32]


class Extractor:
    """Φ of a named network with ImageNet weights: uint8 images (n, side, side, 3) → rows of length one, (n, D)."""

    def __init__(self, net: str = NET, weights: str = "imagenet", device: str = "auto") -> None:
        self.device = resolve_device(device)
        self.side = nets.spec(net).size
        blank = torch.zeros(1, self.side, self.side, 3, dtype=torch.uint8)
        model, _ = make_model(net, weights, None, 1, blank)
        self.model = model.to(self.device).eval()
        self.width = model.width

    def __call__(self, pixels: images.Pixels) -> Features:
        """Features of images, all at once."""
        x = torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
        with torch.inference_mode():
            phi = self.model.body(self.model.prepare(x).contiguous(memory_format=torch.channels_last))
        rows: Features = phi.float().cpu().numpy()
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.maximum(length, np.finfo(np.float32).tiny)


@cache
def extractor(net: str = NET) -> Extractor:
    """The network with its weights, read once in a process."""
    return Extractor(net)


def file_features(files: Mapping[str, Path], kept: FeatureCache, net: str = NET) -> list[str]:
    """Bring what is kept up to date with ``files``, name → path; the names whose features are new.

    Files that have changed are computed again, names that are no longer among ``files`` are forgotten, and files that
    cannot be read are kept as such, with the reason.
    """
    known = kept.stamps()
    kept.forget(known.keys() - files.keys())
    stamps = {name: Stamp.of(path) for name, path in files.items()}
    new = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    made: list[str] = []
    if not new:
        return made
    phi = extractor(net)
    with progress("computing features", len(new)) as step:
        for names, read in _read_ahead({name: files[name] for name in new}, phi.side):
            sound = {n: pixels for n, pixels in zip(names, read, strict=True) if not isinstance(pixels, str)}
            rows = phi(np.stack(list(sound.values()))) if sound else np.empty((0, phi.width), np.float32)
            bad = {n: problem for n, problem in zip(names, read, strict=True) if isinstance(problem, str)}
            kept.put(stamps, dict(zip(sound, rows, strict=True)), bad)
            made += list(sound)
            step(len(names))
    return made


def _read_ahead(files: Mapping[str, Path], side: int) -> Iterator[tuple[list[str], list[images.Pixels | str]]]:
    """Batches of images (or why one cannot be read), the next batch being read while one is worked on."""
    names = list(files)
    batches = [names[i : i + BATCH] for i in range(0, len(names), BATCH)]
    with ThreadPoolExecutor(usable_cores()) as pool:

        def ask(batch: list[str]) -> list[Future[images.Pixels | str]]:
            return [pool.submit(_read, files[name], side) for name in batch]

        ahead = ask(batches[0])
        for i, batch in enumerate(batches):
            asked, ahead = ahead, ask(batches[i + 1]) if i + 1 < len(batches) else []
            yield batch, [one.result() for one in asked]


def _read(path: Path, side: int) -> images.Pixels | str:
    try:
        return images.decode(path, side, max_pixels=MOST_PIXELS)
    except ImageError as error:
        return str(error)
