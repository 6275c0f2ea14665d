"""HC-SDH (Koutaki, Shirai, Ambai, "Hadamard coding for supervised discrete hashing", IEEE TIP 2018)."""

from __future__ import annotations

from typing import Any, Self

from dish import codes
from dish.baselines._hadamard import codes_by_group, codewords
from dish.baselines._pairs import labelled
from dish.baselines.sdh import f_step
from dish.encoder import Linear
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.similarity import n_labels


class HCSDH(KernelHasher):
    """The code of a class is a row of a Hadamard matrix; a ridge regression on these codes is the hash function.

    No alternation is needed: for classes of equal size, orthogonal codewords minimise the objective of SDH with
    ν = 0. A multi-label row gets the majority of its labels' codewords, bit by bit.

    Parameters
    ----------
    n_bits, n_anchors, gamma, ridge, device, random_state
        As in ``DISHK``.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        The codewords of the training rows, packed.
    """

    _state = (*KernelHasher._state, "codes_")

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        ridge: float = 1e-6,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.n_bits, self.n_anchors, self.gamma, self.ridge = n_bits, n_anchors, gamma, ridge
        self.device, self.random_state = device, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, or (n, l) of 0 and 1."""
        data = self._fit_data(X, y)
        S, K = labelled(data.S), data.K
        assert isinstance(K, Tensor)
        by_group = codes_by_group(S, codewords(n_labels(S), self.n_bits, data.rng))
        B = torch.from_numpy(by_group).to(K)[S.row_group.long()]
        with self._stage("F-step"):
            P, c = f_step(K, data.white, B)
        self.codes_ = codes.pack(B.cpu().numpy())
        self._keep(data, Linear.of(P.to(K.dtype), c.cpu().numpy()))
        return self
