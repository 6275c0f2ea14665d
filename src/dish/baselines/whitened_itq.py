"""ITQ on rows whitened within their classes: the metric is learned, no class is; ours, for classes yet to come."""

from __future__ import annotations

from typing import Any, Self

from dish.baselines._pairs import labelled
from dish.baselines.cca_itq import label_covariances
from dish.checks import check_integer, check_number
from dish.encoder import Linear
from dish.kernel.features import feature_blocks
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.posterior.projection import rotation


class WhitenedITQ(KernelHasher):
    """Principal components of rows whitened within classes, rotated as in ITQ.

    With LLᵀ = S_w + ρI, S_w the covariance that labels leave unexplained, rows become L⁻¹(x − mean): directions in
    which rows of one class differ count little. Nothing else of the labels is used, so rows of classes that nobody
    trained on gain almost as much as others; where all classes are known, ``DISH`` is far better.

    Parameters
    ----------
    n_bits, n_iter, random_state
        As in ``PCAITQ``.
    shrinkage : float
        ρ as a share of the mean diagonal of S_w.
    device : "auto", "cpu", "cuda", …
        Where the linear algebra runs.

    Attributes
    ----------
    objective_ : float64 (n_iter,)
        ‖B − VR‖² after every round; it never rises.
    mean_, W_, intercept_
        The hash function F(x) = W_ᵀ(x − mean_) + intercept_ (which is 0).
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
        self.n_bits = n_bits
        self.n_iter = n_iter
        self.shrinkage = shrinkage
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes or (n, l) of 0/1."""
        check_integer("n_iter", self.n_iter, low=1)
        check_number("shrinkage", self.shrinkage, low=0, strict=True)
        problem = self._fit_data(X, y)
        K = problem.K
        assert isinstance(K, Tensor)
        with self._stage("whitening"):
            C_xx = problem.white.gram() / len(K)
            W = within_directions(C_xx, *label_covariances(K, labelled(problem.S)), self.shrinkage, self.n_bits)
        with self._stage("rotation"):
            V = torch.cat([block.double() @ W for _, block in feature_blocks(K)])  # (n, p)
            R, self.objective_ = rotation(V, self.n_bits, self.n_iter, problem.rng)
        self._keep(problem, Linear.of(torch.from_numpy(W.cpu().numpy() @ R).to(K.dtype)))
        return self


def within_directions(C_xx: Tensor, C_xy: Tensor, C_yy: Tensor, shrinkage: float, r: int) -> Tensor:
    """W (d, p), p ≤ r: the directions of most variance after whitening by S_w = C_xx − C_xy C_yy⁻¹ C_yx."""
    S_w = C_xx - C_xy @ torch.linalg.pinv(C_yy, hermitian=True) @ C_xy.T
    S_w.diagonal().add_(shrinkage * S_w.diagonal().mean().clamp(min=1e-12))
    L = torch.linalg.cholesky(S_w)
    half = torch.linalg.solve_triangular(L, C_xx, upper=False)
    variance, U = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.T, upper=False))
    keep = (variance > 1e-6 * variance[-1]).nonzero().ravel().flip(0)[:r]
    U = U[:, keep]
    U = U * torch.sign(U.gather(0, U.abs().argmax(0, keepdim=True)))  # of the two signs, one that rounding keeps
    return torch.linalg.solve_triangular(L.T, U, upper=True)
