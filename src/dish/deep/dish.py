"""DeepDISH: discrete supervised hashing with a network as hash function (DISH-D)."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from dish import codes
from dish.checks import check_integer, check_number
from dish.deep.hasher import DeepHasher
from dish.kernel.fstep import LOSSES
from dish.similarity.labelled import Similarity
from dish.solver import cbcd


class DeepDISH(DeepHasher):
    """Learn codes and a network together: the H-step of DISH, and a network trained by SGD as the F-step.

    The network begins as a classifier with r outputs below its classes (CNNBH); then come ``n_iter`` rounds of H-step
    and training towards H. Parameters beyond those of ``DeepHasher``:

    Parameters
    ----------
    n_iter : int
        Rounds t of H-step and training. The learning rate halves after each.
    alpha : float
        DisturbBinaryCodes: the share of target bits that are flipped, anew in every step.
    mu : float
        Weight of the squared hinge of the bits (their mean) beside the softmax loss on the last hidden layer.
    nu : float
        Weight ν of the loss in the H-step.
    stop_agreement : float
        Rounds end once that share of the bits of F on the training images equals H.
    """

    def __init__(
        self,
        n_bits: int = 48,
        net: Any = "6conv",
        weights: Any = None,
        n_iter: int = 3,
        epochs: int = 60,
        alpha: float = 0.3,
        mu: float = 1.0,
        nu: float = 1e-4,
        stop_agreement: float = 0.9999,
        batch_size: int = 128,
        lr: float | str = "auto",
        weight_decay: float | str = "auto",
        augment: bool = True,
        mirror: bool = True,
        image_size: int | None = None,
        checkpoint: Any = None,
        device: str = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            n_bits=n_bits,
            net=net,
            weights=weights,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            augment=augment,
            mirror=mirror,
            image_size=image_size,
            checkpoint=checkpoint,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.n_iter = n_iter
        self.alpha = alpha
        self.mu = mu
        self.nu = nu
        self.stop_agreement = stop_agreement

    def _check_params(self) -> None:
        super()._check_params()
        check_integer("n_iter", self.n_iter, low=0)
        check_number("mu", self.mu, low=0)
        check_number("nu", self.nu, low=0)
        if not 0 <= check_number("alpha", self.alpha, low=0) <= 0.5:
            raise ValueError(f"alpha must be a share from 0 to 0.5, got {self.alpha!r}")
        check_number("stop_agreement", self.stop_agreement, low=0)

    def _learn(self, S: Similarity) -> None:
        resumed = self._read_checkpoint()
        if resumed is None:
            train_classifier(self)
            first, packed = 0, codes.pack(self._outputs().cpu().numpy())
            self._write_checkpoint(first, packed)
        else:
            first, packed = resumed
        self.agreement_: list[float] = []
        for t in range(first, self.n_iter):
            F = self._outputs()
            with self._stage("H-step"):
                H = cbcd.PackedColumns(packed, self.n_bits)
                q = (len(F) * self.nu * LOSSES["hinge"].half_difference(F)).T.contiguous().cpu()
                done = cbcd.sweep(H, S, q)
                packed = H.packed()
            agreement = bit_agreement(F, packed, self.n_bits)
            self.agreement_.append(agreement)
            if self.verbose:
                print(f"DeepDISH H-step {t + 1}: {done.flips:,} moves, agreement {agreement:.4f}", file=sys.stderr)
            if agreement >= self.stop_agreement:
                break
            self._train_towards(packed, t + 1)
            self._write_checkpoint(t + 1, packed)
        self.codes_ = packed

    def _train_towards(self, packed: Any, round_: int) -> None:
        """The F-step: squared hinge against H, with some bits flipped, and the softmax loss on Φ."""
        H = torch.from_numpy(codes.unpack(packed, self.n_bits)).to(self._device, torch.float32)
        torch.manual_seed(self._seed + 1000 * round_ + 2)  # new head, dropout: as if no round had gone before
        head = nn.Linear(self.model_.hash.in_features, self._n_targets).to(self._device)
        flips = torch.Generator(self._device).manual_seed(self._seed + 1000 * round_ + 500)

        def loss(phi: Tensor, F: Tensor, rows: Tensor) -> Tensor:
            h = H[rows]
            flipped = torch.rand(h.shape, generator=flips, device=h.device) < self.alpha
            h = torch.where(flipped, -h, h)
            hinge = (1 - h * F).clamp(min=0).square().mean()
            return self._classification(head(phi), rows) + self.mu * hinge

        self._train(loss, round_, head, scale=0.5**round_)


def train_classifier(hasher: DeepHasher, round_: int = 0) -> None:
    """The start (CNNBH): classes are told from the r outputs, so that their signs come to say which class it is."""
    r = hasher.n_bits
    head = nn.Linear(r, hasher._n_targets).to(hasher._device)

    def loss(phi: Tensor, F: Tensor, rows: Tensor) -> Tensor:
        return hasher._classification(head(torch.tanh(F)), rows)

    hasher._train(loss, round_, head)


def bit_agreement(F: Tensor, packed: Any, n_bits: int) -> float:
    """The share of bits that are the sign of F."""
    return float(((F >= 0).cpu() == torch.from_numpy(codes.unpack(packed, n_bits) > 0)).float().mean())
