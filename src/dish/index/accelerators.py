"""Structures that make a search faster than a scan: groups of equal codes (exact), inverted lists (approximate)."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.index import grouping, hashtable, multiindex, scan
from dish.index.merge import Scan, concatenate, k_best, stack
from dish.install import pip_install

SCANS = 50  # building an accelerator costs about as much as this many scans of the same rows
LEAST_ROWS = 4096  # fewer rows are always scanned
SCATTER = 5  # reading a row at random costs about as much as scanning 2**5 rows in order


class AcceleratorCache:
    """The newest accelerator of a generation's rows.

    A search builds it once scanning the rows that it does not cover has cost as much as building it.
    """

    def __init__(self, make: Callable[[NDArray[Any]], GroupedCodes | InvertedLists]) -> None:
        self.make = make  # takes the codes (n, w) to cover
        self.newest: GroupedCodes | InvertedLists | None = None
        self._codes: NDArray[Any] | None = None
        self._scanned = 0  # uncovered rows scanned since the newest was built
        self._lock = threading.Lock()
        self._building = threading.Lock()

    def move_to(self, codes: NDArray[Any]) -> None:
        """Refer to the codes in a new array, so that the old array can be freed."""
        with self._lock:
            self._codes = codes
            self.newest = None if self.newest is None else self.newest.moved_to(codes)

    def covering(self, codes: NDArray[Any], n_queries: int) -> GroupedCodes | InvertedLists | None:
        """Return an accelerator of the first rows of ``codes`` (n, w), perhaps built just now; None if there is none.

        ``n_queries`` is the size of the search that asks for it.
        """
        newest, n = self.newest, len(codes)
        if newest is not None and newest.n > n:  # built for a later snapshot
            newest = None
        covered = 0 if newest is None else newest.n
        self._scanned += n_queries * (n - covered)
        if n == covered or n < LEAST_ROWS or self._scanned < SCANS * n:
            return newest
        if not self._building.acquire(blocking=False):  # another thread is building one
            return newest
        try:
            built = self.make(codes)
            with self._lock:
                self._scanned = 0
                if self.newest is None or self.newest.n < built.n:
                    self.newest = built if self._codes is None else built.moved_to(self._codes)
        finally:
            self._building.release()
        return built


@dataclass(frozen=True)
class GroupedCodes:
    """The u distinct codes of the first n rows, and the rows of each; or the codes of all rows, if few repeat."""

    codes: NDArray[Any]  # (u, w), by first appearance
    n: int
    m: int  # words used for multi-index hashing: the full 64-bit words, at most four
    members: tuple[NDArray[np.int32], NDArray[np.int32]] | None  # ``grouping.list_members``; None: group = row
    tables: list[Any] = field(default_factory=list)  # ``multiindex.list_by_bits``, once radius searches repay it
    queries_before_tables: list[int] = field(default_factory=list)  # sizes of the radius searches before that
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, B: NDArray[Any], n_bits: int) -> GroupedCodes:
        """Group the rows, unless there are too many distinct codes for groups to save memory."""
        n, m = len(B), max(1, min(4, n_bits // 64))
        width = B.itemsize * B.shape[1]
        share = (width - 4) / (width + 4 + 4.5 * m) if width > 4 else 0.2  # 4 bytes per row, the others per group
        most = int(share * n)
        first, member_of = grouping.group(hashtable.empty_slots(most + 1), B, most)
        if not len(first):
            return cls(B, n, m, None)
        return cls(B[first], n, m, grouping.list_members(member_of, len(first)))

    def moved_to(self, codes: NDArray[Any]) -> GroupedCodes:
        """Return the same groups, referring to the rows' codes in a new array."""
        return replace(self, codes=codes[: self.n]) if self.members is None else self

    @property
    def nbytes(self) -> int:
        """Bytes held in addition to the rows' codes."""
        groups = 0 if self.members is None else self.codes.nbytes + sum(a.nbytes for a in self.members)
        return groups + sum(a.nbytes for table in self.tables for a in table)

    def best(self, Q: NDArray[Any], k: int, kernel: Scan) -> scan.Found:
        """Return the k best rows. They are in the k best groups, since groups are ordered by their first rows."""
        if self.members is None:
            return k_best(kernel, Q, self.codes, k)
        starts, members = self.members

        def expanded(part: NDArray[Any]) -> Any:
            D, G = kernel(part, self.codes, min(k, len(self.codes)))
            return grouping.expand(D, G, starts, members, k)

        return stack(scan.over_queries(expanded, Q, k=k), len(Q), k)

    def within(self, Q: NDArray[Any], radius: int, limit: int | None = None) -> Any:
        """Return (hits, listed hits) per query, then distances and rows of the listed hits.

        Grouped rows are listed up to ``limit`` per query, ungrouped ones all.
        """
        parts = scan.over_queries(self._radius_kernel(radius, len(Q)), Q)
        if self.members is None:
            found, D, R = concatenate(parts)
            return found, found, D, R
        return _expand_within(parts, *self.members, limit)

    def _radius_kernel(self, radius: int, n_queries: int) -> Callable[[NDArray[Any]], Any]:
        """Return a function that finds the codes within the radius: multi-index hashing, or a scan if cheaper."""
        u = len(self.codes)
        t = u.bit_length() - 4  # bits per bucket number: 8 to 16 codes per bucket if they are uniform
        if not self.tables and u >= LEAST_ROWS and self.codes.dtype == np.uint64:
            with self.lock:
                self.queries_before_tables.append(n_queries)
                if not self.tables and sum(self.queries_before_tables) >= SCANS:
                    self.tables.append(multiindex.list_by_bits(self.codes, self.m, t))
        patterns = multiindex.near_patterns(t, radius // self.m, most=u >> SCATTER) if self.tables else None
        if patterns is None:
            return lambda Q: scan.within(Q, self.codes, radius)
        return lambda Q: self._within_by_bits(Q, radius, patterns)

    def _within_by_bits(self, Q: NDArray[Any], radius: int, patterns: NDArray[np.int64]) -> Any:
        """Use the buckets for queries whose buckets hold few codes, and a scan for the others."""
        starts, order = self.tables[0]
        full = multiindex.count_by_bits(Q, starts, patterns) > len(self.codes) >> SCATTER
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


def _expand_within(parts: list[Any], starts: NDArray[np.int32], members: NDArray[np.int32], limit: int | None) -> Any:
    """Expand the groups within a radius to rows: count them, then let each thread write its part of the result."""
    counts = [grouping.count_rows(found, G, starts) for found, _, G in parts]
    listed = counts if limit is None else [np.minimum(count, limit) for count in counts]
    ends = np.cumsum([0, *(int(n.sum()) for n in listed)])
    D, R = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.int64)

    def expand(i: int) -> None:
        place = slice(ends[i], ends[i + 1])
        grouping.expand_all(*parts[i], listed[i], starts, members, D[place], R[place])

    scan.map_threads(expand, range(len(parts)))
    none = np.empty(0, np.int64)
    return np.concatenate([none, *counts]), np.concatenate([none, *listed]), D, R


