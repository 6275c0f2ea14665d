"""DeepDISH: discrete supervised hashing with a network as hash function (DISH-D)."""

from __future__ import annotations

import warnings
from dataclasses import astuple
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dish import cbcd, codes
from dish.checks import check_flag, check_integer, check_number, check_option
from dish.deep import codewords
from dish.deep.checkpoint import State
from dish.deep.cycles import CodewordFit, bit_agreement
from dish.deep.data import Problem
from dish.deep.deep_hasher import DeepHasher, Fitted
from dish.deep.kernel_top import fit_kernel_top
from dish.deep.training import Batch, Training, seed_generators
from dish.errors import InputError
from dish.kernel.fstep import LOSSES
from dish.posterior.dish import MAX_LABELS

Packed = NDArray[np.uint8]
PAPER_ONLY = ("alpha", "mu", "stop_agreement")
IMAGES_ONLY = ("augment", "mirror", "image_size")
TRAINED_ONLY = (  # parameters of SGD and its rounds
    *("n_iter", "epochs", "alpha", "mu", "nu", "stop_agreement", "batch_size", "lr", "weight_decay", "accumulate"),
    *("augment", "checkpoint", "carry"),
)


class DeepDISH(DeepHasher):
    """Learn codes and a network together: the H-step of DISH, and a network trained by SGD as the F-step.

    There are ``n_iter`` + 1 rounds of training; an H-step finds the codes that each is trained towards. With the
    paper's head the first trains a classifier with r outputs below its classes (CNNBH). Parameters beyond those of
    ``DeepHasher``:

    Parameters
    ----------
    n_iter : int
        Rounds t of H-step and training after the first. With the paper's head the learning rate halves after each.
    alpha : float
        DisturbBinaryCodes: the share of target bits that are flipped, anew in every step.
    mu : float
        Weight of the squared hinge of the bits (their mean) beside the softmax loss on the last hidden layer.
    nu : float
        Weight ν of the loss in the H-step.
    stop_agreement : float
        Rounds end once that share of the bits of F on the training images equals H.
    head : "auto", "paper", "codewords" or "kernel"
        What the network is trained towards. "paper": the bits of H, each with a squared hinge, beside a softmax
        loss on the last hidden layer; an optimiser of its own in each round. "codewords": a softmax
        over the cosines of the outputs with one codeword of H per class, with a margin, or a logistic loss per label
        where rows have several; then codes of the class probabilities that the network gives (``deep.top``). With 500
        rows or more, some are held out in the first rounds, to fit what turns them into codes. Labels (n, l) may be
        between 0 and 1 then, or missing (NaN), which count nothing in the loss. ``alpha``, ``mu`` and
        ``stop_agreement`` are the paper's. "kernel", for freeze=True: nothing is trained by SGD, the kernel ``DISH``
        learns on the features of the network (``deep.kernel_top``); with a few thousand images it learns more than a
        layer. "auto": the kernel where the network stays as it is, else codewords, or the paper's if
        ``alpha``, ``mu`` or ``stop_agreement`` is not at its default. A fitted hasher has it as ``head_``.
    patience : int or None
        With head="codewords": the first cycle ends once so many passes have not lowered the loss of the rows that are
        held out, and the second has as many passes as that loss was lowest after. None: all passes are made.
    carry : bool
        With head="codewords" and one label per row: whether bits may carry their rounding errors on to later ones.
        They do where classes are few and of about one size, and held-out rows should be ranked better for it. Rows
        whose class is unsure are then far from all others: MAP is higher, and fewer rows are within a small radius.
        False: a frame, as ``DISH`` has it, for look-ups within a radius, and to find near-duplicates at small
        distances.
    """

    def __init__(
        self,
        n_bits: int = 48,
        net: Any = "6conv",
        weights: Any = None,
        freeze: bool = False,
        n_iter: int = 3,
        epochs: int = 60,
        alpha: float = 0.3,
        mu: float = 1.0,
        nu: float = 1e-4,
        stop_agreement: float = 0.9999,
        head: str = "auto",
        batch_size: int = 128,
        lr: float | str = "auto",
        weight_decay: float | str = "auto",
        accumulate: int = 1,
        augment: bool = True,
        mirror: bool = True,
        image_size: int | None = None,
        checkpoint: Any = None,
        device: str = "auto",
        random_state: Any = 0,
        verbose: int = 0,
        patience: int | None = None,
        carry: bool = True,
    ) -> None:
        super().__init__(
            n_bits=n_bits,
            net=net,
            weights=weights,
            freeze=freeze,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            accumulate=accumulate,
            augment=augment,
            mirror=mirror,
            image_size=image_size,
            checkpoint=checkpoint,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.n_iter = n_iter
        self.head = head
        self.alpha = alpha
        self.mu = mu
        self.nu = nu
        self.stop_agreement = stop_agreement
        self.patience = patience
        self.carry = carry

    def _check_params(self) -> None:
        super()._check_params()
        check_integer("n_iter", self.n_iter, low=0)
        check_option("head", self.head, ("auto", "paper", "codewords", "kernel"))
        self._check_kernel_head()
        check_number("mu", self.mu, low=0)
        check_number("nu", self.nu, low=0)
        if not 0 <= check_number("alpha", self.alpha, low=0) <= 0.5:
            raise InputError(f"alpha must be a share from 0 to 0.5, got {self.alpha!r}")
        check_number("stop_agreement", self.stop_agreement, low=0)
        check_flag("carry", self.carry)
        if self.patience is not None:
            check_integer("patience", self.patience, low=1)
            if self.head not in ("auto", "codewords"):
                raise InputError(f"patience is for head='codewords', which holds rows out; this is {self.head!r}")

    def _check_kernel_head(self) -> None:
        if self.head == "kernel" and not self.freeze:
            raise InputError(
                "head='kernel' is for a network that stays as it is: give freeze=True and weights (for feature "
                "vectors use DISH), or train the network with head='codewords' or 'paper'"
            )

    @property
    def _takes_graded(self) -> bool:
        return self.head in ("auto", "codewords")

    def _chosen_head(self, problem: Problem) -> str:
        """What "auto" stands for."""
        if self.head != "auto":
            return self.head
        graded = problem.several and bool(((problem.targets != 0) & (problem.targets != 1)).any())  # or missing
        if self.patience is not None or graded:
            return "codewords"
        if self.freeze and (problem.n_targets <= MAX_LABELS):
            return "kernel"
        return "paper" if self._given(PAPER_ONLY) else "codewords"

    def _given(self, names: tuple[str, ...]) -> list[str]:
        """Those parameters that are not at their defaults."""
        defaults = {name: p.default for name, p in signature(type(self)).parameters.items()}
        return [name for name in names if getattr(self, name) != defaults[name]]

    def _warn_of_idle(self, names: tuple[str, ...], why: str, stacklevel: int = 5) -> None:
        if idle := self._given(names):
            they = "it has" if len(idle) == 1 else "they have"
            warnings.warn(f"{', '.join(idle)}: {why}, so {they} no effect", stacklevel=stacklevel)

    def _params_of(self, problem: Problem) -> dict[str, Any]:
        head = self._chosen_head(problem)
        known = {**super()._params_of(problem), "head": head}
        if head != "codewords":
            return known
        return {**known, "recipe": astuple(codewords.recipe(problem.rows, self.weights is not None))}

    def _outputs(self, problem: Problem) -> tuple[int, bool]:
        head = self._chosen_head(problem)
        if head == "kernel" and not (problem.n_targets <= MAX_LABELS):
            raise InputError(
                f"head='kernel' learns at most {MAX_LABELS:,} labels, there are {problem.n_targets:,}: take "
                "head='codewords' or 'paper'"
            )
        if head == "paper":
            return self.n_bits, False
        if head == "kernel":
            return 0, False
        if problem.several:
            return problem.n_targets, False
        return codewords.width(self.n_bits, problem.n_targets), codewords.NORM

    def _learn(self, training: Training, done: State | None) -> Fitted:
        head = self._chosen_head(training.problem)
        if training.problem.rows.ndim == 2 and training.frozen is None:
            named = ("net",) if isinstance(self.net, str) else ()
            self._warn_of_idle((*named, *IMAGES_ONLY), "X holds rows of features, not images", stacklevel=4)
        if head == "codewords":
            learned = self._learn_codewords(training, done)
        elif head == "kernel":
            learned = self._learn_kernel(training)
        else:
            learned = self._learn_bits(training, done)
        return {**learned, "head_": head}

    def _learn_bits(self, training: Training, done: State | None) -> Fitted:
        """As the paper does."""
        self._warn_of_idle(("carry",), "head='paper' takes the signs of its outputs")
        if done is None:
            train_classifier(training)
            done = training.save(0, training.codes())
        packed, agreement = done.codes, done.agreement
        for t in range(done.round, self.n_iter):
            F = training.outputs()
            packed, moves = self._h_step(training, F, packed)
            agreement.append(bit_agreement(F, packed))
            training.settings.report(f"H-step {t + 1}: {moves:,} moves, agreement {agreement[-1]:.4f}")
            if agreement[-1] >= self.stop_agreement:
                break
            self._f_step(training, packed, t + 1)
            training.save(t + 1, packed, agreement)
        return {"codes_": packed, "agreement_": agreement}

    def _h_step(self, training: Training, F: Tensor, packed: Packed) -> tuple[Packed, int]:
        """Codes near F that keep S, from the former ones on, and how many bits moved."""
        with training.stage("H-step"):
            H = cbcd.PackedColumns(packed, F.shape[1])
            q = (len(F) * self.nu * LOSSES["hinge"].half_difference(F)).T.contiguous().cpu()
            done = cbcd.sweep(H, training.problem.S, q)
            return H.packed(), done.flips

    def _f_step(self, training: Training, packed: Packed, round_: int) -> None:
        """Train towards H: squared hinge against it, with some bits flipped, and the softmax loss on Φ."""
        problem, r = training.problem, self.n_bits
        H = torch.from_numpy(codes.unpack(packed, r)).to(problem.device, torch.float32)
        seed = problem.seed + 1000 * round_
        seed_generators(seed + 2, problem.device)  # new head, dropout: as if no round had gone before
        head = nn.Linear(training.model.width, problem.n_targets).to(problem.device)
        flips = torch.Generator(problem.device).manual_seed(seed + 500)

        def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
            h = H[batch.rows]
            h = torch.where(batch.draw(flips, r) < self.alpha, -h, h)
            hinge = (1 - h * F).clamp(min=0).square().mean()
            return problem.classification_loss(head(phi), batch.rows) + self.mu * hinge

        training.run(loss, round_, training.optimiser(head, scale=0.5**round_))

    def _learn_kernel(self, training: Training) -> Fitted:
        self._warn_of_idle(TRAINED_ONLY, "head='kernel' trains nothing")
        with training.stage("kernel"):
            training.model.top, packed = fit_kernel_top(training.problem, self.n_bits)
        return {"codes_": packed, "agreement_": []}

    def _learn_codewords(self, training: Training, done: State | None) -> Fitted:
        self._warn_of_idle(PAPER_ONLY, "head='codewords' flips no bits and has one loss")
        if training.problem.several:
            self._warn_of_idle(("carry",), "codes of rows with several labels have a frame")

        def h_step(F: Tensor, packed: Packed) -> Packed:
            return self._h_step(training, F, packed)[0]

        fit = CodewordFit(training, self.n_bits, self.n_iter + 1, h_step, self.patience, self.carry)
        packed, agreement = fit.learn(done)
        return {"codes_": packed, "agreement_": agreement}


def train_classifier(training: Training) -> None:
    """The start (CNNBH): classes are told from the r outputs, so that their signs come to say which class it is."""
    problem = training.problem
    head = nn.Linear(training.model.n_outputs, problem.n_targets).to(problem.device)

    def loss(phi: Tensor, F: Tensor, batch: Batch) -> Tensor:
        return problem.classification_loss(head(torch.tanh(F)), batch.rows)

    training.run(loss, 0, training.optimiser(head), same=True)
