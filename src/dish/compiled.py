"""numba's ``njit`` and ``prange`` for all kernels here: threads do not spin, and no cache is needed.

What was compiled is kept in the user's cache folder, not beside the sources: an uninstalled package leaves nothing
behind that could be imported. On a terminal the first compilation says so.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numba
from numba import prange
from numba.core import event
from numba.np.ufunc import parallel

from dish.lazy import threads_that_sleep

__all__ = ["njit", "pays", "prange", "threads"]

# Kernels here are short and many: threads that spin between them would starve each other on a busy machine.
with threads_that_sleep(), suppress(ImportError):  # then numba uses another layer
    importlib.import_module("numba.np.ufunc.omppool")


def njit(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit``; compiled anew in every process where ``cache=True`` finds no folder it may write to.

    (A read-only installation of a user without a home; $DISH_CACHE or $NUMBA_CACHE_DIR name a folder of one's own.)
    """

    def compiled(function: Any) -> Any:
        try:
            with _kept_in(cache_folder()):
                return numba.njit(**options)(function)
        except RuntimeError as error:
            if not options.get("cache") or "no locator available" not in str(error):
                raise
            return numba.njit(**{**options, "cache": False})(function)

    return compiled


def cache_folder() -> str:
    """Where compiled kernels are kept: $NUMBA_CACHE_DIR, or kernels/ in dish's folder of the user's cache."""
    given = os.environ.get("DISH_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return numba.config.CACHE_DIR or os.path.join(given or os.path.join(cache, "dish"), "kernels")


@contextmanager
def _kept_in(folder: str) -> Iterator[None]:
    """numba's cache in a folder for functions decorated inside; for those of others nothing changes."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, folder
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


class _Told(event.Listener):
    """Says on a terminal, once per process, why the first call takes seconds."""

    said = False

    def on_start(self, event: Any) -> None:
        """A function that is in no cache is about to be compiled."""
        own = (getattr(event.data["dispatcher"].py_func, "__module__", None) or "").startswith("dish.")
        if own and not self.said and sys.stderr.isatty():
            self.said = True
            print(
                f"dish: compiling, once (kept in {cache_folder()}; dish warmup does it ahead)",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event: Any) -> None:
        """It was compiled."""


event.register("numba:compile", _Told())


def threads() -> int:
    """Threads that kernels may use: numba's number. To ask numba itself would start its OpenMP threads.

    Those share a library with torch's, whose number of threads would change with them.
    """
    return numba.get_num_threads() if parallel._is_initialized else numba.config.NUMBA_NUM_THREADS


ENOUGH = 1 << 22  # pairs of codes: NumPy takes a tenth of a second for them, compiling a kernel a second
_without: Counter[str] = Counter()  # work done without a kernel, by its name


def pays(kernel: Any, work: int) -> bool:
    """Whether to use a kernel whose work NumPy can do too, without compiling anything.

    It pays if the kernel is there already, or once NumPy has done ``ENOUGH`` of its work in this process.
    """
    if getattr(kernel, "signatures", True):  # (a function of Python is there)
        return True
    _without[kernel.__qualname__] += work
    return _without[kernel.__qualname__] > ENOUGH
