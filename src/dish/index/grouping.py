"""Group rows with equal codes, and expand search results from groups to rows."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from dish.codes import popcount
from dish.index.hashtable import slot_of
from dish.numba_lazy import njit


@njit(nogil=True, cache=True)
def group(slots: Any, B: Any, most: int) -> Any:
    """Group the rows of B by code; return the first row of each group and the group of each row.

    Groups are numbered by first appearance. With more than ``most`` groups, both arrays are empty.
    """
    first = np.empty(most, np.int32)
    member_of = np.empty(len(B), np.int32)
    u = 0
    for i in range(len(B)):
        s = slot_of(slots, B, B[i])
        if slots[s] < 0:
            if u == most:
                return first[:0], member_of[:0]
            slots[s] = i
            first[u] = i
            member_of[i] = u
            u += 1
        else:
            member_of[i] = member_of[slots[s]]
    return first[:u].copy(), member_of


@njit(nogil=True, cache=True)
def list_members(member_of: Any, u: int) -> Any:
    """Return (starts, members): the rows of group g are members[starts[g] : starts[g + 1]], ascending."""
    starts = np.zeros(u + 1, np.int32)
    for g in member_of:
        starts[g + 1] += 1
    for g in range(u):
        starts[g + 1] += starts[g]
    place = starts[:-1].copy()
    members = np.empty(len(member_of), np.int32)
    for i in range(len(member_of)):
        members[place[member_of[i]]] = i
        place[member_of[i]] += 1
    return starts, members


@njit(nogil=True, cache=True)
def expand(D: Any, G: Any, starts: Any, members: Any, k: int) -> Any:
    """Return the k best rows by key, then by row, from the best groups; G has at least k groups, or all of them."""
    keys = np.empty((len(D), k), D.dtype)
    rows = np.empty((len(D), k), np.int64)
    marks = np.empty(0, np.uint64)
    for i in range(len(D)):
        marks = _expand(D[i], G[i], starts, members, keys[i], rows[i], marks)
    return keys, rows


@njit(nogil=True, cache=True)
def count_rows(found: Any, G: Any, starts: Any) -> Any:
    """Return the number of rows in the groups that ``scan.within`` found for each query."""
    n_rows = np.zeros(len(found), np.int64)
    c = 0
    for i in range(len(found)):
        for g in G[c : c + found[i]]:
            n_rows[i] += starts[g + 1] - starts[g]
        c += found[i]
    return n_rows


@njit(nogil=True, cache=True)
def expand_all(found: Any, D: Any, G: Any, n_rows: Any, starts: Any, members: Any, keys: Any, rows: Any) -> None:
    """Write the first n_rows[i] rows of the groups found for query i to ``keys`` and ``rows``, query after query."""
    marks = np.empty(0, np.uint64)
    c, p = 0, np.int64(0)
    for i in range(len(found)):
        d, g = D[c : c + found[i]], G[c : c + found[i]]
        marks = _expand(d, g, starts, members, keys[p : p + n_rows[i]], rows[p : p + n_rows[i]], marks)
        c += found[i]
        p += n_rows[i]


@njit(nogil=True, cache=True)
def _expand(d: Any, g: Any, starts: Any, members: Any, keys: Any, rows: Any, marks: Any) -> Any:
    """Fill keys and rows from groups sorted by key; rows with equal keys ascend. ``marks`` is a reusable bitmap."""
    place, i = 0, 0
    while place < len(rows):
        j, total = i, 0
        while j < len(d) and d[j] == d[i]:  # groups i … j − 1 share a key
            total += starts[g[j] + 1] - starts[g[j]]
            j += 1
        take = min(total, len(rows) - place)
        if j == i + 1:
            s = starts[g[i]]
            rows[place : place + take] = members[s : s + take]
        elif 8 * take < total:
            rows[place : place + take] = _first_merged(g[i:j], starts, members, take)
        elif 1024 * total < len(members):
            rows[place : place + take] = _sorted_members(g[i:j], starts, members, total)[:take]
        else:
            if not len(marks):
                marks = np.zeros((len(members) >> 6) + 1, np.uint64)
            _members_by_bitmap(g[i:j], starts, members, marks, rows[place : place + take])
        keys[place : place + take] = d[i]
        place += take
        i = j
    return marks


@njit(nogil=True, cache=True)
def _sorted_members(g: Any, starts: Any, members: Any, total: int) -> Any:
    """Return all members of the groups, ascending, by sorting."""
    rows = np.empty(total, np.int64)
    c = 0
    for x in g:
        for s in range(starts[x], starts[x + 1]):
            rows[c] = members[s]
            c += 1
    rows.sort()
    return rows


@njit(nogil=True, cache=True)
def _members_by_bitmap(g: Any, starts: Any, members: Any, marks: Any, rows: Any) -> None:
    """Write the first members of the groups, ascending, by a bitmap over all rows: cheaper than sorting many rows.

    ``marks`` is all zero before and after.
    """
    one = np.uint64(1)
    for x in g:
        for s in range(starts[x], starts[x + 1]):
            marks[members[s] >> 6] |= one << np.uint64(members[s] & 63)
    c = np.int64(0)
    for w in range(len(marks)):
        word = marks[w]
        marks[w] = 0
        n, u = np.int64(popcount(word)), 0
        if c + 4 <= len(rows):  # always write four: the next word overwrites the surplus
            for u in range(4):
                rows[c + u] = 64 * w + np.int64(popcount((word & (~word + one)) - one))
                word &= word - one
            u = 4
        while word and c + u < len(rows):
            rows[c + u] = 64 * w + np.int64(popcount((word & (~word + one)) - one))
            word &= word - one
            u += 1
        c += n


@njit(nogil=True, cache=True)
def _first_merged(g: Any, starts: Any, members: Any, k: int) -> Any:
    """Return the first k members of the groups, ascending, by a heap of the k lowest rows so far."""
    heap = [np.int64(-members[starts[g[0]]])]  # negated, so that the highest row is on top
    heap.pop()
    for x in g:
        for s in range(starts[x], starts[x + 1]):
            row = np.int64(members[s])
            if len(heap) < k:
                heapq.heappush(heap, -row)
            elif row < -heap[0]:
                heapq.heapreplace(heap, -row)
            else:
                break  # members ascend: all later ones are higher
    rows = -np.array(heap)
    rows.sort()
    return rows
