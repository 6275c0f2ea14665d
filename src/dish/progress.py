"""Bars and stopwatches: how far long work is, and how long each stage took."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 100_000  # rows that take long enough for a bar


@contextmanager
def progress(title: str, total: int | None, *, worth: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar on standard error with the time left, advanced by steps; none if that is not a terminal or not rank 0."""
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
            bar.update(task, speed=f"{rate:,.0f} per second" if rate else "")

        yield advance


class Stopwatch:
    """Seconds spent in each stage of ``fit``."""

    timings_: dict[str, float]

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Add the seconds of a stage to ``timings_``."""
        start = time.perf_counter()
        yield
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():  # a fit on the CPU must not make a CUDA context
            torch.cuda.synchronize()
        self.timings_[name] = self.timings_.get(name, 0.0) + time.perf_counter() - start
