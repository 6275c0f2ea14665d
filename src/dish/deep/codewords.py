"""The F-step against codewords: a softmax over the cosines of F with one codeword per class or label.

With t (n, l) the labels of the rows, C_l = sgn(Σ_i t_il h_i) is the vote of the codes H of the rows with label l, and

    loss_i = −Σ_l t̄_il log softmax_l( √r (cos(F_i, C_l) − m t_il) ) ,   t̄_i = t_i / Σ_l t_il .

The margin m asks F to be nearer to its own codewords than to others by that much; several labels share one softmax.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dish import codes
from dish.similarity import Similarity
from dish.solver import cbcd

MARGIN = 0.2
SWEEPS = 5  # of the H-step without a network, at most


def start_codes(S: Similarity, n_bits: int, seed: int) -> NDArray[np.uint8]:
    """Codes that reproduce S and know nothing of the rows: H-steps from one random code per group of equal labels."""
    table = np.random.RandomState(seed).rand(S.n_groups, n_bits) < 0.5
    H = cbcd.PackedColumns(np.packbits(table[S.row_group.cpu().numpy()], axis=1), n_bits)
    q = torch.zeros(n_bits, S.n)
    for _ in range(SWEEPS):
        if cbcd.sweep(H, S, q).flips == 0:
            break
    return H.packed()


def one_hot(targets: Tensor, n_targets: int) -> Tensor:
    """Classes (n,) or labels (n, l) as float32 (n, l) of 0 and 1."""
    return targets if targets.ndim == 2 else functional.one_hot(targets, n_targets).float()


def codewords(packed: NDArray[np.uint8], n_bits: int, t: Tensor) -> Tensor:
    """C (l, r) of ±1: the vote of the rows with each label."""
    H = torch.from_numpy(codes.unpack(packed, n_bits)).to(t.device, torch.float32)
    return torch.where(t.T @ H >= 0, 1.0, -1.0)


def codeword_loss(F: Tensor, C: Tensor, t: Tensor) -> Tensor:
    """The mean over rows (b, r) of the softmax loss; a row without a label counts nothing."""
    r = F.shape[1]
    cosine = functional.normalize(F, dim=1) @ C.T / r**0.5  # (b, l)
    wanted = t / t.sum(1, keepdim=True).clamp(min=1)
    return functional.cross_entropy(r**0.5 * (cosine - MARGIN * t), wanted)
