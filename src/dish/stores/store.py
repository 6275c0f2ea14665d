"""Store: the contract of all stores, and everything that does not depend on the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_option
from dish.codes import check_codes, check_unused_bits, n_bytes, pack, to_words
from dish.errors import InputError, StoreError, UnsupportedError
from dish.ids_and_labels import Ids, as_ids, label_array
from dish.index import scan
from dish.index.rescore import FloatVectors, shortlist_size
from dish.index.snapshot import check_outputs, check_rescore
from dish.io.modelfile import check_fingerprint, check_same_model
from dish.progress import progress
from dish.stores.rows import (
    Filter,
    FoundCodes,
    FoundRows,
    Rows,
    TableInfo,
    from_json,
    id_array,
    known_ids,
    make_filter,
    new_ids,
    to_json,
)

Bytes = NDArray[np.uint8]
T = TypeVar("T")
MOST_HITS = 2**31  # for a larger k the rows are counted first: engines refuse limits that exceed their integers


class Store(ABC):
    """Packed codes in a table of a database, with ids, labels and filters; results are those of ``HammingIndex``.

    A store keeps each distinct code once, with the number of its rows; the rows refer to it. Rows at equal distance
    come in insertion order; an upserted row counts as newly inserted. ``open`` makes a store from an address.

    A subclass supplies the primitives at the end of this class. They are called inside ``_reading`` or ``_writing``.
    """

    INDEX_OPTIONS: ClassVar[dict[str, tuple[str, ...]]] = {}  # kind of index → options of ``build_index``
    SEARCH_OPTIONS: ClassVar[tuple[str, ...]] = ()  # options of ``search(exact=False)``

    def __init__(self, table: str, n_bits: int = 64, ids: str = "integer", model: str | None = None) -> None:
        self.n_bits = check_integer("n_bits", n_bits, low=1, high=2**15)
        self.ids = check_option("ids", ids, ("integer", "string"))
        self.model = check_fingerprint("model", model)
        if not isinstance(table, str) or not table or "\0" in table or len(table.encode()) > 48:
            raise InputError(f"table must be a name of 1 to 48 bytes without NUL, got {table!r}")
        self.table = table
        self._vectors: FloatVectors | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(table={self.table!r}, n_bits={self.n_bits}, ids={self.ids!r})"

    # --- the table ---

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Every later call raises InputError."""

    def create(self) -> None:
        """Create the table if it does not exist; it records the code length, the type of ids and the model."""
        self._create(TableInfo(self.n_bits, self.ids, self.model))
        with self._reading():
            self._check_table()

    @abstractmethod
    def drop(self) -> None:
        """Drop the table and all its rows, if it exists."""

    @property
    def table_model(self) -> str | None:
        """``fingerprint_`` of the model recorded with the table; None: unknown."""
        with self._reading():
            info = self._info()
        return None if info is None else info.model

    def build_index(self, kind: str, **options: int) -> None:
        """Build the engine's approximate index over the distinct codes, which ``search(exact=False)`` then uses.

        An existing index of this kind is replaced.
        """
        if not self.INDEX_OPTIONS:
            raise UnsupportedError(f"{type(self).__name__} has no approximate index: its searches scan, exactly")
        check_option("kind", kind, tuple(self.INDEX_OPTIONS))
        for name, value in options.items():
            check_option("option", name, self.INDEX_OPTIONS[kind])
            check_integer(name, value, low=1)
        with self._reading():
            self._check_table()
        with progress("building the index", None):
            self._build_index(kind, options)

    # --- writing ---

    def push(
        self,
        codes: ArrayLike,
        ids: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        batch: int = 10_000,
        resume: bool = False,
    ) -> int:
        """Add rows; return the number of rows written.

        Each batch is one transaction, so an interrupted upload leaves whole batches. ``resume=True`` skips the rows
        that an earlier call of the same upload, or another that runs now, has written. ``ids=None`` means 0, 1, 2, …
        ``labels`` hold one label per row; None, NaN or NaT: no label.
        """
        written = 0
        for rows in self._batches(codes, ids, labels, batch):
            try:
                written += self._writing(partial(self._push, rows, resume))
            except (InputError, ConnectionError, StoreError) as error:
                advice = "" if resume else "; use resume=True to continue an upload"
                raise type(error)(f"{written:,} rows were written, then: {error}{advice}") from None
        self._pushed()
        return written

    def _push(self, rows: Rows, resume: bool) -> int:
        there = self._codes_of(rows.ids)
        if there and not resume:
            raise InputError(f"id {next(iter(there))!r} is already in the table (upsert replaces rows)")
        for one, code in zip(rows.ids, rows.codes, strict=True) if there else ():
            if there.get(one, code.tobytes()) != code.tobytes():
                raise InputError(f"id {one!r} is in the table with another code, so resume=True cannot continue")
        new = rows.take([i for i, one in enumerate(rows.ids) if one not in there]) if there else rows
        if new.ids:
            self._insert(new)
        return len(new.ids)

    def upsert(self, codes: ArrayLike, ids: ArrayLike, labels: ArrayLike | None = None, batch: int = 10_000) -> None:
        """Write rows, replacing the codes and labels of rows with the same ids; one transaction per batch."""
        for rows in self._batches(codes, ids, labels, batch):
            self._writing(partial(self._upsert, rows))
        self._pushed()

    def remove(self, ids: ArrayLike) -> int:
        """Remove rows by id, ignoring unknown ids; return the number of rows removed."""
        given = known_ids(as_ids(ids), self.ids)
        with self._reading():
            self._check_table()
        return self._writing(lambda: self._remove(given))

    def attach_vectors(self, vectors: Any, ids: ArrayLike | None = None, metric: str = "cosine") -> None:
        """Use these float vectors for ``search(…, rescore="float")``; they stay where they are, not in the database.

        See ``HammingIndex.attach_vectors``: an array or the path of a .npy file; ``ids=None``: row i belongs to id i.
        """
        self._vectors = FloatVectors.of(vectors, ids, metric)

    def _batches(
        self, codes: ArrayLike, ids: ArrayLike | None, labels: ArrayLike | None, batch: int
    ) -> Iterator[Rows]:
        """Validate all rows, then yield them in batches."""
        check_integer("batch", batch, low=1)
        B = self._check_codes(codes, "codes")
        values, texts = new_ids(np.arange(len(B)) if ids is None else ids, len(B), self.ids), to_json(labels, len(B))
        with self._reading():
            self._check_table()
        with progress("uploading", len(B)) as step:
            for i in range(0, len(B), batch):
                some = slice(i, i + batch)
                yield Rows(values[some], B[some], texts[some])
                step(len(values[some]))

    # --- reading ---

    def count(
        self, ids: ArrayLike | None = None, *, labels: Iterable[Any] | None = None, where: str | None = None
    ) -> int:
        """Return the number of rows, or of those that match the filter (see ``search``)."""
        chosen = make_filter(self.ids, ids, labels, where)
        with naming(where), self._reading():
            self._check_table()
            return self._count(chosen)

    def get(self, ids: ArrayLike) -> Bytes:
        """Return the codes of some ids, uint8 (n, ceil(n_bits / 8))."""
        found = self._by_id(ids, self._codes_of)
        return np.frombuffer(b"".join(found), np.uint8).reshape(-1, n_bytes(self.n_bits))

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """Return the labels of some ids; None for a row without a label (the array then has dtype object)."""
        return label_array(from_json(self._by_id(ids, self._labels_of)))

    def _by_id(self, ids: ArrayLike, read: Callable[[list[Any]], dict[Any, Any]]) -> list[Any]:
        given = as_ids(ids)
        with self._reading():
            self._check_table()
            found = read(known_ids(given, self.ids))
        for one in given.tolist():
            if one not in found:
                raise KeyError(f"id {one!r} is not in the table")
        return [found[one] for one in given.tolist()]

    # --- searching ---

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
        where: str | None = None,
        exact: bool = True,
        rescore: str | None = None,
        shortlist: int | None = None,
        query_vectors: ArrayLike | None = None,
        **options: int,
    ) -> tuple[NDArray[Any], Ids]:
        """Return the k best rows of every query as (D, I), both (n_queries, min(k, rows)).

        Parameters
        ----------
        queries, k, ids, labels
            As in ``HammingIndex.search``.
        where : str or None, default=None
            Search only among rows that fulfil this SQL condition on the table's columns: ``id``, ``label`` (JSON
            text: ``'"cat"'``, ``'3'``) and columns that you have added. It may contain subqueries, such as ``id IN
            (SELECT id FROM products WHERE price < 10)``. It becomes part of a statement, so never build it from text
            of strangers.
        exact : bool, default=True
            False: use the index of ``build_index``, which may miss rows. With a filter, without an index, and where
            the index finds fewer than k rows, the search is exact nevertheless.
        rescore, shortlist, query_vectors
            As in ``HammingIndex.search``.
        **options : int
            Options of the engine's index, for ``exact=False``.
        """
        check_integer("k", k, low=1)
        check_rescore("hamming", rescore, shortlist, query_vectors)
        self._check_options(exact, options)
        chosen = make_filter(self.ids, ids, labels, where)
        F = check_outputs(queries, self.n_bits) if rescore == "asymmetric" else None
        Q = self._check_codes(queries if F is None else pack(F), "queries")
        V = self._check_vectors(query_vectors, len(Q)) if rescore == "float" else None
        n_short = k if rescore is None else shortlist_size(k, shortlist)
        with naming(where), self._reading():
            self._check_table()
            if n_short > MOST_HITS:
                n_short = max(1, min(n_short, self._count(None)))
            found = [self._nearest(q, n_short, chosen, None if exact else options) for q in Q]
            if F is not None:
                parts = [self._best_by_outputs(f, hits, k) for f, hits in zip(F, found, strict=True)]
            elif V is not None:
                parts = self._best_by_vectors(V, found, k)
            else:
                parts = [(hits.distances, hits.ids) for hits in found]
            n = len(parts[0][1]) if parts else min(k, self._count(chosen))
        dtypes = (np.int32 if rescore is None else np.float32), (object if self.ids == "string" else np.int64)
        D, found_ids = (np.empty((len(Q), n), dtype) for dtype in dtypes)
        for i, (d, one) in enumerate(parts):
            D[i], found_ids[i] = d, one
        return D, found_ids

    def radius_search(
        self,
        queries: ArrayLike,
        radius: int = 2,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
        where: str | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """Return all rows at distance ≤ ``radius`` as (lims, D, I); query i has the entries lims[i] : lims[i + 1].

        Exact; sorted by distance, then by insertion order. Filters are those of ``search``.
        """
        check_integer("radius", radius, low=0)
        radius = min(radius, self.n_bits)
        chosen = make_filter(self.ids, ids, labels, where)
        Q = self._check_codes(queries, "queries")
        with naming(where), self._reading():
            self._check_table()
            if chosen is None:
                found = [self._rows_of(self._codes_within(q, radius), None) for q in Q]
            else:
                found = [self._matching(q, chosen, None, radius) for q in Q]
        lims = np.cumsum([0, *(len(hits.ids) for hits in found)])
        found.append(self._no_hits())
        return lims, np.concatenate([hits.distances for hits in found]), np.concatenate([hits.ids for hits in found])

    def _nearest(self, q: Bytes, k: int, chosen: Filter | None, options: dict[str, int] | None) -> FoundRows:
        """Return the k nearest rows; with ``options``, by the engine's index."""
        if chosen is not None:
            return self._matching(q, chosen, k, None)
        if options is not None:
            found = self._indexed_codes(q, k, options)
            if found is not None and found.counts.sum() >= k:
                return self._rows_of(found, k)
        found = self._nearest_codes(q, k + 1)
        last = _distance_of_row(found, k)
        if len(found.distances) > k and found.distances[-1] == last:  # there may be more codes at this distance
            found = self._codes_within(q, last)
        return self._rows_of(found, k)

    def _rows_of(self, found: FoundCodes, k: int | None) -> FoundRows:
        """Return the rows of distinct codes, or the first k in order of distance, then of place."""
        if k is None:
            return self._hits(found, found.distances >= 0, None)
        last = _distance_of_row(found, k)
        near = self._hits(found, found.distances < last, None)
        ties = self._hits(found, found.distances == last, k - len(near.ids))
        pairs: Iterator[Any] = zip(near, ties, strict=True)
        return FoundRows(*(np.concatenate(pair) for pair in pairs))

    def _hits(self, found: FoundCodes, some: NDArray[np.bool_], first: int | None) -> FoundRows:
        """Return the rows of some of the distinct codes: all, or the first by place."""
        code_ids, D = found.code_ids[some], found.distances[some]
        if not len(code_ids):
            return self._no_hits()
        ids, found_ids, places = self._postings(code_ids, first)
        order = np.argsort(code_ids)
        D = D[order][np.searchsorted(code_ids, found_ids, sorter=order)]
        return FoundRows(ids, D, found_ids, places).take(np.lexsort((places, D)))

    def _no_hits(self) -> FoundRows:
        none = np.empty(0, np.int64)
        return FoundRows(id_array([], self.ids), none.astype(np.int32), none, none)

    def _best_by_outputs(self, f: NDArray[np.float64], hits: FoundRows, k: int) -> tuple[NDArray[Any], Ids]:
        """Return the k hits with the largest f·h; equal ones in insertion order."""
        hits = hits.take(np.argsort(hits.places))
        if not len(hits.ids):
            return hits.distances.astype(np.float32), hits.ids
        distinct, which = np.unique(hits.code_ids, return_inverse=True)
        words = to_words(self._packed(distinct), self.n_bits)[which]
        D, R = scan.best_scores(f[None], words, min(k, len(words)))
        return (-D[0]).astype(np.float32), hits.ids[R[0]]

    def _best_by_vectors(self, V: NDArray[np.float64], found: list[FoundRows], k: int) -> list[tuple[Any, Any]]:
        """Return the k hits of each query that are most similar by the attached vectors."""
        assert self._vectors is not None
        if not found:
            return []
        R = np.tile(np.arange(len(found[0].ids)), (len(found), 1))
        ids = np.array([hits.ids for hits in found]).reshape(R.shape)
        D, best = self._vectors.best(V, R, ids, k)
        return list(zip(D, np.take_along_axis(ids, best, 1), strict=True))

    # --- checks ---

    def _check_codes(self, codes: ArrayLike, name: str) -> Bytes:
        return check_unused_bits(check_codes(codes, self.n_bits, name), self.n_bits, name)

    def _check_vectors(self, query_vectors: ArrayLike | None, n: int) -> NDArray[np.float64]:
        if self._vectors is None:
            raise InputError("rescore='float' needs the float vectors of the rows: call attach_vectors first")
        return self._vectors.check_queries(query_vectors, n)

    def _check_options(self, exact: bool, options: dict[str, int]) -> None:
        """Validate options of an approximate search."""
        for name, value in options.items():
            if name not in self.SEARCH_OPTIONS:
                raise TypeError(f"search() got an unexpected argument {name!r}")
            check_integer(name, value, low=1)
        if exact and options:
            raise InputError(f"{', '.join(options)}: only for searches with exact=False")

    def _check_table(self) -> None:
        """Raise an error if there is no table, or if it does not fit this store."""
        info = self._info()
        if info is None:
            raise InputError(f"there is no table {self.table!r}: call create() first")
        for name, wanted, found in (("n_bits", self.n_bits, info.n_bits), ("ids", self.ids, info.ids)):
            if wanted != found:
                raise InputError(
                    f"table {self.table!r} has {name}={found!r}, but the store was opened with {wanted!r}: pass the "
                    f"former (`dish store search` {'--string-ids' if name == 'ids' else '--bits'})"
                )
        if self.model is not None:
            check_same_model(info.model, self.model, f"table {self.table!r}", "the given model")

    # --- primitives of an engine ---

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Any]:
        """Let all primitives inside read the same state."""

    @abstractmethod
    def _writing(self, work: Callable[[], T]) -> T:
        """Return ``work()``; other writers of this table wait, and all its changes are made, or none."""

    @abstractmethod
    def _create(self, info: TableInfo) -> None:
        """Create the table and record ``info``, unless it exists."""

    @abstractmethod
    def _info(self) -> TableInfo | None:
        """Return what the table records; None if there is no table."""

    @abstractmethod
    def _insert(self, rows: Rows) -> None:
        """Append rows whose ids are not in the table."""

    @abstractmethod
    def _upsert(self, rows: Rows) -> None:
        """Append rows; those with ids that are in the table replace code, label and place."""

    @abstractmethod
    def _remove(self, ids: list[Any]) -> int:
        """Remove rows; return their number. Codes without rows vanish."""

    def _pushed(self) -> None:
        """Do what helps later searches after rows were written."""
        return None

    @abstractmethod
    def _count(self, chosen: Filter | None) -> int:
        """Return the number of rows that match."""

    @abstractmethod
    def _codes_of(self, ids: list[Any]) -> dict[Any, bytes]:
        """Return id → packed code for the ids that are in the table."""

    @abstractmethod
    def _labels_of(self, ids: list[Any]) -> dict[Any, str | None]:
        """Return id → label for the ids that are in the table."""

    @abstractmethod
    def _packed(self, code_ids: NDArray[np.int64]) -> Bytes:
        """Return the packed codes (n, bytes) of distinct codes, in the given order."""

    @abstractmethod
    def _nearest_codes(self, q: Bytes, n: int) -> FoundCodes:
        """Return the n nearest distinct codes of a packed query (bytes,), or all, in order of distance."""

    @abstractmethod
    def _codes_within(self, q: Bytes, radius: int) -> FoundCodes:
        """Return all distinct codes within a radius, in any order."""

    @abstractmethod
    def _postings(
        self, code_ids: NDArray[np.int64], first: int | None
    ) -> tuple[Ids, NDArray[np.int64], NDArray[np.int64]]:
        """Return (ids, code_ids, places) of the rows of some codes: all, or the first by place."""

    @abstractmethod
    def _matching(self, q: Bytes, chosen: Filter, k: int | None, radius: int | None) -> FoundRows:
        """Return the k nearest rows that match the filter, or those within the radius; exactly."""

    def _indexed_codes(self, q: Bytes, n: int, options: dict[str, int]) -> FoundCodes | None:
        """Return about n near codes found by the engine's index; None if the engine has none."""
        return None

    def _build_index(self, kind: str, options: dict[str, int]) -> None:
        """Build an index over the distinct codes; the options are valid."""
        raise NotImplementedError


def _distance_of_row(found: FoundCodes, k: int) -> int:
    """Return the distance of the k-th row of distinct codes; of the last row if there are fewer."""
    if not len(found.distances):
        return 0
    order = np.argsort(found.distances, kind="stable")
    place = np.searchsorted(np.cumsum(found.counts[order]), k)
    return int(found.distances[order][min(int(place), len(order) - 1)])


@contextmanager
def naming(where: str | None) -> Iterator[None]:
    """Add the caller's condition to the error of an engine that refuses the statement with it."""
    try:
        yield
    except StoreError as error:
        if where is None:
            raise
        raise StoreError(f"{error}; the condition was where={where!r}") from None
