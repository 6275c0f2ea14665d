"""Score the codes of files block by block: rows that the model was trained on apart from all others."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import metrics
from dish.errors import InputError
from dish.io.batch_jobs import my_blocks
from dish.labels import plain_labels
from dish.metrics.relevance import check_k
from dish.parallel import Ranks

# Parts of a database: rows that the model was not trained on, rows that it was trained on, and all rows of a model
# that does not know. They are scored in this order.
UNTRAINED, TRAINED, ALL = "untrained", "trained", "all"


@dataclass
class FileScores:
    """The scores of a model for each part of a database that has rows, and how many rows it was trained on."""

    reports: dict[str, metrics.Report]  # part → scores; the first is the one to quote
    n_database: int
    n_queries: int
    trained_rows: int | None  # of the database; None: the model does not know
    trained_queries: int | None

    def to_dict(self) -> dict[str, Any]:
        """The scores to quote, and all others, as a dictionary for JSON."""
        part, quoted = next(iter(self.reports.items()))
        return quoted.to_dict() | {
            "database": part,
            "n_all_rows": self.n_database,
            "n_trained_rows": self.trained_rows,
            "n_trained_queries": self.trained_queries,
            "parts": {name: report.to_dict() for name, report in self.reports.items()},
        }


def trained_rows(hasher: Any, X: Any) -> NDArray[np.bool_] | None:
    """Which rows of X the model was trained on, (n,); None if it has no row hashes."""
    known = getattr(hasher, "row_hashes_", None) is not None
    return np.asarray(hasher.trained_on(X), bool) if known else None


def parts_of(trained: NDArray[np.bool_] | None, n: int) -> dict[str, NDArray[np.bool_]]:
    """The part names of n rows → masks (n,), without parts that have no rows."""
    masks = {ALL: np.ones(n, bool)} if trained is None else {UNTRAINED: ~trained, TRAINED: trained}
    return {part: mask for part, mask in masks.items() if mask.any()}


def evaluate_files(
    hasher: Any, queries: tuple[Any, Any], database: tuple[Any, Any], k: int | None, ranks: Ranks
) -> FileScores:
    """Score labelled queries against a labelled database, whose rows are read block by block."""
    Xq, yq = queries
    X, y = database
    yq, y = plain_labels(yq, y)
    if y.shape[0] != X.shape[0]:
        raise InputError(f"the database has {X.shape[0]:,} rows but {y.shape[0]:,} labels")
    k = None if k is None else check_k(k, X.shape[0])
    q, keys, repeated = hasher.transform(Xq), row_digests(Xq), set[bytes]()
    known = trained_rows(hasher, Xq)
    parts = (ALL,) if known is None else (UNTRAINED, TRAINED)
    counts = np.zeros((len(parts), 2, len(q), hasher.n_bits + 1), np.int64)  # of all rows, and of relevant ones
    with ranks.raise_together():
        for rows, block in my_blocks(X, ranks, "scoring"):
            encoded, labels = hasher.transform(block), y[rows]
            for part, mask in parts_of(trained_rows(hasher, block), len(block)).items():
                found = metrics.histograms(q, yq, encoded[mask], labels[mask], hasher.n_bits)
                counts[parts.index(part)] += found.all_, found.relevant
            repeated.update(row_digests(block))
            repeated.intersection_update(keys)
    total = np.sum(ranks.gather_arrays(counts), 0)
    queries_in_database = np.any(ranks.gather_arrays(np.array([key in repeated for key in keys])), 0)
    if ranks.first:
        _warn(queries_in_database, known)
    by_part = {part: metrics.Histograms(*total[i]) for i, part in enumerate(parts)}
    scores = _reports(by_part, k)
    return FileScores(
        *(scores, X.shape[0], len(q)),
        trained_rows=None if known is None else scores[TRAINED].n_database if TRAINED in scores else 0,
        trained_queries=None if known is None else int(known.sum()),
    )


def _reports(found: dict[str, metrics.Histograms], k: int | None) -> dict[str, metrics.Report]:
    """The scores of every part with rows. MAP@k is that of all rows in a part with fewer than k."""
    sizes = {part: int(h.all_[0].sum()) for part, h in found.items()}
    return {part: metrics.report(h, k and min(k, sizes[part])) for part, h in found.items() if sizes[part]}


def _warn(in_database: NDArray[np.bool_], trained: NDArray[np.bool_] | None) -> None:
    """Warn about queries that flatter the model."""
    n = len(in_database)
    if in_database.any():
        warnings.warn(
            f"{in_database.sum():,} of {n:,} queries are also in the database. They find themselves first, which "
            "makes every score too high: remove them from the database",
            stacklevel=3,
        )
    if trained is not None and trained.any():
        warnings.warn(
            f"the model was trained on {trained.sum():,} of {n:,} queries, which makes every score too high: hold "
            "queries out of the fit",
            stacklevel=3,
        )


def row_digests(X: Any) -> list[bytes]:
    """16 bytes for every row, equal for equal values of any number type; float64 tells apart what a model does."""
    rows = (np.asarray(row, np.float64) + 0.0 for row in X[:])  # −0 becomes 0
    return [blake2b(row.tobytes(), digest_size=16).digest() for row in rows]
