"""Compare a model's codes with other rankings of the same rows: floats, sign bits, PCA-ITQ, and a classifier."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from dish import codes, metrics
from dish.baselines.pca_itq import PCAITQ
from dish.errors import InputError, UnsupportedError
from dish.io.rows import number_type
from dish.labels import as_array, encode_classes, encode_together, is_missing, plain_labels
from dish.metrics.relevance import Labels, match_labels
from dish.metrics.scores import expected_average_precision, found_at, recall_at, within_radius
from dish.metrics.sorting import l2_distances

AT = (1, 10, 100)
MAX_TRAIN = 10_000  # database rows that PCA-ITQ and the classifier learn from, at most
Floats = NDArray[np.float64]
Rows = tuple[Any, Any]  # X and y


@dataclass
class RankingScores:
    """Mean scores of one ranking for one group of queries. Float rankings have no scores within radius 2."""

    ranking: str
    bytes: int  # per row
    queries: str  # "all", "seen" or "unseen" classes
    n_queries: int
    map: float
    precision_at: dict[int, float]
    recall_at: dict[int, float]
    precision_within_2: float | None
    recall_within_2: float | None

    def to_dict(self) -> dict[str, Any]:
        """The scores as JSON values."""
        return asdict(self)


@dataclass
class PerQuery:
    """Scores of every query. Each array has shape (n_queries,)."""

    ap: Floats
    precision: dict[int, Floats]
    recall: dict[int, Floats]
    within: tuple[Floats, Floats] | None  # precision and recall within radius 2

    def mean(self, ranking: str, size: int, queries: str, which: NDArray[np.bool_]) -> RankingScores:
        """Mean scores of the queries in ``which``; ``queries`` is the name of this group."""
        within = (None, None) if self.within is None else tuple(float(values[which].mean()) for values in self.within)
        precision, recall = (
            {k: float(values[which].mean()) for k, values in scores.items()}
            for scores in (self.precision, self.recall)
        )
        return RankingScores(
            ranking, size, queries, int(which.sum()), float(self.ap[which].mean()), precision, recall, *within
        )


def compare(hasher: Any, queries: Rows, database: Rows, seen: Any = None) -> list[RankingScores]:
    """Score every ranking of the database, for all queries and for groups of them.

    ``seen`` holds the labels of the model's training rows. With it, queries of seen and of unseen classes are also
    scored separately, which needs exactly one label per row. PCA-ITQ learns from at most 10,000 database rows,
    of seen classes only. So does the classifier if the model has no class probabilities of its own.
    """
    (Xq, yq), (X, y) = ((np.asarray(rows, number_type(rows)), labels) for rows, labels in (queries, database))
    yq, y = plain_labels(yq, y)
    groups, known = _groups(yq, y, seen)
    labels = match_labels(yq, y, len(Xq), len(X))
    at = tuple(k for k in AT if k <= len(X))
    rng = np.random.default_rng(0)
    learned = np.sort(rng.permutation(np.flatnonzero(known))[:MAX_TRAIN])
    found = []
    for ranking, size, scores in _rankings(hasher, Xq, X, y, yq, learned, labels, at):
        found += [scores.mean(ranking, size, name, which) for name, which in groups.items()]
    return found


def _groups(yq: Any, y: Any, seen: Any) -> tuple[dict[str, NDArray[np.bool_]], NDArray[np.bool_]]:
    """Name → mask of the queries in that group; and a mask of the database rows of seen classes."""
    groups, known = {"all": np.ones(yq.shape[0], bool)}, np.ones(y.shape[0], bool)
    if seen is None:
        return groups, known
    if yq.ndim != 1:
        raise InputError("seen needs exactly one label per row, but these queries are multi-label")
    seen = as_array(seen)
    of_queries, of_rows, of_seen = encode_together(queries=yq, database=y, seen=seen[~is_missing(seen)])
    was_seen = np.isin(of_queries, of_seen)
    groups |= {name: which for name, which in (("seen", was_seen), ("unseen", ~was_seen)) if which.any()}
    return groups, np.isin(of_rows, of_seen) if was_seen.any() else known


def _rankings(
    hasher: Any, Xq: Any, X: Any, y: Any, yq: Any, learned: NDArray[np.intp], labels: Labels, at: tuple[int, ...]
) -> Iterator[tuple[str, int, PerQuery]]:
    """Yield name, bytes per row and scores of every ranking."""
    d = X.shape[1]

    def of_codes(q: NDArray[np.uint8], base: NDArray[np.uint8]) -> PerQuery:
        return score_codes(metrics.histograms(q, yq, base, y), at)

    yield "float cosine", 4 * d, score_floats(normalize(Xq), normalize(X), labels, at)
    mean = X.mean(0)
    yield "sign bits", codes.n_bytes(d), of_codes(codes.pack(Xq - mean), codes.pack(X - mean))
    unit = 2.0 ** math.frexp(float(np.abs(X).max()))[1]  # outputs are float32; a power of two changes no code
    itq = PCAITQ(n_bits=hasher.n_bits).fit(X[learned] / unit)
    yield "PCA-ITQ", codes.n_bytes(hasher.n_bits), of_codes(itq.transform(Xq / unit), itq.transform(X / unit))
    predicted = class_probabilities(hasher, Xq, X, y, learned)
    if predicted is not None:
        p_q, p = predicted
        yield "classifier", 4 * p.shape[1], score_floats(p_q, p, labels, at)
    name = type(hasher).__name__
    q = hasher.transform(Xq)
    yield name, codes.n_bytes(hasher.n_bits), of_codes(q, hasher.transform(X))
    if by_label := _label_codes(hasher, X, y):
        yield f"{name}, labelled rows", codes.n_bytes(hasher.n_bits), of_codes(q, by_label[0])


def _label_codes(hasher: Any, X: Any, y: Any) -> tuple[NDArray[np.uint8]] | None:
    """The codes of rows whose labels are known; None if the model has no codes of labels, or of other ones."""
    with suppress(UnsupportedError, InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels that the model does not know
        return (hasher.transform(X, labels=y),)
    return None


def class_probabilities(
    hasher: Any, Xq: Any, X: Any, y: Any, learned: NDArray[np.intp]
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Class probabilities of queries and rows, scaled to unit length; None if there are none.

    Their ranking is an upper bound for codes that only know the labels. They come from the model itself, or from a
    logistic regression, which needs exactly one label per row.
    """
    if hasattr(hasher, "predict_proba"):
        return normalize(hasher.predict_proba(Xq)), normalize(hasher.predict_proba(X))
    if y.ndim != 1:
        return None
    scale = max(float(X[learned].std()), 1e-12)
    model = LogisticRegression(max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the ranking hardly changes after 100 steps
        model.fit(X[learned] / scale, encode_classes(y)[0][learned])
    return normalize(model.predict_proba(Xq / scale)), normalize(model.predict_proba(X / scale))


def score_codes(h: metrics.Histograms, at: tuple[int, ...]) -> PerQuery:
    """Scores of Hamming rankings, in expectation over the order of ties."""
    precision, recall, _ = within_radius(h, 2)
    found = {k: found_at(h, k) / k for k in at}
    return PerQuery(expected_average_precision(h), found, {k: recall_at(h, k) for k in at}, (precision, recall))


def score_floats(Xq: NDArray[Any], X: NDArray[Any], labels: Labels, at: tuple[int, ...]) -> PerQuery:
    """Scores of rankings by cosine. X and Xq have rows of unit length; ties keep database order."""
    n = len(Xq)
    ap, precision, recall = np.zeros(n), {k: np.zeros(n) for k in at}, {k: np.zeros(n) for k in at}
    for i, distances in enumerate(l2_distances(Xq, X)):
        hit = labels.relevant(i)[np.argsort(distances, kind="stable")]
        ranks = np.flatnonzero(hit) + 1.0  # of the relevant rows
        ap[i] = (np.arange(1, len(ranks) + 1) / ranks).mean() if len(ranks) else 0.0
        for k in at:
            precision[k][i], recall[k][i] = hit[:k].mean(), hit[:k].sum() / max(1, len(ranks))
    return PerQuery(ap, precision, recall, None)
