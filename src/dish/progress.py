"""One progress bar per task, and the time that each stage of a fit takes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0  # seconds before a bar appears
INTERVAL = 0.1  # seconds between two updates of the bar
KNOWN = 0.01  # share of the work after which the remaining time is shown


@contextmanager
def progress(title: str, total: float | None = None, *, counts: float = 0.0) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on standard error while the block takes more than two seconds; yield its advance function.

    Blocks may be nested, and share one bar. It shows all their titles, and the progress and remaining time of the
    outermost block with a ``total``. A block that ends advances the one around it by ``counts``; a block without a
    total passes on what the blocks inside it count. Nothing is shown if standard error is not a terminal, in
    processes other than rank 0, and in threads.
    """
    if not _watched():
        yield lambda step: None
        return
    block = _Block(title, total, counts)
    _bar.open(block)
    try:
        yield block.advance
    finally:
        _bar.close(block)


def rounds(n: int, title: str = "rounds") -> Iterator[int]:
    """``range(n)`` with its progress."""
    with progress(title, n, counts=1) as done:
        for i in range(n):
            yield i
            done(1)


def _watched() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and sys.stderr is not None
        and sys.stderr.isatty()
        and os.environ.get("RANK", "0") == "0"
    )


class _Block:
    """A part of the work that is in progress."""

    def __init__(self, title: str, total: float | None, counts: float) -> None:
        self.title, self.total, self.counts = title, total, counts
        self.done, self.start = 0.0, time.perf_counter()

    def advance(self, step: float) -> None:
        self.done += step
        _bar.update()

    def contribution(self, done: float) -> float:
        """What it adds to the block around it, after ``done`` steps."""
        return self.counts * min(1.0, done / self.total) if self.total else done


class _SharedBar:
    """The bar of this process. It has no thread: blocks that open, advance or close draw it."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.shown: Any = None  # rich's Progress
        self.next_update = 0.0

    def open(self, block: _Block) -> None:
        if not self.blocks:
            self.next_update = block.start + PATIENCE
        self.blocks.append(block)
        self.update()

    def close(self, block: _Block) -> None:
        self.blocks.remove(block)
        if self.blocks:
            self.blocks[-1].done += block.counts if block.total else block.done
            self.update()
        elif self.shown is not None:
            self.shown.stop()
            self.shown = None

    def update(self) -> None:
        """Draw the bar, if it is time."""
        now = time.perf_counter()
        if now < self.next_update or not self.blocks:
            return
        self.next_update = now + INTERVAL
        if self.shown is None:
            self.shown = _new_bar()
        outer, done = self._outermost()
        total, elapsed = outer.total, now - outer.start
        left = f"{_clock(elapsed * (total - done) / done)} left" if total and KNOWN * total <= done <= total else ""
        titles = dict.fromkeys(block.title for block in self.blocks)  # without repetitions
        (task,) = self.shown.tasks
        task.total = total or None  # rich's update keeps the old total for None
        self.shown.update(task.id, description=" · ".join(titles), completed=done, left=left)
        self.shown.start()
        self.shown.refresh()

    def _outermost(self) -> tuple[_Block, float]:
        """The outermost block with a total (or the first), and how much of it is done."""
        outer, outer_done, inside = self.blocks[0], 0.0, 0.0
        for block in reversed(self.blocks):
            done = block.done + inside
            if block.total:
                outer, outer_done = block, done
            inside = block.contribution(done)
        return outer, outer_done


_bar = _SharedBar()


def _new_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[left]}"), TextColumn("{task.description}")
    both = sys.stdout is not None and sys.stdout.isatty()  # else prints must not move to standard error
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=both)
    bar.add_task("", total=None, left="")
    return bar


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Stopwatch:
    """Mixin that records the seconds spent in each stage of ``fit``."""

    timings_: dict[str, float]

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Add the seconds spent in the block to ``timings_[name]``."""
        start = time.perf_counter()
        with progress(name):
            yield
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():  # a fit on the CPU must not create a CUDA context
            torch.cuda.synchronize()
        self.timings_[name] = self.timings_.get(name, 0.0) + time.perf_counter() - start
