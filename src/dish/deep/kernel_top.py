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
from dish.encoder import FeatureMap, Posterior
from dish.posterior.dish import DISH

ANCHORS = 1000  # at most
KERNELS, LINKS = ("rbf", "rbf+linear"), ("softmax", "sigmoid")


class KernelTop(Top):
    """Φ (n, D) → F (n, r): the encoder of a fitted ``DISH`` on Φ(x)/‖Φ(x)‖."""

    V: Tensor
    offset: Tensor
    NAMES = ("anchors", "centre", "mean", "B", "b", "V", "offset")

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        """From the arrays of its state."""
        super().__init__()
        for name in self.NAMES:
            self.register_buffer(name, torch.tensor(arrays[name], dtype=torch.float32))
        self.register_buffer("gamma", torch.tensor(arrays["gamma"], dtype=torch.float64))
        self.register_buffer("kind", torch.tensor(arrays["kind"]))
        kernel, link, self.power = arrays["kind"].tolist()
        self.kernel, self.link, self.scale = KERNELS[kernel], LINKS[link], float(arrays["gamma"][0])

    @classmethod
    def of(cls, dish: DISH) -> Self:
        """The hash function of a fitted DISH."""
        features, function = dish.encoder_.features, dish.hash_function_
        assert isinstance(function, Posterior)
        parts = {name: getattr(features if hasattr(features, name) else function, name) for name in cls.NAMES}
        kind = [KERNELS.index(dish.kernel_), LINKS.index(function.link), function.power]
        return cls({**parts, "gamma": np.array([features.gamma]), "kind": np.array(kind)})

    def _function(self) -> Posterior:
        return Posterior(self.B, self.b, self.V, self.offset, self.link, self.power)

    def scores(self, f: Tensor) -> Tensor:
        """pᵃ (n, l) of Φ."""
        features = FeatureMap(self.kernel, self.anchors, self.scale, self.centre, self.mean)
        return self._function().scores(features(functional.normalize(f.float(), dim=1)))

    def bits(self, scores: Tensor) -> Tensor:
        """pᵃ V + offset."""
        return torch.addmm(self.offset, scores, self.V)


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
