"""Encode and score files block by block, in one process or in several that share the rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes, metrics
from dish.errors import InputError
from dish.io.atomic import replacing
from dish.io.code_provenance import note_model
from dish.io.rows import allocate_npy, blocks_of, check_finite
from dish.labels import plain_labels
from dish.parallel import Ranks
from dish.progress import progress

BLOCK_ROWS = 1 << 14


def encode_file(hasher: Any, X: Any, output: Path, ranks: Ranks, labels: Any = None) -> tuple[int, int]:
    """Write the codes of X (an array, a memory map or shards) to a .npy file, atomically. Return their shape.

    ``labels`` (n,): rows with a known label get the code of their label.
    """
    if labels is not None and len(labels) != X.shape[0]:
        raise InputError(f"the file has {X.shape[0]:,} rows but {len(labels):,} labels")
    shape = X.shape[0], codes.n_bytes(hasher.n_bits)
    with ExitStack() as stack:
        name = ""
        with ranks.raise_together():
            if ranks.first:
                name = str(stack.enter_context(replacing(output)))
                allocate_npy(Path(name), shape)
        with ranks.raise_together():
            out = np.lib.format.open_memmap(str(ranks.gather_arrays(np.array(name))[0]), "r+")
            for rows, block in _my_blocks(X, ranks, "encoding"):
                out[rows] = hasher.transform(block, **({} if labels is None else {"labels": labels[rows]}))
            out.flush()
            del out  # Windows cannot rename a mapped file
        with ranks.raise_together():
            stack.close()  # renames the temporary file
            if ranks.first and hasattr(hasher, "fingerprint_"):
                note_model(output, hasher.fingerprint_, hasher.n_bits)
    return shape


def evaluate_files(
    hasher: Any, queries: tuple[Any, Any], database: tuple[Any, Any], k: int | None, ranks: Ranks
) -> metrics.Report:
    """Score labelled queries against a labelled database, whose rows are read block by block."""
    Xq, yq = queries
    X, y = database
    yq, y = plain_labels(yq, y)
    if y.shape[0] != X.shape[0]:
        raise InputError(f"the database has {X.shape[0]:,} rows but {y.shape[0]:,} labels")
    q, keys, repeated = hasher.transform(Xq), row_digests(Xq), set[bytes]()
    all_ = np.zeros((len(q), hasher.n_bits + 1), np.int64)
    relevant = np.zeros_like(all_)
    with ranks.raise_together():
        for rows, block in _my_blocks(X, ranks, "scoring"):
            found = metrics.histograms(q, yq, hasher.transform(block), y[rows], hasher.n_bits)
            all_ += found.all_
            relevant += found.relevant
            repeated.update(row_digests(block))
            repeated.intersection_update(keys)
    totals = (np.sum(ranks.gather_arrays(counts), 0) for counts in (all_, relevant))
    report = metrics.report(metrics.Histograms(*totals), k)
    n_repeated = int(np.any(ranks.gather_arrays(np.array([key in repeated for key in keys])), 0).sum())
    if n_repeated and ranks.first:
        warnings.warn(
            f"{n_repeated:,} of {len(q):,} queries are also in the database. They find themselves first, which makes "
            "every score too high: remove them from the database",
            stacklevel=2,
        )
    return report


def row_digests(X: Any) -> list[bytes]:
    """16 bytes for every row, equal for equal values of any number type; float64 tells apart what a model does."""
    rows = (np.asarray(row, np.float64) + 0.0 for row in X[:])  # −0 becomes 0
    return [blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def _my_blocks(X: Any, ranks: Ranks, title: str) -> Iterator[tuple[slice, NDArray[Any]]]:
    """The rows of this process in blocks: the slice and the block."""
    mine = ranks.my_rows(X.shape[0], BLOCK_ROWS)
    start = mine.start
    with progress(title, mine.stop - mine.start) as step:
        for block in blocks_of(X, BLOCK_ROWS, mine):
            check_finite(block, start, X)
            yield slice(start, start + len(block)), block
            start += len(block)
            step(len(block))
