"""What makes a search faster than a scan of all rows: groups of equal codes, or lists for approximate search."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.index import scan
from dish.index.snapshot import Rows

Kernel = Callable[..., Any]  # (queries, codes, k) → keys and rows, ascending by key, then by row

REGROUP = 50  # grouping the rows costs about as much as scanning each of them that many times


@dataclass(frozen=True)
class Groups:
    """The distinct codes of the first n rows, and the rows of each; or the rows as they are, if few codes repeat."""

    codes: NDArray[Any]  # (u, w), in the order of first appearance
    n: int
    m: int  # words by which codes are listed for radius searches: those full of bits, at most four
    members: tuple[NDArray[np.int32], NDArray[np.int32]] | None  # (starts, rows by group); None: u = n, row = group
    tables: list[Any] = field(default_factory=list)  # of multi-index hashing, once radius searches call for them
    waited: list[int] = field(default_factory=list)  # queries answered without
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, rows: Rows, n_bits: int) -> Groups:
        """Group the rows, unless so many codes are distinct that the groups would take more room than the codes."""
        B, m = rows.codes[: rows.n], max(1, min(4, n_bits // 64))
        width = B.itemsize * B.shape[1]
        share = (width - 4) / (width + 4 + 4.5 * m) if width > 4 else 0.2  # 4 bytes a row, the rest a group
        most = int(share * rows.n)
        first, member_of = scan.group(scan.empty_slots(most + 1), B, most)
        if not len(first):
            return cls(B, rows.n, m, None)
        return cls(B[first], rows.n, m, scan.list_members(member_of, len(first)))

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
            return scan.expand(D, G, starts, members, k)

        return _stacked(scan.in_threads(expanded, Q, k=k), len(Q), k)

    def within(self, Q: NDArray[Any], radius: int) -> Any:
        """All rows within the radius: how many a query, distances, rows."""
        look = self._looking(radius, len(Q))

        def expanded(some: NDArray[Any]) -> Any:
            found = look(some)
            return found if self.members is None else scan.expand_all(*found, *self.members)

        return _joined(scan.in_threads(expanded, Q))

    def _looking(self, radius: int, n_queries: int) -> Callable[[NDArray[Any]], Any]:
        """The way to the codes within a radius: by bits of some words, or by a scan if that costs less."""
        u = len(self.codes)
        n_listed = u.bit_length() - 4  # bits by which codes are listed: some 8 to 16 codes a bucket, if they spread
        if not self.tables and u >= 4096 and self.codes.dtype == np.uint64:
            with self.lock:
                self.waited.append(n_queries)
                if not self.tables and sum(self.waited) >= REGROUP:  # making them costs as many scans
                    self.tables.append(scan.list_by_bits(self.codes, self.m, n_listed))
        patterns = scan.near_patterns(n_listed, radius // self.m, most=u >> 5) if self.tables else None
        if patterns is None:
            return lambda Q: scan.within(Q, self.codes, radius)
        return lambda Q: self._look_by_bits(Q, radius, patterns)

    def _look_by_bits(self, Q: NDArray[Any], radius: int, patterns: NDArray[np.int64]) -> Any:
        """Buckets for the queries whose buckets hold few codes, a scan for the others."""
        starts, order = self.tables[0]
        full = scan.count_by_bits(Q, starts, patterns) > len(self.codes) >> 5  # a row here and there costs 32 in line
        if full.all():
            return scan.within(Q, self.codes, radius)
        rest = (radius, starts, order, patterns, radius // self.m)
        if not full.any():
            return scan.within_by_bits(Q, self.codes, *rest)
        a, b = scan.within(Q[full], self.codes, radius), scan.within_by_bits(Q[~full], self.codes, *rest)
        queries = np.concatenate(
            [np.repeat(np.flatnonzero(which), part[0]) for which, part in ((full, a), (~full, b))]
        )
        by_query = np.argsort(queries, kind="stable")
        D, R = (np.concatenate([a[i], b[i]])[by_query] for i in (1, 2))
        return np.bincount(queries, minlength=len(Q)), D, R


@dataclass(frozen=True)
class Lists:
    """An inverted file over the first n rows (faiss IndexBinaryIVF)."""

    codes: NDArray[Any]  # (n, w)
    ivf: Any

    @classmethod
    def of(cls, rows: Rows, n_lists: int | None, n_probe: int | None) -> Lists:
        """Train and fill the lists."""
        import faiss

        codes = rows.codes[: rows.n]
        B = np.ascontiguousarray(codes).view(np.uint8)
        n_bits = 8 * B.shape[1]
        n_lists = min(n_lists or int(4 * rows.n**0.5), rows.n)
        ivf: Any = faiss.index_binary_factory(n_bits, f"BIVF{n_lists}")
        ivf.cp.min_points_per_centroid = 1  # few rows a list is the user's choice
        ivf.nprobe = min(n_probe or max(1, n_lists // 16), n_lists)
        sample = np.random.default_rng(0).permutation(rows.n)[: 64 * n_lists]
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
        """Bytes held: a copy of the codes and a number a row."""
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


# --- Answers ----------------------------------------------------------------------------------------------


def run(kernel: Kernel, Q: NDArray[Any], B: NDArray[Any], k: int) -> scan.Found:
    """A kernel over all queries."""
    return _stacked(scan.in_threads(kernel, Q, B, k, k=k) if k else [], len(Q), k)


def run_within(Q: NDArray[Any], B: NDArray[Any], radius: int) -> Any:
    """``scan.within`` over all queries."""
    return _joined(scan.in_threads(scan.within, Q, B, radius))


def _stacked(parts: list[scan.Found], n: int, k: int) -> scan.Found:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.empty((n, k), np.int32), np.empty((n, k), np.int64)
    return np.concatenate([D for D, _ in parts]), np.concatenate([R for _, R in parts])


def _joined(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    empty = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))
    return tuple(np.concatenate(arrays) for arrays in zip(empty, *parts, strict=True))


def merge(parts: list[scan.Found], n: int, k: int) -> scan.Found:
    """Answers over one stretch of rows after another → the first k by key; a stable sort keeps rows in order."""
    if len(parts) < 2:
        return parts[0] if parts else _stacked([], n, 0)
    D, R = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, 1), np.take_along_axis(R, order, 1)


def merge_within(parts: list[Any], n: int, dead: NDArray[np.int64]) -> Any:
    """(how many, distances, rows) over stretches of rows → (lims, distances, rows), the dead dropped."""
    found, D, R = _joined(parts)
    if len(parts) > 1 or len(dead):
        query = np.concatenate([np.repeat(np.arange(n), part[0]) for part in parts])
        alive = ~np.isin(R, dead)
        query, D, R = query[alive], D[alive], R[alive]
        order = np.lexsort((R, D, query))
        found, D, R = np.bincount(query, minlength=n), D[order], R[order]
    lims = np.zeros(n + 1, np.int64)
    np.cumsum(found, out=lims[1:])
    return lims, D, R


def without(dead: NDArray[np.int64], D: NDArray[Any], R: NDArray[np.int64], k: int) -> scan.Found:
    """The first k of each line that are not dead; there are so many."""
    if not len(dead):
        return D, R
    alive = ~np.isin(R, dead)
    kept = alive & (np.cumsum(alive, axis=1) <= k)
    return D[kept].reshape(len(D), k), R[kept].reshape(len(D), k)


def rerank(F: NDArray[np.float64], codes: NDArray[Any], R: NDArray[np.int64], k: int) -> scan.Found:
    """The k best by inner product of each line of candidates."""
    k = min(k, R.shape[1])
    R = np.sort(R, axis=1)  # equal scores in the order of rows
    parts = []
    for i in range(len(F) if k else 0):
        D, r = scan.best_scores(F[i : i + 1], codes[R[i]], k)
        parts.append((D, R[i][r]))
    return _stacked(parts, len(F), k)
