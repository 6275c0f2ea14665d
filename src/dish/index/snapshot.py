"""An index at one moment: its rows, and every question that can be asked of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_option
from dish.codes import pack
from dish.ids_and_labels import Ids, as_ids, label_array
from dish.index import scan
from dish.index.accelerators import Groups, Lists, Views
from dish.index.ids import IntegerLookup, StringLookup
from dish.index.label_table import Vocabulary
from dish.index.merge import Kernel, merge, merge_within, rerank, run, run_within, without
from dish.index.words import as_outputs, to_bytes, to_words

MakeView = Callable[[NDArray[Any]], Groups | Lists]
NONE = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Generation:
    """What snapshots share as long as rows keep their numbers. All of it only grows, so old snapshots stay right."""

    lookup: IntegerLookup | StringLookup
    vocabulary: Vocabulary
    views: Views


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An index at one moment (``HammingIndex.snapshot``). It never changes, whatever is written to the index.

    Answers that belong together, such as hits with their labels and codes, are to be taken from one snapshot. Any
    number of threads may use it. Arrays may be longer than ``n``: later rows are written behind it, never before.
    """

    n_bits: int
    generation: Generation
    codes: NDArray[Any]  # (≥ n, w) words
    ids_: Ids  # (≥ n,)
    labels: NDArray[np.int32] | None  # (≥ n,) numbers of labels, −1 for none; None: no row has one
    n: int  # rows, deleted ones among them
    ascending: bool  # integer ids that only grow: found by bisection
    deleted: NDArray[np.int64] = field(default_factory=lambda: NONE)  # rows, ascending

    @classmethod
    def of(
        cls,
        n_bits: int,
        make_view: MakeView,
        codes: NDArray[Any],
        ids: Ids,
        labels: NDArray[np.int32] | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> Snapshot:
        """The first snapshot of a generation: rows with their numbers, ids and labels."""
        lookup = StringLookup() if ids.dtype == object else IntegerLookup()
        generation = Generation(lookup, vocabulary or Vocabulary(), Views(make_view))
        generation.views.move_to(codes)
        ascending = _ascend(ids)
        if not ascending:
            lookup.add(ids, 0, len(ids))
        return cls(n_bits, generation, codes, ids, labels, len(codes), ascending)

    # --- content ---

    def __len__(self) -> int:
        return self.n - len(self.deleted)

    def __contains__(self, one: Any) -> bool:
        return bool(self.rows_of(as_ids([one], 1))[0] >= 0)

    @property
    def ids(self) -> Ids:
        """The ids, in the order of insertion; not to be written to."""
        ids = np.delete(self.ids_[: self.n], self.deleted) if len(self.deleted) else self.ids_[: self.n].view()
        ids.flags.writeable = False
        return ids

    def sample_ids(self, n: int, rng: np.random.Generator) -> Ids:
        """Up to n ids drawn at random, without going through all of them."""
        rows = rng.choice(self.n, min(n + len(self.deleted), self.n), replace=False)
        return self.ids_[rows[~np.isin(rows, self.deleted)][:n]]

    def get(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """The codes of some ids, uint8 (n, ceil(n_bits / 8))."""
        return to_bytes(self.codes[self._known_rows(ids)], self.n_bits)

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """The labels of some ids; None for a row without one (the array is then one of objects)."""
        rows = self._known_rows(ids)
        if self.labels is None:
            return label_array([None] * len(rows))
        values = self.generation.vocabulary.values
        return label_array([None if i < 0 else values[i] for i in self.labels[rows].tolist()])

    def nbytes(self) -> dict[str, int]:
        """Bytes held: codes, what speeds up the search, ids with their look-up, labels."""
        view = self.generation.views.newest
        return {
            "codes": self.codes.nbytes,
            "search": 0 if view is None else view.nbytes,
            "ids": self.ids_.nbytes + self.generation.lookup.nbytes,
            "labels": 0 if self.labels is None else self.labels.nbytes,
        }

    @property
    def numbered(self) -> bool:
        """Whether the ids are 0, 1, …, n − 1: the numbers of the rows themselves."""
        return self.ascending and self.n > 0 and self.ids_[0] == 0 and self.ids_[self.n - 1] == self.n - 1

    def rows_of(self, ids: Ids) -> NDArray[np.int64]:
        """The row of each id; −1 for ids that are not there."""
        if not self.n or (ids.dtype == object) != (self.ids_.dtype == object):
            return np.full(len(ids), -1)
        if self.numbered:
            found = np.where((ids >= 0) & (ids < self.n), ids, -1)
        elif self.ascending:
            known = self.ids_[: self.n]
            found = np.minimum(np.searchsorted(known, ids), self.n - 1)
            found = np.where(known[found] == ids, found, -1)
        else:
            found = self.generation.lookup.find(ids, self.n)
        return np.where(np.isin(found, self.deleted), -1, found) if len(self.deleted) else found

    # --- searching ---

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        ids: ArrayLike | None = None,
        mode: str = "hamming",
        shortlist: int | None = None,
    ) -> tuple[NDArray[Any], Ids]:
        """``HammingIndex.search`` of this snapshot."""
        check_option("mode", mode, ("hamming", "asymmetric", "rerank"))
        check_integer("k", k, low=1)
        among = self._among(ids)
        if mode == "hamming":
            D, R = self._best(among, to_words(queries, self.n_bits, "queries"), k, scan.nearest)
            return D, self._ids_at(R)
        F = as_outputs(queries, self.n_bits)
        if mode == "asymmetric":
            D, R = self._best(among, F, k, scan.best_scores)
        else:
            n_short = check_integer("shortlist", max(100, 10 * k) if shortlist is None else shortlist, low=k)
            _, R = self._best(among, to_words(pack(F), self.n_bits, "queries"), n_short, scan.nearest)
            D, R = rerank(F, self.codes, R, k)
        return (-D).astype(np.float32), self._ids_at(R)

    def radius_search(
        self, queries: ArrayLike, radius: int = 2, ids: ArrayLike | None = None, limit: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """``HammingIndex.radius_search`` of this snapshot."""
        if limit is not None:
            check_integer("limit", limit, low=1)
        return self.within(queries, radius, ids, limit)[1:]

    def radius_count(self, queries: ArrayLike, radius: int = 2, ids: ArrayLike | None = None) -> NDArray[np.int64]:
        """``HammingIndex.radius_count`` of this snapshot."""
        return self.within(queries, radius, ids, limit=0)[0]

    def within(
        self, queries: ArrayLike, radius: int, ids: ArrayLike | None = None, limit: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], Ids]:
        """How many rows are within the radius of each query, and (lims, D, I) of its first ``limit``, or of all."""
        check_integer("radius", radius, low=0)
        among = self._among(ids)
        Q = to_words(queries, self.n_bits, "queries")
        counts, lims, D, R = self._within(among, Q, min(radius, self.n_bits), limit)
        return counts, lims, D, self._ids_at(R)

    def measure_recall(self, queries: ArrayLike, k: int = 10) -> float:
        """``HammingIndex.measure_recall`` of this snapshot."""
        check_integer("k", k, low=1)
        Q = to_words(queries, self.n_bits, "queries")
        D, _ = self._best(None, Q, k, scan.nearest)
        exact, _ = self._best(None, Q, k, scan.nearest, use_view=False)
        return float((exact[:, -1:] >= D).mean()) if exact.size else 1.0

    def _best(
        self, among: NDArray[Any] | None, Q: NDArray[Any], k: int, kernel: Kernel, use_view: bool = True
    ) -> scan.Found:
        """The k first rows by key, among some or all that are not deleted."""
        if among is not None:
            D, R = run(kernel, Q, self.codes[among], min(k, len(among)))
            return D, among[R]
        k = min(k, len(self))
        wanted = k + len(self.deleted)  # so many that k are left without the deleted ones
        view = self._view(len(Q)) if use_view else None
        start = 0 if view is None else view.n
        parts = [] if view is None else [view.best(Q, min(wanted, view.n), kernel)]
        if start < self.n:  # rows that came after the view
            D, R = run(kernel, Q, self.codes[start : self.n], min(wanted, self.n - start))
            parts.append((D, R + start))
        D, R = merge(parts, len(Q), wanted)
        return without(self.deleted, D, R, k)

    def _within(self, among: NDArray[Any] | None, Q: NDArray[Any], radius: int, limit: int | None) -> Any:
        """(counts, lims, D, rows) of the first rows within the radius, by distance, then by row."""
        if among is not None:
            counts, D, R = run_within(Q, self.codes[among], radius)
            return counts, *merge_within([(counts, D, among[R])], len(Q), NONE, limit)
        view, start, counts, parts = self._view(len(Q)), 0, np.zeros(len(Q), np.int64), []
        if isinstance(view, Groups):
            start = view.n
            counts, *found = view.within(Q, radius, None if limit is None else limit + len(self.deleted))
            parts.append(found)
        if start < self.n or not parts:
            found = run_within(Q, self.codes[start : self.n], radius)
            parts.append((found[0], found[1], found[2] + start))
            counts = counts + found[0]
        if len(self.deleted):
            counts = counts - run_within(Q, self.codes[self.deleted], radius)[0]
        return counts, *merge_within(parts, len(Q), self.deleted, limit)

    def _view(self, n_queries: int) -> Groups | Lists | None:
        return self.generation.views.covering(self.codes[: self.n], n_queries)

    def _ids_at(self, rows: NDArray[np.int64]) -> Ids:
        """The ids of rows."""
        return rows if self.numbered else self.ids_[rows]

    def _known_rows(self, ids: ArrayLike) -> NDArray[np.int64]:
        given = as_ids(ids)
        rows = self.rows_of(given)
        if (rows < 0).any():
            raise KeyError(f"id {given[rows < 0].tolist()[0]!r} is not in the index")
        return rows

    def _among(self, ids: ArrayLike | None) -> NDArray[np.int64] | None:
        """The rows of a filter, ascending; None without a filter."""
        if ids is None:
            return None
        rows = self.rows_of(as_ids(ids))
        return np.unique(rows[rows >= 0])

    # --- the next snapshot: for the one writer of an index ---

    def without(self, rows: NDArray[np.int64]) -> Snapshot:
        """The same with more rows deleted."""
        return replace(self, deleted=np.union1d(self.deleted, rows)) if len(rows) else self

    def compacted(self) -> Snapshot:
        """Drop deleted rows and labels of no row, and renumber."""
        kept = np.ones(self.n, bool)
        kept[self.deleted] = False
        vocabulary, labels = Vocabulary(), self.labels
        if labels is not None:
            vocabulary, labels = self.generation.vocabulary.compacted(labels[: self.n][kept])
        codes, ids = self.codes[: self.n][kept], self.ids_[: self.n][kept]
        return Snapshot.of(self.n_bits, self.generation.views.make, codes, ids, labels, vocabulary)

    def extended(self, words: NDArray[Any], ids: Ids, labels: list[Any] | None) -> Snapshot:
        """The same with rows at the end: written behind the last row, where this snapshot does not look."""
        n = self.n + len(words)
        codes = _appended(self.codes, self.n, words)
        all_ids = _appended(self.ids_, self.n, ids)
        ascending = self.ascending and _ascend(all_ids[max(self.n - 1, 0) : n])
        if not ascending:  # a table is made of all rows when it is first needed
            self.generation.lookup.add(all_ids, 0 if self.ascending else self.n, n)
        self.generation.views.move_to(codes)
        labels_ = self._extended_labels(labels, len(words))
        return replace(self, codes=codes, ids_=all_ids, labels=labels_, n=n, ascending=ascending)

    def _extended_labels(self, labels: list[Any] | None, n: int) -> NDArray[np.int32] | None:
        if self.labels is None and (labels is None or labels.count(None) == n):
            return None
        numbers = np.full(n, -1, np.int32) if labels is None else self.generation.vocabulary.numbers_of(labels)
        before = np.full(self.n, -1, np.int32) if self.labels is None else self.labels
        return _appended(before, self.n, numbers)


def _ascend(ids: Ids) -> bool:
    return ids.dtype != object and bool((ids[1:] > ids[:-1]).all())


def _appended(a: NDArray[Any], n: int, more: NDArray[Any]) -> NDArray[Any]:
    """The first n rows of ``a`` and then more; in place where there is room, else with room for an eighth."""
    if n + len(more) > len(a):
        room = max(n + len(more), n + n // 8 + 64 if n else 0)
        longer = np.empty((room, *a.shape[1:]), a.dtype)
        longer[:n] = a[:n]
        a = longer
    a[n : n + len(more)] = more
    return a