@dataclass(frozen=True)
class InvertedLists:
    """An inverted file over the first n rows (faiss IndexBinaryIVF)."""

    codes: NDArray[Any]  # (n, w)
    ivf: Any

    @classmethod
    def of(cls, codes: NDArray[Any], n_lists: int | None, n_probe: int | None) -> InvertedLists:
        """Train and fill the lists."""
        import faiss

        n, B = len(codes), np.ascontiguousarray(codes).view(np.uint8)
        n_lists = min(n_lists or int(4 * n**0.5), n)
        ivf: Any = faiss.index_binary_factory(8 * B.shape[1], f"BIVF{n_lists}")
        ivf.cp.min_points_per_centroid = 1  # no warning: the user may choose many lists
        ivf.nprobe = min(n_probe or max(1, n_lists // 16), n_lists)
        sample = np.random.default_rng(0).permutation(n)[: 64 * n_lists]
        ivf.train(B[np.sort(sample)])
        ivf.add(B)
        return cls(codes, ivf)

    def moved_to(self, codes: NDArray[Any]) -> InvertedLists:
        """Return the same lists, referring to the rows' codes in a new array."""
        return replace(self, codes=codes[: self.n])

    @property
    def n(self) -> int:
        """Number of rows covered."""
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        """Bytes held: a copy of the codes and 8 bytes per row."""
        return self.n * (self.ivf.code_size + 8)

    def best(self, Q: NDArray[Any], k: int, kernel: Scan) -> scan.Found:
        """Return the k nearest rows of the probed lists; scan if they hold fewer than k, or for other kernels."""
        if kernel is not scan.nearest:
            return k_best(kernel, Q, self.codes, k)
        D, R = self.ivf.search(Q.view(np.uint8), k)
        order = np.lexsort((R, D), axis=1)
        D, R = np.take_along_axis(D, order, 1), np.take_along_axis(R, order, 1)
        short = (R < 0).any(axis=1)
        if short.any():
            D[short], R[short] = k_best(kernel, Q[short], self.codes, k)
        return D, R


def require_faiss() -> None:
    """Raise ImportError if faiss, which the approximate mode needs, is not installed."""
    if importlib.util.find_spec("faiss") is None:
        raise ImportError(
            f"mode='approximate' needs faiss, which is not installed: run {pip_install('faiss')}, or use mode='exact'"
        )
