"""numba's ``njit`` and ``prange`` for all kernels here: threads do not spin, and no cache is needed."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
from numba import prange
from numba.np.ufunc import parallel

__all__ = ["njit", "pays", "prange", "threads"]

# Kernels here are short and many: threads that spin between them would starve each other on a busy machine. numba's
# OpenMP layer reads the variable once, when it is loaded, so that nothing has to stay in the environment.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    with suppress(ImportError):  # then numba uses another layer
        importlib.import_module("numba.np.ufunc.omppool")
    del os.environ["OMP_WAIT_POLICY"]


def njit(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit``; compiled anew in every process where ``cache=True`` finds no folder it may write to.

    (A read-only installation of a user without a home; $NUMBA_CACHE_DIR names a folder of one's own.)
    """

    def compiled(function: Any) -> Any:
        try:
            return numba.njit(**options)(function)
        except RuntimeError as error:
            if not options.get("cache") or "no locator available" not in str(error):
                raise
            return numba.njit(**{**options, "cache": False})(function)

    return compiled


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
