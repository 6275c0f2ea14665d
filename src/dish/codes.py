"""Binary codes: ±1 matrices ↔ packed bytes, Hamming distance, codes as machine words.

A code of r bits takes ``ceil(r / 8)`` bytes in the order of ``np.packbits``: bit j is ``128 >> (j % 8)`` of byte
``j // 8``, and the unused low bits of the last byte are zero. Bit 1 stands for +1, bit 0 for −1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish import numba_lazy, threads
from dish.errors import InputError
from dish.lazy import numba
from dish.numba_lazy import intrinsic, njit

Bytes = NDArray[np.uint8]


@intrinsic
def popcount(typingctx: Any, x: Any) -> Any:
    """The number of set bits of a uint64, in numba kernels: one machine instruction where the CPU has it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return numba.uint64(numba.uint64), codegen


def n_bytes(n_bits: int) -> int:
    """The number of bytes of a packed code of ``n_bits`` bits."""
    return (n_bits + 7) // 8


def pack(H: ArrayLike) -> Bytes:
    """Real or ±1 values (n, r) → packed codes (n, ceil(r/8)); a value ≥ 0 is bit 1."""
    return np.packbits(np.asarray(H) >= 0, axis=1)


def unpack(codes: ArrayLike, n_bits: int) -> NDArray[np.int8]:
    """Packed codes (n, ceil(r/8)) → ±1 matrix (n, r), int8."""
    codes = check_codes(codes, n_bits)
    bits = np.unpackbits(codes, axis=1, count=n_bits)  # (n, r) of 0/1
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)


def prefix(codes: ArrayLike, n_bits: int, keep: int) -> Bytes:
    """The first ``keep`` bits of packed codes of ``n_bits`` bits, packed."""
    if not 1 <= keep <= n_bits:
        raise InputError(f"n_bits must be between 1 and the {n_bits} bits of the codes, got {keep}")
    shorter = check_codes(codes, n_bits)[:, : n_bytes(keep)].copy()
    shorter[:, -1] &= 0xFF << (-keep % 8) & 0xFF  # unused bits are zero
    return shorter


def check_codes(codes: ArrayLike, n_bits: int | None = None, name: str = "codes") -> Bytes:
    """Return ``codes`` as a contiguous uint8 matrix, or raise InputError."""
    array = np.asarray(codes)
    if array.ndim != 2 or array.dtype != np.uint8:
        raise InputError(
            f"{name} must be packed codes, a uint8 array of shape (n, ceil(n_bits / 8)); "
            f"got {array.dtype} of shape {array.shape}"
        )
    if n_bits is not None and array.shape[1] != n_bytes(n_bits):
        raise InputError(
            f"{name} has {array.shape[1]} bytes per row, but codes of {n_bits} bits have {n_bytes(n_bits)}"
        )
    return np.ascontiguousarray(array)


def as_words(codes: Bytes) -> NDArray[np.uint64]:
    """Packed codes (n, bytes) → (n, ceil(bytes/8)) uint64, zero-padded: distances are unchanged."""
    n, width = codes.shape
    padded = np.zeros((n, -(-width // 8) * 8), np.uint8)
    padded[:, :width] = codes
    return padded.view(np.uint64)


def word_layout(n_bits: int) -> tuple[type[np.unsignedinteger[Any]], int]:
    """Return the word type and the number of words that hold one code, in at most twice its bytes."""
    width = n_bytes(n_bits)
    for word, size in ((np.uint8, 1), (np.uint16, 2), (np.uint32, 4)):
        if width <= size:
            return word, 1
    return np.uint64, -(-width // 8)


def to_words(codes: ArrayLike, n_bits: int, name: str = "codes") -> NDArray[Any]:
    """Packed codes (n, bytes) → words (n, w) of the type that ``word_layout`` gives, padded with zeros."""
    given = check_codes(codes, n_bits, name)
    unused = -n_bits % 8
    if unused and (given[:, -1] & ((1 << unused) - 1)).any():
        raise InputError(f"{name} have bits set beyond the first {n_bits}")
    word, n_words = word_layout(n_bits)
    words = np.zeros((len(given), n_words), word)
    words.view(np.uint8)[:, : given.shape[1]] = given
    return words


def from_words(words: NDArray[Any], n_bits: int) -> Bytes:
    """Words (n, w) → packed codes (n, bytes); the inverse of ``to_words``."""
    return np.ascontiguousarray(words.view(np.uint8)[:, : n_bytes(n_bits)])


def distances(A: NDArray[Any], B: NDArray[Any]) -> NDArray[np.int64]:
    """Hamming distances (p, q) between codes as words, by NumPy. For few pairs: nothing is compiled."""
    D = np.zeros((len(A), len(B)), np.int64)
    for a, b in zip(A.T, B.T, strict=True):  # word by word
        D += np.bitwise_count(a[:, None] ^ b)
    return D


def hamming(a: ArrayLike, b: ArrayLike) -> NDArray[np.int32]:
    """Hamming distances (p, q) between packed codes ``a`` (p rows) and ``b`` (q rows)."""
    A, B = _same_width(a, b)
    words = as_words(A), as_words(B)
    if not numba_lazy.pays(_hamming, len(A) * len(B)):
        return distances(*words).astype(np.int32)
    return np.concatenate(threads.over_rows(_hamming, words[:1], words[1]))


def _same_width(a: ArrayLike, b: ArrayLike) -> tuple[Bytes, Bytes]:
    A, B = check_codes(a, name="query codes"), check_codes(b, name="database codes")
    if A.shape[1] != B.shape[1]:
        raise InputError(f"query codes have {A.shape[1]} bytes per row, database codes {B.shape[1]}")
    return A, B


@njit(cache=True)
def byte_table(u: Any, words: int) -> Any:
    """The table T with T[j, x] = Σ_t ±u[8j + t], where the sign is bit t of the byte x.

    H_i u is then the sum of one entry of T per byte of H_i. T has 8 · ``words`` rows; those beyond u are zero.
    """
    table = np.zeros((8 * words, 256))
    for k in range(len(u)):
        mask = 128 >> (k & 7)
        for x in range(256):
            table[k >> 3, x] += u[k] if x & mask else -u[k]
    return table


@njit(nogil=True, cache=True)
def _hamming(A: Any, B: Any) -> Any:
    D = np.empty((len(A), len(B)), np.int32)
    for i in range(len(A)):
        for j in range(len(B)):
            d = np.uint64(0)
            for w in range(A.shape[1]):
                d += popcount(A[i, w] ^ B[j, w])
            D[i, j] = d
    return D
