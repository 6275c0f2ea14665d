"""HammingIndex: exact search over packed codes, with ids, labels, filters and files."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer, check_option
from dish.errors import InputError, ModelFileError
from dish.ids_and_labels import Ids, as_ids, as_labels
from dish.index.accelerators import Groups, Lists, require_faiss
from dish.index.files import from_arrays, to_arrays
from dish.index.snapshot import MakeView, Snapshot
from dish.index.words import to_words, words_of
from dish.io import modelfile

MOST_ROWS = 2**31 - 1


class HammingIndex:
    """Packed codes with ids: nearest codes, codes within a radius, filters, removal, files.

    Exact unless ``mode="approximate"``. Of rows at equal distance the one inserted first comes first; an upserted
    row counts as newly inserted. Threads may search while others write: a search sees the index as it was when it
    began, and nothing waits for it. Where several answers belong together (hits, their labels, their codes), ask
    one ``snapshot()`` for all of them. Copies, pickles and joblib dumps are independent of the original.

    Learned codes repeat: rows with equal codes are grouped, the distinct codes are searched, and the groups
    found are expanded to rows. Grouping happens by itself, in a search, once scanning the rows that are not
    grouped yet has cost as much as grouping does; adding never pays for it.

    Parameters
    ----------
    n_bits : int, default=64
        Code length; need not be a multiple of 8.
    mode : "exact" or "approximate", default="exact"
        "approximate" looks only into the ``n_probe`` lists nearest to a query (faiss IndexBinaryIVF, ``pip install
        'dish-hash[faiss]'``): for tens of millions of rows. ``measure_recall`` says what it misses.
        ``radius_search`` stays exact.
    n_lists : int or None, default=None
        Lists of the approximate mode; None: four times the square root of the rows.
    n_probe : int or None, default=None
        Lists looked into; None: a sixteenth of them.
    model : str or None, default=None
        ``fingerprint_`` of the hasher that made the codes, kept in the file. ``check_model`` refuses another hasher's
        codes; None: unknown, nothing is checked.

    Attributes
    ----------
    ids : int64 or object (n,)
        The ids, in the order of insertion.

    Notes
    -----
    Beside faiss's IndexBinaryFlat: codes have the same layout (``np.packbits``), but ``n_bits`` counts bits and need
    not be a multiple of 8, ``radius`` means ≤ (``range_search`` means <), answers with fewer than k rows are shorter
    (not padded with −1), and there is nothing to train.

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
        self._lock = threading.RLock()  # held by writers; readers take the snapshot as it is
        self._next_id = 0
        word, n_words = words_of(self.n_bits)
        self._make_view: MakeView = (  # not a method: a snapshot must not keep its index alive
            partial(Groups.of, n_bits=self.n_bits)
            if self.mode == "exact"
            else partial(Lists.of, n_lists=self.n_lists, n_probe=self.n_probe)
        )
        self._now = Snapshot.of(self.n_bits, self._make_view, np.empty((0, n_words), word), np.empty(0, np.int64))

    # --- content ---

    def snapshot(self) -> Snapshot:
        """The index as it is now, for answers that belong together: it stays as it is whatever is written later.

        It has ``search``, ``radius_search``, ``radius_count``, ``get``, ``labels_of``, ``ids``, ``sample_ids``,
        ``len`` and ``in``.
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
        """The ids, in the order of insertion."""
        return np.array(self._now.ids)

    def get(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """The codes of some ids, uint8 (n, ceil(n_bits / 8))."""
        return self._now.get(ids)

    def labels_of(self, ids: ArrayLike) -> NDArray[Any]:
        """The labels of some ids; None for a row without one (the array is then one of objects)."""
        return self._now.labels_of(ids)

    def nbytes(self) -> dict[str, int]:
        """Bytes held: codes, what speeds up the search, ids with their look-up, labels."""
        return self._now.nbytes()

    def check_model(self, fingerprint: str | None, what: str = "the model") -> None:
        """Refuse the codes of another model than this index's: ModelMismatchError names both (``what``: whose codes).

        Nothing is checked, and a line of the log says so, where either is unknown.
        """
        modelfile.check_same_model(self.model, fingerprint, "the index", what)

    # --- writing ---

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None, labels: ArrayLike | None = None) -> None:
        """Append packed codes. An id that is there already is an error, and then nothing is added.

        ``ids``: whole numbers or strings, one kind per index; None: running numbers. ``labels``: one number or string
        per row, each kept as it is; None, NaN or NaT for a row without a label.
        """
        words, values = self._rows_given(codes, labels)
        with self._lock:
            given = self._new_ids(ids, len(words))
            there = self._now.rows_of(given) >= 0
            if there.any():
                raise InputError(f"id {given[there].tolist()[0]!r} is in the index already; upsert replaces it")
            self._append(self._now, words, given, values)

    def upsert(self, codes: ArrayLike, ids: ArrayLike, labels: ArrayLike | None = None) -> None:
        """Add codes, replacing those of ids that are there (with their labels)."""
        words, values = self._rows_given(codes, labels)
        with self._lock:
            given = self._new_ids(ids, len(words))
            there = self._now.rows_of(given)
            self._append(self._now.without(there[there >= 0]), words, given, values)

    def remove(self, ids: ArrayLike) -> int:
        """Remove rows by id; ids that are not there are ignored. The number of rows removed."""
        with self._lock:
            found = self._now.rows_of(as_ids(ids))
            found = np.unique(found[found >= 0])
            self._publish(self._now.without(found))
            return len(found)

    def _rows_given(self, codes: ArrayLike, labels: ArrayLike | None) -> tuple[NDArray[Any], list[Any] | None]:
        words = to_words(codes, self.n_bits, "codes")
        return words, as_labels(labels, len(words))

    def _append(self, rows: Snapshot, words: NDArray[Any], ids: Ids, labels: list[Any] | None) -> None:
        if rows.n + len(words) > MOST_ROWS:
            raise InputError(f"an index holds at most {MOST_ROWS:,} rows")
        if not len(words):
            return
        if not rows.n and rows.ids_.dtype != ids.dtype:  # an empty index takes either kind of ids
            rows = Snapshot.of(self.n_bits, self._make_view, rows.codes, np.empty(0, ids.dtype))
        try:
            extended = rows.extended(words, ids, labels)
        except BaseException:
            self._now = self._now.compacted()  # what was shared may hold half of the new rows
            raise
        if ids.dtype == np.int64:
            self._next_id = max(self._next_id, int(ids.max()) + 1)
        self._publish(extended)

    def _publish(self, rows: Snapshot) -> None:
        """Make these rows the content; compact once deleted rows exceed √n."""
        many = len(rows.deleted) > 64 and len(rows.deleted) ** 2 > rows.n
        self._now = rows.compacted() if many or (rows.n and not len(rows)) else rows

    def _new_ids(self, ids: ArrayLike | None, n: int) -> Ids:
        """The ids of n rows to come: of the index's kind, none twice."""
        strings = self._now.ids_.dtype == object
        if ids is None:
            if strings and self._now.n:
                raise InputError("ids must be given: this index has strings as ids")
            return np.arange(self._next_id, self._next_id + n)
        given = as_ids(ids, n)
        if n and self._now.n and (given.dtype == object) != strings:
            kinds = ("strings", "whole numbers")
            raise InputError(f"ids must be {kinds[not strings]} as those of the index are, got {kinds[strings]}")
        if len(given) > 1 and not (given[1:] > given[:-1]).all():
            ordered = np.sort(given)
            twice = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(twice):
                raise InputError(f"id {twice.tolist()[0]!r} is given twice")
        return given

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
        queries : uint8 (n_queries, ceil(n_bits / 8)) or float (n_queries, n_bits)
            Packed codes; for the asymmetric modes real outputs.
        k : int, default=10
            How many. An index with fewer rows returns all of them: there is no padding.
        ids : ids or None, default=None
            Search among these only. Ids that are not in the index are ignored.
        mode : "hamming", "asymmetric" or "rerank", default="hamming"
            "hamming": D int32, the distances, ascending. "asymmetric": D float32, inner products of the real
            outputs of a hasher (``decision_function``) with the stored ±1 codes, descending; exact. "rerank":
            the same order, but only among the ``shortlist`` rows nearest by the signs of the outputs.
        shortlist : int or None, default=None
            None: ten times k, at least 100.

        Returns
        -------
        D, I : (n_queries, min(k, rows)) each
            Distances or products, and ids.
        """
        return self._now.search(queries, k, ids, mode, shortlist)

    def radius_search(
        self, queries: ArrayLike, radius: int = 2, ids: ArrayLike | None = None, limit: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], Ids]:
        """All rows at distance ≤ ``radius``: (lims, D, I), those of query i at lims[i]:lims[i + 1].

        Exact in every mode. Ordered by distance, then by insertion. ``limit``: at most so many per query, the first
        of them; where many rows share a code that saves most of the work. ``radius_count`` says how many there are.
        """
        return self._now.radius_search(queries, radius, ids, limit)

    def radius_count(self, queries: ArrayLike, radius: int = 2, ids: ArrayLike | None = None) -> NDArray[np.int64]:
        """How many rows are at distance ≤ ``radius`` of every query, without listing them."""
        return self._now.radius_count(queries, radius, ids)

    def measure_recall(self, queries: ArrayLike, k: int = 10) -> float:
        """The share of the k nearest that ``search`` finds, against an exact scan; ties count as found."""
        return self._now.measure_recall(queries, k)

    # --- files and copies ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one file, atomically, with a checksum and without pickle."""
        state = self.__getstate__()
        arrays = state.pop("arrays")
        modelfile.save(path, "HammingIndex", state, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], mmap: bool = False, verify: bool | None = None) -> Self:
        """Read an index written by ``save``.

        With ``mmap`` the codes and ids stay in the file and are read as the search touches them; the first write
        brings them into memory. The checksum is verified unless the file is mapped: verifying reads all of it.
        ``verify`` overrides this.
        """
        kind, content, arrays = modelfile.read(path, mmap=mmap, verify=not mmap if verify is None else verify)
        if kind != "HammingIndex":
            raise ModelFileError(f"{path} holds a {kind}, not an index; dish.load reads it")
        index = cls.__new__(cls)
        try:
            index.__setstate__({**content, "arrays": arrays})
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path} is no index of this version of dish: {error}") from None
        return index

    def __getstate__(self) -> dict[str, Any]:
        """What makes up the index: for files, and for copies, which share memory until one of them is written to."""
        with self._lock:
            rows, next_id, model = self._now, self._next_id, self.model
        arrays = {name: np.asarray(a).view(np.ndarray) for name, a in to_arrays(rows).items()}
        init = {"n_bits": self.n_bits, "mode": self.mode, "n_lists": self.n_lists, "n_probe": self.n_probe}
        fitted = {"rows": len(rows), "next_id": next_id, **({"model": model} if model else {})}
        return {"init": init, "fitted": fitted, "arrays": arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fitted = state["fitted"]
        self.__init__(**state["init"], model=fitted.get("model"))  # type: ignore[misc]
        self._now = from_arrays(state["arrays"], int(fitted["rows"]), self.n_bits, self._make_view)
        self._next_id = int(fitted["next_id"])
