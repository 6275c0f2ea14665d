"""KernelHasher: what every hasher with F(x) = Wᵀ k(x) + intercept shares, so that only the learning differs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dish.checks import check_integer, check_number, check_option
from dish.hasher import Hasher
from dish.io.rows import Rows
from dish.kernel.anchors import find_anchors, mean_squared_distance
from dish.kernel.features import FeatureMap, KernelMatrix, row_blocks, rows_at_a_time
from dish.kernel.whitening import Whitening, gram
from dish.machine import resolve_device
from dish.parallel import ALONE, Ranks
from dish.progress import Stopwatch


class KernelHasher(Stopwatch, Hasher):
    """Anchors, kernel features, and the linear hash function on them.

    A subclass has the parameters ``n_bits``, ``n_anchors``, ``gamma``, ``device`` and ``random_state`` (and
    ``kernel`` or ``anchors`` if it lets the user choose them). Its ``fit`` calls ``_kernel_features`` and sets
    ``W_`` (m, r) and ``intercept_`` (r,).
    """

    n_anchors: int
    gamma: float | str
    kernel: Any = "rbf"
    anchors: Any = "random"
    device: str
    _needs_y = True
    _state: tuple[str, ...] = ("gamma_", "anchors_", "mean_", "W_", "intercept_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self._needs_y
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _check_kernel_params(self) -> None:
        self._check_n_bits()
        check_integer("n_anchors", self.n_anchors, low=1)
        if self.gamma != "auto":
            if isinstance(self.gamma, str):
                raise ValueError(f"gamma must be 'auto' or a number above 0, got {self.gamma!r}")
            check_number("gamma", self.gamma, low=0, strict=True)
        if not callable(self.kernel):
            check_option("kernel", self.kernel, ("rbf", "linear"), " or a function (X, A) → (n, m)")
        if isinstance(self.anchors, str):
            check_option("anchors", self.anchors, ("random", "kmeans"), " or an array (m, d)")

    def _kernel_features(
        self, X: Any, random_state: np.random.RandomState, ranks: Ranks = ALONE, budget: int | None = None
    ) -> Any:
        """K (n, m), centred, on the device; keeps gamma_, anchors_ and mean_. The first draw is the anchors'."""
        device = resolve_device(self.device)
        rows = X if isinstance(X, Rows) else Rows(as_tensor(X), checked=True)
        features = self._feature_map(rows, random_state, device, ranks)
        K = features.fit_rows(rows, device, budget, ranks)
        assert features.mean is not None
        self.gamma_, self.anchors_ = features.gamma, features.anchors.cpu().numpy()
        self.mean_ = features.mean.cpu().numpy()
        return K

    def _feature_map(
        self, X: Rows, random_state: np.random.RandomState, device: torch.device, ranks: Ranks
    ) -> FeatureMap:
        d = X.shape[1]
        if self.kernel == "linear":
            return FeatureMap("linear", torch.zeros(0, d, dtype=X.dtype, device=device), 1.0)
        if isinstance(self.anchors, str):
            n = ranks.offset_and_total(len(X))[1]
            if self.n_anchors > n:
                warnings.warn(
                    f"n_anchors={self.n_anchors} is more than the {n} rows of X: all rows become anchors",
                    stacklevel=4,
                )
            anchors = find_anchors(X, self.n_anchors, self.anchors, random_state, device, ranks)
        else:
            anchors = torch.as_tensor(np.array(self.anchors, np.float64)).to(device, X.dtype)
            fits = anchors.ndim == 2 and len(anchors) > 0 and anchors.shape[1] == d
            if not fits or not bool(anchors.isfinite().all()):
                raise ValueError(
                    f"anchors must be finite, of shape (m, {d}) as X has {d} features; "
                    f"got shape {tuple(anchors.shape)}"
                )
        if isinstance(self.gamma, str):
            gamma = 1.0 / max(mean_squared_distance(X, anchors, ranks), 1e-12)
            gamma = float(f"{gamma:.9g}")  # the same number however the rows are shared out
        else:
            gamma = float(self.gamma)
        return FeatureMap(self.kernel, anchors, gamma)

    def _whitening(self, K: KernelMatrix, ridge: float, ranks: Ranks = ALONE) -> Whitening:
        """KᵀK + ρI, factored."""
        with self._stage("gram"):
            G = gram(K, ranks)
        with self._stage("factor"):
            rounding = len(K) * torch.finfo(K.dtype).eps ** 2
            if float(G.diagonal().max()) <= 100 * rounding:
                raise ValueError(
                    "the kernel features of X do not vary: its rows are all alike, or gamma is far too small"
                )
            return Whitening.of(G, ridge)

    def _features_of(self, X: NDArray[Any]) -> Iterator[tuple[slice, Tensor]]:
        """Kernel features of new rows, a block at a time."""
        device = resolve_device(self.device)
        anchors, mean = torch.from_numpy(self.anchors_).to(device), torch.from_numpy(self.mean_).to(device)
        features = FeatureMap(self.kernel, anchors, self.gamma_, mean)
        for rows in row_blocks(len(X), rows_at_a_time(device, *anchors.shape)):
            yield rows, features(as_tensor(X[rows]).to(device, anchors.dtype))

    def _decide(self, X: NDArray[Any]) -> NDArray[Any]:
        F = np.empty((len(X), self.n_bits), np.float32)
        W = torch.from_numpy(self.W_).to(resolve_device(self.device))
        for rows, K in self._features_of(X):
            F[rows] = (K @ W.to(K.dtype)).cpu().numpy() + self.intercept_
        return F


def as_tensor(X: NDArray[Any]) -> Tensor:
    """The same memory as a tensor. A read-only memory-map is fine: rows are never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(X)
