"""Time to score 1,000 and 10,000 queries against 1,000,000 64-bit codes, compared with NumPy XOR + argsort.

Codes and the 10 classes are random; the time does not depend on their values. NumPy is timed on 20 queries and
extrapolated. Both give the same MAP on these queries.

    python benchmarks/scoring.py          # writes benchmarks/results/scoring.json
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from dish import machine, metrics
from dish.experiments import bench

N, R, SEED = 1_000_000, 64, 0
RESULTS = Path(__file__).parent / "results" / "scoring.json"


def numpy_map(q: np.ndarray, yq: np.ndarray, b: np.ndarray, yb: np.ndarray, kind: str | None) -> float:
    """Return the MAP by XOR, bit counts and argsort. ``kind="stable"`` is a radix sort on bytes."""
    precisions = []
    words = b.view(np.uint64)[:, 0]
    for code, label in zip(q.view(np.uint64)[:, 0], yq, strict=True):
        order = np.argsort(np.bitwise_count(words ^ code), kind=kind)
        ranks = np.flatnonzero(yb[order] == label) + 1
        precisions.append((np.arange(1, len(ranks) + 1) / ranks).mean())
    return float(np.mean(precisions))


def main() -> None:
    """Measure, print and write the results."""
    rng = np.random.default_rng(SEED)
    b, q = (rng.integers(0, 256, (n, R // 8), dtype=np.uint8) for n in (N, 10_000))
    yb, yq = rng.integers(0, 10, N), rng.integers(0, 10, 10_000)
    metrics.evaluate(q[:10], yq[:10], b[:1000], yb[:1000])  # compile
    metrics.mean_average_precision(q[:10], yq[:10], b[:1000], yb[:1000], ties="stable")

    numpy_s = {}
    for kind in (None, "stable"):
        start = time.perf_counter()
        theirs = numpy_map(q[:20], yq[:20], b, yb, kind)
        numpy_s[kind] = 1000 * (time.perf_counter() - start) / 20
    assert abs(theirs - metrics.mean_average_precision(q[:20], yq[:20], b, yb, ties="stable")) < 1e-12
    seconds = {}
    peak = machine.PeakMemory()
    for n_queries in (1000, 10_000):
        times = []
        for _ in range(3 if n_queries == 1000 else 1):
            start = time.perf_counter()
            metrics.evaluate(q[:n_queries], yq[:n_queries], b, yb)
            times.append(time.perf_counter() - start)
        seconds[n_queries] = min(times)
    memory = peak.bytes()
    ratio, stable = (numpy_s[kind] / seconds[1000] for kind in (None, "stable"))
    print(
        f"numpy XOR + argsort: {numpy_s[None]:.1f} s for 1,000 queries, stable {numpy_s['stable']:.1f} (timed on 20)"
    )
    print(f"dish.metrics.evaluate: {seconds[1000]:.2f} s for 1,000, {seconds[10_000]:.2f} s for 10,000")
    print(f"ratio ×{ratio:.0f}; to NumPy's stable argsort of bytes ×{stable:.0f}")
    print(f"memory beyond the codes: {memory / 1e6:.0f} MB")
    content = {
        "what": "scoring against 1,000,000 random codes of 64 bits",
        "synthetic": True,
        "seed": SEED,
        "numpy_argsort_s_for_1000": numpy_s[None],
        "numpy_stable_argsort_s_for_1000": numpy_s["stable"],
        "evaluate_s": {str(k): v for k, v in seconds.items()},
        "ratio_at_1000": ratio,
        "ratio_at_1000_to_stable_argsort": stable,
        "peak_bytes_beyond_codes": memory,
        "environment": machine.environment(),
    }
    bench.write_json(RESULTS, content)


if __name__ == "__main__":
    main()
