"""HammingIndex: exact search over packed codes, with ids, labels, filters and files."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_option
from dish.codes import check_codes, n_bytes, pack
from dish.index import scan
from dish.index.snapshot import (
    Ids,
    IntegerLookup,
    Rows,
    StringLookup,
    appended,
    as_ids,
    as_labels,
    from_text,
    to_text,
    words_of,
)
from dish.index.views import REGROUP, Groups, Kernel, Lists, merge, merge_within, rerank, run, run_within, without
from dish.io import modelfile

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
        self.n_bits = check_integer("n_bits", n_bits, low=1, high=2**15)
        self.mode = check_option("mode", mode, ("exact", "approximate"))
        self.n_lists = None if n_lists is None else check_integer("n_lists", n_lists, low=1)
        self.n_probe = None if n_probe is None else check_integer("n_probe", n_probe, low=1)
        self._word, self._n_words = words_of(self.n_bits)
        self._lock = threading.RLock()  # held by writers, and while ids are looked up; never during a scan
        self._making_view = threading.Lock()
        self._rows = Rows(np.empty((0, self._n_words), self._word))
        self._lookup: IntegerLookup | StringLookup | None = None  # known with the first id
        self._next_id = 0
        self._vocabulary: dict[Any, int] = {}
        self._scanned = 0  # rows scanned that a view does not cover, since the last view

    # --- content ---

    def __len__(self) -> int:
        rows = self._rows
        return rows.n - len(rows.dead)

    def __contains__(self, one: Any) -> bool:
        with self._lock:
            return self._lookup is not None and bool(self._lookup.find(as_ids([one], 1), self._rows)[0] >= 0)

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
        numbers = np.full(len(where), -1) if rows.labels is None else rows.labels[where]
        with self._lock:
            values = np.array([*self._vocabulary, None], object)
        found = values[numbers]  # −1, no label, is the None at the end
        return found if (numbers < 0).any() else np.array(found.tolist())

    def nbytes(self) -> dict[str, int]:
        """Bytes held: codes, what speeds up the search, ids with their look-up, labels."""
        rows = self._rows
        lookup = 0 if self._lookup is None else self._lookup.nbytes
        return {
            "codes": rows.codes.nbytes,
            "search": 0 if rows.view is None else rows.view.nbytes,
            "ids": rows.ids.nbytes + lookup,
            "labels": 0 if rows.labels is None else rows.labels.nbytes,
        }

    # --- writing ---

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None, labels: ArrayLike | None = None) -> None:
        """Append packed codes. An id that is there already is an error, and then nothing is added.

        ``ids``: whole numbers or strings, one kind an index; None: running numbers. ``labels``: one a row.
        """
        words, numbers = self._as_words(codes, "codes"), as_labels(labels, len(np.asarray(codes)))
        with self._lock:
            given = self._new_ids(ids, len(words))
            rows = self._rows
            there = self._find(given) >= 0
            if there.any():
                raise ValueError(f"id {given[there].tolist()[0]!r} is in the index already; upsert replaces it")
            self._append(rows, words, given, numbers)

    def upsert(self, codes: ArrayLike, ids: ArrayLike, labels: ArrayLike | None = None) -> None:
        """Add codes, replacing those of ids that are there (with their labels)."""
        words, numbers = self._as_words(codes, "codes"), as_labels(labels, len(np.asarray(codes)))
        with self._lock:
            given = self._new_ids(ids, len(words))
            there = self._find(given)
            rows = self._rows.without(there[there >= 0])
            self._append(rows, words, given, numbers)

    def remove(self, ids: ArrayLike) -> int:
        """Remove rows by id; ids that are not there are ignored. The number of rows removed."""
        with self._lock:
            found = self._find(as_ids(ids))
            found = np.unique(found[found >= 0])
            self._set(self._rows.without(found))
            return len(found)

    def _append(self, rows: Rows, words: NDArray[Any], ids: Ids, labels: list[Any] | None) -> None:
        if rows.n + len(words) > MOST_ROWS:
            raise ValueError(f"an index holds at most {MOST_ROWS:,} rows")
        if not len(words):
            return
        if self._lookup is None:
            self._lookup = IntegerLookup() if ids.dtype == np.int64 else StringLookup()
            rows = replace(rows, ids=np.empty(0, ids.dtype))
        codes = appended(rows.codes, rows.n, words)
        grown = replace(
            rows,
            codes=codes,
            view=None if rows.view is None else rows.view.moved(codes),
            ids=appended(rows.ids, rows.n, ids),
            labels=self._append_labels(rows, labels, len(words)),
            n=rows.n + len(words),
        )
        self._lookup.add(grown, rows.n)
        if ids.dtype == np.int64:
            self._next_id = max(self._next_id, int(ids.max()) + 1)
        self._set(grown)

    def _append_labels(self, rows: Rows, labels: list[Any] | None, n: int) -> NDArray[np.int32] | None:
        """Labels as numbers in the order of their first coming, −1 for none; None as long as no row has one."""
        if labels is None and rows.labels is None:
            return None
        for label in labels or []:
            self._vocabulary.setdefault(label, len(self._vocabulary))
        numbers = [-1] * n if labels is None else [self._vocabulary[label] for label in labels]
        old = np.full(rows.n, -1, np.int32) if rows.labels is None else rows.labels
        return appended(old, rows.n, np.array(numbers, np.int32))

    def _set(self, rows: Rows) -> None:
        """Make rows the content; squeeze the dead out once they outnumber the root of the rows."""
        if len(rows.dead) > 64 and len(rows.dead) ** 2 > rows.n:
            rows = rows.squeezed()
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
            D, R = self._best(rows, among, self._as_words(queries, "queries"), k, scan.nearest)
            return D, self._ids_of(rows, R)
        F = self._as_outputs(queries)
        if mode == "asymmetric":
            D, R = self._best(rows, among, F, k, scan.best_scores)
        else:
            n_short = check_integer("shortlist", max(100, 10 * k) if shortlist is None else shortlist, low=k)
            _, R = self._best(rows, among, self._as_words(pack(F), "queries"), n_short, scan.nearest)
            D, R = rerank(F, rows.codes, R, k)
        return (-D).astype(np.float32), self._ids_of(rows, R)

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
        return lims, D, self._ids_of(rows, R)

    def measure_recall(self, queries: ArrayLike, k: int = 10) -> float:
        """The share of the k nearest that ``search`` finds, against an exact scan; ties count as found."""
        check_integer("k", k, low=1)
        rows, Q = self._rows, self._as_words(queries, "queries")
        D, _ = self._best(rows, None, Q, k, scan.nearest)
        exact, _ = self._best(rows, None, Q, k, scan.nearest, use_view=False)
        return float((exact[:, -1:] >= D).mean()) if exact.size else 1.0

    def _best(
        self, rows: Rows, among: NDArray[Any] | None, Q: NDArray[Any], k: int, kernel: Kernel, use_view: bool = True
    ) -> scan.Found:
        """The k first rows by key, among some or all of the living."""
        if among is not None:
            D, R = run(kernel, Q, rows.codes[among], min(k, len(among)))
            return D, among[R]
        k = min(k, rows.n - len(rows.dead))
        wanted = k + len(rows.dead)  # so many that k are left when the dead are dropped
        view = self._view(rows, len(Q)) if use_view else None
        start = 0 if view is None else view.n
        parts = [] if view is None else [view.best(Q, min(wanted, view.n), kernel)]
        if start < rows.n:  # rows that came after the view
            D, R = run(kernel, Q, rows.codes[start : rows.n], min(wanted, rows.n - start))
            parts.append((D, R + start))
        D, R = merge(parts, len(Q), wanted)
        return without(rows.dead, D, R, k)

    def _within(
        self, rows: Rows, among: NDArray[Any] | None, Q: NDArray[Any], radius: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """(lims, D, rows) of all living rows within the radius, by distance, then by row."""
        if among is not None:
            found, D, R = run_within(Q, rows.codes[among], radius)
            parts = [(found, D, among[R])]
        else:
            view = self._view(rows, len(Q))
            start = view.n if isinstance(view, Groups) else 0
            parts = [view.within(Q, radius)] if isinstance(view, Groups) else []
            if start < rows.n or not parts:
                found, D, R = run_within(Q, rows.codes[start : rows.n], radius)
                parts.append((found, D, R + start))
        return merge_within(parts, len(Q), rows.dead)

    def _view(self, rows: Rows, n_queries: int) -> Groups | Lists | None:
        """The view of these rows, made anew if scanning what it does not cover has cost as much as making it."""
        covered = 0 if rows.view is None else rows.view.n
        self._scanned += n_queries * (rows.n - covered)
        if rows.n == covered or rows.n < 4096 or self._scanned < REGROUP * rows.n:
            return rows.view
        if not self._making_view.acquire(blocking=False):  # another thread is at it
            return rows.view
        try:
            view: Groups | Lists
            view = (
                Groups.of(rows, self.n_bits) if self.mode == "exact" else Lists.of(rows, self.n_lists, self.n_probe)
            )
            with self._lock:
                self._scanned = 0
                if self._rows.born is rows.born:  # rows may have come since, but were not numbered anew
                    self._rows = replace(self._rows, view=view.moved(self._rows.codes))
        finally:
            self._making_view.release()
        return view

    def _new_view(self, rows: Rows) -> Groups | Lists:
        if self.mode == "exact":
            return Groups.of(rows, self.n_bits)
        return Lists.of(rows, self.n_lists, self.n_probe)

    def _ids_of(self, rows: Rows, R: NDArray[np.int64]) -> Ids:
        """The ids of rows; n growing whole numbers from 0 to n − 1 are the row numbers themselves."""
        growing = isinstance(self._lookup, IntegerLookup) and self._lookup.slots is None
        if growing and rows.n and rows.ids[0] == 0 and rows.ids[rows.n - 1] == rows.n - 1:
            return R
        return rows.ids[R]

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
            arrays["id_text"], arrays["id_ends"] = to_text(rows.ids[: rows.n])
        if rows.labels is not None:
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
        ids = np.asarray(arrays["ids"]) if "ids" in arrays else from_text(arrays["id_text"], arrays["id_ends"])
        labels, values = arrays.get("labels"), []
        if len(ids) != n or (labels is not None and len(labels) != n):
            raise ValueError(f"it has {n:,} codes, but not as many ids or labels")
        if labels is not None:
            values = json.loads(bytes(arrays["label_values"]))
            if n and not -1 <= labels.min() <= labels.max() < len(values):
                raise ValueError("a label is not in its list of labels")
        self._vocabulary = {value: i for i, value in enumerate(values)}
        self._next_id = int(fitted["next_id"])
        self._rows = Rows(codes, ids, labels, n)
        if n:
            self._lookup = IntegerLookup() if ids.dtype == np.int64 else StringLookup()
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
        strings = isinstance(self._lookup, StringLookup)
        if ids is None:
            if strings:
                raise ValueError("ids must be given: this index has strings as ids")
            return np.arange(self._next_id, self._next_id + n)
        given = as_ids(ids, n)
        if n and self._lookup is not None and (given.dtype == object) != strings:
            kinds = ("strings", "whole numbers")
            raise ValueError(f"ids must be {kinds[not strings]} as those of the index are, got {kinds[strings]}")
        if len(given) > 1 and not (given[1:] > given[:-1]).all():
            ordered = np.sort(given)
            twice = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(twice):
                raise ValueError(f"id {twice.tolist()[0]!r} is given twice")
        return given

    def _find(self, ids: Ids) -> NDArray[np.int64]:
        """Rows of ids, −1 for those that are not there."""
        if self._lookup is None or not len(ids):
            return np.full(len(ids), -1)
        return self._lookup.find(ids, self._rows)

    def _where(self, ids: ArrayLike) -> tuple[Rows, NDArray[np.int64]]:
        """The content and the rows of some ids in it; an id that is not there is an error."""
        given = as_ids(ids)
        with self._lock:
            found = self._find(given)
            if (found < 0).any():
                raise KeyError(f"id {given[found < 0].tolist()[0]!r} is not in the index")
            return self._rows, found

    def _among(self, ids: ArrayLike | None) -> tuple[Rows, NDArray[np.int64] | None]:
        """The content and the rows of a filter in it, ascending; None without a filter."""
        if ids is None:
            return self._rows, None
        given = as_ids(ids)
        with self._lock:
            found = self._find(given)
            return self._rows, np.unique(found[found >= 0])
