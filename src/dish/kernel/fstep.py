"""The F-step: fits a hash function to codes, with a built-in loss or any scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.cbcd import Columns
from dish.encoder import Classifiers, HashFunction, Linear, decision_values, row_blocks
from dish.errors import InputError
from dish.kernel.features import F_blocks, feature_blocks
from dish.kernel.fit_data import FitData
from dish.lazy import Tensor, torch


@dataclass(frozen=True)
class Loss:
    """The loss l(h, f) of Eq. (2), h = ±1, as the terms that the two steps need.

    ``half_difference`` and ``half_sum`` are ½[l(1, f) ∓ l(−1, f)], the linear and the constant term of the H-step.
    ``target`` is the minimiser of a quadratic upper bound of l with curvature ``curvature`` that touches l at f.
    Regression onto it never raises the loss.
    """

    half_difference: Callable[[Tensor], Tensor]
    half_sum: Callable[[Tensor], Tensor]
    target: Callable[[Tensor, Tensor], Tensor]
    curvature: float
    one_solve: bool = False


def _hinge(f: Tensor) -> Tensor:
    return (1 - f).clamp(min=0).square()


LOSSES = {
    # (h − f)²
    "ridge": Loss(
        half_difference=lambda f: -2 * f,
        half_sum=lambda f: 1 + f * f,
        target=lambda h, f: h,
        curvature=2.0,
        one_solve=True,
    ),
    # max(0, 1 − hf)²
    "hinge": Loss(
        half_difference=lambda f: (_hinge(f) - _hinge(-f)) / 2,
        half_sum=lambda f: (_hinge(f) + _hinge(-f)) / 2,
        target=lambda h, f: f + h * (1 - h * f).clamp(min=0),
        curvature=2.0,
    ),
    # log(1 + exp(−hf))
    "logistic": Loss(
        half_difference=lambda f: -f / 2,
        half_sum=lambda f: torch.nn.functional.softplus(f) - f / 2,
        target=lambda h, f: f + 4 * h * torch.sigmoid(-h * f),
        curvature=0.25,
    ),
}


class LinearStep:
    """The F-step with F = K W: lowers Σ l(h_ik, (KW)_ik) + ½ curvature·ρ‖W‖² over W (m, r).

    Ridge regression is one solve, W = (KᵀK + ρI)⁻¹ KᵀH. The other losses repeat the same solve ``N_STEPS`` times with
    their working targets, starting from the last W. No step raises the loss.
    """

    N_STEPS = 10

    def __init__(self, data: FitData, loss: Loss, r: int) -> None:
        self.K, self.white, self.ranks = data.K, data.white, data.ranks
        self.loss, self.r = loss, r
        self.W = torch.zeros(self.K.shape[1], r, dtype=self.K.dtype, device=self.K.device)
        self.q: Tensor | None = None  # (r, n), allocated once: the largest array after K

    def start(self, W: Tensor) -> None:
        """Start from F = K W."""
        self.W = W

    def function(self) -> HashFunction:
        """The current F."""
        return Linear.of(self.W)

    def fit(self, H: Columns) -> None:
        """Fit F to the codes H."""
        for _ in range(1 if self.loss.one_solve else self.N_STEPS):
            KtT = torch.zeros(self.W.shape, dtype=torch.float64, device=self.K.device)
            for rows, K in feature_blocks(self.K, title="F-step"):
                h = H.signs(rows, K)
                KtT += K.T @ (h if self.loss.one_solve else self.loss.target(h, K @ self.W))
            self.W = self.white.solve(self.ranks.total(KtT)).to(self.K.dtype)

    def linear_terms(self, scale: float) -> tuple[Tensor, float]:
        """q (r, n) of the H-step, and the part of the loss that does not depend on H; ``scale`` is nν."""
        if self.q is None:
            self.q = torch.empty(self.r, len(self.K), dtype=self.K.dtype, device=self.K.device)
        part = linear_terms(F_blocks(self.K, self.W), self.loss, scale, out=self.q)
        constant = float(self.ranks.total(torch.tensor(part, dtype=torch.float64)))
        weights = self.loss.curvature / 2 * self.white.rho * float(self.W.double().square().sum())
        return self.q, constant + scale * weights


class ClassifierStep:
    """The F-step with any scikit-learn classifier on the kernel features, one clone per bit.

    f is its ``decision_function`` (or 2p − 1 from ``predict_proba``), and its loss is the squared hinge. A bit keeps
    its previous classifier if the new one has a larger loss, so that the objective does not rise.
    """

    def __init__(self, data: FitData, classifier: Any, r: int) -> None:
        if not isinstance(data.K, Tensor) or data.ranks.world > 1:
            raise InputError(
                "loss: a classifier needs all kernel features in the memory of one process: raise memory_budget, or "
                "use 'ridge', 'hinge' or 'logistic'"
            )
        self.K, self.classifier, self.r = data.K, classifier, r
        self.loss = LOSSES["hinge"]
        self.F = np.zeros((len(self.K), r), np.float32)
        self.models: list[Any] = []

    def start(self, W: Tensor) -> None:
        """Start from F = K W."""
        self.F = (self.K @ W).cpu().numpy().astype(np.float32)

    def function(self) -> HashFunction:
        """The current F; call ``fit`` first."""
        return from_classifiers(self.models, self.K.shape[1])

    def fit(self, H: Columns) -> None:
        """Fit F to the codes H."""
        from sklearn.base import clone

        K, signs = self.K.cpu().numpy(), codes.unpack(H.packed(), self.r)
        former = self.models or [None] * self.r
        self.models = list(former)
        for k, h in enumerate(signs.T):
            model = clone(self.classifier).fit(K, h)
            f = decision_values(model, K)
            if former[k] is None or self._loss(h, f) <= self._loss(h, self.F[:, k]):
                self.models[k], self.F[:, k] = model, f

    def linear_terms(self, scale: float) -> tuple[Tensor, float]:
        """q (r, n) of the H-step, and the part of the loss that does not depend on H."""
        q = torch.empty(self.r, len(self.K), device=self.K.device)
        blocks = ((rows, torch.from_numpy(self.F[rows]).to(q.device)) for rows in row_blocks(len(self.K)))
        return q, linear_terms(blocks, self.loss, scale, out=q)

    @staticmethod
    def _loss(h: NDArray[Any], f: NDArray[Any]) -> float:
        return float(np.square(np.maximum(0, 1 - h * f.astype(np.float64))).sum())


def from_classifiers(models: list[Any], m: int) -> HashFunction:
    """Fitted classifiers on m features: as one ``Linear`` function if all of them are linear."""
    if not all(np.shape(getattr(model, "coef_", ())) == (1, m) for model in models):
        return Classifiers(models)
    W = np.concatenate([model.coef_ for model in models]).T.astype(np.float32)
    return Linear.of(W, [np.ravel(model.intercept_)[0] for model in models])


def linear_terms(F_blocks: Iterator[tuple[slice, Tensor]], loss: Loss, scale: float, out: Tensor) -> float:
    """q = scale·½[l(1, F) − l(−1, F)] into ``out`` (r, n), and scale·Σ ½[l(1, F) + l(−1, F)], from blocks of F."""
    constant = torch.zeros((), dtype=torch.float64, device=out.device)
    for rows, F in F_blocks:
        out[:, rows] = (scale * loss.half_difference(F)).T
        constant += loss.half_sum(F).sum(dtype=torch.float64)
    return scale * float(constant)
