"""Hash functions: what turns features k(x) into F(x), whose signs are the code.

A function is applied to blocks of features wherever they are, and knows the arrays a model file keeps of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dish.lazy import Tensor, torch


class HashFunction(ABC):
    """Features K (block, m) → F (block, r)."""

    NAMES: ClassVar[tuple[str, ...]]  # the fitted attributes, and entries of a model file, that hold it

    @abstractmethod
    def __call__(self, K: Tensor) -> NDArray[np.float32]:
        """F of a block of centred features."""

    @abstractmethod
    def arrays(self) -> dict[str, Any]:
        """What a model file keeps of it, by name."""

    def to(self, like: Tensor) -> HashFunction:
        """The same function, ready for features of the type and on the device of ``like``."""
        return self


@dataclass(frozen=True)
class Linear(HashFunction):
    """F = K W + intercept."""

    NAMES = ("W_", "intercept_")
    W: Tensor  # (m, r)
    intercept: NDArray[np.float32]  # (r,)

    @classmethod
    def of(cls, W: Any, intercept: Any = 0.0) -> Self:
        """From W (m, r), an array or a tensor, and an intercept per bit or one for all."""
        W = torch.as_tensor(W)
        return cls(W, np.broadcast_to(np.asarray(intercept, np.float32), W.shape[1:]).copy())

    def __call__(self, K: Tensor) -> NDArray[np.float32]:
        """K W + intercept."""
        return np.asarray((K @ self.W).cpu().numpy() + self.intercept, np.float32)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """W_ (m, r) and intercept_ (r,)."""
        return {"W_": self.W.cpu().numpy(), "intercept_": self.intercept}

    def to(self, like: Tensor) -> Linear:
        """W where the features are, in their type."""
        return Linear(self.W.to(like), self.intercept)


@dataclass(frozen=True)
class Classifiers(HashFunction):
    """One fitted scikit-learn classifier per bit, with classes −1 and +1."""

    NAMES = Linear.NAMES
    models: list[Any]

    def __call__(self, K: Tensor) -> NDArray[np.float32]:
        """The decision values of every classifier."""
        rows = K.cpu().numpy()
        return np.stack([decision_values(model, rows) for model in self.models], 1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """An empty W_: classifiers cannot be kept in a file without pickle."""
        r = len(self.models)
        return {"W_": np.zeros((0, r), np.float32), "intercept_": np.zeros(r, np.float32)}


def of_classifiers(models: list[Any], m: int) -> HashFunction:
    """Fitted classifiers on m features as ``Linear`` where all of them are, else as they are."""
    if not all(np.shape(getattr(model, "coef_", ())) == (1, m) for model in models):
        return Classifiers(models)
    W = np.concatenate([model.coef_ for model in models]).T.astype(np.float32)
    return Linear.of(W, [np.ravel(model.intercept_)[0] for model in models])


def decision_values(model: Any, K: NDArray[Any]) -> NDArray[np.float32]:
    """f (n,) of a binary classifier with classes −1 and +1: its decision function, or 2p − 1."""
    if hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(K), np.float32)
    return np.asarray(2 * model.predict_proba(K)[:, 1] - 1, np.float32)


def link(z: Tensor, one_label: bool, labels: int = 1) -> Tensor:
    """p from logits (n, l): softmax where a row has one label, else a sigmoid per label; ``labels`` is their axis."""
    return torch.softmax(z, labels) if one_label else torch.sigmoid(z)


def powered(p: Tensor, link: str) -> Tensor:
    """pᵃ: p², in which doubtful labels weigh less, or p itself."""
    return p.square() if link == "sigmoid" else p


@dataclass(frozen=True)
class Posterior(HashFunction):
    """F = pᵃ V + offset with p = softmax(K B + b) and a = 1, or p = sigmoid(K B + b) and a = 2 or 1."""

    NAMES = ("posterior_B_", "posterior_b_", "frame_", "offset_", "link_")
    B: Tensor  # (m, l)
    b: Tensor  # (l,)
    V: Tensor  # (l, r)
    offset: Tensor  # (r,)
    link: str  # "softmax", "sigmoid" (a = 2) or "sigmoid_1" (a = 1)

    @classmethod
    def kept_by(cls, hasher: Any) -> Self:
        """From the fitted attributes of a hasher."""
        B, b, V, offset = (torch.from_numpy(getattr(hasher, name)) for name in cls.NAMES[:4])
        return cls(B, b, V, offset, hasher.link_)

    def probabilities(self, K: Tensor) -> Tensor:
        """p (block, l) of the labels."""
        return link(torch.addmm(self.b, K, self.B), self.link == "softmax")

    def __call__(self, K: Tensor) -> NDArray[np.float32]:
        """pᵃ V + offset."""
        p = powered(self.probabilities(K), self.link)
        return np.asarray(torch.addmm(self.offset, p, self.V).cpu().numpy(), np.float32)

    def arrays(self) -> dict[str, Any]:
        """B, b, V and the offset, and the link between logits and p; W_ is empty."""
        arrays = [t.cpu().numpy() for t in (self.B, self.b, self.V, self.offset)]
        empty = Linear.of(np.zeros((0, self.V.shape[1]), np.float32)).arrays()
        return empty | dict(zip(self.NAMES, (*arrays, self.link), strict=True))

    def to(self, like: Tensor) -> Self:
        """The same where the features are, in their type."""
        B, b, V, offset = (t.to(like) for t in (self.B, self.b, self.V, self.offset))
        return replace(self, B=B, b=b, V=V, offset=offset)
