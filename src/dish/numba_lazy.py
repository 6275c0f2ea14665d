"""numba's ``njit``, ``prange`` and ``intrinsic``; numba is imported when a kernel is first called.

Compiled code is stored in the user's cache folder, not next to the sources, so that an uninstalled package leaves
nothing behind. On a terminal, the first compilation is announced.
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

_lock = threading.RLock()


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)  # the thread that holds the old lock does not survive a fork


class LazyObject:
    """A lazily created numba object. It replaces itself in its module's namespace, where kernels look it up."""

    def __init__(self, make: Callable[[], Any], names: dict[str, Any]) -> None:
        self._make, self._names, self._made = make, names, None

    def made(self) -> Any:
        """The numba object. It replaces all lazy objects in its module's namespace, itself included."""
        with _lock:
            if self._made is None:
                self._made = self._make()
                found = {name: one.made() for name, one in list(self._names.items()) if isinstance(one, LazyObject)}
                self._names.update(found)  # in one go: another thread must not see only some of them
        return self._made


class Kernel(LazyObject):
    """A function that numba compiles on its first call with new types."""

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        super().__init__(lambda: _compiled(function, options), function.__globals__)
        self.__qualname__, self.__doc__ = function.__qualname__, function.__doc__

    def __call__(self, *args: Any) -> Any:
        """Compile if necessary, and run."""
        return self.made()(*args)

    @property
    def signatures(self) -> list[Any]:
        """The signatures compiled in this process."""
        return self._made.signatures if self._made is not None else []


def njit(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit``. Without a writable cache folder, ``cache=True`` is ignored and every process compiles.

    $DISH_CACHE or $NUMBA_CACHE_DIR set the folder.
    """
    return lambda function: Kernel(function, options)


def intrinsic(function: Any) -> Any:
    """``numba.extending.intrinsic``."""
    return LazyObject(lambda: numba.extending.intrinsic(function), function.__globals__)


prange: Any = LazyObject(lambda: numba.prange, {})


def _compiled(function: Any, options: dict[str, Any]) -> Any:
    _announce()
    try:
        with _cached_in(cache_folder()):
            return numba.njit(**options)(function)
    except RuntimeError as error:
        if not options.get("cache") or "no locator available" not in str(error):
            raise
        return numba.njit(**{**options, "cache": False})(function)


def cache_folder() -> str:
    """Folder of compiled kernels: $NUMBA_CACHE_DIR, or kernels/ in dish's cache folder."""
    given = os.environ.get("DISH_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return numba.config.CACHE_DIR or os.path.join(given or os.path.join(cache, "dish"), "kernels")


@contextmanager
def _cached_in(folder: str) -> Iterator[None]:
    """Set numba's cache folder for functions decorated inside, and for no others."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, folder
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


class _Announcer:
    """A numba listener that explains on a terminal, once per process, why the first call takes seconds."""

    said = False

    def notify(self, event: Any) -> None:
        """Called before and after the compilation of a function that is not in the cache."""
        own = (getattr(event.data["dispatcher"].py_func, "__module__", None) or "").startswith("dish.")
        if event.is_start and own and not self.said and sys.stderr.isatty():
            self.said = True
            print(
                f"dish: compiling kernels, once (cached in {cache_folder()}; run dish warmup to do this in advance)",
                file=sys.stderr,
                flush=True,
            )


@cache
def _announce() -> None:
    event = numba.core.event
    event.Listener.register(_Announcer)
    event.register("numba:compile", _Announcer())


def threads() -> int:
    """Number of threads that kernels may use, without starting numba's OpenMP threads.

    These share a library with torch's threads, whose number would change too.
    """
    if "numba" not in sys.modules:
        return int(os.environ.get("NUMBA_NUM_THREADS") or os.cpu_count() or 1)
    started = numba.np.ufunc.parallel._is_initialized
    return int(numba.get_num_threads() if started else numba.config.NUMBA_NUM_THREADS)


ENOUGH = 1 << 22  # pairs of codes: NumPy takes 0.1 s for them, compiling a kernel takes 1 s
_without: Counter[str] = Counter()  # kernel name → work done by NumPy instead


def pays(kernel: Any, work: int) -> bool:
    """Whether to use a kernel rather than its NumPy equivalent, which needs no compilation.

    It pays if the kernel is compiled already, or once NumPy has done ``ENOUGH`` of its work in this process.
    """
    if getattr(kernel, "signatures", True):  # plain Python functions have no such attribute
        return True
    _without[kernel.__qualname__] += work
    return _without[kernel.__qualname__] > ENOUGH
