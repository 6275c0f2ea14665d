"""DISHD: the paper's deep algorithm (DISH-D). A network is trained towards the bits of H."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dish import codes
from dish.checks import check_integer, check_number
from dish.deep.deep_hasher import DeepHasher, Learned
from dish.deep.h_step import Packed, bit_agreement, h_step, start_codes
from dish.deep.training import Batch, Objective, RoundState, Training, seed_generators
from dish.errors import InputError
from dish.progress import progress


@dataclass(eq=False, repr=False, kw_only=True)
class DISHD(DeepHasher):
    """DISH-D, the paper's deep method: learn codes and a network in turn.

    The network starts as a classifier whose last hidden layer has r outputs (CNNBH). Each of ``n_iter`` rounds then
    has an H-step, which finds codes that reproduce the similarity S and agree with F, and a round of SGD towards the
    bits of these codes. The loss is a squared hinge per bit plus a softmax loss on the last hidden layer. ``alpha``
    of the target bits are flipped at random in every step (DisturbBinaryCodes), and the learning rate halves after
    every round.

    y may also be a ``Similarity`` S = PRᵀ. Unless it was made of labels there is no softmax loss, and the network
    starts from codes that reproduce S. ``DeepDISH`` usually ranks better where there are labels.
    Commands call it ``dish_d``.

    The paper trains its network from scratch with ``net="6conv-paper", lr=0.01, weight_decay=0.0005``, and here
    ``augment=False, mirror=False`` use the images as they are. The defaults differ. Parameters in addition to those
    of ``DeepHasher``:

    Parameters
    ----------
    n_iter : int, default=3
        Rounds after the first.
    alpha : float, default=0.3
        DisturbBinaryCodes: the share of target bits that are flipped in every step, from 0 to 0.5.
    mu : float, default=1.0
        Weight of the squared hinge, relative to the softmax loss.
    nu : float, default=1e-4
        Weight ν of the loss in the H-step.
    stop_agreement : float, default=0.9999
        Stop when this share of the bits of F on the training rows equals H.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        The learned H of the training rows. ``transform`` gives new rows the signs of F.
    agreement_ : list of float
        The share of bits of H that equal the signs of F, after every H-step.
    history_ : list of dict
        Round, epoch and loss of every epoch.
    timings_ : dict
        Seconds spent in each stage of ``fit``.
    model_ : nn.Module
        The network.
    """

    n_iter: int = 3
    alpha: float = 0.3
    mu: float = 1.0
    nu: float = 1e-4
    stop_agreement: float = 0.9999

    _learns_from_similarity = True

    def _check_params(self) -> None:
        super()._check_params()
        check_integer("n_iter", self.n_iter, low=0)
        for name in ("mu", "nu", "stop_agreement"):
            check_number(name, getattr(self, name), low=0)
        if not 0 <= check_number("alpha", self.alpha, low=0) <= 0.5:
            raise InputError(f"alpha must be a share from 0 to 0.5, got {self.alpha!r}")

    def _learn(self, training: Training, state: RoundState | None) -> Learned:
        with progress("rounds", self.n_iter + 1 if state is None else self.n_iter - state.round):
            return self._run_rounds(training, state)

    def _run_rounds(self, training: Training, state: RoundState | None) -> Learned:
        """The rounds that the state does not contain yet."""
        state = self._start(training) if state is None else state
        packed, agreement = state.codes, state.agreement
        for t in range(state.round, self.n_iter):
            with training.stage("H-step"):
                F = training.outputs()
                packed, moves = h_step(training.data.S, F, packed, self.nu)
            agreement = [*agreement, bit_agreement(F, packed)]
            training.settings.report(f"H-step {t + 1}: {moves:,} moves, agreement {agreement[-1]:.4f}")
            if agreement[-1] >= self.stop_agreement:
                break
            self._f_step(training, packed, t + 1)
            training.save(t + 1, packed, agreement)
        return Learned(attributes={"codes_": packed, "agreement_": agreement})

    def _start(self, training: Training) -> RoundState:
        """The first round: a classifier, or without labels a network that predicts codes that reproduce S."""
        data = training.data
        if data.labels is not None:
            training.run_objective(classifier(training))
            return training.save(0, training.codes())
        packed = start_codes(data.S, self.n_bits, data.seed)
        self._f_step(training, packed, 0)
        return training.save(0, packed)

    def _f_step(self, training: Training, packed: Packed, round_: int) -> None:
        """Train towards H: a squared hinge per bit, with some bits flipped, and a softmax loss on Φ."""
        data, r = training.data, self.n_bits
        H = torch.from_numpy(codes.unpack(packed, r)).to(data.device, torch.float32)
        seed = data.seed + 1000 * round_
        seed_generators(seed + 2, data.device)  # resuming draws the same layer and dropout masks
        layer = None
        if data.labels is not None:
            layer = nn.Linear(training.model.width, data.n_targets).to(data.device)
        flips = torch.Generator(data.device).manual_seed(seed + 500)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            h = H[batch.rows]
            h = torch.where(batch.draw(flips, r) < self.alpha, -h, h)
            hinge = self.mu * (1 - h * F).clamp(min=0).square().mean()
            return hinge if layer is None else data.classification_loss(layer(phi), batch.rows) + hinge

        training.run(loss, round_, training.optimiser(layer, scale=0.5**round_))


def classifier(training: Training) -> Objective:
    """Classify rows by their r outputs (CNNBH), so that the signs of the outputs come to identify the class."""
    data = training.data
    layer = nn.Linear(training.model.n_outputs, data.n_targets).to(data.device)

    def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
        return data.classification_loss(layer(torch.tanh(F)), batch.rows)

    return Objective(loss, layer, recordable=True)
