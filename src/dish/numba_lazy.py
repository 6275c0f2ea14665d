"""numba's ``njit``, ``prange`` and ``intrinsic`` for all kernels here; the first call of one loads numba.

Threads do not spin, and no cache is needed. What was compiled is kept in the user's cache folder, not beside the
sources: an uninstalled package leaves nothing behind that could be imported. On a terminal the first compilation says
so.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from dish.lazy import numba

__all__ = ["intrinsic", "njit", "pays", "prange", "threads"]

_making = threading.RLock()


def _new_lock() -> None:
    global _making
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)  # a forked process has no thread that would give the old one back


class Made:
    """Something that numba makes, once it is needed. The kernels of a module find it there under its name."""

    def __init__(self, make: Callable[[], Any], names: dict[str, Any]) -> None:
        self._make, self._names, self._made = make, names, None

    def made(self) -> Any:
        """What numba made of it. From now on it stands in its module itself, and so does all that it calls."""
        with _making:
            if self._made is None:
                self._made = self._make()
                found = {name: one.made() for name, one in list(self._names.items()) if isinstance(one, Made)}
                self._names.update(found)  # at once: another thread must not meet some of them
        return self._made


class Kernel(Made):
    """A function that numba compiles for the types it is called with."""

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        super().__init__(lambda: _compiled(function, options), function.__globals__)
        self.__qualname__, self.__doc__ = function.__qualname__, function.__doc__

    def __call__(self, *args: Any) -> Any:
        """Compile if need be, and run."""
        return self.made()(*args)

    @property
    def signatures(self) -> list[Any]:
        """The types that it was compiled for in this process."""
        return self._made.signatures if self._made is not None else []


def njit(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit``; compiled anew in every process where ``cache=True`` finds no folder it may write to.

    (A read-only installation of a user without a home; $DISH_CACHE or $NUMBA_CACHE_DIR name a folder of one's own.)
    """
    return lambda function: Kernel(function, options)


def intrinsic(function: Any) -> Any:
    """``numba.extending.intrinsic``."""
    return Made(lambda: numba.extending.intrinsic(function), function.__globals__)


prange: Any = Made(lambda: numba.prange, {})


def _compiled(function: Any, options: dict[str, Any]) -> Any:
    _tell()
    try:
        with _kept_in(cache_folder()):
            return numba.njit(**options)(function)
    except RuntimeError as error:
        if not options.get("cache") or "no locator available" not in str(error):
            raise
        return numba.njit(**{**options, "cache": False})(function)


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


class _Told:
    """Says on a terminal, once per process, why the first call takes seconds. One of numba's listeners."""

    said = False

    def notify(self, event: Any) -> None:
        """A function that is in no cache is about to be compiled, or was."""
        own = (getattr(event.data["dispatcher"].py_func, "__module__", None) or "").startswith("dish.")
        if event.is_start and own and not self.said and sys.stderr.isatty():
            self.said = True
            print(
                f"dish: compiling, once (kept in {cache_folder()}; dish warmup does it ahead)",
                file=sys.stderr,
                flush=True,
            )


@cache
def _tell() -> None:
    event = numba.core.event
    event.Listener.register(_Told)
    event.register("numba:compile", _Told())


def threads() -> int:
    """Threads that kernels may use: numba's number. To ask numba itself would start its OpenMP threads.

    Those share a library with torch's, whose number of threads would change with them.
    """
    if "numba" not in sys.modules:
        return int(os.environ.get("NUMBA_NUM_THREADS") or os.cpu_count() or 1)
    started = numba.np.ufunc.parallel._is_initialized
    return int(numba.get_num_threads() if started else numba.config.NUMBA_NUM_THREADS)


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
