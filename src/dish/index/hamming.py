"""HammingIndex: search over packed codes, with ids, labels, filters and files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_option
from dish.codes import to_words, word_layout
from dish.errors import InputError, ModelFileError
from dish.ids_and_labels import Ids, as_ids, as_labels
from dish.index.accelerators import GroupedCodes, InvertedLists, require_faiss
from dish.index.files import from_arrays, to_arrays
from dish.index.index_file import IndexFile
from dish.index.rescore import FloatVectors
from dish.index.snapshot import MakeAccelerator, Snapshot
from dish.io import modelfile

MOST_ROWS = 2**31 - 1
MOST_ID = 2**63 - 1


class HammingIndex:
    """Search packed codes: the k nearest, or all within a radius.

    Exact unless ``mode="approximate"``. Rows at equal distance come in insertion order; an upserted row counts as
    newly inserted. Threads may search while others write: a search sees the index as it was when the search began,
    and writers do not wait for it. Take results that must be consistent (hits, their labels, their codes) from one
    ``snapshot()``. Copies, pickles and joblib dumps are independent of the original.

    Learned codes repeat. Rows with equal codes are therefore grouped, the distinct codes are searched, and the groups
    found are expanded to rows. A search groups the rows once scanning them has cost as much as grouping does; ``add``
    never groups.

    Parameters
    ----------
    n_bits : int, default=64
        Code length; need not be a multiple of 8.
    mode : "exact" or "approximate", default="exact"
        "approximate" searches only the ``n_probe`` inverted lists nearest to a query (faiss IndexBinaryIVF, ``pip
        install 'dish-hash[faiss]'``). It is meant for tens of millions of rows. ``measure_recall`` measures the
        loss. ``radius_search`` is exact in both modes.
    n_lists : int or None, default=None
        Number of lists in the approximate mode; None: four times the square root of the number of rows.
    n_probe : int or None, default=None
        Number of lists searched per query; None: a sixteenth of them.
    model : str or None, default=None
        ``fingerprint_`` of the hasher that made the codes; saved with the index. ``check_model`` then rejects codes
        of other hashers. None: unknown, not checked.

    Attributes
    ----------
    ids : int64 or object (n,)
        The ids in insertion order.

    Notes
    -----
    Differences from faiss's IndexBinaryFlat: ``n_bits`` need not be a multiple of 8; ``radius`` is inclusive
    (``range_search`` is exclusive); results with fewer than k rows are shorter instead of padded with −1. The codes
    have the same layout (``np.packbits``).

    Examples
    --------
    >>> import numpy as np
    >>> from dish import HammingIndex
    >>> codes = np.array([[0b00000000], [0b00000011], [0b11111111]], np.uint8)
    >>> index = HammingIndex(n_bits=8)
    >>> index.add(codes, ids=["none", "two", "all"])
    >>> D, I = index.search(codes[:1], k=2)
    >>> D.tolist(), I.tolist()
    ([[0, 2]], [['none', 'two']])
    >>> lims, D, I = index.radius_search(codes[:1], radius=2)
    >>> I[lims[0] : lims[1]].tolist()
    ['none', 'two']
    """

    def __init__(
        self,
        n_bits: int = 64,
        mode: str = "exact",
        n_lists: int | None = None,
        n_probe: int | None = None,
        model: str | None = None,
    ) -> None:
        self.n_bits = check_integer("n_bits", n_bits, low=1, high=2**15)
        self.mode = check_option("mode", mode, ("exact", "approximate"))
        self.n_lists = None if n_lists is None else check_integer("n_lists", n_lists, low=1)
        self.n_probe = None if n_probe is None else check_integer("n_probe", n_probe, low=1)
        self.model = modelfile.check_fingerprint("model", model)
        if self.mode == "approximate":
            require_faiss()
        self._lock = threading.RLock()  # held by writers; readers use the current snapshot
        self._next_id = 0
        word, n_words = word_layout(self.n_bits)
        self._make_accelerator: MakeAccelerator = (  # not a method: a snapshot must not keep its index alive
            partial(GroupedCodes.of, n_bits=self.n_bits)
            if self.mode == "exact"
            else partial(InvertedLists.of, n_lists=self.n_lists, n_probe=self.n_probe)
        )
        no_codes, no_ids = np.empty((0, n_words), word), np.empty(0, np.int64)
        self._now = Snapshot.of(self.n_bits, self._make_accelerator, no_codes, no_ids)

    # --- content ---

    def snapshot(self) -> Snapshot:
        """Return the current state of the index; later writes do not change it.

        A snapshot has ``search``, ``radius_search``, ``radius_count``, ``get``, ``labels_of``, ``ids``,
        ``sample_ids``, ``len`` and ``in``.
        """
        return self._now

    def __len__(self) -> int:
        return len(self._now)

    def __contains__(self, one: Any) -> bool:
        return one in self._now

    def __repr__(self) -> str:
        return f"HammingIndex(n_bits={self.n_bits}, mode={self.mode!r}): {len(self):,} rows"

    @property
    def ids(self) -> Ids:
        """The ids in insertion order."""
        return np.array(self._now.ids)

    def get(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """Return the codes of some ids, uint8 (n, ceil(n_bits / 8))."""
        return self._now.get(ids)

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """Return the labels of some ids; None for a row without a label (the array then has dtype object)."""
        return self._now.labels_of(ids)

    def nbytes(self) -> dict[str, int]:
        """Return the bytes held by codes, search accelerators, ids with their lookup, and labels."""
        return self._now.nbytes()

    def check_model(self, fingerprint: str | None, what: str = "the given model") -> None:
        """Raise ModelMismatchError if the codes come from another model; ``what`` names that model in the message.

        If either model is unknown, nothing is checked and a line is logged.
        """
        modelfile.check_same_model(self.model, fingerprint, "the index", what)

    # --- writing ---

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None, labels: ArrayLike | None = None) -> None:
        """Append packed codes. If an id is already in the index, raise InputError and add nothing.

        ``ids`` are integers or strings, one kind per index; None: the integers after the largest id so far, or,
        if that is 2**63 - 1, the smallest unused ones. ``labels`` are numbers or strings, one per row, and keep their
        type; None, NaN or NaT: no label.
        """
        words, values = self._check_rows(codes, labels)
        with self._lock:
            given = self._new_ids(ids, len(words))
            there = self._now.rows_of(given) >= 0
            if there.any():
                raise InputError(f"id {given[there].tolist()[0]!r} is already in the index; upsert replaces it")
            self._append(self._now, words, given, values)

    def upsert(self, codes: ArrayLike, ids: ArrayLike, labels: ArrayLike | None = None) -> None:
        """Append packed codes, replacing rows with the same ids (and their labels)."""
        words, values = self._check_rows(codes, labels)
        with self._lock:
            given = self._new_ids(ids, len(words))
            there = self._now.rows_of(given)
            self._append(self._now.without(there[there >= 0]), words, given, values)

    def check_upsert(self, codes: ArrayLike, ids: ArrayLike, labels: ArrayLike | None = None) -> None:
        """Raise the error that ``upsert`` would raise, without changing anything."""
        words, _ = self._check_rows(codes, labels)
        with self._lock:
            new = self._now.rows_of(self._new_ids(ids, len(words))) < 0
            _check_size(len(self._now) + int(new.sum()))

    def remove(self, ids: ArrayLike) -> int:
        """Remove rows by id, ignoring unknown ids; return the number of rows removed."""
        with self._lock:
            found = self._now.rows_of(as_ids(ids))
            found = np.unique(found[found >= 0])
            self._publish(self._now.without(found))
            return len(found)

    def attach_vectors(self, vectors: Any, ids: ArrayLike | None = None, metric: str = "cosine") -> None:
        """Attach the float vectors of the rows for ``search(…, rescore="float")``; they replace earlier ones.

        Vectors belong to ids, not to rows: an upserted row keeps the vector of its id, and the vector of a removed id
        is not read. ``save`` and copies leave them out: attach them again.

        Parameters
        ----------
        vectors : array (n, d), or path of a .npy file
            A file is opened as a memory map. Arrays and memory maps are not copied; searches read the rows they need.
        ids : ids or None, default=None
            The id of each vector. Vectors of ids that are not in the index are allowed: the rows may come later.
            None: row i of ``vectors`` belongs to id i, and every id in the index must have a row.
        metric : "cosine", "dot" or "l2", default="cosine"
            Similarity: cosine (0 for a vector of zeros), inner product, or the negated Euclidean distance.
        """
        attached = FloatVectors.of(vectors, ids, metric)
        with self._lock:
            if ids is None:
                without = self._now.ids[attached.rows_of(self._now.ids) < 0].tolist()
                if without:
                    raise InputError(
                        f"without ids, row i of vectors belongs to id i, but vectors has {len(attached.rows):,} rows "
                        f"and the index has the id {without[0]!r}: give the id of each vector as ids"
                    )
            self._now = replace(self._now, vectors=attached)

    def _check_rows(self, codes: ArrayLike, labels: ArrayLike | None) -> tuple[NDArray[Any], list[Any] | None]:
        words = to_words(codes, self.n_bits, "codes")
        return words, as_labels(labels, len(words))

    def _append(self, rows: Snapshot, words: NDArray[Any], ids: Ids, labels: list[Any] | None) -> None:
        _check_size(len(rows) + len(words))
        if rows.n + len(words) > MOST_ROWS:  # with the deleted rows
            rows = rows.compacted()
        if not len(words):
            return
        if not rows.n and rows.ids_.dtype != ids.dtype:  # an empty index accepts either kind of id
            empty = Snapshot.of(self.n_bits, self._make_accelerator, rows.codes, np.empty(0, ids.dtype))
            rows = replace(empty, vectors=rows.vectors)
        try:
            extended = rows.extended(words, ids, labels)
        except BaseException:
            self._now = self._now.compacted()  # a new generation: the shared one may hold some of the new rows
            raise
        if ids.dtype == np.int64:
            self._next_id = max(self._next_id, int(ids.max()) + 1)
        self._publish(extended)

    def _publish(self, rows: Snapshot) -> None:
        """Make a snapshot the current one; compact it once more than √n rows are deleted."""
        many = len(rows.deleted) > 64 and len(rows.deleted) ** 2 > rows.n
        self._now = rows.compacted() if many or (rows.n and not len(rows)) else rows

    def _new_ids(self, ids: ArrayLike | None, n: int) -> Ids:
        """Validate the ids of n new rows: of the index's kind, without duplicates."""
        strings = self._now.ids_.dtype == object
        if ids is None:
            if strings and self._now.n:
                raise InputError("ids must be given: the ids of this index are strings")
            if self._next_id + n <= MOST_ID + 1:
                # arange up to 2**63 would be float64; if the next id is 2**63, n is 0
                return min(self._next_id, MOST_ID) + np.arange(n, dtype=np.int64)
            free = np.setdiff1d(np.arange(len(self._now) + n), self._now.ids)  # at least n of them
            return free[:n]
        given = as_ids(ids, n)
        if n and self._now.n and (given.dtype == object) != strings:
            kinds = ("strings", "integers")
            raise InputError(f"ids must be {kinds[not strings]} like the ids in the index, got {kinds[strings]}")
        if len(given) > 1 and not (given[1:] > given[:-1]).all():
            ordered = np.sort(given)
            repeated = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(repeated):
                raise InputError(f"ids must be distinct, but {repeated.tolist()[0]!r} occurs twice")
        return given

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
        """Return the k best rows of every query as (D, I).

        Parameters
        ----------
        queries : uint8 (n_queries, ceil(n_bits / 8)) or float (n_queries, n_bits)
            Packed codes; a hasher's real outputs (``decision_function``) if ``method`` or ``rescore`` is
            "asymmetric".
        k : int, default=10
            Number of rows per query. If fewer rows match, all of them are returned, without padding.
        ids : ids or None, default=None
            Search only among these ids. Unknown ids are ignored.
        labels : labels or None, default=None
            Search only among rows with one of these labels; None in the list stands for rows without a label.
            Unknown labels are ignored. With ``ids``, a row must match both.
        method : "hamming" or "asymmetric", default="hamming"
            "hamming": by Hamming distance, ascending; D is int32. "asymmetric": by the inner product of the outputs
            and the stored ±1 codes, descending; D is float32.
        rescore : None, "asymmetric" or "float", default=None
            Find the ``shortlist`` rows of least Hamming distance, then order these by something finer; D is float32,
            descending. "asymmetric": by the inner product of outputs and codes. "float": by the similarity of
            ``query_vectors`` and the rows' vectors (``attach_vectors``); equally similar rows are ordered by Hamming
            distance, then by insertion.
        shortlist : int or None, default=None
            Rows per query that ``rescore`` orders; None: 10 k, at least 100.
        query_vectors : float (n_queries, d) or None, default=None
            Vectors of the queries for ``rescore="float"``.

        Returns
        -------
        D, I : arrays (n_queries, min(k, rows))
            Distances, inner products or similarities, and ids.
        """
        return self._now.search(
            queries,
            k,
            ids,
            labels=labels,
            method=method,
            rescore=rescore,
            shortlist=shortlist,
            query_vectors=query_vectors,
        )

    def radius_search(
        self,
        queries: ArrayLike,
        radius: int = 2,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
        limit: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """Return all rows at distance ≤ ``radius`` as (lims, D, I); query i has the entries lims[i] : lims[i + 1].

        Exact in both modes; sorted by distance, then by insertion order. ``limit`` keeps only the first rows of each
        query, which saves most of the work if many rows share a code. ``ids`` and ``labels`` restrict the search as
        in ``search``.
        """
        return self._now.radius_search(queries, radius, ids, labels=labels, limit=limit)

    def radius_count(
        self,
        queries: ArrayLike,
        radius: int = 2,
        ids: ArrayLike | None = None,
        *,
        labels: Iterable[Any] | None = None,
    ) -> NDArray[np.int64]:
        """Return the number of rows at distance ≤ ``radius`` for every query, without listing them."""
        return self._now.radius_count(queries, radius, ids, labels=labels)

    def measure_recall(self, queries: ArrayLike, k: int = 10) -> float:
        """Return the share of the k nearest rows that ``search`` finds, compared with a scan; ties count as found."""
        return self._now.measure_recall(queries, k)

    # --- files and copies ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one file: atomic, with a checksum, without pickle.

        An index that a server writes to, or that has changes in the journal of a killed server, is not replaced.
        """
        with closing(IndexFile(path)) as file:
            file.check_settled()
            file.write(self.__getstate__())

    @classmethod
    def load(cls, path: str | os.PathLike[str], mmap: bool = False, verify: bool | None = None) -> Self:
        """Read an index written by ``save``.

        ``mmap=True`` leaves codes and ids in the file until a search reads them; the first write copies them into
        memory. ``verify`` says whether to verify the checksum, which reads the whole file; None: unless ``mmap``.
        """
        kind, content, arrays = modelfile.read(path, mmap=mmap, verify=not mmap if verify is None else verify)
        if kind != "HammingIndex":
            raise ModelFileError(f"{path} holds a {kind}, not an index; dish.load reads it")
        index = cls.__new__(cls)
        try:
            index.__setstate__({**content, "arrays": arrays})
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path} is not a valid index file: {error}") from None
        return index

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for files and copies; a copy shares memory with the original until one of them changes."""
        return self.pinned_state()()

    def pinned_state(self) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the state of this moment; later writes do not change it."""
        with self._lock:
            return partial(self._state_of, self._now, self._next_id)

    def _state_of(self, rows: Snapshot, next_id: int) -> dict[str, Any]:
        arrays = {name: np.asarray(a).view(np.ndarray) for name, a in to_arrays(rows).items()}
        init = {"n_bits": self.n_bits, "mode": self.mode, "n_lists": self.n_lists, "n_probe": self.n_probe}
        fitted = {"rows": len(rows), "next_id": next_id, **({"model": self.model} if self.model else {})}
        return {"init": init, "fitted": fitted, "arrays": arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fitted = state["fitted"]
        self.__init__(**state["init"], model=fitted.get("model"))  # type: ignore[misc]
        self._now = from_arrays(state["arrays"], int(fitted["rows"]), self.n_bits, self._make_accelerator)
        self._next_id = int(fitted["next_id"])


def _check_size(n: int) -> None:
    if n > MOST_ROWS:
        raise InputError(f"an index holds at most {MOST_ROWS:,} rows")
