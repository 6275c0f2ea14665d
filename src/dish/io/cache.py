"""The folder of prepared data, downloads into it, and the bar that shows how far they are."""

from __future__ import annotations

import io
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.io.modelfile import write_atomically
from dish.io.tables import DataFileError, StrPath


class DownloadError(RuntimeError):
    """A dataset that could not be fetched from any of its sources."""


def cache_folder(cache: StrPath | None = None) -> Path:
    """Where prepared data is kept: ``cache``, else $DISH_CACHE, else dish/ in the user's cache folder."""
    if cache is None:
        cache = os.environ.get("DISH_CACHE") or None
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dish"
    return Path(cache)


LONG = 100_000  # rows that take long enough for a bar


@contextmanager
def progress(title: str, total: int | None, *, worth: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that takes steps; silent where standard error is no terminal, or another process's."""
    if not worth or not sys.stderr.isatty() or os.environ.get("RANK", "0") != "0":
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    speed = TextColumn("{task.fields[speed]}")
    with Progress(*Progress.get_default_columns(), speed, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, speed="")

        def advance(step: int) -> None:
            bar.advance(task, step)
            rate = bar.tasks[0].speed
            bar.update(task, speed=f"{rate:,.0f} a second" if rate else "")

        yield advance


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
