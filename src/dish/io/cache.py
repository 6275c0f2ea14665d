"""The folder of prepared data, and downloads into it."""

from __future__ import annotations

import io
import os
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.io.atomic import write_atomically
from dish.io.errors import DataFileError, StrPath
from dish.progress import progress


class DownloadError(RuntimeError):
    """A dataset that could not be fetched from any of its sources."""


def cache_folder(cache: StrPath | None = None) -> Path:
    """Where prepared data is kept: ``cache``, else $DISH_CACHE, else dish/ in the user's cache folder."""
    if cache is None:
        cache = os.environ.get("DISH_CACHE") or None
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dish"
    return Path(cache)


def download(url: str, target: Path, title: str, timeout: float) -> None:
    """Fetch ``url`` into the file ``target``, whole or with an error."""
    request = urllib.request.Request(url, headers={"User-Agent": "dish"})
    with urllib.request.urlopen(request, timeout=timeout) as answer, open(target, "wb") as file:
        size = int(answer.headers.get("Content-Length") or 0)
        done = 0
        with progress(title, size or None) as step:
            while chunk := answer.read(1 << 20):
                file.write(chunk)
                done += len(chunk)
                step(len(chunk))
    if size and done != size:
        raise DataFileError(f"{url} broke off after {done:,} of {size:,} bytes")


def save_npy(path: Path, array: NDArray[Any]) -> None:
    """Write a .npy file whole or not at all, its folder with it."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
