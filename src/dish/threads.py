"""A pool of threads for short kernels that release the GIL. Idle threads sleep.

A sweep has thousands of parallel regions of well under a millisecond. OpenMP threads spin at the end of each, unless
an environment variable was set before the library was loaded. If other programs use the cores, every region then
takes a whole time slice.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from dish.lazy import torch
from dish.machine import usable_cores
from dish.numba_lazy import threads

Task = Callable[[int], None]
T = TypeVar("T")


def size(most: int) -> int:
    """Number of threads to use: the usable cores, at most ``NUMBA_NUM_THREADS`` and at most ``most``."""
    most = min(most, threads())
    return min(most, _cores()) if most > 1 else 1


_asked = float("-inf"), 1  # time of the last look-up, and its result


def _cores() -> int:
    """``usable_cores``, refreshed once per second: reading the control groups takes as long as a small search."""
    global _asked
    now = time.monotonic()
    if now - _asked[0] > 1:
        _asked = now, usable_cores()
    return _asked[1]


def run(task: Task, parts: int) -> None:
    """Run ``task(0)`` … ``task(parts − 1)`` in parallel, the first in this thread; serially if the pool is busy."""
    if parts == 1 or not _team.free.acquire(blocking=False):
        for part in range(parts):
            task(part)
        return
    team = _team
    try:
        team.run(task, parts)
    finally:
        team.free.release()


def over_rows(kernel: Callable[..., Any], arrays: tuple[Any, ...], *rest: Any, least: int = 1) -> list[Any]:
    """Run ``kernel(*parts of the arrays, *rest)`` in parallel on parts of at least ``least`` rows."""
    n = len(arrays[0])
    parts = size(n // least)
    ends = [n * t // parts for t in range(parts + 1)]
    results: list[Any] = [None] * parts

    def task(t: int) -> None:
        results[t] = kernel(*(a[ends[t] : ends[t + 1]] for a in arrays), *rest)

    run(task, parts)
    return results


def results(work: Callable[[int], T], parts: int, most: int) -> list[T]:
    """``[work(0), …, work(parts − 1)]`` on at most ``most`` threads, each with a single torch thread.

    The number of parts should not depend on the number of threads, so that sums over parts do not either. Torch calls
    hold the GIL at first, so threads pay off only if a call takes tenths of a millisecond.
    """
    lanes, found, before = size(min(parts, most)), [None] * parts, torch.get_num_threads()

    def task(lane: int) -> None:
        if lanes > 1:  # torch has this setting per thread
            torch.set_num_threads(1)
        for part in range(lane, parts, lanes):
            found[part] = work(part)  # type: ignore[call-overload]

    try:
        run(task, lanes)
    finally:
        if lanes > 1:
            torch.set_num_threads(before)
    return cast("list[T]", found)


class _Worker(threading.Thread):
    """A thread that runs one task at a time."""

    def __init__(self) -> None:
        super().__init__(name="dish-worker", daemon=True)
        self.begin, self.end = threading.Semaphore(0), threading.Semaphore(0)
        self.error: BaseException | None = None
        self.start()

    def give(self, task: Task, part: int) -> None:
        self.task, self.part, self.error = task, part, None
        self.begin.release()

    def run(self) -> None:
        while True:
            self.begin.acquire()
            try:
                self.task(self.part)
            except BaseException as error:  # raised again by the caller
                self.error = error
            del self.task  # release the caller's arrays
            self.end.release()


class _Team:
    """The worker threads of this process, and a lock for the thread that uses them."""

    def __init__(self) -> None:
        self.free = threading.Lock()
        self.workers: list[_Worker] = []

    def run(self, task: Task, parts: int) -> None:
        while len(self.workers) < parts - 1:
            self.workers.append(_Worker())
        busy = self.workers[: parts - 1]
        for part, worker in enumerate(busy, 1):
            worker.give(task, part)
        try:
            task(0)
        finally:
            try:
                for worker in busy:
                    worker.end.acquire()
            except BaseException:  # interrupted while waiting: the workers are in an unknown state
                self.workers = []
                raise
        for worker in busy:
            if worker.error is not None:
                raise worker.error


_team = _Team()


def _new_team() -> None:
    global _team
    _team = _Team()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_team)  # threads do not survive a fork
