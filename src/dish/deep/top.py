"""What comes on top of a trained network: the posterior hash function of the kernel side, on the network's cosines.

    F(x) = p(x)ᵃ V + offset ,    p(x) = softmax(β cos(f(x), C))

f(x) are the network's outputs, C one codeword per label, and β makes p as sure as it is right on rows the network was
not trained on. The signs of f keep little of the order of p(x)·p(x′), the chance that two rows share a class; the
frame V (``kernel.posterior``), turned on those rows, keeps more of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dish import codes, metrics
from dish.kernel.posterior import centred_frame, frame, turn_frame

POWERS = (0.5, 1.0, 2.0)  # of p that are tried where rows have several labels
SHARPNESS = torch.logspace(-0.5, 2, 101)  # values of β that are tried


class PosteriorTop(nn.Module):
    """Outputs f (n, R) → F (n, r)."""

    C: Tensor  # (l, R) of ±1
    V: Tensor  # (l, r)
    offset: Tensor  # (r,)
    beta: Tensor
    power: Tensor

    def __init__(self, C: Tensor, V: Tensor, offset: Tensor, beta: float, power: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("C", C.float())
        self.register_buffer("V", V.float())
        self.register_buffer("offset", offset.float())
        self.register_buffer("beta", torch.tensor(float(beta)))
        self.register_buffer("power", torch.tensor(float(power)))
        self.to(C.device)

    @classmethod
    def blank(cls, n_outputs: int, n_labels: int, n_bits: int) -> Self:
        """One of this shape, to be filled from a file."""
        C, V, offset = torch.zeros(n_labels, n_outputs), torch.zeros(n_labels, n_bits), torch.zeros(n_bits)
        return cls(C, V, offset, 1.0)

    def posterior(self, f: Tensor) -> Tensor:
        """p (n, l)."""
        return torch.softmax(self.beta * cosines(f.float(), self.C), 1)

    def forward(self, f: Tensor) -> Tensor:
        """pᵃ V + offset."""
        return self.posterior(f).pow(self.power) @ self.V + self.offset


def cosines(f: Tensor, C: Tensor) -> Tensor:
    """Of outputs (n, R) with codewords (l, R) of ±1: (n, l)."""
    return functional.normalize(f, dim=1) @ C.T / C.shape[1] ** 0.5


@dataclass(frozen=True)
class Rows:
    """Outputs of some rows with their labels."""

    f: Tensor  # (n, R)
    t: Tensor  # (n, l) of 0 and 1


def plain_top(C: Tensor, signs: NDArray[np.float64], beta: float, rng: np.random.RandomState) -> PosteriorTop:
    """With a frame that no rows were held out for."""
    V, offset = centred_frame(frame(signs, rng))
    return PosteriorTop(C, V.to(C), offset.to(C), beta)


def fit_top(
    C: Tensor, signs: NDArray[np.float64], held: Rows, seen: Rows, one_label: bool, rng: np.random.RandomState
) -> PosteriorTop:
    """β and the frame by rows that the network was not trained on, and as many that it was."""
    beta = calibrate(C, held)
    start = plain_top(C, signs, beta, rng)
    if one_label:
        scored = [(start.posterior(rows.f), rows.t.argmax(1)) for rows in (held, seen)]
        V, offset = centred_frame(turn_frame(start.V, scored[0], scored[1], rng))
        return PosteriorTop(C, V, offset, beta)
    random = np.where(rng.random_sample(signs.shape) < 0.5, -1.0, 1.0)
    frames = [frame(each, rng).to(C) for each in (signs, random)]
    tops = [PosteriorTop(C, V, centre * 0.75 * mean_power(start, held, a) @ V, beta, a)
            for V in frames for a in POWERS for centre in (0.0, -1.0)]  # fmt: skip
    return max(tops, key=lambda top: held_out_map(top, held, seen))


def mean_power(top: PosteriorTop, rows: Rows, power: float) -> Tensor:
    """The mean of pᵃ over rows, (l,)."""
    return top.posterior(rows.f).pow(power).mean(0)


def calibrate(C: Tensor, held: Rows) -> float:
    """The β for which the labels of held-out rows are likeliest."""
    wanted = held.t / held.t.sum(1, keepdim=True).clamp(min=1)
    scores = cosines(held.f, C)
    losses = [float(functional.cross_entropy(float(beta) * scores, wanted)) for beta in SHARPNESS]
    return float(SHARPNESS[int(np.argmin(losses))])


def held_out_map(top: PosteriorTop, held: Rows, seen: Rows) -> float:
    """MAP of half of the held-out rows as queries, against the other half and as many that were trained on."""
    n = len(held.f) // 2
    f, t = torch.cat([held.f, seen.f[:n]]), torch.cat([held.t, seen.t[:n]])
    with torch.no_grad():
        packed, Y = codes.pack(top(f).cpu().numpy()), t.cpu().numpy().astype(np.uint8)
    return float(metrics.mean_average_precision(packed[:n], Y[:n], packed[n:], Y[n:]))
