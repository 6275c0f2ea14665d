"""`dish warmup`: compile all kernels in advance.

Which variants of a kernel are compiled depends on the types it is called with. So this does what users do: it fits,
scores and searches, on rows of both precisions and on codes of the usual lengths. Each part runs in its own process,
several at a time.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from dish.cli.options import example

N = 20_000  # rows: enough for every kernel to be used


@example("dish warmup", "NUMBA_CACHE_DIR=/srv/dish-cache dish warmup")
def warmup() -> None:
    """Compile all kernels in advance, so that the first fit, search and score start at once.

    Compiled kernels are kept in the user's cache folder. To use another folder, set NUMBA_CACHE_DIR or DISH_CACHE
    now and whenever dish runs.
    """
    from dish.numba_lazy import cache_folder

    print("dish: compiling, once …", flush=True)
    seconds = compile_all(PARTS, lambda line: print(f"  {line}", flush=True))
    print(f"done in {seconds:.1f} s; kept in {cache_folder()}")


def compile_all(parts: dict[str, Callable[[], None]], report: Callable[[str], None]) -> float:
    """Run all parts, one process per core, and return the elapsed seconds."""
    from dish.machine import usable_cores

    start = time.perf_counter()
    with ProcessPoolExecutor(usable_cores(), get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {name: pool.submit(_timed, part) for name, part in parts.items()}
        for name, result in running.items():
            try:
                report(f"{name}: {result.result():.1f} s")
            except Exception as error:
                raise RuntimeError(f"compiling the kernels for {name!r} failed: {error!r}") from error
    return time.perf_counter() - start


def _timed(part: Callable[[], None]) -> float:
    """Run one part with all kernels compiled, even for small data, and return the seconds it took."""
    from dish import numba_lazy

    numba_lazy.ENOUGH = 0
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    part()
    return time.perf_counter() - start


def _data(bits: int = 8) -> tuple[Any, Any, Any, Any]:
    """Rows X (N, 4), classes y (N,), labels Y (N, 3), and random codes."""
    import numpy as np

    rng = np.random.default_rng(0)
    X, y, B = rng.standard_normal((N, 4)), np.arange(N) % 3, rng.integers(0, 256, (N, bits // 8), np.uint8)
    return X, y, np.stack([y == 0, y != 1, rng.random(N) < 0.5], 1), B


def fit(dtype: str, multilabel: bool) -> None:
    """Fit DISH-K, which uses the kernels of both DISH-K and DISH."""
    from dish.kernel.dish_k import DISHK

    X, y, Y, _ = _data()
    DISHK(n_bits=16, n_anchors=20, n_iter=2, device="cpu").fit(X.astype(dtype), Y if multilabel else y)


def score(bits: int) -> None:
    """Score codes with classes and with labels."""
    from dish import metrics

    _, y, Y, B = _data(bits)
    metrics.evaluate(B[:50], y[:50], B[50:], y[50:])
    metrics.evaluate(B[:50], Y[:50], B[50:], Y[50:])
    metrics.mean_average_precision(B[:50], y[:50], B[50:], y[50:], ties="stable")


def search(bits: int) -> None:
    """Search an index with distinct codes, one with many equal codes, and a memory-mapped one."""
    import numpy as np

    from dish.index.hamming import HammingIndex

    *_, codes = _data(bits)
    for B in (codes, codes[np.arange(N) % 500]):
        index = HammingIndex(bits)
        index.add(B)
        for queries in (B[:60], B[:60], B[:1]):  # the second search uses what the first one built
            index.search(queries, 5)
            index.radius_search(queries, 2)
        index.search(np.random.default_rng(0).standard_normal((2, bits)), 5, method="asymmetric")
    with tempfile.TemporaryDirectory() as folder:
        index.save(folder + "/i")
        mapped = HammingIndex.load(folder + "/i", mmap=True)
        mapped.search(B[:60], 5)
        mapped.search(B[:60], 5)
        mapped.radius_search(B[:60], 2)


PARTS: dict[str, Callable[[], None]] = {
    **{f"fit, {dtype}": partial(fit, dtype, False) for dtype in ("float32", "float64")},
    **{f"fit, multi-label, {dtype}": partial(fit, dtype, True) for dtype in ("float32", "float64")},
    **{f"score, {bits} bits": partial(score, bits) for bits in (64, 384)},
    **{f"search, {bits} bits": partial(search, bits) for bits in (64, 32, 16)},
}
