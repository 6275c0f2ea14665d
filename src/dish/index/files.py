"""The rows of an index as the arrays of its file, and back."""

from __future__ import annotations

import numpy as np

from dish.errors import InputError
from dish.index.ids import from_text, to_text
from dish.index.label_table import Vocabulary, from_json
from dish.index.snapshot import MakeView, Snapshot
from dish.index.words import words_of
from dish.io.modelfile import Arrays


def to_arrays(rows: Snapshot) -> Arrays:
    """Codes, ids and labels; without deleted rows, and without labels of no row."""
    unused = rows.labels is not None and len(np.unique(rows.labels[: rows.n])) < len(
        rows.generation.vocabulary.values
    )
    rows = rows.compacted() if len(rows.deleted) or unused else rows
    arrays: Arrays = {"codes": rows.codes[: rows.n]}
    if rows.ids_.dtype == np.int64:
        arrays["ids"] = rows.ids_[: rows.n]
    else:
        arrays["id_text"], arrays["id_ends"] = to_text(rows.ids_[: rows.n])
    if rows.labels is not None:
        arrays["labels"] = rows.labels[: rows.n]
        arrays["label_values"] = rows.generation.vocabulary.to_json()
    return arrays


def from_arrays(arrays: Arrays, n: int, n_bits: int, make_view: MakeView) -> Snapshot:
    """A snapshot of n rows, or a ValueError or KeyError that says what does not fit."""
    word, n_words = words_of(n_bits)
    codes = arrays["codes"]
    if codes.shape != (n, n_words) or codes.dtype != word:
        raise InputError(f"{n:,} codes of {n_bits} bits cannot be {codes.dtype} of shape {codes.shape}")
    ids = arrays["ids"] if "ids" in arrays else from_text(arrays["id_text"], arrays["id_ends"])
    labels, vocabulary = arrays.get("labels"), Vocabulary()
    if ids.shape != (n,) or (labels is not None and labels.shape != (n,)):
        raise InputError(f"it has {n:,} codes, but not as many ids or labels")
    if ids.dtype not in (np.int64, np.dtype(object)) or (labels is not None and labels.dtype != np.int32):
        raise InputError("its ids or labels are of a wrong type")
    if labels is not None:
        vocabulary, labels = from_json(arrays["label_values"], labels)
    return Snapshot.of(n_bits, make_view, codes, ids, labels, vocabulary)
