"""Scores of Hamming rankings, without sorting.

MAP, precision and recall need two histograms per query over the distances 0 … r: of all database rows, and of the
relevant ones (``counting``, ``scores``, ``summary``). Graded labels need sums of grades too (``graded``). Rankings by
real numbers are sorted (``sorting``, ``neighbours``). ``health`` describes the codes themselves,
``profile`` what is normal for a model.

Labels are (n,) classes (relevant: equal) or (n, l) of 0/1 (relevant: at least one shared label).
"""

from dish.metrics.counting import Histograms, histograms
from dish.metrics.graded import (
    average_cumulative_gain,
    normalized_discounted_cumulative_gain,
    weighted_mean_average_precision,
)
from dish.metrics.health import Health, code_health
from dish.metrics.neighbours import neighbour_recall
from dish.metrics.scores import (
    expected_average_precision,
    f1_within_radius,
    mean_average_precision,
    precision_at_k,
    precision_recall_curve,
    precision_within_radius,
    recall_at_k,
    recall_within_radius,
)
from dish.metrics.sorting import (
    asymmetric_mean_average_precision,
    l2_mean_average_precision,
    product_mean_average_precision,
)
from dish.metrics.summary import Report, evaluate, report

__all__ = [
    "Health",
    "Histograms",
    "Report",
    "asymmetric_mean_average_precision",
    "average_cumulative_gain",
    "code_health",
    "evaluate",
    "expected_average_precision",
    "f1_within_radius",
    "histograms",
    "l2_mean_average_precision",
    "mean_average_precision",
    "neighbour_recall",
    "normalized_discounted_cumulative_gain",
    "precision_at_k",
    "precision_recall_curve",
    "precision_within_radius",
    "product_mean_average_precision",
    "recall_at_k",
    "recall_within_radius",
    "report",
    "weighted_mean_average_precision",
]
