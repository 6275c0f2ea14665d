"""`dish warmup`: compile all kernels in advance.

Which variants of a kernel are compiled depends on the types it is called with. So this does what users do: it fits,
scores and searches, on rows of both precisions and on codes of the usual lengths. Each part runs in its own process,
several at a time.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import wait
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
    """Run all parts, one process per core, and return the elapsed seconds. An error or Ctrl-C ends the processes."""
    from dish.machine import usable_cores

    start, waiting = time.perf_counter(), list(parts.items())
    running: dict[Any, tuple[str, Any]] = {}  # by the pipe on which a process reports
    try:
        while waiting or running:
            while waiting and len(running) < usable_cores():
                name, part = waiting.pop(0)
                pipe, process = _start(part)
                running[pipe] = name, process
            for pipe in wait(list(running)):
                name, process = running.pop(pipe)
                try:
                    report(f"{name}: {_result(pipe):.1f} s")
                except Exception as error:
                    raise RuntimeError(f"compiling the kernels for {name!r} failed: {error!r}") from error
                process.join()
    finally:
        for _, process in running.values():
            process.kill()
            process.join()
    return time.perf_counter() - start


def _start(part: Callable[[], None]) -> tuple[Any, Any]:
    """Start a process that ignores Ctrl-C, which reaches every process of a terminal: this one ends the others."""
    context = get_context("spawn")
    pipe, end = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(part, end), daemon=True)
    masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if masks else ()
    try:
        process.start()  # a process inherits the mask
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    end.close()
    return pipe, process


def _report(part: Callable[[], None], pipe: Any) -> None:
    """Run a part in its process, and send the seconds it took or its error."""
    try:
        pipe.send(_timed(part))
    except Exception as error:
        pipe.send(repr(error))


def _result(pipe: Any) -> float:
    """The seconds that a process sent. Raises an error if it failed or died."""
    result = pipe.recv()  # EOFError: the process was killed
    if isinstance(result, str):
        raise RuntimeError(result)
    return float(result)


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
    """Search by Hamming distance and by outputs."""
    import numpy as np

    from dish.index.hamming import HammingIndex
    from dish.index.warmup import compile_kernels

    *_, codes = _data(bits)
    compile_kernels(bits, integer_ids=True)
    index = HammingIndex(bits)
    index.add(codes)
    index.search(np.random.default_rng(0).standard_normal((2, bits)), 5, method="asymmetric")


PARTS: dict[str, Callable[[], None]] = {
    **{f"fit, {dtype}": partial(fit, dtype, False) for dtype in ("float32", "float64")},
    **{f"fit, multi-label, {dtype}": partial(fit, dtype, True) for dtype in ("float32", "float64")},
    **{f"score, {bits} bits": partial(score, bits) for bits in (64, 384)},
    **{f"search, {bits} bits": partial(search, bits) for bits in (64, 32, 16)},
}
