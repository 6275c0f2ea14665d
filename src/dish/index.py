"""HammingIndex: exact search over packed codes, with ids, labels, filters and files."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish import modelfile, search
from dish.base import check_integer, check_option
from dish.codes import check_codes, n_bytes, pack

Ids = NDArray[Any]  # int64, or objects that are all str
Kernel = Callable[..., Any]  # (queries, codes, k) → keys and rows, ascending by key, then by row

REGROUP = 50  # grouping the rows costs about as much as scanning each of them that many times
MOST_ROWS = 2**31 - 1


class HammingIndex:
    """Packed codes with ids: nearest codes, codes within a radius, filters, removal, files.

    Exact unless ``mode="approximate"``. Of rows at equal distance the one inserted first comes first; an
    upserted row counts as inserted anew. Threads may search while others add: a search sees the index as it
    was when it began, and nothing waits for it.

    Learned codes repeat: rows with equal codes are grouped, the distinct codes are searched, and the groups
    found are expanded to rows. Grouping happens by itself, in a search, once scanning the rows that are not
    grouped yet has cost as much as grouping does; adding never pays for it.

    Parameters
    ----------
    n_bits : int
        Code length; need not be a multiple of 8.
    mode : "exact" or "approximate"
        "approximate" looks only into the ``n_probe`` lists nearest to a query (faiss IndexBinaryIVF): for tens
        of millions of rows. ``measure_recall`` says what it misses. ``radius_search`` stays exact.
    n_lists : int or None
        Lists of the approximate mode; None: four times the square root of the rows.
    n_probe : int or None
        Lists looked into; None: a sixteenth of them.
    """

    def __init__(
        self, n_bits: int = 64, mode: str = "exact", n_lists: int | None = None, n_probe: int | None = None
    ) -> None:
        self.n_bits = check_integer("n_bits", n_bits, low=1)
        self.mode = check_option("mode", mode, ("exact", "approximate"))
        self.n_lists = None if n_lists is None else check_integer("n_lists", n_lists, low=1)
        self.n_probe = None if n_probe is None else check_integer("n_probe", n_probe, low=1)
        self._word, self._n_words = _words(self.n_bits)
        self._lock = threading.RLock()  # held by writers, and while ids are looked up; never during a scan
        self._clear()

    def _clear(self) -> None:
        self._rows = _Rows(np.empty((0, self._n_words), self._word))
        self._lookup: _IntegerLookup | _StringLookup | None = None  # known with the first id
        self._next_id = 0
        self._vocabulary: dict[Any, int] = {}
        self._scanned = 0  # rows scanned that a view does not cover, since the last view
        self._view_refused = 0  # rows there were when their codes were found to be mostly distinct

    # --- content ---

    def __len__(self) -> int:
        rows = self._rows
        return rows.n - len(rows.dead)

    def __contains__(self, one: Any) -> bool:
        with self._lock:
            return self._lookup is not None and bool(self._lookup.find(_as_ids([one], 1), self._rows)[0] >= 0)

    def __repr__(self) -> str:
        return f"HammingIndex(n_bits={self.n_bits}, mode={self.mode!r}): {len(self):,} rows"

    @property
    def ids(self) -> Ids:
        """The ids, in the order of insertion."""
        rows = self._rows
        return np.delete(rows.ids[: rows.n], rows.dead)

    def get(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """The codes of some ids, uint8 (n, ceil(n_bits / 8))."""
        rows, where = self._where(ids)
        return self._as_bytes(rows.codes[where])

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """The labels of some ids; None stands for a row without one (the array is then one of objects)."""
        rows, where = self._where(ids)
        numbers = rows.labels[where]
        values = np.empty(len(self._vocabulary) + 1, object)
        values[:-1] = list(self._vocabulary)[: len(values) - 1]
        found = values[numbers]  # −1, no label, is the None at the end
        return found if (numbers < 0).any() or not len(found) else np.array(found.tolist())

    def nbytes(self) -> dict[str, int]:
        """Bytes held: codes, what speeds up the search, ids with their look-up, labels."""
        rows = self._rows
        lookup = 0 if self._lookup is None else self._lookup.nbytes
        return {
            "codes": rows.codes.nbytes,
            "search": 0 if rows.view is None else rows.view.nbytes,
            "ids": rows.ids.nbytes + lookup,
            "labels": rows.labels.nbytes,
        }

    # --- writing ---

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None, labels: ArrayLike | None = None) -> None:
        """Append packed codes. An id that is there already is an error, and then nothing is added.

        ``ids``: whole numbers or strings, one kind an index; None: running numbers. ``labels``: one a row.
        """
        words, numbers = self._as_words(codes, "codes"), _as_labels(labels, len(np.asarray(codes)))
        with self._lock:
            given = self._new_ids(ids, len(words))
            rows = self._rows
            there = self._find(given) >= 0
            if there.any():
                raise ValueError(f"id {given[there][0]!r} is in the index already; upsert replaces it")
            self._append(rows, words, given, numbers)

    def upsert(self, codes: ArrayLike, ids: ArrayLike, labels: ArrayLike | None = None) -> None:
        """Add codes, replacing those of ids that are there (with their labels)."""
        words, numbers = self._as_words(codes, "codes"), _as_labels(labels, len(np.asarray(codes)))
        with self._lock:
            given = self._new_ids(ids, len(words))
            there = self._find(given)
            rows = self._rows.without(there[there >= 0])
            self._append(rows, words, given, numbers)

    def remove(self, ids: ArrayLike) -> int:
        """Remove rows by id; ids that are not there are ignored. The number of rows removed."""
        with self._lock:
            found = self._find(_as_ids(ids))
            found = np.unique(found[found >= 0])
            self._set(self._rows.without(found))
            return len(found)

    def _append(self, rows: _Rows, words: NDArray[Any], ids: Ids, labels: list[Any] | None) -> None:
        if rows.n + len(words) > MOST_ROWS:
            raise ValueError(f"an index holds at most {MOST_ROWS:,} rows")
        if not len(words):
            return
        numbers = np.full(len(words), -1, np.int32)
        if labels is not None:
            for label in labels:
                self._vocabulary.setdefault(label, len(self._vocabulary))
            numbers[:] = [self._vocabulary[label] for label in labels]
        if self._lookup is None:
            self._lookup = _IntegerLookup() if ids.dtype == np.int64 else _StringLookup()
            rows = replace(rows, ids=np.empty(0, ids.dtype))
        grown = replace(
            rows,
            codes=_appended(rows.codes, rows.n, words),
            ids=_appended(rows.ids, rows.n, ids),
            labels=_appended(rows.labels, rows.n, numbers),
            n=rows.n + len(words),
        )
        self._lookup.add(grown, rows.n)
        if ids.dtype == np.int64:
            self._next_id = max(self._next_id, int(ids.max()) + 1)
        self._set(grown)

    def _set(self, rows: _Rows) -> None:
        """Make rows the content; squeeze the dead out once they outnumber the root of the rows."""
        if len(rows.dead) > 64 and len(rows.dead) ** 2 > rows.n:
            rows = rows.squeezed()
            self._view_refused = 0
            if self._lookup is not None:
                self._lookup = type(self._lookup)()
                self._lookup.add(rows, 0)
        self._rows = rows

    # --- searching ---

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        ids: ArrayLike | None = None,
        mode: str = "hamming",
        shortlist: int | None = None,
    ) -> tuple[NDArray[Any], Ids]:
        """The k best rows of every query: (D, I), both (n_queries, min(k, rows)).

        Parameters
        ----------
        queries : packed codes, or float (n_queries, n_bits) for the asymmetric modes
        k : int
            How many. If fewer rows are there, all of them come: there is no padding.
        ids : ids or None
            Search among these only. Ids that are not in the index are ignored.
        mode : "hamming", "asymmetric" or "rerank"
            "hamming": D int32, the distances, ascending. "asymmetric": D float32, inner products of the real
            outputs of a hasher (``decision_function``) with the stored ±1 codes, descending; exact. "rerank":
            the same order, but only among the ``shortlist`` rows nearest by the signs of the outputs.
        shortlist : int or None
            None: ten times k, at least 100.
        """
        check_option("mode", mode, ("hamming", "asymmetric", "rerank"))
        check_integer("k", k, low=1)
        rows, among = self._among(ids)
        if mode == "hamming":
            D, R = self._best(rows, among, self._as_words(queries, "queries"), k, search.nearest)
            return D, rows.ids[R]
        F = self._as_outputs(queries)
        if mode == "asymmetric":
            D, R = self._best(rows, among, F, k, search.best_scores)
        else:
            n_short = check_integer("shortlist", max(100, 10 * k) if shortlist is None else shortlist, low=k)
            _, R = self._best(rows, among, self._as_words(pack(F), "queries"), n_short, search.nearest)
            D, R = _rerank(F, rows.codes, R, k)
        return (-D).astype(np.float32), rows.ids[R]

    def radius_search(
        self, queries: ArrayLike, radius: int = 2, ids: ArrayLike | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """All rows at distance ≤ ``radius``: (lims, D, I), those of query i at lims[i]:lims[i + 1].

        Exact in every mode. Ordered by distance, then by insertion.
        """
        check_integer("radius", radius, low=0)
        rows, among = self._among(ids)
        Q = self._as_words(queries, "queries")
        lims, D, R = self._within(rows, among, Q, min(radius, self.n_bits))
        return lims, D, rows.ids[R]

    def measure_recall(self, queries: ArrayLike, k: int = 10) -> float:
        """The share of the k nearest that ``search`` finds, against an exact scan; ties count as found."""
        rows, Q = self._rows, self._as_words(queries, "queries")
        D, _ = self._best(rows, None, Q, k, search.nearest)
        exact, _ = self._best(replace(rows, view=None), None, Q, k, search.nearest, use_view=False)
        return float((exact[:, -1:] >= D).mean()) if exact.size else 1.0

    def _best(
        self, rows: _Rows, among: NDArray[Any] | None, Q: NDArray[Any], k: int, kernel: Kernel, use_view: bool = True
    ) -> search.Found:
        """The k first rows by key, among some or all of the living."""
        if among is not None:
            D, R = _run(kernel, Q, rows.codes[among], min(k, len(among)))
            return D, among[R]
        k = min(k, rows.n - len(rows.dead))
        wanted = k + len(rows.dead)  # so many that k are left when the dead are dropped
        view = self._view(rows, len(Q)) if use_view else None
        parts = []
        if view is not None:
            parts.append(view.best(Q, min(wanted, view.n), kernel))
        start = 0 if view is None or parts[0] is None else view.n
        if start < rows.n:
            D, R = _run(kernel, Q, rows.codes[start : rows.n], min(wanted, rows.n - start))
            parts.append((D, R + start))
        D, R = _merge([part for part in parts if part is not None], len(Q), wanted)
        return _without(rows.dead, D, R, k)

    def _within(
        self, rows: _Rows, among: NDArray[Any] | None, Q: NDArray[Any], radius: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """(lims, D, rows) of all living rows within the radius, by distance, then by row."""
        parts = []
        if among is not None:
            found, D, R = _run_within(Q, rows.codes[among], radius)
            parts.append((found, D, among[R]))
        else:
            view = self._view(rows, len(Q))
            start = 0
            if isinstance(view, _Groups):
                parts.append(view.within(Q, radius, self.n_bits))
                start = view.n
            found, D, R = _run_within(Q, rows.codes[start : rows.n], radius)
            parts.append((found, D, R + start))
        query = np.concatenate([np.repeat(np.arange(len(Q)), part[0]) for part in parts])
        D, R = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        if len(rows.dead):
            alive = ~np.isin(R, rows.dead)
            query, D, R = query[alive], D[alive], R[alive]
        order = np.lexsort((R, D, query))
        lims = np.zeros(len(Q) + 1, np.int64)
        np.cumsum(np.bincount(query, minlength=len(Q)), out=lims[1:])
        return lims, D[order], R[order]

    def _view(self, rows: _Rows, n_queries: int) -> _Groups | _Lists | None:
        """The view of these rows, made anew if scanning what it does not cover has cost as much as making it."""
        covered = 0 if rows.view is None else rows.view.n
        self._scanned += n_queries * (rows.n - covered)
        if self._scanned < REGROUP * rows.n or rows.n < 4096:
            return rows.view
        if rows.n == covered or rows.n < 1.5 * self._view_refused:
            return rows.view
        view: _Groups | _Lists | None
        view = _Groups.of(rows) if self.mode == "exact" else _Lists.of(rows, self.n_bits, self.n_lists, self.n_probe)
        with self._lock:
            self._scanned = 0
            self._view_refused = 0 if view is not None else rows.n
            if self._rows.born == rows.born and view is not None:  # rows may have come since, not been renumbered
                self._rows = replace(self._rows, view=view)
        return view

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one file, atomically, with a checksum and without pickle."""
        with self._lock:
            rows, next_id, vocabulary = self._rows, self._next_id, list(self._vocabulary)
        rows = rows.squeezed() if len(rows.dead) else rows
        arrays: modelfile.Arrays = {"codes": rows.codes[: rows.n]}
        if rows.ids.dtype == np.int64:
            arrays["ids"] = rows.ids[: rows.n]
        else:
            arrays["id_text"], arrays["id_ends"] = _to_text(rows.ids[: rows.n])
        if vocabulary:
            arrays["labels"] = rows.labels[: rows.n]
            arrays["label_values"] = np.frombuffer(json.dumps(vocabulary).encode(), np.uint8)
        init = {"n_bits": self.n_bits, "mode": self.mode, "n_lists": self.n_lists, "n_probe": self.n_probe}
        content = {"init": init, "fitted": {"rows": rows.n, "next_id": next_id}}
        modelfile.save(path, "HammingIndex", content, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], mmap: bool = False, verify: bool | None = None) -> Self:
        """Read an index written by ``save``.

        With ``mmap`` the codes and ids stay in the file and are read as the search touches them; the first write
        brings them into memory. The checksum is verified unless the file is mapped: verifying reads all of it.
        ``verify`` says otherwise.
        """
        kind, content, arrays = modelfile.read(path, mmap=mmap, verify=not mmap if verify is None else verify)
        if kind != "HammingIndex":
            raise modelfile.ModelFileError(f"{path} holds a {kind}, not an index; dish.load reads it")
        try:
            index = cls(**content["init"])
            index._restore(content["fitted"], arrays)
        except (KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
            raise modelfile.ModelFileError(f"{path} is no index of this version of dish: {error}") from None
        return index

    def _restore(self, fitted: dict[str, Any], arrays: modelfile.Arrays) -> None:
        codes, n = arrays["codes"], int(fitted["rows"])
        if codes.shape != (n, self._n_words) or codes.dtype != self._word:
            raise ValueError(f"{n:,} codes of {self.n_bits} bits cannot be {codes.dtype} of shape {codes.shape}")
        ids = arrays["ids"] if "ids" in arrays else _from_text(arrays["id_text"], arrays["id_ends"])
        labels = arrays.get("labels", np.full(n, -1, np.int32))
        if len(ids) != n or len(labels) != n:
            raise ValueError(f"it has {n:,} codes, but {len(ids):,} ids and {len(labels):,} labels")
        values = json.loads(bytes(arrays["label_values"])) if "labels" in arrays else []
        if n and not -1 <= labels.min() <= labels.max() < len(values):
            raise ValueError("a label is not in its list of labels")
        self._vocabulary = {value: i for i, value in enumerate(values)}
        self._next_id = int(fitted["next_id"])
        self._rows = _Rows(codes, ids, labels, n)
        if n:
            self._lookup = _IntegerLookup() if ids.dtype == np.int64 else _StringLookup()
            self._lookup.add(self._rows, 0)

    # --- checks ---

    def _as_words(self, codes: ArrayLike, name: str) -> NDArray[Any]:
        """Packed codes → words (n, w), zeros at the end."""
        given = check_codes(codes, self.n_bits, name)
        unused = -self.n_bits % 8
        if unused and (given[:, -1] & ((1 << unused) - 1)).any():
            raise ValueError(f"{name} have bits set beyond the first {self.n_bits}")
        words = np.zeros((len(given), self._n_words), self._word)
        words.view(np.uint8)[:, : given.shape[1]] = given
        return words

    def _as_bytes(self, words: NDArray[Any]) -> NDArray[np.uint8]:
        return np.ascontiguousarray(words.view(np.uint8)[:, : n_bytes(self.n_bits)])

    def _as_outputs(self, F: ArrayLike) -> NDArray[np.float64]:
        outputs = np.ascontiguousarray(F, np.float64) if np.asarray(F).dtype.kind in "fiu" else np.empty(0)
        if outputs.ndim != 2 or outputs.shape[1] != self.n_bits or np.asarray(F).dtype == np.uint8:
            a = np.asarray(F)
            raise ValueError(
                f"queries must be real outputs of shape (n, {self.n_bits}) in this mode, such as a hasher's "
                f"decision_function; got {a.dtype} of shape {a.shape}"
            )
        if not np.isfinite(outputs).all():
            raise ValueError("queries must be finite: there is NaN or infinity among the outputs")
        return outputs

    def _new_ids(self, ids: ArrayLike | None, n: int) -> Ids:
        """The ids of n rows to come: of the index's kind, none twice."""
        strings = isinstance(self._lookup, _StringLookup)
        if ids is None:
            if strings:
                raise ValueError("ids must be given: this index has strings as ids")
            return np.arange(self._next_id, self._next_id + n)
        given = _as_ids(ids, n)
        if n and self._lookup is not None and (given.dtype == object) != strings:
            kinds = ("strings", "whole numbers")
            raise ValueError(f"ids must be {kinds[not strings]} as those of the index are, got {kinds[strings]}")
        if len(given) > 1 and not (given[1:] > given[:-1]).all():
            ordered = np.sort(given)
            twice = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(twice):
                raise ValueError(f"id {twice[0]!r} is given twice")
        return given

    def _find(self, ids: Ids) -> NDArray[np.int64]:
        """Rows of ids, −1 for those that are not there."""
        if self._lookup is None or not len(ids):
            return np.full(len(ids), -1)
        return self._lookup.find(ids, self._rows)

    def _where(self, ids: ArrayLike) -> tuple[_Rows, NDArray[np.int64]]:
        """The content and the rows of some ids in it; an id that is not there is an error."""
        given = _as_ids(ids)
        with self._lock:
            found = self._find(given)
            if (found < 0).any():
                raise KeyError(f"id {given[found < 0][0]!r} is not in the index")
            return self._rows, found

    def _among(self, ids: ArrayLike | None) -> tuple[_Rows, NDArray[np.int64] | None]:
        """The content and the rows of a filter in it, ascending; None without a filter."""
        if ids is None:
            return self._rows, None
        given = _as_ids(ids)
        with self._lock:
            found = self._find(given)
            return self._rows, np.unique(found[found >= 0])


# --- Content ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """The rows at one moment. Arrays may be longer than n: later rows are written behind it, never before."""

    codes: NDArray[Any]  # (≥ n, w) words
    ids: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    labels: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))  # −1: none
    n: int = 0
    dead: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # removed rows, ascending
    view: _Groups | _Lists | None = None
    born: object = field(default_factory=object)  # the same as long as rows keep their numbers

    def without(self, removed: NDArray[np.int64]) -> _Rows:
        """The same with more rows dead."""
        return replace(self, dead=np.union1d(self.dead, removed)) if len(removed) else self

    def squeezed(self) -> _Rows:
        """The living rows alone, numbered anew."""
        alive = np.ones(self.n, bool)
        alive[self.dead] = False
        return _Rows(
            self.codes[: self.n][alive], self.ids[: self.n][alive], self.labels[: self.n][alive], int(alive.sum())
        )


