"""Do what the first searches of an index would have to wait for: compile kernels, group equal codes.

Which kernels a search uses depends on the number of rows and queries, on earlier searches, on equal codes and on
deleted rows. So this searches small indexes of all these kinds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dish.codes import n_bytes
from dish.index.accelerators import LEAST_ROWS, SCANS
from dish.index.hamming import HammingIndex
from dish.numba_lazy import ENOUGH


def compile_kernels(n_bits: int, *, integer_ids: bool, n_rows: int | None = None) -> None:
    """Compile all kernels for codes of ``n_bits``, and for the ids if they are integers.

    ``n_rows`` is the size of an index that does not grow: a small one needs a quarter of the kernels.
    """
    large = n_rows is None or n_rows >= LEAST_ROWS
    n = 2 * LEAST_ROWS if large else LEAST_ROWS - 1
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (n, n_bytes(n_bits)), np.uint8)
    codes[:, -1] &= 0xFF << (-n_bits % 8) & 0xFF
    ids = np.arange(n)[::-1] if integer_ids else [str(i) for i in range(n)]  # descending: found by hashing
    for B in (codes, codes[np.arange(n) % 500]) if large else (codes,):  # distinct codes, and groups of equal ones
        index = HammingIndex(n_bits)
        index.add(B, ids=ids)
        _search(index, B)
        index.remove(ids[:1])
        index.upsert(B[1:3], ids[1:3])
        _search(index, B)


def _search(index: HammingIndex, B: NDArray[np.uint8]) -> None:
    n_queries = max(ENOUGH // len(B) + 1, SCANS)  # enough for kernels to be worth compiling
    queries = B[np.arange(n_queries) % len(B)]
    for few in (queries, queries, queries[:1]):  # the second search uses what the first one built
        index.search(few, 5)
        for radius in (0, 1):
            index.snapshot().within(few, radius, limit=5)
        index.snapshot().within(few[:2], index.n_bits, limit=5)
    index.get(index.ids[:2])
    two, some = queries[:2], index.ids[:100]  # filters copy the rows that they match
    index.search(two, 5, some)
    index.search(np.ones((2, index.n_bits), np.float32), 5, rescore="asymmetric")
    for radius in (0, index.n_bits):
        index.snapshot().within(two, radius, some, limit=5)


def build_accelerator(index: HammingIndex) -> None:
    """Search a batch that is large enough for the index to group its codes, if it has enough of them."""
    snapshot = index.snapshot()
    if len(snapshot):
        ids = snapshot.sample_ids(1, np.random.default_rng(0))
        snapshot.search(np.repeat(snapshot.get(ids), SCANS, axis=0), k=1)
