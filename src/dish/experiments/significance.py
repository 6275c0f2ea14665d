"""Is a difference more than chance? Intervals of the MAP, and paired tests of methods on the same queries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dish.experiments.definition import Results, Run

LEVEL = 0.95
KEY = "average_precisions"  # of every query, in run files
LEGEND = (
    "MAP with 95 % intervals over queries; differences from the first method by a paired t-test over the same "
    "queries, p by Holm for the methods of one code length. One model per trial: chance in training is not in them"
)

Floats = NDArray[np.float64]


def of_queries(runs: list[Run], results: Results) -> Floats | None:
    """Average precisions of the queries of all trials, in the order of the trials; None if a run has none."""
    ordered = sorted(runs, key=lambda run: run.trial)
    if not ordered or any(KEY not in results.get(run, {}) for run in ordered):
        return None
    return np.concatenate([np.asarray(results[run][KEY], np.float64) for run in ordered])


def interval(values: Floats) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % interval by Student's t."""
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return mean, float("nan"), float("nan")
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1) * values.std(ddof=1) / n**0.5)
    return mean, mean - half, mean + half


def paired_p(a: Floats, b: Floats) -> float:
    """p of the paired t-test, two-sided; 1 where nothing differs."""
    return 1.0 if np.array_equal(a, b) else float(stats.ttest_rel(a, b).pvalue)


def holm(p: list[float]) -> list[float]:
    """p values of several tests, raised so that one false alarm among all of them is as rare as in one."""
    raised, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        raised[i] = highest
    return raised


def grid(runs: list[Run], results: Results) -> tuple[list[str], list[list[str]]]:
    """Column names and rows: every method at every code length, its interval, and how it differs from the first."""
    rows = []
    for r in dict.fromkeys(run.bits for run in runs):
        of = {
            (method, n_train): of_queries(
                [run for run in runs if (run.method, run.n_train, run.bits) == (method, n_train, r)], results
            )
            for method, n_train in dict.fromkeys((run.method, run.n_train) for run in runs)
        }
        known = {key: values for key, values in of.items() if values is not None}
        if len(known) < 2:
            continue
        first, *others = known.values()
        comparable = [values for values in others if len(values) == len(first)]
        p_values = iter(holm([paired_p(values, first) for values in comparable]))
        for (method, n_train), values in known.items():
            mean, low, high = interval(values)
            cells = [method, f"{n_train:,}" if n_train else "all", str(r), f"{mean:.3f} [{low:.3f}, {high:.3f}]"]
            if values is first or len(values) != len(first):
                rows.append([*cells, "–", "–"])
                continue
            difference, low, high = interval(values - first)
            p = next(p_values)
            rows.append(
                [*cells, f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]", "< 0.001" if p < 1e-3 else f"{p:.3f}"]
            )
    return ["method", "training rows", "bits", "MAP", "difference", "p"], rows
