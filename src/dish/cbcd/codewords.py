"""Codewords of classes: Fast C-BCD on one row per class, so that rare classes count as much as common ones."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from dish.cbcd.algorithm1 import columns_for, objective, sweep
from dish.lazy import torch
from dish.similarity import Classes

MAX_SWEEPS = 5
FEW_BITS = 16  # up to which all codes are listed
MOST_STARTS, ENTRIES, BETA = 16, 1 << 18, 0.5  # of ``more_codewords``


def class_codewords(
    l: int,  # noqa: E741
    r: int,
    rng: np.random.RandomState,
    max_sweeps: int = MAX_SWEEPS,
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Packed codewords (l, ceil(r/8)) that lie as far apart as C-BCD can bring them, and the objective per sweep.

    They are distinct if l ≤ 2ʳ. Codes of rows need not be: with few rows per class, two classes may share one.
    """
    S = Classes(np.arange(l))
    start, lam = rng.random_sample((l, r)), 0.0
    if l > r:  # HHᵀ has an eigenvalue l > r, and whole steps overshoot: start with balanced bits and short steps
        start, lam = start - np.median(start, 0) + 0.5, 2.0 * l
    H = columns_for(torch.from_numpy(np.packbits(start < 0.5, axis=1)), r)
    squared_norm, found, values = S.squared_norm(), H.packed(), list[float]()
    for _ in range(max_sweeps):
        done = sweep(H, S, torch.zeros(r, l), lam=lam)
        value = objective(done, squared_norm, r, 0.0)
        if values and (done.flips == 0 or value > values[-1]):
            break  # converged, or a rise by rounding
        values.append(value)
        found = H.packed()
    return distinct(found, r, rng), np.array(values)


def more_codewords(known: NDArray[np.float64], count: int, rng: np.random.RandomState) -> NDArray[np.float64]:
    """``count`` codewords of ±1 (count, r), one by one, far from each other and from those in ``known`` (l, r).

    A codeword c starts at random; bits flip as long as Σ_j exp(β c·h_j) over all others h_j falls, in which the
    nearest ones count most. Of several such c, the one farthest from its nearest codeword is taken.
    """
    r = known.shape[1]
    H = np.concatenate([known, np.zeros((count, r))])
    for i in range(len(known), len(H)):
        starts = min(MOST_STARTS, max(1, ENTRIES // (i + 1)))
        C = _flipped(np.where(rng.random_sample((starts, r)) < 0.5, 1.0, -1.0), H[:i])
        H[i] = C[(C @ H[:i].T).max(1, initial=-r).argmin()]
    packed = distinct(np.packbits(H > 0, axis=1), r, rng)[len(known) :]
    return np.where(np.unpackbits(packed, axis=1, count=r) > 0, 1.0, -1.0)


def _flipped(C: NDArray[np.float64], H: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows c of C (k, r) after single flips, the best first, as long as Σ_j exp(β c·h_j) falls."""
    rows, stay, go = np.arange(len(C)), np.cosh(2 * BETA), np.sinh(2 * BETA)
    for _ in range(4 * C.shape[1] if len(H) else 0):
        z = C @ H.T
        e = np.exp(BETA * (z - z.max(1, keepdims=True)))
        # A flip of bit b multiplies exp(β c·h_j) by exp(−2β c_b h_jb), which is cosh 2β − c_b h_jb sinh 2β.
        gain, total = C * (e @ H), e.sum(1)
        best = gain.argmax(1)
        falls = stay * total - go * gain[rows, best] < (1 - 1e-12) * total
        if not falls.any():
            break
        C[rows[falls], best[falls]] *= -1
    return C


def distinct(packed: NDArray[np.uint8], r: int, rng: np.random.RandomState) -> NDArray[np.uint8]:
    """The same codewords with every repeated one replaced by a code near it that is not used yet, if there is one."""
    found = packed.copy()
    first = np.unique(packed, axis=0, return_index=True)[1]
    taken = {packed[i].tobytes() for i in first}
    for i in np.setdiff1d(np.arange(len(packed)), first):
        if len(taken) == 2**r:
            break
        found[i] = _nearest_free(packed[i], r, taken) if r <= FEW_BITS else _random_free(packed[i], r, taken, rng)
        taken.add(found[i].tobytes())
    return found


def _nearest_free(code: NDArray[np.uint8], r: int, taken: set[bytes]) -> NDArray[np.uint8]:
    """The code that is not taken with the fewest flipped bits, among all of r bits."""
    flips = _by_weight(r)
    return next(other for other in code ^ flips if other.tobytes() not in taken)


@functools.cache
def _by_weight(r: int) -> NDArray[np.uint8]:
    """All codes of r bits (2ʳ, ceil(r/8)), those with the fewest ones first."""
    bits = (np.arange(2**r)[:, None] >> np.arange(r)) & 1
    return np.packbits(bits[np.argsort(bits.sum(1), kind="stable")].astype(bool), axis=1)


def _random_free(code: NDArray[np.uint8], r: int, taken: set[bytes], rng: np.random.RandomState) -> NDArray[np.uint8]:
    """A code that is not taken, with one flipped bit or a few: nearly all codes of many bits are free."""
    for flips in itertools.count(1):
        for _ in range(r):
            bits = np.unpackbits(code)
            bits[rng.permutation(r)[:flips]] ^= 1
            if (other := np.packbits(bits)).tobytes() not in taken:
                return other
    raise AssertionError  # not reached
