"""What comes on top of a trained network: the posterior hash function of the kernel side, on the network's cosines.

    F(x) = p(x)ᵃ V + offset ,    p(x) = softmax(β cos(f(x), C)), or sigmoid(β f(x) + b) where rows have several labels

f(x) are the network's outputs, C one codeword per class; β (and b, both per label then) make p as sure as it is right
on rows the network was not trained on. The signs of f keep little of the order of p(x)·p(x′), the chance that two
rows share a class; the frame V (``kernel.frames``, ``kernel.several``), fitted by those rows, keeps more of it.

Where classes are fewer than bits, at least by a third, codes keep most of it without a frame. If bit j were drawn,
+1 with the chance that a class drawn from p has +1 in its codeword, the distance of two codes would be D (1 − p·p′)
in the mean, D that of two codewords: codes of unsure rows come out apart even where their p is the same, so that an
unsure query finds sure rows first.
Nothing need be drawn: as in the halftones of a printed picture, a bit that was rounded carries its error on, and
small differences between p make the errors fall on other bits,

    h_j = sgn( (pV)_j − c Σ_l p_l e_l V_lj ) ,   e_l = Σ_{i<j} (h_i − (pV)_i) V_li ,

V (l, r) of ±1 one codeword per class, so that the code as a whole is as far from those of likely classes as p says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dish.deep.model import Top
from dish.encoder import sigmoid, softmax
from dish.posterior.multilabel import best_projection
from dish.posterior.projection import centred, refine, signed_projection

NEWTON_STEPS, NEWTON_RIDGE = 30, 1e-2
CARRY, MOST_CLASSES = 0.5, 2 / 3  # the share c of errors that is carried, and classes per bit for that, at most
EVEN = 0.5  # and how many of l classes 1/Σπ², π being their shares, must count at least: l if all are of one size
JUDGES = 1000  # held-out rows that decide between a frame and carried errors, at most
LEAST = 1e-3  # of |F| where errors are carried
SHARPNESS = torch.logspace(-0.5, 2, 101)  # values of β that are tried
UNSURE = 1.0  # a β below it makes p nearly the same for all classes


class PosteriorTop(Top):
    """Outputs f (n, R) → F (n, r) by a frame."""

    C: Tensor  # (l, R) of ±1; empty where f are logits
    V: Tensor  # (l, r)
    offset: Tensor  # (r,)
    beta: Tensor  # (1,) for all labels, or one each (l,)
    b: Tensor  # (l,) where rows have several labels, else empty
    power: Tensor  # (1,)

    def __init__(
        self, C: Tensor, V: Tensor, offset: Tensor, beta: Tensor, b: Tensor | None = None, power: float = 1.0
    ) -> None:
        super().__init__()
        none = torch.zeros(0)
        named = {"C": C, "V": V, "offset": offset, "beta": beta, "b": none if b is None else b}
        for name, value in {**named, "power": torch.tensor(power)}.items():
            self.register_buffer(name, torch.atleast_1d(value).to(C.device, torch.float32))

    def posterior(self, f: Tensor) -> Tensor:
        """p (n, l)."""
        z = self.beta * (cosines(f.float(), self.C) if len(self.C) else f.float())
        return softmax(z) if len(self.b) == 0 else sigmoid(z + self.b)

    def scores(self, f: Tensor) -> Tensor:
        """pᵃ."""
        return self.posterior(f).pow(self.power)

    def bits(self, scores: Tensor) -> Tensor:
        """pᵃ V + offset."""
        return scores @ self.V + self.offset


class CarryingTop(PosteriorTop):
    """Outputs f (n, R) → F (n, r): bits one after the other, each with the rounding errors of those before it."""

    carry: Tensor  # (1,): c

    def __init__(self, C: Tensor, V: Tensor, beta: Tensor, carry: float) -> None:
        super().__init__(C, V, torch.zeros(V.shape[1]), beta)
        self.register_buffer("carry", torch.tensor([carry], device=C.device))

    def bits(self, scores: Tensor) -> Tensor:
        """F with the signs of the carried values: pV, or nearly zero where the errors turned a bit.

        So a query that is not rounded (asymmetric search) is not ranked by the errors.
        """
        wanted = scores @ self.V
        h = torch.where(self.carried(scores) >= 0, 1.0, -1.0)
        return h * (h * wanted).clamp(min=LEAST)

    def carried(self, p: Tensor) -> Tensor:
        """pV less errors, (n, r), bit by bit."""
        wanted, e, found = p @ self.V, torch.zeros_like(p), []
        for w, v in zip(wanted.unbind(1), self.V.unbind(1), strict=True):
            found.append(w - self.carry * ((p * e) @ v))
            e = e.addcmul((torch.where(found[-1] >= 0, 1.0, -1.0) - w)[:, None], v)
        return torch.stack(found, 1)


def top_of(arrays: dict[str, NDArray[Any]]) -> PosteriorTop:
    """From the arrays of its state."""
    C, V, offset, beta, b = (torch.tensor(arrays[name]) for name in ("C", "V", "offset", "beta", "b"))
    if "carry" in arrays:
        return CarryingTop(C, V, beta, float(arrays["carry"][0]))
    return PosteriorTop(C, V, offset, beta, b, float(arrays["power"][0]))


def cosines(f: Tensor, C: Tensor) -> Tensor:
    """Of outputs (n, R) with codewords (l, R) of ±1: (n, l)."""
    return functional.normalize(f, dim=1) @ C.T / C.shape[1] ** 0.5


@dataclass(frozen=True)
class Rows:
    """Outputs of some rows with their labels."""

    f: Tensor  # (n, R)
    t: Tensor  # (n, l) from 0 to 1, NaN where a label is missing


def plain_top(C: Tensor, signs: NDArray[np.float64], beta: float, rng: np.random.RandomState) -> PosteriorTop:
    """With a frame that no rows were held out for."""
    V, offset = centred(signed_projection(signs, rng))
    return PosteriorTop(C, V, offset, torch.tensor(beta))


def fit_top(
    C: Tensor,
    signs: NDArray[np.float64],
    held: Rows,
    seen: Rows,
    rng: np.random.RandomState,
    carry: bool = True,
    agreed: Callable[[float], float] = float,
) -> PosteriorTop:
    """By rows that the network was not trained on and others that it was: β, and the frame or none.

    If they may be (``carry``), errors are carried where classes are so few that codewords are about equally far
    apart, and of about one size (p, which knows no shares, is too unsure of large ones), and where codes should rank
    held-out rows better for it: of rows that are all unsure, little but the errors would be seen. ``agreed`` makes
    the gain of one process that of all.
    """
    start = plain_top(C, signs, calibrate(C, held), rng)
    if start.beta < UNSURE:
        warnings.warn(
            f"the network can hardly tell the classes of the {len(held.f):,} rows that were held out: codes of new "
            "rows will be of little use. More rows per class may help, more epochs, or for vectors DISH",
            stacklevel=2,
        )
    share = seen.t.mean(0)
    even = float(1 / share.square().sum()) >= EVEN * len(share)
    if carry and even and len(signs) <= MOST_CLASSES * signs.shape[1]:
        carrying = CarryingTop(C, torch.from_numpy(signs), start.beta, CARRY)
        if agreed(gain(carrying, start, held, seen, expected_map)) > 0:
            return carrying
    return turned(start, held, seen, rng)


def gain(
    carrying: PosteriorTop, start: PosteriorTop, held: Rows, seen: Rows, score: Callable[[PosteriorTop, Rows], float]
) -> float:
    """The score of ``carrying`` less that of a frame on each half of the held-out rows, its mean.

    The frame is fitted by the other half: rows that it was fitted by would speak for it.
    """
    halves = [Rows(held.f[i:JUDGES:2], held.t[i:JUDGES:2]) for i in range(2)]
    frames = [turned(start, half, seen, np.random.RandomState(0)) for half in halves]
    others = zip(frames, halves[::-1], strict=True)
    return sum(score(carrying, half) - score(framed, half) for framed, half in others) / 2


def expected_map(top: PosteriorTop, rows: Rows) -> float:
    """MAP of the codes of these rows among one another, if two of them are of one class with the chance p·p′.

    Labels of a few hundred rows are too noisy to decide between codes (benchmarks/judges.py); p, which was calibrated
    on them, is not. Where rows are equally far from a query, the precision is that half-way through them.
    """
    p, H = top.posterior(rows.f), torch.where(top(rows.f) >= 0, 1.0, -1.0)
    distance = ((H.shape[1] - H @ H.T) / 2).round().long()
    empty = p.new_zeros(len(p), H.shape[1] + 1)  # per row, and distance from it
    relevant = empty.scatter_add(1, distance, (p @ p.T).fill_diagonal_(0))
    others = empty.scatter_add(1, distance, torch.ones_like(distance).fill_diagonal_(0).to(p))
    precision = (relevant.cumsum(1) - relevant / 2) / (others.cumsum(1) - others / 2).clamp(min=0.5)
    return float(((relevant * precision).sum(1) / relevant.sum(1).clamp(min=1e-12)).mean())


def turned(start: PosteriorTop, held: Rows, seen: Rows, rng: np.random.RandomState) -> PosteriorTop:
    """With the frame turned towards codes that rank these rows."""
    scored = [(start.posterior(rows.f), rows.t.argmax(1)) for rows in (held, seen)]
    V, offset = centred(refine(start.V, scored[0], scored[1], rng))
    return PosteriorTop(start.C, V, offset, start.beta)


def plain_label_top(signs: NDArray[np.float64], share: Tensor, rng: np.random.RandomState) -> PosteriorTop:
    """For rows with several labels, each of a ``share`` (l,) of them; no rows were held out to fit the frame."""
    V = signed_projection(signs, rng).to(share)
    return PosteriorTop(
        share.new_zeros(0, 0), V, torch.zeros_like(V[0]), torch.ones_like(share), torch.logit(share, eps=1e-4), 2.0
    )


def fit_label_top(signs: NDArray[np.float64], held: Rows, seen: Rows, rng: np.random.RandomState) -> PosteriorTop:
    """For rows with several labels: β and b of each, the power of p and the frame that rank held-out rows best."""
    beta, b = calibrate_each(held.f, held.t)
    none, n = held.f.new_zeros(0, 0), len(held.f)
    p = sigmoid(beta * torch.cat([held.f, seen.f[:n]]) + b)
    Y = (torch.cat([held.t, seen.t[:n]]) >= 0.5).cpu().numpy().astype(np.uint8)
    random, zero = np.where(rng.random_sample(signs.shape) < 0.5, -1.0, 1.0), torch.zeros(signs.shape[1]).to(p)
    given, number = [(signed_projection(each, rng), zero) for each in (random, signs)], torch.arange(len(p))
    scored = [(p[part], number[part]) for part in (slice(n), slice(n, None))]
    power, V, offset, _ = best_projection(lambda rows: Y[rows.numpy()], given, scored[0], scored[1], rng)
    return PosteriorTop(none, V, offset, beta, b, power)


def calibrate(C: Tensor, held: Rows) -> float:
    """The β for which the labels of held-out rows are likeliest."""
    wanted = held.t / held.t.sum(1, keepdim=True).clamp(min=1)
    scores = cosines(held.f, C)
    losses = [float(functional.cross_entropy(float(beta) * scores, wanted)) for beta in SHARPNESS]
    return float(SHARPNESS[int(np.argmin(losses))])


def calibrate_each(scores: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """β (l,) and b (l,) of a logistic regression of each label on its own score, by Newton's steps."""
    x = torch.stack([scores, torch.ones_like(scores)]).double()  # (2, n, l)
    known, t = ~t.isnan(), t.nan_to_num(0.0)
    theta = torch.zeros(2, scores.shape[1], dtype=torch.float64, device=scores.device)
    prior = NEWTON_RIDGE * torch.eye(2, dtype=torch.float64, device=scores.device)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid((theta[:, None] * x).sum(0))
        slope = (x * ((p - t) * known)).sum(1) + NEWTON_RIDGE * theta  # (2, l)
        curve = torch.einsum("inl,jnl,nl->lij", x, x, (p * (1 - p)).clamp(min=1e-3) * known) + prior
        theta = theta - torch.linalg.solve(curve, slope.T[..., None])[..., 0].T
    return theta[0].float(), theta[1].float()
