"""All scores of one pass over the codes, in one report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from numpy.typing import ArrayLike

from dish.metrics.counting import Histograms, histograms
from dish.metrics.relevance import check_k
from dish.metrics.scores import curve, expected_average_precision, f1, found_at, recall_at, within_radius

AT = (1, 10, 100, 1000)


@dataclass
class Report:
    """The result of ``evaluate``. The curves are indexed by Hamming radius. ``print`` shows a short table."""

    map: float
    precision_within_2: float
    empty_balls: float  # share of queries with no database row within radius 2
    precision_at: dict[int, float]
    curve_precision: list[float]
    curve_recall: list[float]
    n_queries: int
    n_database: int
    n_bits: int
    k: int | None = None  # of MAP@k
    map_possible: float | None = None  # MAP@k with denominator="possible"
    recall_within_2: float = 0.0
    f1_within_2: float = 0.0
    recall_at: dict[int, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The values as a dictionary for JSON."""
        return asdict(self)

    def lines(self) -> dict[str, float]:
        """Score names for people → values."""
        cut = "" if self.k is None else f"@{self.k}"
        possible = {} if self.map_possible is None else {f"MAP{cut} over min(relevant, k)": self.map_possible}
        return {
            f"MAP{cut}": self.map,
            **possible,
            "precision within radius 2": self.precision_within_2,
            "recall within radius 2": self.recall_within_2,
            "F1 within radius 2": self.f1_within_2,
            "queries without rows within 2": self.empty_balls,
            **{f"precision@{k}": value for k, value in self.precision_at.items()},
            **{f"recall@{k}": value for k, value in self.recall_at.items()},
        }

    def __str__(self) -> str:
        width = max(map(len, self.lines()))
        title = f"{self.n_queries:,} queries, {self.n_database:,} rows, {self.n_bits} bits"
        return "\n".join([title, *(f"{name:<{width}}  {value:.4f}" for name, value in self.lines().items())])


def evaluate(
    q_codes: ArrayLike,
    q_labels: Any,
    db_codes: ArrayLike,
    db_labels: Any,
    *,
    n_bits: int | None = None,
    k: int | None = None,
    at: tuple[int, ...] = AT,
) -> Report:
    """Compute all scores in one pass over the codes. ``k`` gives MAP@k; ``at`` lists the k of precision@k."""
    return report(histograms(q_codes, q_labels, db_codes, db_labels, n_bits), k, at)


def report(h: Histograms, k: int | None = None, at: tuple[int, ...] = AT) -> Report:
    """Compute all scores from histograms. Histograms of parts of a database can be added first."""
    n_queries, n_database = len(h.all_), int(h.all_[0].sum())
    k = None if k is None else check_k(k, n_database)
    at = tuple(places for places in at if places <= n_database)
    precision, recall, size = within_radius(h, 2)
    curve_precision, curve_recall = curve(h)
    return Report(
        map=float(expected_average_precision(h, k).mean()),
        precision_within_2=float(precision.mean()),
        empty_balls=float((size == 0).mean()),
        precision_at={places: float(found_at(h, places).mean() / places) for places in at},
        curve_precision=curve_precision.tolist(),
        curve_recall=curve_recall.tolist(),
        n_queries=n_queries,
        n_database=n_database,
        n_bits=h.all_.shape[1] - 1,
        k=k,
        map_possible=None if k is None else float(expected_average_precision(h, k, "possible").mean()),
        recall_within_2=float(recall.mean()),
        f1_within_2=float(f1(precision, recall).mean()),
        recall_at={places: float(recall_at(h, places).mean()) for places in at},
    )