def _appended(a: NDArray[Any], n: int, more: NDArray[Any]) -> NDArray[Any]:
    """The first n rows of ``a`` and then more; in place where there is room, else with room for an eighth."""
    if n + len(more) > len(a) or not a.flags.writeable:
        room = max(n + len(more), n + n // 8 + 64 if n else 0)
        longer = np.empty((room, *a.shape[1:]), a.dtype)
        longer[:n] = a[:n]
        a = longer
    a[n : n + len(more)] = more
    return a


class _IntegerLookup:
    """Rows of integer ids: by bisection while ids only grow, then by a hash table."""

    def __init__(self) -> None:
        self.slots: NDArray[np.int32] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return 0 if self.slots is None else self.slots.nbytes

    def add(self, rows: _Rows, start: int) -> None:
        """Take note of the rows from ``start`` on."""
        if self.slots is None:
            tail = rows.ids[max(start - 1, 0) : rows.n]
            if (tail[1:] > tail[:-1]).all():
                return
            start = 0
        if self.slots is None or 2 * rows.n > len(self.slots):
            self.slots, start = search.empty_slots(rows.n + rows.n // 4), 0
        search.put(self.slots, rows.ids[:, None], start, rows.n)

    def find(self, ids: Ids, rows: _Rows) -> NDArray[np.int64]:
        """Rows of ids; −1 for those that are not there."""
        if ids.dtype != np.int64:
            return np.full(len(ids), -1)
        if self.slots is None:
            known = rows.ids[: rows.n]
            found = np.minimum(np.searchsorted(known, ids), max(rows.n - 1, 0))
            found = np.where(known[found] == ids, found, -1) if rows.n else np.full(len(ids), -1)
        else:
            found = search.find(self.slots, rows.ids[:, None], ids[:, None])
        return _living(found, rows)


class _StringLookup:
    """Rows of string ids: a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the dictionary, its keys among them."""
        import sys

        return sys.getsizeof(self.rows) + sum(map(sys.getsizeof, self.rows)) + 32 * len(self.rows)

    def add(self, rows: _Rows, start: int) -> None:
        """Take note of the rows from ``start`` on."""
        self.rows.update(zip(rows.ids[start : rows.n], range(start, rows.n), strict=True))

    def find(self, ids: Ids, rows: _Rows) -> NDArray[np.int64]:
        """Rows of ids; −1 for those that are not there."""
        found = np.fromiter((self.rows.get(one, -1) for one in ids), np.int64, len(ids))
        return _living(found, rows)


def _living(found: NDArray[np.int64], rows: _Rows) -> NDArray[np.int64]:
    return np.where(np.isin(found, rows.dead), -1, found) if len(rows.dead) else found


def _words(n_bits: int) -> tuple[type[np.unsignedinteger[Any]], int]:
    """Type and number of the words that hold a code: at most twice its bytes."""
    width = n_bytes(n_bits)
    for word, size in ((np.uint8, 1), (np.uint16, 2), (np.uint32, 4)):
        if width <= size:
            return word, 1
    return np.uint64, -(-width // 8)


def _as_ids(ids: Any, n: int | None = None) -> Ids:
    """Ids as int64, or as an array of str objects."""
    given = ids if isinstance(ids, np.ndarray) else np.array(list(ids), object)
    if given.ndim != 1:
        raise ValueError(f"ids must be a list of ids, got shape {given.shape}")
    if n is not None and len(given) != n:
        raise ValueError(f"ids has {len(given):,} entries for {n:,} codes")
    if not len(given):
        return np.empty(0, np.int64)
    if given.dtype.kind == "U" or (given.dtype == object and all(isinstance(one, str) for one in given)):
        return np.array(given.tolist(), object)
    whole = given.dtype.kind in "iu" or (
        given.dtype == object
        and all(isinstance(one, int | np.integer) and not isinstance(one, bool | np.bool_) for one in given)
    )
    if not whole:
        raise ValueError(f"ids must be whole numbers or strings, all of one kind; got {given[0]!r} among them")
    try:
        if given.dtype == np.uint64 and given.max() > np.iinfo(np.int64).max:
            raise OverflowError
        return given.astype(np.int64)
    except OverflowError:
        raise ValueError("ids must fit into 64 bits with a sign") from None


def _as_labels(labels: Any, n: int) -> list[Any] | None:
    """Labels as plain values, one a row."""
    if labels is None:
        return None
    given = np.asarray(labels)
    if given.ndim != 1 or len(given) != n:
        raise ValueError(f"labels must be one a row, {n:,} of them; got shape {given.shape}")
    values: list[Any] = given.tolist()
    if not all(isinstance(value, str | int | float) for value in values):
        raise ValueError("labels must be numbers or strings")
    return values


def _to_text(ids: Ids) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings as one text and where each ends in it."""
    parts = [one.encode("utf-8", "surrogatepass") for one in ids]
    return np.frombuffer(b"".join(parts), np.uint8), np.cumsum([len(p) for p in parts], dtype=np.int64)


def _from_text(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> Ids:
    whole, start = bytes(text), 0
    ids = np.empty(len(ends), object)
    for i, end in enumerate(ends.tolist()):
        ids[i] = whole[start:end].decode("utf-8", "surrogatepass")
        start = end
    return ids


# --- Views: what makes a search faster than a scan of all rows ----------------------------------------------


@dataclass(frozen=True)
class _Groups:
    """The distinct codes of the first n rows, and the rows of each."""

    codes: NDArray[Any]  # (u, w), in the order of first appearance
    starts: NDArray[np.int32]
    members: NDArray[np.int32]  # rows of group g: members[starts[g]:starts[g + 1]], ascending
    n: int

    @classmethod
    def of(cls, rows: _Rows) -> _Groups | None:
        """Group the rows; None if more than a third of the codes are distinct: that would cost, not gain."""
        B = rows.codes[: rows.n]
        first, member_of = search.group(search.empty_slots(rows.n // 3 + 1), B, rows.n // 3)
        if not len(first):
            return None
        return cls(B[first], *search.list_members(member_of, len(first)), rows.n)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.codes.nbytes + self.starts.nbytes + self.members.nbytes

    def best(self, Q: NDArray[Any], k: int, kernel: Kernel) -> search.Found:
        """The k first rows: they lie in the k first groups, for each group has a row, and equal groups are in order."""

        def expanded(some: NDArray[Any]) -> search.Found:
            D, G = kernel(some, self.codes, min(k, len(self.codes)))
            return search.expand(D, G, self.starts, self.members, k)  # type: ignore[no-any-return]

        return _stacked(search.in_threads(expanded, Q), k)

    def within(self, Q: NDArray[Any], radius: int, n_bits: int) -> Any:
        """All rows within the radius: how many a query, distances, rows."""

        def expanded(some: NDArray[Any]) -> Any:
            found = search.within(some, self.codes, radius)
            return search.expand_all(*found, self.starts, self.members, n_bits)

        return _joined(search.in_threads(expanded, Q))


@dataclass(frozen=True)
class _Lists:
    """An inverted file over the first n rows (faiss IndexBinaryIVF)."""

    ivf: Any
    n: int

    @classmethod
    def of(cls, rows: _Rows, n_bits: int, n_lists: int | None, n_probe: int | None) -> _Lists:
        """Train and fill the lists."""
        import faiss

        B = np.ascontiguousarray(rows.codes[: rows.n]).view(np.uint8)
        n_lists = min(n_lists or int(4 * rows.n**0.5), rows.n)
        quantizer = faiss.IndexBinaryFlat(8 * B.shape[1])
        ivf = faiss.IndexBinaryIVF(quantizer, 8 * B.shape[1], n_lists)
        ivf.own_fields = True
        quantizer.this.disown()
        ivf.cp.min_points_per_centroid = 1
        ivf.nprobe = min(n_probe or max(1, n_lists // 16), n_lists)
        sample = np.random.default_rng(0).permutation(rows.n)[: 64 * n_lists]
        ivf.train(B[np.sort(sample)])
        ivf.add(B)
        return cls(ivf, rows.n)

    @property
    def nbytes(self) -> int:
        """Bytes held: a copy of the codes and a number a row."""
        return self.n * (self.ivf.code_size + 8)

    def best(self, Q: NDArray[Any], k: int, kernel: Kernel) -> search.Found | None:
        """The k first rows of the lists looked into; None if there are not so many, or the key is no distance."""
        if kernel is not search.nearest:
            return None
        D, R = self.ivf.search(Q.view(np.uint8), k)
        if (R < 0).any():
            return None
        order = np.lexsort((R, D), axis=1)
        return np.take_along_axis(D, order, 1), np.take_along_axis(R, order, 1)


# --- Answers ----------------------------------------------------------------------------------------------


def _run(kernel: Kernel, Q: NDArray[Any], B: NDArray[Any], k: int) -> search.Found:
    if k == 0:
        return _stacked([], 0, len(Q))
    return _stacked(search.in_threads(kernel, Q, B, k), k)


def _run_within(Q: NDArray[Any], B: NDArray[Any], radius: int) -> Any:
    return _joined(search.in_threads(search.within, Q, B, radius))


def _stacked(parts: list[search.Found], k: int, n: int = 0) -> search.Found:
    empty = (np.empty((n, k), np.int32), np.empty((n, k), np.int64))
    if not parts:
        return empty
    return np.concatenate([D for D, _ in parts]), np.concatenate([R for _, R in parts])


def _joined(parts: list[Any]) -> Any:
    empty = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))
    return tuple(np.concatenate(arrays) for arrays in zip(empty, *parts, strict=True))


def _merge(parts: list[search.Found], n: int, k: int) -> search.Found:
    """Answers over one stretch of rows after another → the first k by key; a stable sort keeps rows in order."""
    if len(parts) < 2:
        return parts[0] if parts else _stacked([], 0, n)
    D, R = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, 1), np.take_along_axis(R, order, 1)


def _without(dead: NDArray[np.int64], D: NDArray[Any], R: NDArray[np.int64], k: int) -> search.Found:
    """The first k of each line that are not dead; there are so many."""
    if not len(dead):
        return D, R
    alive = ~np.isin(R, dead)
    kept = alive & (np.cumsum(alive, axis=1) <= k)
    return D[kept].reshape(len(D), k), R[kept].reshape(len(D), k)


def _rerank(F: NDArray[np.float64], codes: NDArray[Any], R: NDArray[np.int64], k: int) -> search.Found:
    """The k best by inner product of each line of candidates."""
    k = min(k, R.shape[1])
    R = np.sort(R, axis=1)  # equal scores in the order of rows
    parts = [(D, R[i][r]) for i in range(len(F)) for D, r in [search.best_scores(F[i : i + 1], codes[R[i]], k)]]
    return _stacked([(D, r.reshape(1, k)) for D, r in parts], k, len(F)) if k else _stacked([], 0, len(F))
