"""On top of a network that stays as it is: the hash function of the kernel ``DISH`` on Φ(x)/‖Φ(x)‖, as a module.

A layer trained by SGD on frozen features has to find what a kernel has in closed form, and of few rows it does not.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dish.deep.data import Problem
from dish.deep.model import Top
from dish.kernel.dish import DISH
from dish.kernel.frozen import centre_of
from dish.kernel.functions import link, powered
from dish.kernel.outliers import FARTHEST

ANCHORS = 1000  # at most
LINKS = ("softmax", "sigmoid", "sigmoid_1")


class KernelTop(Top):
    """Φ (n, D) → F (n, r): kernel features, the probabilities of the labels, and the frame on them."""

    anchors: Tensor  # (m, D), less their centre
    centre: Tensor  # (D,)
    gamma: Tensor  # (1,)
    mean: Tensor  # (m,), or (m + D,) where x itself is a feature too
    B: Tensor  # (m or m + D, l)
    b: Tensor  # (l,)
    V: Tensor  # (l, r)
    offset: Tensor  # (r,)
    link: Tensor  # (1,), a number of LINKS

    NAMES = ("anchors", "centre", "gamma", "mean", "B", "b", "V", "offset", "link")

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        """From the arrays of its state."""
        super().__init__()
        for name in self.NAMES:
            self.register_buffer(name, torch.tensor(arrays[name], dtype=torch.float32))
        self.name = LINKS[int(arrays["link"][0])]
        self.both = len(arrays["mean"]) > len(arrays["anchors"])

    @classmethod
    def of(cls, dish: DISH) -> Self:
        """The hash function of a fitted DISH."""
        centre = centre_of(dish.anchors_)
        given = {"anchors": dish.anchors_ - centre, "centre": centre, "gamma": [dish.gamma_], "mean": dish.mean_}
        given |= {"B": dish.posterior_B_, "b": dish.posterior_b_, "V": dish.frame_, "offset": dish.offset_}
        return cls({name: np.asarray(a) for name, a in {**given, "link": [LINKS.index(dish.link_)]}.items()})

    def scores(self, f: Tensor) -> Tensor:
        """pᵃ (n, l) of Φ."""
        K = self.features(functional.normalize(f.float(), dim=1))
        return powered(link(torch.addmm(self.b, K, self.B), self.name == "softmax"), self.name)

    def bits(self, scores: Tensor) -> Tensor:
        """pᵃ V + offset."""
        return torch.addmm(self.offset, scores, self.V)

    def features(self, x: Tensor) -> Tensor:
        """Centred features of rows of length one: as ``kernel.features`` has them."""
        x, A, gamma = x - self.centre, self.anchors, self.gamma
        # −γ‖x − a‖² = 2γ x·a − γ‖a‖² − γ‖x‖²
        K = 2 * gamma * (x @ A.T) - gamma * A.square().sum(1) - gamma * x.square().sum(1, keepdim=True)
        K = K.clamp(max=0).exp()
        if self.both:
            linear = gamma.sqrt() * x
            K = torch.cat([K, linear * (FARTHEST / linear.norm(dim=1, keepdim=True).clamp(min=FARTHEST))], 1)
        return K - self.mean


def fit_kernel_top(problem: Problem, n_bits: int) -> tuple[KernelTop, NDArray[np.uint8]]:
    """By DISH on features (n, D), and the codes it learned; of several processes each gives its share, in order."""
    mine = torch.arange(problem.n).tensor_split(problem.ranks.world)[problem.ranks.rank].to(problem.device)
    rows = functional.normalize(problem.rows[mine].float(), dim=1).cpu().numpy()
    y = problem.targets[mine].cpu().numpy()
    y = y.astype(np.uint8) if problem.several else y
    dish = DISH(n_bits, n_anchors=min(ANCHORS, problem.n), device=str(problem.device), random_state=problem.seed)
    top = KernelTop.of(dish.fit(rows, y)).to(problem.device)
    problem.ranks.broadcast(top.buffers())
    return top, np.concatenate(problem.ranks.gather_arrays(dish.codes_))
