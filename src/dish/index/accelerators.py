"""Views of an index's rows that make a search faster than a scan: groups of equal codes, or lists (approximate)."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.index import grouping, hashtable, multiindex, scan
from dish.index.merge import Kernel, joined, run, stacked

REGROUP = 50  # grouping the rows costs about as much as scanning each of them that many times
FEWEST = 4096  # rows; fewer are scanned


class Views:
    """The newest view of the rows of one generation, made by a search once scanning has cost as much as making it."""

    def __init__(self, make: Callable[[NDArray[Any]], Groups | Lists]) -> None:
        self.make = make  # from the codes (n, w) it is to cover
        self.newest: Groups | Lists | None = None
        self._codes: NDArray[Any] | None = None
        self._scanned = 0  # rows scanned that a view does not cover, since the last view
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def move_to(self, codes: NDArray[Any]) -> None:
        """Use the codes at their new place in memory, so that the old one is released."""
        with self._lock:
            self._codes = codes
            self.newest = None if self.newest is None else self.newest.moved(codes)

    def covering(self, codes: NDArray[Any], n_queries: int) -> Groups | Lists | None:
        """A view of the first of these rows (n, w), for so many queries; None if there is none yet."""
        view, n = self.newest, len(codes)
        if view is not None and view.n > n:  # it was made for a later snapshot
            view = None
        covered = 0 if view is None else view.n
        self._scanned += n_queries * (n - covered)
        if n == covered or n < FEWEST or self._scanned < REGROUP * n:
            return view
        if not self._making.acquire(blocking=False):  # another thread is at it
            return view
        try:
            made = self.make(codes)
            with self._lock:
                self._scanned = 0
                if self.newest is None or self.newest.n < made.n:
                    self.newest = made if self._codes is None else made.moved(self._codes)
        finally:
            self._making.release()
        return made


@dataclass(frozen=True)
class Groups:
    """The distinct codes of the first n rows, and the rows of each; or the rows as they are, if few codes repeat."""

    codes: NDArray[Any]  # (u, w), in the order of first appearance
    n: int
    m: int  # words by which codes are listed for radius searches: those full of bits, at most four
    members: tuple[NDArray[np.int32], NDArray[np.int32]] | None  # (starts, rows by group); None: u = n, row = group
    tables: list[Any] = field(default_factory=list)  # of multi-index hashing, once radius searches call for them
    queries_before_tables: list[int] = field(default_factory=list)  # radius queries answered without them
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, B: NDArray[Any], n_bits: int) -> Groups:
        """Group the rows, unless so many codes are distinct that the groups would take more room than the codes."""
        n, m = len(B), max(1, min(4, n_bits // 64))
        width = B.itemsize * B.shape[1]
        share = (width - 4) / (width + 4 + 4.5 * m) if width > 4 else 0.2  # 4 bytes per row, the rest per group
        most = int(share * n)
        first, member_of = grouping.group(hashtable.empty_slots(most + 1), B, most)
        if not len(first):
            return cls(B, n, m, None)
        return cls(B[first], n, m, grouping.list_members(member_of, len(first)))

    def moved(self, codes: NDArray[Any]) -> Groups:
        """The same when the codes of the rows have moved in memory: the old place must not be kept."""
        return replace(self, codes=codes[: self.n]) if self.members is None else self

    @property
    def nbytes(self) -> int:
        """Bytes held beside the codes of the rows."""
        groups = 0 if self.members is None else self.codes.nbytes + sum(a.nbytes for a in self.members)
        return groups + sum(a.nbytes for table in self.tables for a in table)

    def best(self, Q: NDArray[Any], k: int, kernel: Kernel) -> scan.Found:
        """The k first rows. They lie in the k first groups: each has a row, and groups are in order of first rows."""
        if self.members is None:
            return run(kernel, Q, self.codes, k)
        starts, members = self.members

        def expanded(some: NDArray[Any]) -> Any:
            D, G = kernel(some, self.codes, min(k, len(self.codes)))
            return grouping.expand(D, G, starts, members, k)

        return stacked(scan.in_threads(expanded, Q, k=k), len(Q), k)

    def within(self, Q: NDArray[Any], radius: int, limit: int | None = None) -> Any:
        """Rows within the radius: how many there are and how many are listed per query; distances and rows of these.

        Groups need not be listed beyond ``limit`` rows of a query; rows as they are, all.
        """
        parts = scan.in_threads(self._looking(radius, len(Q)), Q)
        if self.members is None:
            found, D, R = joined(parts)
            return found, found, D, R
        return _expanded(parts, *self.members, limit)

    def _looking(self, radius: int, n_queries: int) -> Callable[[NDArray[Any]], Any]:
        """The way to the codes within a radius: by bits of some words, or by a scan if that costs less."""
        u = len(self.codes)
        n_listed = u.bit_length() - 4  # bits by which codes are listed: some 8 to 16 codes per bucket, if they spread
        if not self.tables and u >= 4096 and self.codes.dtype == np.uint64:
            with self.lock:
                self.queries_before_tables.append(n_queries)
                if not self.tables and sum(self.queries_before_tables) >= REGROUP:  # making them costs as many scans
                    self.tables.append(multiindex.list_by_bits(self.codes, self.m, n_listed))
        patterns = multiindex.near_patterns(n_listed, radius // self.m, most=u >> 5) if self.tables else None
        if patterns is None:
            return lambda Q: scan.within(Q, self.codes, radius)
        return lambda Q: self._look_by_bits(Q, radius, patterns)

    def _look_by_bits(self, Q: NDArray[Any], radius: int, patterns: NDArray[np.int64]) -> Any:
        """Buckets for the queries whose buckets hold few codes, a scan for the others."""
        starts, order = self.tables[0]
        full = (
            multiindex.count_by_bits(Q, starts, patterns) > len(self.codes) >> 5
        )  # a row here and there costs 32 in line
        if full.all():
            return scan.within(Q, self.codes, radius)
        rest = (radius, starts, order, patterns, radius // self.m)
        if not full.any():
            return multiindex.within_by_bits(Q, self.codes, *rest)
        a, b = scan.within(Q[full], self.codes, radius), multiindex.within_by_bits(Q[~full], self.codes, *rest)
        queries = np.concatenate(
            [np.repeat(np.flatnonzero(which), part[0]) for which, part in ((full, a), (~full, b))]
        )
        by_query = np.argsort(queries, kind="stable")
        D, R = (np.concatenate([a[i], b[i]])[by_query] for i in (1, 2))
        return np.bincount(queries, minlength=len(Q)), D, R


def _expanded(parts: list[Any], starts: NDArray[np.int32], members: NDArray[np.int32], limit: int | None) -> Any:
    """Groups → rows: counted first, then every thread writes its own to their place in the answer."""
    counts = [grouping.count_rows(found, G, starts) for found, _, G in parts]
    listed = counts if limit is None else [np.minimum(count, limit) for count in counts]
    ends = np.cumsum([0, *(int(n.sum()) for n in listed)])
    D, R = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.int64)

    def expand(i: int) -> None:
        place = slice(ends[i], ends[i + 1])
        grouping.expand_all(*parts[i], listed[i], starts, members, D[place], R[place])

    scan.share_out(expand, range(len(parts)))
    none = np.empty(0, np.int64)
    return np.concatenate([none, *counts]), np.concatenate([none, *listed]), D, R


@dataclass(frozen=True)
class Lists:
    """An inverted file over the first n rows (faiss IndexBinaryIVF)."""

    codes: NDArray[Any]  # (n, w)
    ivf: Any

    @classmethod
    def of(cls, codes: NDArray[Any], n_lists: int | None, n_probe: int | None) -> Lists:
        """Train and fill the lists."""
        import faiss

        n, B = len(codes), np.ascontiguousarray(codes).view(np.uint8)
        n_lists = min(n_lists or int(4 * n**0.5), n)
        ivf: Any = faiss.index_binary_factory(8 * B.shape[1], f"BIVF{n_lists}")
        ivf.cp.min_points_per_centroid = 1  # few rows per list is the user's choice
        ivf.nprobe = min(n_probe or max(1, n_lists // 16), n_lists)
        sample = np.random.default_rng(0).permutation(n)[: 64 * n_lists]
        ivf.train(B[np.sort(sample)])
        ivf.add(B)
        return cls(codes, ivf)

    def moved(self, codes: NDArray[Any]) -> Lists:
        """The same when the codes of the rows have moved in memory."""
        return replace(self, codes=codes[: self.n])

    @property
    def n(self) -> int:
        """Rows covered."""
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        """Bytes held: a copy of the codes and a number per row."""
        return self.n * (self.ivf.code_size + 8)

    def best(self, Q: NDArray[Any], k: int, kernel: Kernel) -> scan.Found:
        """The k first rows of the lists looked into; exact where they hold too few, and for keys of another kind."""
        if kernel is not scan.nearest:
            return run(kernel, Q, self.codes, k)
        D, R = self.ivf.search(Q.view(np.uint8), k)
        order = np.lexsort((R, D), axis=1)
        D, R = np.take_along_axis(D, order, 1), np.take_along_axis(R, order, 1)
        short = (R < 0).any(axis=1)
        if short.any():
            D[short], R[short] = run(kernel, Q[short], self.codes, k)
        return D, R


def require_faiss() -> None:
    """Refuse the approximate mode where faiss is not installed."""
    if importlib.util.find_spec("faiss") is None:
        raise ImportError(
            "mode='approximate' needs faiss, which is not installed: run pip install 'dish-hash[faiss]', or use "
            "mode='exact'"
        )
