"""The cache folder for prepared data, and downloads into it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import DownloadError
from dish.install import pip_install
from dish.io.atomic import write_atomically
from dish.io.readers import StrPath
from dish.progress import progress


def cache_folder(cache: StrPath | None = None) -> Path:
    """The cache folder: ``cache`` if given, else $DISH_CACHE, else dish/ in the user's cache folder."""
    if cache is None:
        cache = os.environ.get("DISH_CACHE") or None
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dish"
    return Path(cache)


def download(url: str, known_hash: str, size: int, folder: Path, timeout: float) -> Path:
    """Download a file and verify its checksum: its path. Failed downloads are retried twice, then a DownloadError."""
    try:
        import pooch
    except ImportError:
        raise DownloadError(f"downloading needs pooch: {pip_install('data')}") from None
    base, _, name = url.rpartition("/")
    files = pooch.create(folder, base + "/", registry={name: known_hash}, retry_if_failed=2)
    pooch.get_logger().setLevel("ERROR")
    with progress(f"downloading {name}", size) as step:
        try:
            fetched = files.fetch(name, downloader=pooch.HTTPDownloader(timeout=timeout, progressbar=_Bar(step)))
        except (OSError, ValueError) as error:  # errors of requests are OSErrors, a wrong checksum is a ValueError
            raise DownloadError(f"{url}: {error}") from error
    return Path(fetched)


class _Bar:
    """A progress bar with the interface that pooch expects."""

    def __init__(self, step: Callable[[int], None]) -> None:
        self.total, self._step = 0, step

    def update(self, n: int) -> None:
        """Advance by n bytes."""
        self._step(n)

    def reset(self) -> None:
        """End the bar: pooch calls ``update`` with all bytes again after this."""
        self._step = lambda n: None

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def save_npy(path: Path, array: NDArray[Any]) -> None:
    """Write a .npy file atomically; its folder is made if it does not exist."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
