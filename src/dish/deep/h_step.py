"""Codes of the training rows: initial ones that reproduce S, and the H-step, which also moves them towards F."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dish import cbcd, codes
from dish.cbcd.codewords import class_codewords
from dish.kernel.fstep import LOSSES
from dish.progress import progress
from dish.similarity import Classes, Similarity

Packed = NDArray[np.uint8]

MAX_START_SWEEPS = 5


@progress("H-step", 1)
def start_codes(S: Similarity, n_bits: int, seed: int) -> Packed:
    """Codes that reproduce S without looking at the rows: sweeps from one random code per group of equal labels.

    For classes, every class counts as one row. If bits were balanced over all rows, rare classes would share a code
    where a common class has half of the rows.
    """
    if isinstance(S, Classes):
        C, _ = class_codewords(S.n_groups, n_bits, np.random.RandomState(seed))
        return C[S.row_group.cpu().numpy()]
    table = np.random.RandomState(seed).rand(S.n_groups, n_bits) < 0.5
    H = cbcd.PackedColumns(np.packbits(table[S.row_group.cpu().numpy()], axis=1), n_bits)
    q = torch.zeros(n_bits, S.n)
    for _ in range(MAX_START_SWEEPS):
        if cbcd.sweep(H, S, q).flips == 0:
            break
    return H.packed()


@progress("H-step", 1)
def h_step(S: Similarity, F: Tensor, packed: Packed, nu: float) -> tuple[Packed, int]:
    """One sweep of C-BCD from the given codes towards codes that reproduce S and agree with F, and its bit flips.

    The loss of F is the squared hinge, with weight ``nu``.
    """
    H = cbcd.PackedColumns(packed, F.shape[1])
    q = (len(F) * nu * LOSSES["hinge"].half_difference(F)).T.contiguous().cpu()
    done = cbcd.sweep(H, S, q)
    return H.packed(), done.flips


def bit_agreement(F: Tensor, packed: Packed) -> float:
    """The share of bits that equal the sign of F."""
    return float(((F >= 0).cpu() == torch.from_numpy(codes.unpack(packed, F.shape[1]) > 0)).float().mean())
