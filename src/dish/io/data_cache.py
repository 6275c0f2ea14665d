"""The folder of prepared data, downloads, and arrays written whole."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import DownloadError
from dish.io.atomic import write_atomically
from dish.io.readers import StrPath
from dish.progress import progress


def cache_folder(cache: StrPath | None = None) -> Path:
    """Where prepared data is kept: ``cache``, else $DISH_CACHE, else dish/ in the user's cache folder."""
    if cache is None:
        cache = os.environ.get("DISH_CACHE") or None
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dish"
    return Path(cache)


def download(url: str, known_hash: str, size: int, folder: Path, timeout: float) -> Path:
    """Fetch ``url`` into a folder, with its checksum, retrying twice: the file, or a DownloadError."""
    try:
        import pooch
    except ImportError:
        raise DownloadError("downloading needs pooch: pip install 'dish-hash[data]'") from None
    base, _, name = url.rpartition("/")
    files = pooch.create(folder, base + "/", registry={name: known_hash}, retry_if_failed=2)
    pooch.get_logger().setLevel("ERROR")
    with progress(f"downloading {name}", size) as step:
        try:
            fetched = files.fetch(name, downloader=pooch.HTTPDownloader(timeout=timeout, progressbar=_Bar(step)))
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
            raise DownloadError(f"{url}: {error}") from error
    return Path(fetched)


class _Bar:
    """Steps of a download, as pooch tells them."""

    def __init__(self, step: Callable[[int], None]) -> None:
        self.total, self._step = 0, step

    def update(self, n: int) -> None:
        """So many bytes more."""
        self._step(n)

    def reset(self) -> None:
        """The download is complete; pooch counts it once more after this."""
        self._step = lambda n: None

    def close(self) -> None:
        """Nothing is held open."""


def save_npy(path: Path, array: NDArray[Any]) -> None:
    """Write a .npy file whole or not at all, its folder with it."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
