"""Histograms of the distances between each query and the database rows, counted without sorting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish import numba_lazy, threads
from dish.codes import as_words, distances, n_bytes, popcount
from dish.errors import InputError
from dish.metrics.relevance import Labels, check_pair, match_labels
from dish.numba_lazy import njit
from dish.progress import progress

if TYPE_CHECKING:
    import torch

_TILE = 2048  # database rows per tile, which stays in cache
GROUP = 8  # queries per tile


@dataclass
class Histograms:
    """Number of database rows at each distance from each query, (n_queries, r + 1): all rows, and the relevant ones.

    ``expected_average_precision`` takes torch tensors too; all other functions need NumPy arrays.
    """

    all_: Any
    relevant: Any


def histograms(
    q_codes: ArrayLike,
    q_labels: Any,
    db_codes: ArrayLike,
    db_labels: Any,
    n_bits: int | None = None,
    device: str = "cpu",
) -> Histograms:
    """Count the database rows, and the relevant ones, at every distance from every query.

    The CPU counts by a popcount kernel on all cores, any other torch ``device`` by a matrix product of ±1 codes.
    """
    Q, B = check_pair(q_codes, db_codes)
    r = 8 * Q.shape[1] if n_bits is None else n_bits
    if n_bytes(r) != Q.shape[1]:
        raise InputError(f"n_bits={n_bits}, but q_codes have {Q.shape[1]} bytes per row")
    y = match_labels(q_labels, db_labels, len(Q), len(B))
    if device == "cpu":
        kernel = _set_histograms if y.sets else _class_histograms
        count = _count_in_blocks if numba_lazy.pays(kernel, len(Q) * len(B)) else _count_few
        counts = count(as_words(Q), as_words(B), y, 8 * Q.shape[1])
    else:
        counts = _histograms_torch(Q, B, y, device)
    return Histograms((counts[:, :, 0] + counts[:, :, 1])[:, : r + 1], counts[:, : r + 1, 1])


def _count_in_blocks(Q: NDArray[np.uint64], B: NDArray[np.uint64], y: Labels, r: int) -> NDArray[np.int64]:
    """Count by compiled kernels, for a block of queries at a time, with a progress bar if it takes long."""
    out = np.empty((len(Q), r + 1, 2), np.int64)
    if not y.sets:  # sort rows by class, so that each range of rows is relevant to a query, or none of it is
        order = np.argsort(y.rows[:, 0], kind="stable")
        starts = np.searchsorted(y.rows[order, 0], np.arange(y.rows.max() + 2, dtype=np.uint64))
        columns = np.ascontiguousarray(B[order].T)  # (words, n)
    tile = np.empty(_TILE, np.uint8 if r < 256 else np.uint16)
    block = 1024
    with progress("scoring", len(Q)) as step:
        for i in range(0, len(Q), block):
            some = slice(i, i + block)
            if y.sets:
                parts = threads.over_rows(_set_histograms, (Q[some], y.queries[some]), B, y.rows, r)
            else:
                queries = Q[some], y.queries[some, 0]
                parts = threads.over_rows(_class_histograms, queries, columns, starts, r, tile, least=GROUP)
            out[some] = np.concatenate(parts)
            step(len(Q[some]))
    return out


def _count_few(Q: NDArray[np.uint64], B: NDArray[np.uint64], y: Labels, r: int) -> NDArray[np.int64]:
    """The same counts with NumPy, one query after the other."""
    out = np.empty((len(Q), r + 1, 2), np.int64)
    for i in range(len(Q)):
        cells = 2 * distances(Q[i : i + 1], B)[0] + y.relevant(i)
        out[i] = np.bincount(cells, minlength=2 * (r + 1)).reshape(r + 1, 2)
    return out


def _histograms_torch(
    Q: NDArray[np.uint8], B: NDArray[np.uint8], y: Labels, device: str, cells: int = 2**28
) -> NDArray[np.int64]:
    """The same counts on any torch device: distance = (r − q·b)/2, by a matrix product of ±1 codes."""
    import torch

    r = 8 * Q.shape[1]
    dtype = _exact_dtype(r, device)

    def signs(codes: NDArray[np.uint8]) -> torch.Tensor:
        bits = torch.from_numpy(np.unpackbits(codes, axis=1)).to(device)
        return bits.to(dtype).mul_(2).sub_(1)

    yq, yb = (torch.from_numpy(labels.view(np.int64)).to(device) for labels in (y.queries, y.rows))
    q = signs(Q)
    counts = torch.zeros(len(Q) * (r + 1) * 2, dtype=torch.int64, device=device)
    first = torch.arange(len(Q), device=device)[:, None] * (2 * (r + 1))
    step = max(1, cells // (8 * len(Q)))
    for start in range(0, len(B), step):
        rows = slice(start, start + step)
        cell = first + (r - (q @ signs(B[rows]).T).long())  # 2·distance
        same = yq[:, None] == yb[None, rows]  # (n_queries, rows, words)
        relevant = ((yq[:, None] & yb[None, rows]) != 0).any(2) if y.sets else same[:, :, 0]
        counts += torch.bincount((cell + relevant).ravel(), minlength=len(counts))
    return counts.view(len(Q), r + 1, 2).cpu().numpy()


def _exact_dtype(r: int, device: str) -> torch.dtype:
    """The fastest type that represents all integers −r … r: float16 does up to 2,048, float32 up to 2²⁴."""
    import torch

    return torch.float16 if device != "cpu" and r <= 2048 else torch.float32


@njit(inline="always")
def distance(Q: Any, i: int, B: Any, j: int) -> Any:
    """Hamming distance of query i and row j, both as words."""
    d = np.uint64(0)
    for w in range(Q.shape[1]):
        d += popcount(Q[i, w] ^ B[j, w])
    return np.int64(d)


@njit(inline="always")
def is_relevant(yq: Any, i: int, yb: Any, j: int, sets: bool) -> Any:
    """1 if row j is relevant to query i, else 0."""
    if not sets:
        return np.int64(yq[i, 0] == yb[j, 0])
    shared = np.uint64(0)
    for w in range(yq.shape[1]):
        shared |= yq[i, w] & yb[j, w]
    return np.int64(shared != 0)


@njit(nogil=True, cache=True)
def _class_histograms(Q: Any, yq: Any, columns: Any, starts: Any, r: int, tile: Any) -> Any:
    """(n_queries, r + 1, 2): irrelevant and relevant rows at each distance. Class c has rows starts[c] … starts[c+1].

    A tile of rows stays in cache for a few queries. Distances are computed first (vectorised). Four counters are then
    used in turn, so that an increment need not wait for the one before it.
    """
    words, group = len(columns), GROUP
    out = np.zeros((len(Q), r + 1, 2), np.int64)
    for block in range((len(Q) + group - 1) // group):
        first, last = block * group, min(len(Q), (block + 1) * group)
        d = np.empty(_TILE, tile.dtype)
        counts = np.zeros((group, 2, 4, r + 1), np.uint32)
        for c in range(len(starts) - 1):
            for start in range(starts[c], starts[c + 1], _TILE):
                m = min(starts[c + 1] - start, _TILE)
                for i in range(first, last):
                    q, rows = Q[i, 0], columns[0, start : start + m]
                    for j in range(m):
                        d[j] = popcount(q ^ rows[j])
                    for w in range(1, words):
                        q, rows = Q[i, w], columns[w, start : start + m]
                        for j in range(m):
                            d[j] += popcount(q ^ rows[j])
                    count = counts[i - first, np.int64(yq[i] == c)]
                    c0, c1, c2, c3 = count[0], count[1], count[2], count[3]
                    whole = m - m % 4
                    for j in range(0, whole, 4):
                        c0[d[j]] += np.uint32(1)
                        c1[d[j + 1]] += np.uint32(1)
                        c2[d[j + 2]] += np.uint32(1)
                        c3[d[j + 3]] += np.uint32(1)
                    for j in range(whole, m):
                        c0[d[j]] += np.uint32(1)
        for i in range(first, last):
            for relevant in range(2):
                for t in range(4):
                    for x in range(r + 1):
                        out[i, x, relevant] += counts[i - first, relevant, t, x]
    return out


@njit(nogil=True, cache=True)
def _set_histograms(Q: Any, yq: Any, B: Any, yb: Any, r: int) -> Any:
    """The same counts for label sets."""
    out = np.zeros((len(Q), r + 1, 2), np.int64)
    for i in range(len(Q)):
        counts = np.zeros((r + 1, 2), np.int64)
        for j in range(len(B)):
            counts[distance(Q, i, B, j), is_relevant(yq, i, yb, j, True)] += 1
        out[i] = counts
    return out
