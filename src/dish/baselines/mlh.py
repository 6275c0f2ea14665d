"""MLH (Norouzi, Fleet, "Minimal loss hashing for compact binary codes", ICML 2011)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.baselines._pairs import sample_pairs
from dish.checks import check_integer, check_number
from dish.encoder import Linear
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.machine import threads_for
from dish.progress import rounds


class MLH(KernelHasher):
    """Minimises a hinge loss on the Hamming distance of pairs, through the upper bound of latent structural SVMs.

    A pair with Hamming distance d costs max(0, d − ρ + 1) if it is similar and λ·max(0, ρ − d + 1) if not. The bound

        max_{g, g'} [loss(g, g') + gᵀf(x) + g'ᵀf(x')] − |f(x)|₁ − |f(x')|₁ ,   g, g' ∈ {−1, 1}^r ,

    is lowered by steps W += η [x (h − g)ᵀ + x' (h' − g')ᵀ] with the current codes h, h' and the maximisers g, g'
    (loss-adjusted inference, exact by sorting the bits). Rows are centred and scaled to a mean length of one.

    Parameters
    ----------
    n_bits, n_anchors, gamma, device, random_state
        As in ``DISHK``; only ``kernel="rbf"`` uses anchors.
    kernel : "linear" or "rbf"
        Features that are hashed: x itself as in the paper, or kernel features.
    rho : int or None
        ρ; None means n_bits / 8 rounded up, the centre of the search in the authors' code.
    lam : float
        λ, the weight of dissimilar pairs.
    eta, momentum, weight_decay, batch_size : numbers
        Of stochastic gradient descent. Each kind of loss is divided by its largest value, as in the authors' code.
    n_iter : int
        Epochs, each over as many pairs as were sampled, at most 100,000.
    pairs_per_row : int
        Similar and dissimilar pairs sampled for each row, this many of each. Batches have equal numbers of both.

    Attributes
    ----------
    rho_ : int
        ρ.
    bound_ : float64 (n_iter,)
        Mean bound in every epoch.
    """

    _state = (*KernelHasher._state, "rho_", "bound_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        kernel: str = "linear",
        rho: int | None = None,
        lam: float = 1.0,
        eta: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-3,
        batch_size: int = 100,
        n_iter: int = 20,
        pairs_per_row: int = 100,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma, self.kernel, self.rho = n_bits, n_anchors, gamma, kernel, rho
        self.lam, self.eta, self.momentum, self.weight_decay = lam, eta, momentum, weight_decay
        self.batch_size, self.n_iter, self.pairs_per_row = batch_size, n_iter, pairs_per_row
        self.device, self.random_state = device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        r = self._check_n_bits()
        for name in ("batch_size", "n_iter", "pairs_per_row"):
            check_integer(name, getattr(self, name), low=1)
        for name in ("lam", "eta", "momentum", "weight_decay"):
            check_number(name, getattr(self, name), low=0)
        self.rho_ = -(-r // 8) if self.rho is None else check_integer("rho", self.rho, low=1, high=r)
        data = self._fit_data(X, y)
        assert isinstance(data.K, Tensor)
        K, rng = data.K.double(), data.rng
        scale = max(float(K.norm(dim=1).mean()), 1e-12)
        ones = K.new_ones(len(K), 1)
        Z = torch.cat([K / scale, ones], 1)  # (n, d + 1): the last weight is the intercept
        with self._stage("pairs"):
            pairs = sample_pairs(data.S, self.pairs_per_row, rng)
        with self._stage("steps"), threads_for(self.batch_size):
            W = self._descend(Z, *pairs, rng)
        self._keep(data, Linear.of((W[:-1] / scale).float(), W[-1].cpu().numpy()))
        return self

    def _descend(
        self,
        Z: Tensor,
        i: NDArray[np.int64],
        j: NDArray[np.int64],
        similar: NDArray[np.bool_],
        random_state: np.random.RandomState,
    ) -> Tensor:
        """W (d + 1, r) after all steps; sets ``bound_``."""
        d, r = Z.shape[1], self.n_bits
        W = torch.from_numpy(random_state.standard_normal((d, r))).to(Z) * 0.1
        W[-1] = 0
        speed = torch.zeros_like(W)
        decay = torch.full_like(W, self.weight_decay)
        decay[-1] = 0
        tables = losses(r, self.rho_, self.lam).to(Z)  # (2, r + 1)
        near, far = np.flatnonzero(similar), np.flatnonzero(~similar)
        half = self.batch_size // 2
        n_batches = -(-min(len(i), 100_000) // self.batch_size)
        bounds = []
        for t in rounds(self.n_iter):
            eta, bound = self.eta * (1 - t / self.n_iter), 0.0
            for _ in range(n_batches):
                batch = np.append(random_state.choice(near, self.batch_size - half), random_state.choice(far, half))
                x, x2 = Z[i[batch]], Z[j[batch]]
                f, f2 = x @ W, x2 @ W
                loss = tables[torch.from_numpy(similar[batch].astype(np.int64)).to(Z.device)]  # (batch, r + 1)
                g, g2, value = loss_adjusted(f, f2, loss)
                bound += float((value - f.abs().sum(1) - f2.abs().sum(1)).mean())
                step = x.T @ (f.sign() - g) + x2.T @ (f2.sign() - g2)
                speed = self.momentum * speed + eta * (step / len(batch) - decay * W)
                W += speed
            bounds.append(bound / n_batches)
        self.bound_ = np.array(bounds)
        return W


def losses(r: int, rho: int, lam: float) -> Tensor:
    """Loss of a pair with Hamming distance d = 0 … r, (2, r + 1): row 0 if dissimilar, row 1 if similar."""
    d = torch.arange(r + 1, dtype=torch.float64)
    near, far = (d - rho + 1).clamp(min=0), (rho - d + 1).clamp(min=0)
    return torch.stack([lam * far / (rho + 1), near / (r - rho + 1)])


def loss_adjusted(f: Tensor, f2: Tensor, loss: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The codes g, g' ∈ {−1, 1}^r that maximise loss[d(g, g')] + gᵀf + g'ᵀf', and the maximum; f, f' (b, r).

    A bit adds |f + f'| if it is equal in g and g', and |f − f'| if it differs. For each number of differing bits, the
    best choice is the bits that lose least.
    """
    change, order = ((f - f2).abs() - (f + f2).abs()).sort(1, descending=True)
    totals = torch.nn.functional.pad(change.cumsum(1), (1, 0)) + loss  # (b, r + 1)
    best, flips = totals.max(1)
    place = torch.arange(f.shape[1], device=f.device).expand_as(order)
    equal = torch.empty_like(order).scatter_(1, order, place) >= flips[:, None]
    g = torch.where(torch.where(equal, f + f2, f - f2) >= 0, 1.0, -1.0).to(f)
    return g, torch.where(equal, g, -g), best + (f + f2).abs().sum(1)
