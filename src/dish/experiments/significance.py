"""Confidence intervals of the MAP, and paired tests of methods on the same queries."""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dish.experiments.bench import AVERAGE_PRECISIONS, Results, Run

LEVEL = 0.95
LEGEND = (
    "MAP with 95 % confidence intervals over queries; differences from the first method by a paired t-test over the "
    "same queries, with Holm's correction for the methods of one code length. There is one model per trial, so the "
    "variance of training is not included"
)

Floats = NDArray[np.float64]


def of_queries(runs: list[Run], results: Results) -> Floats | None:
    """The average precision of every query, trial after trial; None if a run does not have them."""
    ordered = sorted(runs, key=lambda run: run.trial)
    if not ordered or any(AVERAGE_PRECISIONS not in results.get(run, {}) for run in ordered):
        return None
    return np.concatenate([np.asarray(results[run][AVERAGE_PRECISIONS], np.float64) for run in ordered])


def interval(values: Floats, lowest: float = -inf, highest: float = inf) -> tuple[float, float, float]:
    """The mean and its 95 % confidence interval by Student's t, cut to the possible values: (mean, low, high).

    Scores are between 0 and 1, and their differences between −1 and 1.
    """
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return mean, float("nan"), float("nan")
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1) * values.std(ddof=1) / n**0.5)
    return mean, max(lowest, mean - half), min(highest, mean + half)


def paired_p(a: Floats, b: Floats) -> float:
    """The two-sided p-value of the paired t-test; 1 if the values are equal."""
    return 1.0 if np.array_equal(a, b) else float(stats.ttest_rel(a, b).pvalue)


def holm(p: list[float]) -> list[float]:
    """p-values with Holm's correction for multiple tests."""
    raised, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        raised[i] = highest
    return raised


def grid(runs: list[Run], results: Results) -> tuple[list[str], list[list[str]]]:
    """Column names and rows: each method's MAP with its interval, and its difference from the first method."""
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
            mean, low, high = interval(values, 0.0, 1.0)
            cells = [method, f"{n_train:,}" if n_train else "all", str(r), f"{mean:.3f} [{low:.3f}, {high:.3f}]"]
            if values is first or len(values) != len(first):
                rows.append([*cells, "–", "–"])
                continue
            difference, low, high = interval(values - first, -1.0, 1.0)
            p = next(p_values)
            rows.append(
                [*cells, f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]", "< 0.001" if p < 1e-3 else f"{p:.3f}"]
            )
    return ["method", "training rows", "bits", "MAP", "difference", "p"], rows
