"""The immutable state of an index: its rows, and all searches over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_option
from dish.codes import from_words, pack, to_words
from dish.errors import InputError
from dish.ids_and_labels import Ids, as_ids, as_labels, label_array
from dish.index import scan
from dish.index.accelerators import AcceleratorCache, GroupedCodes, InvertedLists
from dish.index.ids import IntegerLookup, StringLookup
from dish.index.label_table import LabelTable
from dish.index.merge import Scan, all_within, drop_deleted, k_best, merge, merge_within, stack
from dish.index.rescore import RESCORES, FloatVectors, by_outputs, shortlist_size

MakeAccelerator = Callable[[NDArray[Any]], GroupedCodes | InvertedLists]
NO_ROWS = np.empty(0, np.int64)
MOST_PAIRS = 1 << 18  # of queries and candidates, from which deleted rows are dropped at a time
PAIR_BYTES = 32  # of memory for such a pair


@dataclass(frozen=True, eq=False)
class Generation:
    """What snapshots share as long as no row is renumbered. All of it only grows, so older snapshots stay valid."""

    lookup: IntegerLookup | StringLookup
    label_table: LabelTable
    accelerators: AcceleratorCache


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of an index at one moment (``HammingIndex.snapshot``); later writes do not change it.

    Take results that must be consistent, such as hits with their labels and codes, from one snapshot. Any number of
    threads may use it. Its arrays may be longer than ``n``: later snapshots append rows in the same memory.
    """

    n_bits: int
    generation: Generation
    codes: NDArray[Any]  # (≥ n, w) words
    ids_: Ids  # (≥ n,)
    labels: NDArray[np.int32] | None  # (≥ n,) indices into the label table, −1: no label; None: no row has one
    n: int  # rows, including deleted ones
    ascending: bool  # whether the ids are ascending integers, which bisection finds
    deleted: NDArray[np.int64] = field(default_factory=lambda: NO_ROWS)  # deleted rows, ascending
    vectors: FloatVectors | None = None  # of the ids, for ``rescore="float"``

    @classmethod
    def of(
        cls,
        n_bits: int,
        make_accelerator: MakeAccelerator,
        codes: NDArray[Any],
        ids: Ids,
        labels: NDArray[np.int32] | None = None,
        label_table: LabelTable | None = None,
    ) -> Snapshot:
        """Return the first snapshot of a new generation."""
        lookup = StringLookup() if ids.dtype == object else IntegerLookup()
        generation = Generation(lookup, label_table or LabelTable(), AcceleratorCache(make_accelerator))
        generation.accelerators.move_to(codes)
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
        """The ids in insertion order, read-only."""
        ids = np.delete(self.ids_[: self.n], self.deleted) if len(self.deleted) else self.ids_[: self.n].view()
        ids.flags.writeable = False
        return ids

    def sample_ids(self, n: int, rng: np.random.Generator) -> Ids:
        """Return up to n distinct ids drawn at random, in time that does not grow with the number of rows."""
        rows = rng.choice(self.n, min(n + len(self.deleted), self.n), replace=False)
        return self.ids_[rows[~np.isin(rows, self.deleted)][:n]]

    def get(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """Return the codes of some ids, uint8 (n, ceil(n_bits / 8))."""
        return from_words(self.codes[self._known_rows(ids)], self.n_bits)

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """Return the labels of some ids; None for a row without a label (the array then has dtype object)."""
        return label_array(self.label_list(ids))

    def label_list(self, ids: ArrayLike) -> list[Any]:
        """Return the labels of some ids as a list, which takes no memory for equal or long ones."""
        rows = self._known_rows(ids)
        if self.labels is None:
            return [None] * len(rows)
        values = self.generation.label_table.values
        return [None if i < 0 else values[i] for i in self.labels[rows].tolist()]

    def nbytes(self) -> dict[str, int]:
        """Return the bytes held by codes, search accelerators, ids with their lookup, and labels."""
        accelerator = self.generation.accelerators.newest
        return {
            "codes": self.codes.nbytes,
            "search": 0 if accelerator is None else accelerator.nbytes,
            "ids": self.ids_.nbytes + self.generation.lookup.nbytes,
            "labels": 0 if self.labels is None else self.labels.nbytes,
        }

    @property
    def numbered(self) -> bool:
        """Whether the ids are 0, 1, …, n − 1, which are the row indices themselves."""
        return self.ascending and self.n > 0 and self.ids_[0] == 0 and self.ids_[self.n - 1] == self.n - 1

    @property
    def has_string_ids(self) -> bool:
        """Whether the ids are strings. Without rows it is False, and new rows may have either kind of id."""
        return self.n > 0 and self.ids_.dtype == object

    def rows_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return the row of each id, −1 if it is absent."""
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
        *,
        labels: Iterable[Any] | None = None,
        method: str = "hamming",
        rescore: str | None = None,
        shortlist: int | None = None,
        query_vectors: ArrayLike | None = None,
    ) -> tuple[NDArray[Any], Ids]:
        """See ``HammingIndex.search``."""
        check_option("method", method, ("hamming", "asymmetric"))
        check_integer("k", k, low=1)
        check_rescore(method, rescore, shortlist, query_vectors)
        among = self._among(ids, labels)
        if method == "asymmetric":
            D, R = self._best(among, check_outputs(queries, self.n_bits), k, scan.best_scores)
            return (-D).astype(np.float32), self._ids_at(R)
        if rescore is None:
            D, R = self._best(among, to_words(queries, self.n_bits, "queries"), k, scan.nearest)
            return D, self._ids_at(R)
        n_short = shortlist_size(k, shortlist)
        if rescore == "asymmetric":
            F = check_outputs(queries, self.n_bits)
            _, R = self._best(among, to_words(pack(F), self.n_bits, "queries"), n_short, scan.nearest)
            D, R = by_outputs(F, self.codes, R, k)
            return (-D).astype(np.float32), self._ids_at(R)
        if self.vectors is None:
            raise InputError("rescore='float' needs the float vectors of the rows: call attach_vectors first")
        Q = to_words(queries, self.n_bits, "queries")
        V = self.vectors.check_queries(query_vectors, len(Q))
        _, R = self._best(among, Q, n_short, scan.nearest)
        D, R = self.vectors.best(V, R, self._ids_at(R), k)
        return D, self._ids_at(R)

    def radius_search(
        self,
        queries: ArrayLike,
        radius: int = 2,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
        limit: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """See ``HammingIndex.radius_search``."""
        if limit is not None:
            check_integer("limit", limit, low=1)
        return self.within(queries, radius, ids, labels=labels, limit=limit)[1:]

    def radius_count(
        self,
        queries: ArrayLike,
        radius: int = 2,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
    ) -> NDArray[np.int64]:
        """See ``HammingIndex.radius_count``."""
        return self.within(queries, radius, ids, labels=labels, limit=0)[0]

    def within(
        self,
        queries: ArrayLike,
        radius: int,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
        limit: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], Ids]:
        """Return the number of rows within the radius of each query, then (lims, D, I) as ``radius_search`` does."""
        check_integer("radius", radius, low=0)
        among = self._among(ids, labels)
        Q = to_words(queries, self.n_bits, "queries")
        counts, lims, D, R = self._within(among, Q, min(radius, self.n_bits), limit)
        return counts, lims, D, self._ids_at(R)

    def measure_recall(self, queries: ArrayLike, k: int = 10) -> float:
        """See ``HammingIndex.measure_recall``."""
        check_integer("k", k, low=1)
        Q = to_words(queries, self.n_bits, "queries")
        D, _ = self._best(None, Q, k, scan.nearest)
        exact, _ = self._best(None, Q, k, scan.nearest, accelerate=False)
        return float((exact[:, -1:] >= D).mean()) if exact.size else 1.0

    def working_bytes(self, n_queries: int, k: int) -> int:
        """Return the memory that a search for the k nearest takes beside its results."""
        candidates = k + len(self.deleted)
        return PAIR_BYTES * min(n_queries * candidates, max(candidates, MOST_PAIRS)) if len(self.deleted) else 0

    def _best(
        self, among: NDArray[Any] | None, Q: NDArray[Any], k: int, kernel: Scan, accelerate: bool = True
    ) -> scan.Found:
        """Return the k best rows by key: among given rows, or among all that are not deleted."""
        if among is not None:
            D, R = k_best(kernel, Q, self.codes[among], min(k, len(among)))
            return D, among[R]
        k = min(k, len(self))
        fast = self._accelerator(len(Q)) if accelerate else None
        size = max(1, MOST_PAIRS // (k + len(self.deleted)) if len(self.deleted) else len(Q))
        parts = [self._best_of_all(fast, Q[i : i + size], k, kernel) for i in range(0, len(Q), size)]
        return stack(parts, len(Q), k)

    def _best_of_all(
        self, fast: GroupedCodes | InvertedLists | None, Q: NDArray[Any], k: int, kernel: Scan
    ) -> scan.Found:
        """Return the k best rows that are not deleted; ``fast`` covers the first rows."""
        wanted = k + len(self.deleted)  # at least k of them are not deleted
        start = 0 if fast is None else fast.n
        parts = [] if fast is None else [fast.best(Q, min(wanted, fast.n), kernel)]
        if start < self.n:  # rows that the accelerator does not cover
            D, R = k_best(kernel, Q, self.codes[start : self.n], min(wanted, self.n - start))
            parts.append((D, R + start))
        D, R = merge(parts, len(Q), wanted)
        return drop_deleted(self.deleted, D, R, k)

    def _within(self, among: NDArray[Any] | None, Q: NDArray[Any], radius: int, limit: int | None) -> Any:
        """Return (counts, lims, D, rows) of the rows within the radius, by distance, then by row."""
        if among is not None:
            counts, D, R = all_within(Q, self.codes[among], radius)
            return counts, *merge_within([(counts, D, among[R])], len(Q), NO_ROWS, limit)
        fast, start, counts, parts = self._accelerator(len(Q)), 0, np.zeros(len(Q), np.int64), []
        if isinstance(fast, GroupedCodes):
            start = fast.n
            counts, *found = fast.within(Q, radius, None if limit is None else limit + len(self.deleted))
            parts.append(tuple(found))
        if start < self.n or not parts:
            found = all_within(Q, self.codes[start : self.n], radius)
            parts.append((found[0], found[1], found[2] + start))
            counts = counts + found[0]
        if len(self.deleted):
            counts = counts - all_within(Q, self.codes[self.deleted], radius)[0]
        return counts, *merge_within(parts, len(Q), self.deleted, limit)

    def _accelerator(self, n_queries: int) -> GroupedCodes | InvertedLists | None:
        return self.generation.accelerators.covering(self.codes[: self.n], n_queries)

    def _ids_at(self, rows: NDArray[np.int64]) -> Ids:
        return rows if self.numbered else self.ids_[rows]

    def _known_rows(self, ids: ArrayLike) -> NDArray[np.int64]:
        given = as_ids(ids)
        rows = self.rows_of(given)
        if (rows < 0).any():
            raise KeyError(f"id {given[rows < 0].tolist()[0]!r} is not in the index")
        return rows

    def _among(self, ids: ArrayLike | None, labels: Iterable[Any] | None) -> NDArray[np.int64] | None:
        """Return the rows that a search is restricted to, ascending; None if it is not."""
        rows = None
        if ids is not None:
            found = self.rows_of(as_ids(ids))
            rows = np.unique(found[found >= 0])
        if labels is None:
            return rows
        chosen = self.generation.label_table.mask(check_label_filter(labels))
        some = slice(self.n) if rows is None else rows
        kept = np.full(self.n, chosen[-1])[some] if self.labels is None else chosen[self.labels[some]]
        if rows is not None:
            return rows[kept]
        kept[self.deleted] = False
        return np.flatnonzero(kept)

    # --- the next snapshot, for the index's writer ---

    def without(self, rows: NDArray[np.int64]) -> Snapshot:
        """Return a snapshot with more rows deleted."""
        return replace(self, deleted=np.union1d(self.deleted, rows)) if len(rows) else self

    def compacted(self) -> Snapshot:
        """Return a snapshot of a new generation without deleted rows and unused labels; rows are renumbered."""
        kept = np.ones(self.n, bool)
        kept[self.deleted] = False
        label_table, labels = LabelTable(), self.labels
        if labels is not None:
            label_table, labels = self.generation.label_table.compacted(labels[: self.n][kept])
        codes, ids = self.codes[: self.n][kept], self.ids_[: self.n][kept]
        rows = Snapshot.of(self.n_bits, self.generation.accelerators.make, codes, ids, labels, label_table)
        return replace(rows, vectors=self.vectors)

    def extended(self, words: NDArray[Any], ids: Ids, labels: list[Any] | None) -> Snapshot:
        """Return a snapshot with rows appended; they are written behind row n, which this snapshot does not read."""
        n = self.n + len(words)
        codes = _appended(self.codes, self.n, words)
        all_ids = _appended(self.ids_, self.n, ids)
        ascending = self.ascending and _ascend(all_ids[max(self.n - 1, 0) : n])
        if not ascending:  # the first id out of order puts all rows into the lookup
            self.generation.lookup.add(all_ids, 0 if self.ascending else self.n, n)
        self.generation.accelerators.move_to(codes)
        labels_ = self._extended_labels(labels, len(words))
        return replace(self, codes=codes, ids_=all_ids, labels=labels_, n=n, ascending=ascending)

    def _extended_labels(self, labels: list[Any] | None, n: int) -> NDArray[np.int32] | None:
        if self.labels is None and (labels is None or labels.count(None) == n):
            return None
        indices = np.full(n, -1, np.int32) if labels is None else self.generation.label_table.indices_of(labels)
        before = np.full(self.n, -1, np.int32) if self.labels is None else self.labels
        return _appended(before, self.n, indices)


def check_rescore(method: str, rescore: str | None, shortlist: Any, query_vectors: Any) -> None:
    """Refuse options of ``search`` that do not go together."""
    if rescore is None and shortlist is not None:
        raise InputError("shortlist is the number of rows that rescore orders: give rescore, too")
    if rescore is not None:
        check_option("rescore", rescore, RESCORES, " or None")
        if method != "hamming":
            raise InputError(f"rescore orders the nearest rows by Hamming distance; leave out method={method!r}")
    if rescore != "float" and query_vectors is not None:
        raise InputError("query_vectors are for rescore='float' only")


def check_label_filter(labels: Iterable[Any]) -> list[Any]:
    """Validate the labels of a filter."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InputError(f"labels must be a list of labels, got {labels!r}")
    given: Any = labels if hasattr(labels, "dtype") else list(labels)
    return as_labels(given, len(given)) or []


def check_outputs(F: ArrayLike, n_bits: int) -> NDArray[np.float64]:
    """Validate a hasher's real outputs (n, n_bits)."""
    given = np.asarray(F)
    if given.dtype.kind not in "fiu" or given.dtype == np.uint8 or given.ndim != 2 or given.shape[1] != n_bits:
        raise InputError(
            f"queries must be real outputs of shape (n, {n_bits}) for this method, such as a hasher's "
            f"decision_function returns; got {given.dtype} of shape {given.shape}"
        )
    outputs = np.ascontiguousarray(given, np.float64)
    if not np.isfinite(outputs).all():
        raise InputError("queries must be finite, but contain NaN or infinity")
    return outputs


def _ascend(ids: Ids) -> bool:
    return ids.dtype != object and bool((ids[1:] > ids[:-1]).all())


def _appended(a: NDArray[Any], n: int, more: NDArray[Any]) -> NDArray[Any]:
    """Append rows after the first n rows of ``a``: in place if they fit, else in a copy with an eighth to spare."""
    if n + len(more) > len(a):
        room = max(n + len(more), n + n // 8 + 64 if n else 0)
        longer = np.empty((room, *a.shape[1:]), a.dtype)
        longer[:n] = a[:n]
        a = longer
    a[n : n + len(more)] = more
    return a
