"""KSH (Liu, Wang, Ji, Jiang, Chang, "Supervised hashing with kernels", CVPR 2012).

Bits h = sgn(Kw) are learned one after another. Each brings HHᵀ closer to rS:

    ‖rS − HHᵀ − hhᵀ‖² = const − 2 hᵀQh ,   Q = rS − HHᵀ .

The relaxed problem (without sgn) gives a first w. Gradient steps then maximise φᵀQφ with φ = 2σ(Kw) − 1, and the
better of the two is kept. Q is never built: with S = PRᵀ, Qφ costs O(n (k + labels)), so all n rows can be used.
"""

from __future__ import annotations

from typing import Any, Self

from dish.checks import check_flag, check_integer
from dish.encoder import Linear
from dish.kernel.fit_data import FitData
from dish.kernel.kernel_hasher import KernelHasher
from dish.kernel.spectral import Relaxation
from dish.lazy import Tensor, torch
from dish.progress import rounds
from dish.similarity import Similarity


class KSH(KernelHasher):
    """Kernel hash functions, learned greedily from the similarity of all pairs.

    Parameters
    ----------
    n_bits, n_anchors, gamma, similar_weight, multilabel, ridge, device, random_state
        As in ``DISHK``.
    n_steps : int
        Accelerated gradient steps per bit. The authors take up to 500.
    whiten : bool
        Take these steps in coordinates in which KᵀK + ρI is the identity. This is not in the paper, but 20 such steps
        reach a better objective than 500 others.
    """

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        n_steps: int = 50,
        whiten: bool = False,
        similar_weight: float = 2.0,
        multilabel: str = "count",
        ridge: float = 1e-6,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma, self.n_steps = n_bits, n_anchors, gamma, n_steps
        self.whiten, self.similar_weight, self.multilabel = whiten, similar_weight, multilabel
        self.ridge, self.device, self.random_state = ridge, device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and y: (n,) classes, (n, l) labels of 0 and 1, or a ``Similarity``."""
        check_integer("n_steps", self.n_steps, low=0)
        check_flag("whiten", self.whiten)
        data = self._fit_data(X, y)
        data.white  # noqa: B018 (computed here, so that its time is not counted in the stage below)
        with self._stage("bits"):
            W = learn(data, self.n_bits, self.n_steps, self.whiten)
        self._keep(data, Linear.of(W))
        return self


def learn(data: FitData, r: int, n_steps: int, whiten: bool = True) -> Tensor:
    """W (m, r), one bit after the other."""
    K = data.K
    assert isinstance(K, Tensor)
    relaxed = Relaxation(data, r)
    L_inv = relaxed.L_inv.to(K.dtype) if whiten else None
    residue = Residue(data.S, r, K)
    W = []
    for _ in rounds(r):
        w = relaxed.weights(relaxed.best()).to(K.dtype)
        F = K @ w
        w_new, F_new = descend(K, L_inv, residue, w, F, n_steps)
        if residue.quadratic(signs(F_new)) > residue.quadratic(signs(F)):
            w, F = w_new, F_new
        h = signs(F)
        W.append(w)
        residue.subtract(h)
        relaxed.subtract(K.T @ h)
    return torch.stack(W, 1)


class Residue:
    """Q = rS − HHᵀ (n, n), given by its products."""

    def __init__(self, S: Similarity, r: int, K: Tensor) -> None:
        self.S, self.r, self.row_group = S, r, S.row_group.long()
        self.H = K.new_empty(r, len(K))  # one bit per row; the first k are in use
        self.k = 0

    def __matmul__(self, z: Tensor) -> Tensor:
        """Q z."""
        sums = torch.zeros(self.S.n_groups, dtype=torch.float64, device=z.device)
        Sz = self.S.P(self.S.Rt(sums.index_add_(0, self.row_group, z.double())))  # per group
        H = self.H[: self.k]
        return self.r * Sz.to(z.dtype)[self.row_group] - (H @ z) @ H

    def quadratic(self, z: Tensor) -> float:
        """zᵀQz."""
        return float(z.double() @ (self @ z).double())

    def subtract(self, h: Tensor) -> None:
        """Append the bit h to H."""
        self.H[self.k] = h
        self.k += 1


def descend(K: Tensor, L_inv: Tensor | None, Q: Residue, w: Tensor, F: Tensor, n_steps: int) -> tuple[Tensor, Tensor]:
    """Minimise g = −φᵀQφ by Nesterov's accelerated gradient with backtracking and restart; returns w and F = Kw.

    Steps are −D/c with D = L⁻ᵀL⁻¹∇g and LLᵀ = KᵀK + ρI, or D = ∇g if L⁻¹ is None. The curvature c starts low and is
    doubled until g falls by as much as curvature c guarantees. The momentum restarts when g rises.
    """
    curvature = Q.r * len(K) / 1024
    w_before, F_before, g_before, t = w, F, float("inf"), 1.0
    for _ in range(n_steps):
        t_next = (1 + (1 + 4 * t * t) ** 0.5) / 2
        beta, t = (t - 1) / t_next, t_next
        v, F_v = w + beta * (w - w_before), F + beta * (F - F_before)
        g_v, gradient_F = smoothed(Q, F_v)
        gradient = K.T @ gradient_F
        D = gradient if L_inv is None else L_inv.T @ (L_inv @ gradient)
        fall, KD = float((gradient.double() * D.double()).sum()), K @ D
        enough = g_v + 1e-6 * abs(g_v)
        while (reached := smoothed(Q, F_v - KD / curvature)[0]) > enough - fall / (2 * curvature):
            curvature *= 2
        w_before, F_before = w, F
        w, F = v - D / curvature, F_v - KD / curvature
        if reached > g_before:  # the momentum went past the minimum
            t, w_before, F_before = 1.0, w, F
        g_before = reached
    return w, F


def smoothed(Q: Residue, F: Tensor) -> tuple[float, Tensor]:
    """g = −φᵀQφ for φ = 2σ(F) − 1, and its gradient in F: −Qφ ∘ (1 − φ²)."""
    phi = torch.tanh(F / 2)
    Q_phi = Q @ phi
    return -float(phi.double() @ Q_phi.double()), -Q_phi * (1 - phi * phi)


def signs(F: Tensor) -> Tensor:
    """Signs ±1, with sgn(0) = 1."""
    return torch.where(F >= 0, 1.0, -1.0).to(F.dtype)
