"""Rankings of one part of a database: scores by labels, and the nearest rows by float vectors that they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from dish import metrics
from dish.codes import hamming
from dish.index.rescore import FloatVectors
from dish.io.rows import blocks_of, number_type
from dish.metrics.neighbours import share_found
from dish.metrics.relevance import match_labels
from dish.metrics.scores import expected_average_precision, found_at, recall_at, within_radius

AT = (1, 10, 100)
NEAREST = 10  # rows by float cosine that a ranking should find
FIRST = (10, 100)  # places of a ranking in which they are looked for
SHORTLIST = 100  # rows that are sorted again by float cosine
CELLS = 2**26  # similarities in memory at a time
BATCH = 64  # queries
Floats = NDArray[np.float64]


@dataclass
class PerQuery:
    """Scores of every query. Each array has shape (n_queries,)."""

    ap: Floats
    precision: dict[int, Floats]
    recall: dict[int, Floats]
    within: tuple[Floats, Floats] | None  # precision and recall within radius 2
    neighbours: dict[int, Floats]  # share of the 10 nearest rows by cosine among the first k
    rescored: Floats  # precision@10 of a shortlist of 100, sorted by cosine

    def means(self, which: NDArray[np.bool_]) -> dict[str, Any]:
        """Mean scores of the queries in ``which``, as fields of ``RankingScores``."""

        def mean(values: Floats) -> float:
            return float(values[which].mean())

        precision, recall, neighbours = (
            {k: mean(values) for k, values in scores.items()}
            for scores in (self.precision, self.recall, self.neighbours)
        )
        within = (None, None) if self.within is None else tuple(map(mean, self.within))
        return {
            **{"map": mean(self.ap), "precision_at": precision, "recall_at": recall},
            **{"precision_within_2": within[0], "recall_within_2": within[1]},
            **{"neighbours_at": neighbours, "rescored_precision": mean(self.rescored)},
        }


class Part:
    """Queries and some rows of a database, which are read block by block. Rows are numbered within the part."""

    def __init__(self, Xq: NDArray[Any], yq: Any, X: Any, y: Any, mask: NDArray[np.bool_]) -> None:
        self.Xq, self.yq, self.X, self.mask = Xq, yq, X, mask
        self.places = np.flatnonzero(mask)  # of the rows in X
        self.y, self.n = y[self.places], len(self.places)
        self.labels = match_labels(yq, self.y, len(Xq), self.n)
        self.at = tuple(k for k in AT if k <= self.n)
        self.nearest = np.zeros((len(Xq), 0), np.intp)  # (n_queries, 10): the nearest rows, from ``score_cosine``

    def blocks(self) -> Iterator[NDArray[Any]]:
        """The rows, a block at a time."""
        start, kind = 0, number_type(self.X)
        for block in blocks_of(self.X):
            rows = block[self.mask[start : start + len(block)]]
            start += len(block)
            if len(rows):
                yield np.asarray(rows, kind)

    def encode(self, encoder: Callable[[NDArray[Any]], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """The codes of all rows."""
        return np.concatenate([encoder(block) for block in self.blocks()])

    # --- rankings by numbers ---

    def score_cosine(self) -> PerQuery:
        """Scores of the ranking by float cosine. It sets ``nearest``, which other rankings are compared with."""
        return self._score_products(normalize(self.Xq), lambda: map(normalize, self.blocks()), sets_nearest=True)

    def score_floats(self, Q: NDArray[Any], P: NDArray[Any]) -> PerQuery:
        """Scores of the ranking of rows P (n, l) by their inner product with queries Q."""
        return self._score_products(Q, lambda: blocks_of(P))

    def _score_products(
        self, Q: NDArray[Any], blocks: Callable[[], Iterator[NDArray[Any]]], sets_nearest: bool = False
    ) -> PerQuery:
        n = len(Q)
        ap, precision, recall = np.zeros(n), {k: np.zeros(n) for k in self.at}, {k: np.zeros(n) for k in self.at}
        first = np.zeros((n, min(SHORTLIST, self.n)), np.intp)
        for i, products in enumerate(self._products(Q, blocks)):
            order = np.argsort(-products, kind="stable")  # ties keep the order of the database
            hit, first[i] = self.labels.relevant(i)[order], order[: first.shape[1]]
            ranks = np.flatnonzero(hit) + 1.0  # of the relevant rows
            ap[i] = (np.arange(1, len(ranks) + 1) / ranks).mean() if len(ranks) else 0.0
            for k in self.at:
                precision[k][i], recall[k][i] = hit[:k].mean(), hit[:k].sum() / max(1, len(ranks))
        if sets_nearest:
            self.nearest = first[:, :NEAREST]
        near = (first[:, :, None] == self.nearest[:, None]).any(2)  # (n_queries, 100)
        found = {k: near[:, :k].sum(1) / self.nearest.shape[1] for k in FIRST}
        return PerQuery(ap, precision, recall, None, found, self._rescored_precision(first))

    def _products(self, Q: NDArray[Any], blocks: Callable[[], Iterator[NDArray[Any]]]) -> Iterator[NDArray[Any]]:
        """The inner products (n,) of each query with all rows."""
        size = max(1, min(BATCH, CELLS // self.n))
        for i in range(0, len(Q), size):
            some, start = Q[i : i + size], 0
            products = np.empty((len(some), self.n), Q.dtype)
            for block in blocks():
                products[:, start : start + len(block)] = some @ block.T
                start += len(block)
            yield from products

    # --- rankings by codes ---

    def score_encoder(self, encoder: Callable[[NDArray[Any]], NDArray[np.uint8]]) -> PerQuery:
        """Scores of the codes that an encoder makes."""
        return self.score_codes(encoder(self.Xq), self.encode(encoder))

    def score_codes(self, q: NDArray[np.uint8], base: NDArray[np.uint8]) -> PerQuery:
        """Scores of the ranking by Hamming distance, in expectation over the order of ties.

        The shortlist takes ties in the order of the database, as a search does.
        """
        h = metrics.histograms(q, self.yq, base, self.y)
        within = within_radius(h, 2)[:2]
        first = np.zeros((len(q), min(SHORTLIST, self.n)), np.intp)
        near = np.zeros(self.nearest.shape, np.intp)  # Hamming distances of the nearest rows
        for i, total in enumerate(h.all_.cumsum(1)):
            D = hamming(q[i : i + 1], base)[0]
            close = np.flatnonzero(np.searchsorted(total, first.shape[1]) >= D)
            first[i] = close[np.argsort(D[close], kind="stable")[: first.shape[1]]]
            near[i] = D[self.nearest[i]]
        precision, recall = {k: found_at(h, k) / k for k in self.at}, {k: recall_at(h, k) for k in self.at}
        found = {k: share_found(h.all_, near, k) for k in FIRST}
        return PerQuery(
            expected_average_precision(h), precision, recall, within, found, self._rescored_precision(first)
        )

    def _rescored_precision(self, shortlist: NDArray[np.intp]) -> Floats:
        """Precision@10 (n_queries,) of shortlists (n_queries, 100), sorted by the cosine of the float vectors."""
        precision = np.zeros(len(shortlist))
        for i in range(0, len(shortlist), BATCH):
            rows = np.unique(shortlist[i : i + BATCH])
            vectors = FloatVectors.of(self.X[self.places[rows]].astype(number_type(self.X)), None, "cosine")
            some = np.searchsorted(rows, shortlist[i : i + BATCH])
            _, best = vectors.best(self.Xq[i : i + BATCH].astype(np.float64), some, some, NEAREST)
            precision[i : i + BATCH] = [self.labels.relevant(i + j)[rows[b]].mean() for j, b in enumerate(best)]
        return precision
