"""Progress bars, and the time that each stage of a fit takes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 100_000  # from this many rows on, a progress bar is shown


@contextmanager
def progress(title: str, total: int | None, *, worth: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error; yield the function that advances it.

    Nothing is shown if standard error is not a terminal, or in processes other than rank 0.
    """
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
    """Mixin that records the seconds spent in each stage of ``fit``."""

    timings_: dict[str, float]

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Add the seconds spent in the block to ``timings_[name]``."""
        start = time.perf_counter()
        yield
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():  # a fit on the CPU must not create a CUDA context
            torch.cuda.synchronize()
        self.timings_[name] = self.timings_.get(name, 0.0) + time.perf_counter() - start
