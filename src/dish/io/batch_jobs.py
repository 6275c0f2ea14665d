"""Encode files block by block, in one process or in several that share the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.errors import InputError
from dish.io.atomic import replacing
from dish.io.code_provenance import note_model
from dish.io.rows import allocate_npy, blocks_of, check_finite
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
            for rows, block in my_blocks(X, ranks, "encoding"):
                out[rows] = hasher.transform(block, **({} if labels is None else {"labels": labels[rows]}))
            out.flush()
            del out  # Windows cannot rename a mapped file
        with ranks.raise_together():
            stack.close()  # renames the temporary file
            if ranks.first and hasattr(hasher, "fingerprint_"):
                note_model(output, hasher.fingerprint_, hasher.n_bits)
    return shape


def my_blocks(X: Any, ranks: Ranks, title: str) -> Iterator[tuple[slice, NDArray[Any]]]:
    """The rows of this process in blocks: the slice and the block."""
    mine = ranks.my_rows(X.shape[0], BLOCK_ROWS)
    start = mine.start
    with progress(title, mine.stop - mine.start) as step:
        for block in blocks_of(X, BLOCK_ROWS, mine):
            check_finite(block, start, X)
            yield slice(start, start + len(block)), block
            start += len(block)
            step(len(block))
