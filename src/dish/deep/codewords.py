"""The F-step against codewords: a softmax over the cosines of the outputs with one codeword per class.

With t (n, l) the classes of the rows, C_l = sgn(Σ_i t_il h_i) is the vote of the codes H of the rows of class l, and

    loss_i = −Σ_l t̄_il log softmax_l( √R (cos(f_i, C_l) − m t_il) ) ,   t̄_i = t_i / Σ_l t_il .

The margin m asks f to be nearer to its own codeword than to others by that much. Where rows have several labels, the
outputs are logits and every label has a logistic loss: what a row is like is then not one codeword but a sum of some.
Training has two cycles of the learning rate: the first leaves some rows out, by which ``top`` is fitted, the second
has all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dish import cbcd, codes
from dish.deep.heads import cosines
from dish.similarity import Classes, Similarity, from_labels

MARGIN = 0.2
NORM = True  # whether the outputs have batch norm
WIDTH, MOST_FOR_CLASSES = 64, 512  # outputs: a margin needs room that short codes do not have
SWEEPS = 5  # of the H-step without a network, at most
HELD_OUT, MOST_HELD_OUT, FEWEST_ROWS = 0.15, 16384, 500  # of fewer rows none are held out


@dataclass(frozen=True)
class Recipe:
    """How networks of one kind are trained, as held-out training rows had it best."""

    rate: float  # of SGD for lr="auto", if the network starts from scratch or is trained with care
    first: float  # the share of the rounds that leaves rows out
    mixup: float  # up to this share of another row is mixed into each
    settle: bool  # whether batch norm averages over rows as they are in the end: those of training were mixed
    careful: bool = False  # whether a body all of which came with weights keeps what it knows (``Training.careful``)
    decay: float | None = None  # of that body's weights for weight_decay="auto"; None: as of others


SCRATCH = Recipe(rate=0.05, first=0.25, mixup=0.5, settle=True)
# It came with weights. Averages of batch norm that stay do not make up for weights that shrink, layer after layer.
TUNED = replace(SCRATCH, rate=0.1, mixup=0.3, settle=False, careful=True, decay=0.0)
VECTORS = Recipe(rate=0.1, first=0.5, mixup=0.3, settle=False)  # fewer passes


def recipe(rows: Tensor, fine_tuning: bool) -> Recipe:
    """For images (n, H, W, 3) or vectors (n, d)."""
    if rows.ndim == 2:
        return VECTORS
    return TUNED if fine_tuning else SCRATCH


def width(n_bits: int, n_classes: int) -> int:
    """Outputs R of the network: at least one per class (up to a limit), so that no two codewords must be near."""
    return max(n_bits, WIDTH, min(n_classes, MOST_FOR_CLASSES))


def start_codes(S: Similarity, n_bits: int, seed: int) -> NDArray[np.uint8]:
    """Codes that reproduce S and know nothing of the rows: H-steps from one random code per group of equal labels.

    Of classes each counts as one row. Bits that are balanced over all rows would leave rare classes one code together
    where a common one has half of the rows.
    """
    if isinstance(S, Classes) and S.n > S.n_groups:
        of_class = start_codes(from_labels(np.arange(S.n_groups)), n_bits, seed)
        return of_class[S.row_group.cpu().numpy()]
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


def least_distance(C: Tensor) -> float:
    """Of codewords (l, r), the fewest bits in which two differ."""
    distances = (C.shape[1] - C @ C.T) / 2
    return float(distances.fill_diagonal_(float(C.shape[1])).min())


def codeword_loss(f: Tensor, C: Tensor, t: Tensor) -> Tensor:
    """The mean over rows (b, R) of the softmax loss; a row without a label counts nothing."""
    wanted = t / t.sum(1, keepdim=True).clamp(min=1)
    return functional.cross_entropy(C.shape[1] ** 0.5 * (cosines(f, C) - MARGIN * t), wanted)


def label_loss(f: Tensor, t: Tensor, share: Tensor) -> Tensor:
    """The logistic losses of labels that are not missing, mean over rows; ``share`` (l,) of the rows have each."""
    z, known = f + torch.logit(share, eps=1e-4), ~t.isnan()
    losses = functional.binary_cross_entropy_with_logits(z, t.nan_to_num(0.0), reduction="none")
    return (losses * known).sum() / len(t)


def hold_out(n: int, seed: int, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Numbers of the rows that the first cycle is not trained on, and of those that it is.

    None are held out of classes y of which no other row would be seen: nobody can be right about those.
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    n_held = min(int(HELD_OUT * n), MOST_HELD_OUT)
    held, seen = order[:n_held], order[n_held:]
    known = torch.isin(y[held], y[seen]) if y is not None else torch.ones(n_held, dtype=torch.bool)
    return held[known], torch.cat([seen, held[~known]])
