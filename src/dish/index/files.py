"""The arrays of an index file: written from a snapshot, and read back into one."""

from __future__ import annotations

import numpy as np

from dish.codes import word_layout
from dish.errors import InputError
from dish.index.ids import from_text, to_text
from dish.index.label_table import LabelTable
from dish.index.snapshot import MakeAccelerator, Snapshot
from dish.io.modelfile import Arrays


def to_arrays(rows: Snapshot) -> Arrays:
    """Return codes, ids and labels without deleted rows and unused labels."""
    unused = rows.labels is not None and len(np.unique(rows.labels[: rows.n])) < len(
        rows.generation.label_table.values
    )
    rows = rows.compacted() if len(rows.deleted) or unused else rows
    arrays: Arrays = {"codes": rows.codes[: rows.n]}
    if rows.ids_.dtype == np.int64:
        arrays["ids"] = rows.ids_[: rows.n]
    else:
        arrays["id_text"], arrays["id_ends"] = to_text(rows.ids_[: rows.n])
    if rows.labels is not None:
        arrays["labels"] = rows.labels[: rows.n]
        arrays["label_values"] = rows.generation.label_table.to_json()
    return arrays


def from_arrays(arrays: Arrays, n: int, n_bits: int, make_accelerator: MakeAccelerator) -> Snapshot:
    """Return a snapshot of n rows; raise InputError or KeyError if the arrays do not fit together."""
    word, n_words = word_layout(n_bits)
    codes = arrays["codes"]
    if codes.shape != (n, n_words) or codes.dtype != word:
        raise InputError(f"{n:,} codes of {n_bits} bits cannot be {codes.dtype} of shape {codes.shape}")
    ids = arrays["ids"] if "ids" in arrays else from_text(arrays["id_text"], arrays["id_ends"])
    labels, table = arrays.get("labels"), LabelTable()
    if ids.shape != (n,) or (labels is not None and labels.shape != (n,)):
        raise InputError(f"it has {n:,} codes, but a different number of ids or labels")
    if ids.dtype not in (np.int64, np.dtype(object)) or (labels is not None and labels.dtype != np.int32):
        raise InputError("its ids or labels have the wrong type")
    if labels is not None:
        table = LabelTable.from_json(arrays["label_values"])
        if n and not -1 <= labels.min() <= labels.max() < len(table.values):
            raise InputError("a label is not in its list of labels")
    return Snapshot.of(n_bits, make_accelerator, codes, ids, labels, table)
