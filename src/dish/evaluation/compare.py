"""Compare a model's codes with other rankings of the same rows: floats, sign bits, PCA-ITQ, class probabilities."""

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

from dish import codes
from dish.baselines.pca_itq import PCAITQ
from dish.errors import InputError, UnsupportedError
from dish.evaluation.files import parts_of, trained_rows
from dish.evaluation.part import Part, PerQuery
from dish.io.rows import Shards, is_map, number_type, scratch
from dish.labels import as_array, encode_classes, encode_together, is_missing, plain_labels

MAX_TRAIN = 10_000  # database rows that PCA-ITQ and the logistic regression learn from, at most
MAX_QUERIES = 1000  # scored at most; fewer in a large database
MAX_PAIRS = 2**30  # of a query and a row, unless there are few queries
FEW_QUERIES = 100
Rows = tuple[Any, Any]  # X and y


@dataclass
class RankingScores:
    """Mean scores of one ranking for one group of queries. Float rankings have no scores within radius 2."""

    ranking: str
    bytes: int  # per row
    database: str  # "untrained" or "trained" rows; "all" if the model does not know
    n_database: int
    queries: str  # "all", "seen" or "unseen" classes
    n_queries: int
    map: float
    precision_at: dict[int, float]
    recall_at: dict[int, float]
    precision_within_2: float | None
    recall_within_2: float | None
    neighbours_at: dict[int, float]  # share of the 10 nearest rows by float cosine among the first k
    rescored_precision: float  # precision@10 of the first 100 rows, sorted by float cosine

    @property
    def group(self) -> str:
        """The queries and the rows in words."""
        which = "all queries" if self.queries == "all" else f"queries of {self.queries} classes"
        rows = {"all": "rows", "trained": "rows that were trained on"}.get(self.database, "rows not trained on")
        return f"{which} ({self.n_queries:,}), {self.n_database:,} {rows}"

    def to_dict(self) -> dict[str, Any]:
        """The scores as JSON values."""
        return asdict(self)


def compare(hasher: Any, queries: Rows, database: Rows, seen: Any = None) -> list[RankingScores]:
    """Score every ranking of the database, for all queries and for groups of them.

    Rows that the hasher was trained on and all others are scored apart, the others first, if the hasher has row
    hashes. At most 1,000 random queries are scored, and fewer (at least 100) in databases of more than a million
    rows. The database may be a memory map or shards, and need not fit in memory.

    ``seen`` holds the labels of the model's training rows. With it, queries of seen and of unseen classes are also
    scored separately, which needs exactly one label per row. PCA-ITQ learns from at most 10,000 database rows, of
    seen classes only. So does a logistic regression if the model has no class probabilities of its own; it learns
    from no row that the model was not trained on, and is left out if there are no others.
    """
    Xq, X = (_as_matrix(rows) for rows, _ in (queries, database))
    yq, y = plain_labels(queries[1], database[1])
    rng, n = np.random.default_rng(0), X.shape[0]
    some = np.sort(rng.permutation(Xq.shape[0])[: min(MAX_QUERIES, max(FEW_QUERIES, MAX_PAIRS // n))])
    Xq, yq = np.asarray(Xq[some]), yq[some]
    groups, known = _groups(yq, y, seen)
    trained = trained_rows(hasher, X)
    rivals = Rivals.of(hasher, X, y, known, trained, rng)
    found = []
    for name, mask in parts_of(trained, n).items():
        part = Part(Xq, yq, X, y, mask)
        for ranking, size, scores in _rankings(hasher, rivals, part):
            for group, which in groups.items():
                means = scores.means(which)
                found.append(RankingScores(ranking, size, name, part.n, group, int(which.sum()), **means))
    return found


def _as_matrix(X: Any) -> Any:
    """Rows of an array as numbers; those of files unchanged."""
    return X if isinstance(X, Shards) or is_map(X) else np.asarray(X, number_type(X))


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


@dataclass
class Rivals:
    """What other rankings learn from some rows of the database."""

    mean: NDArray[Any]  # (d,)
    unit: float  # features are divided by this power of two, as outputs are float32; it changes no code
    itq: PCAITQ
    classifier: LogisticRegression | None

    @classmethod
    def of(cls, hasher: Any, X: Any, y: Any, known: Any, trained: Any, rng: np.random.Generator) -> Rivals:
        """Learn from rows of ``known`` classes; classes only from rows that the hasher may have been trained on."""

        def sample(mask: NDArray[np.bool_]) -> NDArray[np.intp]:
            return np.sort(rng.permutation(np.flatnonzero(mask))[:MAX_TRAIN])

        rows = np.asarray(X[sample(known)], number_type(X))
        unit = 2.0 ** math.frexp(float(np.abs(rows).max()))[1]
        classifier = None
        if not hasattr(hasher, "predict_proba") and y.ndim == 1:
            at = sample(known if trained is None else known & trained)
            classes = encode_classes(y)[0][at]
            if len(np.unique(classes)) > 1:
                classifier = _classifier(np.asarray(X[at], number_type(X)) / unit, classes)
        return cls(rows.mean(0), unit, PCAITQ(n_bits=hasher.n_bits).fit(rows / unit), classifier)

    def probabilities(self, hasher: Any, X: Any) -> NDArray[Any]:
        """Class probabilities (n, l) of rows, scaled to unit length; of the hasher if it has them."""
        model = self.classifier
        return normalize(hasher.predict_proba(X) if model is None else model.predict_proba(X / self.unit))


def _classifier(X: NDArray[Any], classes: NDArray[Any]) -> LogisticRegression:
    scale = max(float(X.std()), 1e-12)
    model = LogisticRegression(max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the ranking hardly changes after 100 steps
        model.fit(X / scale, classes)
    model.coef_ /= scale  # of rows that are not scaled
    return model


def _rankings(hasher: Any, rivals: Rivals, part: Part) -> Iterator[tuple[str, int, PerQuery]]:
    """Yield name, bytes per row and scores of every ranking. The nearest rows by cosine come first."""
    d, r, name = part.Xq.shape[1], hasher.n_bits, type(hasher).__name__
    yield "float cosine", 4 * d, part.score_cosine()
    yield "sign bits", codes.n_bytes(d), part.score_encoder(lambda X: codes.pack(X - rivals.mean))
    yield "PCA-ITQ", codes.n_bytes(r), part.score_encoder(lambda X: rivals.itq.transform(X / rivals.unit))
    if rivals.classifier is not None or hasattr(hasher, "predict_proba"):
        ranking = "class probabilities" if rivals.classifier is None else "logistic regression"
        p_q = rivals.probabilities(hasher, part.Xq)
        P, done = scratch(part.n, p_q.shape[1], np.float32), 0
        for block in part.blocks():
            P[done : done + len(block)] = rivals.probabilities(hasher, block)
            done += len(block)
        yield f"{ranking}, float32", 4 * p_q.shape[1], part.score_floats(p_q, P)
    q, base = hasher.transform(part.Xq), part.encode(hasher.transform)
    yield name, codes.n_bytes(r), part.score_codes(q, base)
    with suppress(UnsupportedError, InputError, AttributeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels that the model does not know
        base = hasher.with_labels(base, part.y)  # an error: it has no codes of labels, or of other kinds of labels
        yield f"{name}, label codes", codes.n_bytes(r), part.score_codes(q, base)
