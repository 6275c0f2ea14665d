"""Compile all kernels ahead: small programs that use each of them, in processes of their own, at once.

What a kernel is compiled for depends on the types that it meets, so the programs do what users do: they fit, search
and score, on rows of both precisions and codes of the usual lengths.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dish.machine import usable_cores

BEGIN = """
import tempfile, warnings
import numpy as np
from dish import DISH, HammingIndex, metrics, numba_lazy
warnings.simplefilter("ignore")
numba_lazy.ENOUGH = 0
rng = np.random.default_rng(0)
n = 20_000  # so many that no kernel is spared
X, y = rng.standard_normal((n, 4)).astype(np.float32), np.arange(n) % 3
Y = np.stack([y == 0, y != 1, rng.random(n) < 0.5], 1)
codes = {bits: rng.integers(0, 256, (n, bits // 8), np.uint8) for bits in (16, 32, 64, 128)}
"""
PARTS = {
    "learning": "DISH(n_bits=16, n_anchors=20, loss='ridge', n_iter=2, device='cpu').fit(X, y)\n",
    "learning, double precision": "DISH(n_bits=16, n_anchors=20, loss='ridge', n_iter=2, device='cpu')"
    ".fit(X.astype(float), y)\n",
    "several labels": "for X in (X, X.astype(float)):\n"
    "    DISH(n_bits=16, n_anchors=20, loss='ridge', n_iter=1, device='cpu').fit(X, Y)\n",
    "scoring": "q, db = codes[64][:50], codes[64][50:]\n"
    "metrics.evaluate(q, y[:50], db, y[50:])\n"
    "metrics.evaluate(q, Y[:50], db, Y[50:])\n"
    "metrics.mean_average_precision(q, y[:50], db, y[50:], ties='stable')\n",
    "scoring, long codes": "q, db = (codes[128].repeat(3, 1)[part] for part in (slice(50), slice(50, n)))\n"
    "metrics.evaluate(q, y[:50], db, y[50:])\n",
    **{
        f"search, {bits} bits": f"B = codes[{bits}]\n"
        f"for B in (B, B[np.arange(n) % 500]):\n"  # all different, and in groups
        f"    index = HammingIndex({bits})\n"
        "    index.add(B)\n"
        "    for some in (B[:60], B[:60], B[:1]):\n"
        "        index.search(some, 5)\n"
        "        index.radius_search(some, 2)\n"
        f"    index.search(rng.standard_normal((2, {bits})), 5, mode='asymmetric')\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    index.save(folder + '/i')\n"
        "    mapped = HammingIndex.load(folder + '/i', mmap=True)\n"
        "    mapped.search(B[:60], 5)\n"
        "    mapped.search(B[:60], 5)\n"
        "    mapped.radius_search(B[:60], 2)\n"
        for bits in (64, 32, 16)
    },
}


def compile_all(report: Callable[[str], None]) -> float:
    """Run all parts, as many at once as there are cores; the seconds they took together, by the clock."""
    start = time.perf_counter()
    with ThreadPoolExecutor(usable_cores()) as pool:
        for name, seconds in pool.map(_run, PARTS):
            report(f"{name}: {seconds:.1f} s")
    return time.perf_counter() - start


def _run(name: str) -> tuple[str, float]:
    """One part in a process of its own."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", BEGIN + PARTS[name]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"warming up {name} failed:\n{done.stderr}")
    return name, time.perf_counter() - start
