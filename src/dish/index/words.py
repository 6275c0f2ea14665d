"""Packed codes as the words that the kernels scan, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.codes import check_codes, n_bytes
from dish.errors import InputError


def words_of(n_bits: int) -> tuple[type[np.unsignedinteger[Any]], int]:
    """Type and number of the words that hold a code: at most twice its bytes."""
    width = n_bytes(n_bits)
    for word, size in ((np.uint8, 1), (np.uint16, 2), (np.uint32, 4)):
        if width <= size:
            return word, 1
    return np.uint64, -(-width // 8)


def to_words(codes: ArrayLike, n_bits: int, name: str) -> NDArray[Any]:
    """Packed codes → words (n, w), padded with zeros."""
    given = check_codes(codes, n_bits, name)
    unused = -n_bits % 8
    if unused and (given[:, -1] & ((1 << unused) - 1)).any():
        raise InputError(f"{name} have bits set beyond the first {n_bits}")
    word, n_words = words_of(n_bits)
    words = np.zeros((len(given), n_words), word)
    words.view(np.uint8)[:, : given.shape[1]] = given
    return words


def to_bytes(words: NDArray[Any], n_bits: int) -> NDArray[np.uint8]:
    """Words (n, w) → packed codes."""
    return np.ascontiguousarray(words.view(np.uint8)[:, : n_bytes(n_bits)])


def as_outputs(F: ArrayLike, n_bits: int) -> NDArray[np.float64]:
    """Real outputs of a hasher, finite, float64 (n, n_bits)."""
    given = np.asarray(F)
    if given.dtype.kind not in "fiu" or given.dtype == np.uint8 or given.ndim != 2 or given.shape[1] != n_bits:
        raise InputError(
            f"queries must be real outputs of shape (n, {n_bits}) in this mode, such as a hasher's "
            f"decision_function; got {given.dtype} of shape {given.shape}"
        )
    outputs = np.ascontiguousarray(given, np.float64)
    if not np.isfinite(outputs).all():
        raise InputError("queries must be finite: there is NaN or infinity among the outputs")
    return outputs
