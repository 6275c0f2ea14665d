"""Codewords of classes: Fast C-BCD on one row per class, so that rare classes count as much as common ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.cbcd.algorithm1 import columns_for, objective, sweep
from dish.lazy import torch
from dish.similarity import Classes

MAX_SWEEPS = 5


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
    H = columns_for(torch.from_numpy(np.packbits(rng.random_sample((l, r)) < 0.5, axis=1)), r)
    squared_norm, found, values = S.squared_norm(), H.packed(), list[float]()
    for _ in range(max_sweeps):
        done = sweep(H, S, torch.zeros(r, l))
        value = objective(done, squared_norm, r, 0.0)
        if values and (done.flips == 0 or value > values[-1]):
            break  # converged, or a rise by rounding
        values.append(value)
        found = H.packed()
    return distinct(found, r, rng), np.array(values)


def distinct(packed: NDArray[np.uint8], r: int, rng: np.random.RandomState) -> NDArray[np.uint8]:
    """The same codewords with every repeated one replaced by a code that is not used yet, if there are enough."""
    taken: set[bytes] = set()
    found = packed.copy()
    for i, code in enumerate(packed):
        if len(taken) < 2**r:
            found[i] = _nearest_free(code, r, taken, rng)
        taken.add(found[i].tobytes())
    return found


def _nearest_free(
    code: NDArray[np.uint8], r: int, taken: set[bytes], rng: np.random.RandomState
) -> NDArray[np.uint8]:
    """A random code that is not taken, with as few flipped bits as a few trials find."""
    flips = 0
    while code.tobytes() in taken:
        flips += 1
        for _ in range(4 * r):
            bits = codes.unpack(code[None], r)
            bits[0, rng.permutation(r)[: min(flips, r)]] *= -1
            if (other := codes.pack(bits)[0]).tobytes() not in taken:
                return other
        flips = flips % r
    return code
