"""WhitenedITQ: ITQ on rows whitened within their classes, for classes that are not in the training set (ours)."""

from __future__ import annotations

from typing import Any, Self

from dish.baselines._pairs import labelled
from dish.baselines.cca_itq import label_covariances
from dish.checks import check_integer, check_number
from dish.encoder import Linear
from dish.kernel.features import feature_blocks
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.posterior.geometry import within_directions
from dish.posterior.projection import rotation


class WhitenedITQ(KernelHasher):
    """Principal components of rows whitened within classes, rotated as in ITQ.

    S_w is the covariance within classes. With LLᵀ = S_w + ρI, rows become L⁻¹(x − mean), which gives little weight to
    directions in which rows of one class differ. The labels are used for nothing else, so new classes gain almost as
    much as the training classes. If all classes are known, ``DISH`` is far better.

    Parameters
    ----------
    n_bits, n_iter, random_state
        As in ``PCAITQ``.
    shrinkage : float
        ρ, relative to the mean diagonal of S_w.
    device : "auto", "cpu", "cuda", …
        Device of the linear algebra.

    Attributes
    ----------
    objective_ : float64 (n_iter,)
        ‖B − VR‖² after every iteration; it never rises.
    """

    _state = (*KernelHasher._state, "objective_")
    kernel, n_anchors, gamma = "linear", 1, 1.0

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_iter: int = 50,
        shrinkage: float = 1.0,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_iter, self.shrinkage, self.device = n_bits, n_iter, shrinkage, device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        check_integer("n_iter", self.n_iter, low=1)
        check_number("shrinkage", self.shrinkage, low=0, strict=True)
        data = self._fit_data(X, y)
        K = data.K
        assert isinstance(K, Tensor)
        with self._stage("whitening"):
            C_xx = data.white.gram() / len(K)
            C_xy, C_yy = label_covariances(K, labelled(data.S))
            S_w = C_xx - C_xy @ torch.linalg.pinv(C_yy, hermitian=True) @ C_xy.T
            W = within_directions(C_xx, S_w, self.shrinkage, self.n_bits)
        with self._stage("rotation"):
            V = torch.cat([block.double() @ W for _, block in feature_blocks(K)])  # (n, p)
            R, self.objective_ = rotation(V, self.n_bits, self.n_iter, data.rng)
        self._keep(data, Linear.of(torch.from_numpy(W.cpu().numpy() @ R).to(K.dtype)))
        return self
