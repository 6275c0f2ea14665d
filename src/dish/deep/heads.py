"""Heads: what turns the outputs f(x) of a trained network into F(x), whose signs are the code.

``PosteriorHead`` computes class probabilities and projects them onto bits, like the kernel method ``DISH``:

    F(x) = p(x) V + offset ,    p(x) = softmax(β cos(f(x), C)),

with one codeword C_l per class. For rows with several labels, ``MultilabelHead`` has F(x) = p(x)ᵃ V + offset with
p(x) = sigmoid(β f(x) + b). β and b are calibrated on held-out rows, so that p is as confident as it is accurate
there. The signs of f say little about p(x)·p(x′), the probability that two rows share a class. The projection V
(``posterior.projection``), which is fitted to held-out rows, preserves more of it.

Error diffusion (``encoder.diffused_signs``) is for problems with fewer classes than bits. Suppose bit j were drawn at
random, +1 with the probability that a class drawn from p has +1 in its codeword. Then the expected distance of two
codes would be D (1 − p·p′), with D the distance of two codewords: uncertain rows would lie far from each other even
if their p is the same, and an uncertain query would find certain rows first. Error diffusion, as in the halftones of
a printed picture, has this effect without random numbers: each bit passes its rounding error on to the following
bits, with V (l, r) of ±1, one codeword per class. So the distances of a code to the codewords of likely classes
follow p.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dish.encoder import Encoder, FeatureMap, Posterior, projected, raised, sigmoid, softmax
from dish.posterior.multilabel import best_power
from dish.posterior.multilabel import refined as refined_for_sets
from dish.posterior.projection import centred, refine, signed_projection

NEWTON_STEPS, NEWTON_RIDGE = 30, 1e-2
DIFFUSED = 0.5  # share c of the rounding error that is passed on
MAX_CLASSES_PER_BIT = 2 / 3  # error diffusion needs codewords that are about equally far apart
MIN_EVENNESS = 0.5  # and 1/Σπ² of at least this times l, π being the shares of the classes: l if all are equal
MAX_JUDGES = 1000  # held-out rows that decide between a projection and error diffusion
BETAS = torch.logspace(-0.5, 2, 101)  # candidates for β
UNCERTAIN = 1.0  # a β below it makes p nearly uniform


class Head(nn.Module):
    """The outputs of the network are F."""

    kind: str = "outputs"
    VALUES: ClassVar[tuple[str, ...]] = ()  # attributes that are not tensors

    def forward(self, *views: Tensor) -> Tensor:
        """F (n, r) of outputs; the scores of several views of the same rows are averaged."""
        return self.bits(torch.stack([self.scores(view) for view in views]).mean(0))

    def scores(self, f: Tensor) -> Tensor:
        """What is averaged over views."""
        return f

    def bits(self, scores: Tensor) -> Tensor:
        """F of the averaged scores."""
        return scores

    def config(self) -> dict[str, Any]:
        """JSON values from which, with the tensors, ``restore`` makes the head again."""
        return {"kind": self.kind, **{name: getattr(self, name) for name in self.VALUES}}

    def _register(self, **tensors: Tensor) -> None:
        for name, value in tensors.items():
            self.register_buffer(name, value.to(torch.float32))


class Scores(Head):
    """The scores of another head instead of F."""

    def __init__(self, of: Head) -> None:
        super().__init__()
        self.of = of

    def scores(self, f: Tensor) -> Tensor:
        """Those of the other head."""
        return self.of.scores(f)


class ProjectionHead(Head):
    """Scores pᵃ (n, l) → F (n, r) by a projection, perhaps with error diffusion; labels have codes: F of p = 1."""

    V: Tensor  # (l, r)
    offset: Tensor  # (r,)
    power: int = 1  # a
    one_label: bool = True  # every row has exactly one label
    diffused: float = 0.0  # share of the rounding error of a bit that is passed on to later bits

    def bits(self, scores: Tensor) -> Tensor:
        """pᵃ V + offset."""
        F: Tensor = projected(scores, self.V, self.offset, self.diffused)
        return F

    def config(self) -> dict[str, Any]:
        """As above; the share only if errors are passed on, as in files from before there was error diffusion."""
        return {**super().config(), **({"diffused": self.diffused} if self.diffused else {})}


class PosteriorHead(ProjectionHead):
    """Outputs f (n, R) → F (n, r) by class probabilities and a projection V."""

    C: Tensor  # (l, R) of ±1
    beta: Tensor  # (1,)

    def __init__(self, C: Tensor, V: Tensor, offset: Tensor, beta: Tensor, diffused: float = 0.0) -> None:
        super().__init__()
        self.kind, self.diffused = "error_diffusion" if diffused else "posterior", diffused
        self._register(C=C, V=V.to(C.device), offset=offset.to(C.device), beta=beta.reshape(1).to(C.device))

    def probabilities(self, f: Tensor) -> Tensor:
        """p (n, l)."""
        p: Tensor = softmax(self.beta * cosines(f.float(), self.C))
        return p

    def scores(self, f: Tensor) -> Tensor:
        """p (n, l)."""
        return self.probabilities(f)

    def with_codewords(self, C: Tensor) -> PosteriorHead:
        """The same head for other codewords."""
        return PosteriorHead(C, self.V, self.offset, self.beta, self.diffused)


class MultilabelHead(ProjectionHead):
    """Logits f (n, l) of the labels → F (n, r)."""

    kind, VALUES, one_label = "multilabel", ("power",), False
    beta: Tensor  # (l,)
    b: Tensor  # (l,)

    def __init__(self, V: Tensor, offset: Tensor, beta: Tensor, b: Tensor, power: int) -> None:
        super().__init__()
        self._register(V=V, offset=offset, beta=beta, b=b)
        self.power = power

    def probabilities(self, f: Tensor) -> Tensor:
        """p (n, l)."""
        p: Tensor = sigmoid(self.beta * f.float() + self.b)
        return p

    def scores(self, f: Tensor) -> Tensor:
        """pᵃ (n, l)."""
        scores: Tensor = raised(self.probabilities(f), self.power)
        return scores


class FrozenHead(ProjectionHead):
    """Features Φ (n, D) of a network that is not trained → F (n, r), by a fitted ``DISH`` on Φ/‖Φ‖."""

    kind, VALUES = "frozen", ("kernel", "gamma", "link", "power")
    FEATURES, FUNCTION = ("anchors", "centre", "mean"), ("B", "b", "V", "offset")

    def __init__(
        self, kernel: str, gamma: float, link: str, power: int, diffused: float = 0.0, **arrays: Tensor
    ) -> None:
        super().__init__()
        self.kernel, self.gamma, self.link, self.power, self.diffused = kernel, gamma, link, power, diffused
        self.one_label = link == "softmax"
        self._register(**arrays)

    @classmethod
    def of(cls, encoder: Encoder, device: torch.device) -> Self:
        """The hash function of a fitted ``DISH``."""
        features, function = encoder.features, encoder.function
        assert isinstance(function, Posterior)
        assert isinstance(features.kernel, str)
        arrays = {name: getattr(features, name) for name in cls.FEATURES}
        arrays |= {name: getattr(function, name) for name in cls.FUNCTION}
        tensors = {name: torch.as_tensor(array).to(device) for name, array in arrays.items()}
        return cls(features.kernel, features.gamma, function.link, function.power, function.diffused, **tensors)

    @property
    def features(self) -> FeatureMap:
        """k(x) of rows of length one."""
        return FeatureMap(self.kernel, gamma=self.gamma, **{name: getattr(self, name) for name in self.FEATURES})

    @property
    def posterior(self) -> Posterior:
        """The hash function on these features."""
        arrays = {name: getattr(self, name) for name in self.FUNCTION}
        return Posterior(**arrays, link=self.link, power=self.power, diffused=self.diffused)

    def scores(self, f: Tensor) -> Tensor:
        """pᵃ (n, l) of Φ."""
        scores: Tensor = self.posterior.scores(self.features(functional.normalize(f.float(), dim=1)))
        return scores


KINDS: dict[str, type[Head]] = {
    "outputs": Head,
    "posterior": PosteriorHead,
    "error_diffusion": PosteriorHead,
    "multilabel": MultilabelHead,
    "frozen": FrozenHead,
}


def restore(config: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Head:
    """The head that ``config`` and ``state_dict`` describe."""
    values = dict(config)
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    return KINDS[values.pop("kind")](**tensors, **values)


def cosines(f: Tensor, C: Tensor) -> Tensor:
    """Cosines of outputs (n, R) with codewords (l, R) of ±1: (n, l)."""
    return functional.normalize(f, dim=1) @ C.T / C.shape[1] ** 0.5


@dataclass(frozen=True)
class Outputs:
    """Outputs of some rows, with the labels of the rows."""

    f: Tensor  # (n, R)
    t: Tensor  # (n, l) from 0 to 1, NaN where a label is missing


# --- one label per row ---


def default_head(C: Tensor, signs: NDArray[np.float64], beta: float, rng: np.random.RandomState) -> PosteriorHead:
    """A head with the given β and a projection that is not fitted to any rows."""
    V, offset = centred(signed_projection(signs, rng))
    return PosteriorHead(C, V, offset, torch.tensor(beta))


def diffusing_head(C: Tensor, signs: NDArray[np.float64], beta: Tensor, diffused: float = DIFFUSED) -> PosteriorHead:
    """A head with error diffusion, and the codewords of the classes as its projection."""
    return PosteriorHead(C, torch.from_numpy(signs), torch.zeros(signs.shape[1]), beta, diffused)


def fit_head(
    C: Tensor,
    signs: NDArray[np.float64],
    held: Outputs,
    seen: Outputs,
    rng: np.random.RandomState,
    error_diffusion: bool = True,
    agreed: Callable[[float], float] = float,
) -> PosteriorHead:
    """The head that fits rows the network was not trained on (``held``), given others that it was trained on.

    Error diffusion is used if it is allowed, if classes are few and of about equal size (p does not know the sizes of
    classes and is too uncertain about large ones), and if it should rank held-out rows better. It would not if all
    rows were uncertain: codes would then contain little but rounding errors. ``agreed`` replaces the gain that one
    process computed by the one that all processes use.
    """
    start = default_head(C, signs, calibrate(C, held), rng)
    if start.beta < UNCERTAIN:
        warnings.warn(
            f"the network can hardly tell the classes of the {len(held.f):,} held-out rows apart: codes of new rows "
            "will be of little use. More rows per class may help, or more epochs, or DISH if the rows are vectors",
            stacklevel=2,
        )
    share = seen.t.mean(0)
    even = float(1 / share.square().sum()) >= MIN_EVENNESS * len(share)
    if error_diffusion and even and len(signs) <= MAX_CLASSES_PER_BIT * signs.shape[1]:
        diffusing = diffusing_head(C, signs, start.beta)
        if agreed(diffusion_gain(diffusing, start, held, seen, expected_map)) > 0:
            return diffusing
    return refined(start, held, seen, rng)


def diffusion_gain(
    diffusing: PosteriorHead,
    start: PosteriorHead,
    held: Outputs,
    seen: Outputs,
    score: Callable[[PosteriorHead, Outputs], float],
) -> float:
    """The score of error diffusion minus that of a projection, averaged over both halves of the held-out rows.

    The projection is fitted to the other half: scoring it on its own training rows would be biased.
    """
    halves = [Outputs(held.f[i:MAX_JUDGES:2], held.t[i:MAX_JUDGES:2]) for i in range(2)]
    projecting = [refined(start, half, seen, np.random.RandomState(0)) for half in halves]
    pairs = zip(projecting, halves[::-1], strict=True)
    return sum(score(diffusing, half) - score(head, half) for head, half in pairs) / 2


def expected_map(head: PosteriorHead, rows: Outputs) -> float:
    """MAP of the codes of these rows as queries against each other, if two rows share a class with probability p·p′.

    The labels of a few hundred rows are too noisy to decide between codes (benchmarks/judges.py); p, which was
    calibrated on them, is not. For rows at the same distance from a query, the precision halfway through them counts.
    """
    p, H = head.probabilities(rows.f), torch.where(head(rows.f) >= 0, 1.0, -1.0)
    distance = ((H.shape[1] - H @ H.T) / 2).round().long()
    empty = p.new_zeros(len(p), H.shape[1] + 1)  # per query and distance
    relevant = empty.scatter_add(1, distance, (p @ p.T).fill_diagonal_(0))
    others = empty.scatter_add(1, distance, torch.ones_like(distance).fill_diagonal_(0).to(p))
    precision = (relevant.cumsum(1) - relevant / 2) / (others.cumsum(1) - others / 2).clamp(min=0.5)
    return float(((relevant * precision).sum(1) / relevant.sum(1).clamp(min=1e-12)).mean())


def refined(start: PosteriorHead, held: Outputs, seen: Outputs, rng: np.random.RandomState) -> PosteriorHead:
    """The same head with its projection refined to rank these rows."""
    scored = [(start.probabilities(rows.f), rows.t.argmax(1)) for rows in (held, seen)]
    V, offset = centred(refine(start.V, scored[0], scored[1], rng))
    return PosteriorHead(start.C, V, offset, start.beta)


def calibrate(C: Tensor, held: Outputs) -> float:
    """The β that maximises the likelihood of the labels of held-out rows."""
    wanted = held.t / held.t.sum(1, keepdim=True).clamp(min=1)
    scores = cosines(held.f, C)
    losses = [float(functional.cross_entropy(float(beta) * scores, wanted)) for beta in BETAS]
    return float(BETAS[int(np.argmin(losses))])


# --- several labels per row ---


def default_multilabel_head(signs: NDArray[np.float64], share: Tensor, rng: np.random.RandomState) -> MultilabelHead:
    """A head that is not fitted to any rows; ``share`` (l,) is the share of rows with each label."""
    V = signed_projection(signs, rng).to(share)
    return MultilabelHead(V, torch.zeros_like(V[0]), torch.ones_like(share), torch.logit(share, eps=1e-4), 2)


def fit_multilabel_head(
    signs: NDArray[np.float64], held: Outputs, seen: Outputs, rng: np.random.RandomState
) -> MultilabelHead:
    """The head with calibrated β and b, and with the power of p and the projection that rank held-out rows best."""
    beta, b = calibrate_labels(held.f, held.t)
    n = len(held.f)
    p = torch.sigmoid(beta * torch.cat([held.f, seen.f[:n]]) + b)
    Y = (torch.cat([held.t, seen.t[:n]]) >= 0.5).cpu().numpy().astype(np.uint8)
    index = torch.arange(len(p))
    of_held, of_seen = ((p[part], index[part]) for part in (slice(n), slice(n, None)))
    V = signed_projection(signs, rng).to(p)
    start = V, torch.zeros_like(V[0])
    power, _ = best_power(lambda rows: Y[rows.numpy()], start, of_held, of_seen)
    V, offset = refined_for_sets(lambda rows: Y[rows.numpy()], power, start, of_held, of_seen, rng)
    return MultilabelHead(V, offset.to(V), beta, b, power)


def calibrate_labels(scores: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """β (l,) and b (l,) of a logistic regression of each label on its own score, by Newton's method."""
    x = torch.stack([scores, torch.ones_like(scores)]).double()  # (2, n, l)
    known, t = ~t.isnan(), t.nan_to_num(0.0)
    theta = torch.zeros(2, scores.shape[1], dtype=torch.float64, device=scores.device)
    prior = NEWTON_RIDGE * torch.eye(2, dtype=torch.float64, device=scores.device)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid((theta[:, None] * x).sum(0))
        gradient = (x * ((p - t) * known)).sum(1) + NEWTON_RIDGE * theta  # (2, l)
        hessian = torch.einsum("inl,jnl,nl->lij", x, x, (p * (1 - p)).clamp(min=1e-3) * known) + prior
        theta = theta - torch.linalg.solve(hessian, gradient.T[..., None])[..., 0].T
    return theta[0].float(), theta[1].float()
