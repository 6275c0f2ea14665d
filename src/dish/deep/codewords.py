"""Training towards codewords: the F-step of ``DeepDISH``.

With t (n, l) the classes of the rows, the codeword C_l = sgn(Σ_i t_il h_i) is the majority vote of the codes H of the
rows of class l. The loss is a softmax over the cosines of the outputs with the codewords, with a margin m:

    loss_i = −Σ_l t̄_il log softmax_l( √R (cos(f_i, C_l) − m t_il) ) ,   t̄_i = t_i / Σ_l t_il .

The margin asks f to be closer to its own codeword than to the others by m. If rows have several labels, the outputs
are logits and every label has a logistic loss, because such a row is not like one codeword but like a sum of several.

Training has two cycles of the learning rate. The first holds out some rows, to which the head is fitted; the second
uses all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dish import codes
from dish.deep import heads
from dish.deep.data import DeepFitData, one_hot
from dish.deep.h_step import Packed, bit_agreement, h_step, start_codes
from dish.deep.heads import Head, MultilabelHead, Outputs, PosteriorHead, cosines
from dish.deep.model import HashingNet, extract_features
from dish.deep.training import BATCH_NORMS, Batch, RoundState, Training, seed_generators
from dish.errors import InputError
from dish.progress import progress

MARGIN = 0.2
NORM = True  # whether the outputs have batch norm
NU = 1e-4  # weight ν of the loss in the H-step
MIN_WIDTH, MAX_WIDTH_FOR_CLASSES = 64, 512  # outputs: a margin needs more room than short codes have
HELD_OUT, MAX_HELD_OUT, MIN_ROWS = 0.15, 16384, 500  # share of rows to hold out; none of fewer than MIN_ROWS
MAX_REGRESSED = 20_000  # rows to which the initial outputs are fitted
MAX_RECALIBRATED, RECALIBRATION_BATCH = 10_000, 256  # rows over which batch norm is recalibrated

Cycle = tuple[range, Tensor | None]  # its rounds, and the rows it trains on (None: all)


@dataclass(frozen=True)
class Recipe:
    """Training settings for one kind of network, chosen on held-out training rows."""

    rate: float  # learning rate for lr="auto", unless a pretrained network is trained without ``preserve_body``
    first: float  # share of the rounds that hold rows out
    mixup: float  # each row is mixed with a share of up to this of another row
    recalibrate: bool  # whether batch norm is recalibrated on unmixed rows in the end
    preserve_body: bool = False  # whether a body with weights for all of its tensors keeps its batch-norm averages
    decay: float | None = None  # weight decay of that body for weight_decay="auto"; None: the same as other layers


SCRATCH = Recipe(rate=0.05, first=0.25, mixup=0.5, recalibrate=True)
# With fixed batch-norm averages nothing compensates for weights that shrink layer after layer: no weight decay.
PRETRAINED = replace(SCRATCH, rate=0.1, mixup=0.3, recalibrate=False, preserve_body=True, decay=0.0)
VECTORS = Recipe(rate=0.1, first=0.5, mixup=0.3, recalibrate=False)  # vectors need fewer epochs


def recipe(rows: Tensor, fine_tuning: bool) -> Recipe:
    """The recipe for images (n, H, W, 3) or vectors (n, d)."""
    if rows.ndim == 2:
        return VECTORS
    return PRETRAINED if fine_tuning else SCRATCH


def preserves_body(chosen: Recipe, model: HashingNet, fresh: frozenset[str]) -> bool:
    """Whether the body keeps its batch-norm averages: if all of its tensors came with weights."""
    needed = {name for name in model.body.state_dict() if not name.endswith("num_batches_tracked")}
    return chosen.preserve_body and not needed & fresh


def width(n_bits: int, n_classes: int) -> int:
    """Number of outputs R: at least one per class (up to a limit), so that codewords can be far apart."""
    return max(n_bits, MIN_WIDTH, min(n_classes, MAX_WIDTH_FOR_CLASSES))


def codewords(packed: Packed, n_bits: int, t: Tensor) -> Tensor:
    """C (l, r) of ±1: the majority vote of the rows with each label."""
    H = torch.from_numpy(codes.unpack(packed, n_bits)).to(t.device, torch.float32)
    return torch.where(t.T @ H >= 0, 1.0, -1.0)


def least_distance(C: Tensor) -> float:
    """The smallest Hamming distance between two codewords (l, r)."""
    distances = (C.shape[1] - C @ C.T) / 2
    return float(distances.fill_diagonal_(float(C.shape[1])).min())


def codeword_loss(f: Tensor, C: Tensor, t: Tensor) -> Tensor:
    """The softmax loss, averaged over rows (b, R); rows without a label count as zero."""
    wanted = t / t.sum(1, keepdim=True).clamp(min=1)
    return functional.cross_entropy(C.shape[1] ** 0.5 * (cosines(f, C) - MARGIN * t), wanted)


def label_loss(f: Tensor, t: Tensor, share: Tensor) -> Tensor:
    """The logistic losses of all known labels, averaged over rows; ``share`` (l,): the share of rows with a label."""
    z, known = f + torch.logit(share, eps=1e-4), ~t.isnan()
    losses = functional.binary_cross_entropy_with_logits(z, t.nan_to_num(0.0), reduction="none")
    return (losses * known).sum() / len(t)


def hold_out(n: int, seed: int, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Indices of the rows that are held out of the first cycle, and of the others.

    A row is not held out if no other row of its class in y would be seen: nothing could be learned about it.
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    n_held = min(int(HELD_OUT * n), MAX_HELD_OUT)
    held, seen = order[:n_held], order[n_held:]
    known = torch.isin(y[held], y[seen]) if y is not None else torch.ones(n_held, dtype=torch.bool)
    return held[known], torch.cat([seen, held[~known]])


class CodewordFit:
    """One fit of ``DeepDISH``: rounds of H-step and SGD in two cycles of the learning rate, then the head."""

    def __init__(
        self, training: Training, n_bits: int, n_rounds: int, patience: int | None, error_diffusion: bool
    ) -> None:
        self.training, self.data, self.n_bits, self.n_rounds = training, training.data, n_bits, n_rounds
        self.patience, self.error_diffusion = patience, error_diffusion
        data = self.data
        self.recipe = recipe(data.rows, training.settings.fine_tuning)
        self.t = one_hot(data.targets, data.n_targets)
        self.share = self.t.nanmean(0).nan_to_num(0.0)
        self.width = n_bits if data.multilabel else training.model.n_outputs  # of the codewords
        classes = None if data.multilabel else data.targets.cpu()
        self.held, self.seen = hold_out(data.n, data.seed + 7, classes)

    def learn(self, state: RoundState | None) -> tuple[Head, list[float]]:
        """Train the network, resuming from a state if there is one; returns the head and the agreement."""
        data = self.data
        state = state or RoundState(-1, start_codes(data.S, self.width, data.seed), data.seed)
        with progress("rounds", self.n_rounds - state.round - 1):
            for rounds, rows in self.cycles():
                if state.round + 1 < rounds.stop:
                    state = self.run_cycle(rounds, rows, state)
        head = self.final_head(state)
        data.ranks.broadcast(head.buffers())
        return head, state.agreement

    def cycles(self) -> list[Cycle]:
        """The two cycles, or only one if there are too few rows, or too few per class, to hold some out."""
        first = max(1, int(self.recipe.first * self.n_rounds)) if self.n_rounds > 1 else 0
        too_few = len(self.held) < int(HELD_OUT * MIN_ROWS)
        if self.patience and (too_few or first == 0):
            raise InputError(
                f"patience needs held-out rows: at least {MIN_ROWS} rows, several per class (there are {self.data.n} "
                "rows), and n_iter of at least 1; pass patience=None"
            )
        if too_few or first == 0:
            return [(range(self.n_rounds), None)]
        return [(range(first), self.seen), (range(first, self.n_rounds), None)]

    def run_cycle(self, rounds: range, rows: Tensor | None, state: RoundState) -> RoundState:
        """Run the rounds of a cycle that the state does not contain yet, with one optimiser."""
        training, data, chosen = self.training, self.data, self.recipe
        n, first = data.n if rows is None else len(rows), max(rounds.start, state.round + 1)
        epochs = training.settings.epochs if rows is not None else self.epochs_of_second_cycle(len(rounds))
        steps = epochs * training.steps_per_epoch(n)
        preserving = training.settings.preserve_body
        usual = preserving or not training.settings.fine_tuning  # for other pretrained networks the rate is unknown
        optimiser = training.optimiser(
            steps=len(rounds) * steps,
            rate=chosen.rate if usual else None,
            decay=chosen.decay if preserving else None,
        )
        if first > rounds.start:
            optimiser.resume(state.rates, state.momentum, (first - rounds.start) * steps)
        for round_ in range(first, rounds.stop):
            packed, agreement = self.next_codes(round_, state)
            C = self.codewords(packed)
            if round_ == 0 and preserving and not data.multilabel:
                regress_outputs(data, training.model, C[data.targets], rows)

            def loss(phi: Tensor, f: Tensor, batch: Batch, C: Tensor = C) -> Tensor:
                return self.loss(f, C, batch.blend(self.t[batch.rows]))

            seed_generators(data.seed + 1000 * round_ + 2, data.device)  # resuming draws the same dropout masks
            stopped = training.run(
                loss,
                round_,
                optimiser,
                rows=rows,
                epochs=epochs,
                mixup=chosen.mixup,
                recordable=True,
                held_out_loss=partial(self.held_out_loss, C) if self.patience and rows is not None else None,
                patience=self.patience or 0,
            )
            last = stopped or round_ == rounds[-1]
            if last and chosen.recalibrate:
                recalibrate_batch_norm(data, training.model, rows)
            head = self.fit_head(C) if last and rows is not None else state.head
            state = training.save(rounds[-1] if last else round_, packed, agreement, optimiser, head)
            if last:
                break
        return state

    def next_codes(self, round_: int, state: RoundState) -> tuple[Packed, list[float]]:
        """Codes for the next round by an H-step, and the agreement so far.

        The old codes are kept if new ones would bring codewords closer together.
        """
        if round_ == 0 or self.data.multilabel:
            return state.codes, state.agreement
        with self.training.stage("H-step"):
            f = self.training.outputs()
            packed, _ = h_step(self.data.S, f, state.codes, NU)
        before, after = (least_distance(self.codewords(each)) for each in (state.codes, packed))
        if after < before:
            packed = state.codes
        agreement = [*state.agreement, bit_agreement(f, packed)]
        self.training.settings.report(f"H-step {round_}: agreement {agreement[-1]:.4f}")
        return packed, agreement

    def held_out_loss(self, C: Tensor) -> float:
        """The loss of the held-out rows."""
        held = self.held.to(self.data.device)
        f = self.training.outputs(self.data.rows[held])
        return self.of_first(float(self.loss(f, C, self.t[held])))

    def epochs_of_second_cycle(self, n_rounds: int) -> int:
        """Epochs per round: in total as many as gave the lowest held-out loss, if that was computed."""
        losses = self.training.held_out_losses
        return -(-(1 + int(np.argmin(losses))) // n_rounds) if losses else self.training.settings.epochs

    def loss(self, f: Tensor, C: Tensor, t: Tensor) -> Tensor:
        """The loss of outputs f for labels t."""
        return label_loss(f, t, self.share) if self.data.multilabel else codeword_loss(f, C, t)

    def codewords(self, packed: Packed) -> Tensor:
        """C (l, R); empty for multi-label data, where the outputs are logits."""
        if self.data.multilabel:
            return self.t.new_zeros(0, 0)
        return codewords(packed, self.width, self.t)

    @property
    def signs(self) -> NDArray[np.float64]:
        """Codewords of n_bits bits: the signs of the projection."""
        packed = start_codes(self.data.S, self.n_bits, self.data.seed)
        return codewords(packed, self.n_bits, self.t.nan_to_num(0.0)).double().cpu().numpy()

    @progress("head", 1)
    def fit_head(self, C: Tensor) -> PosteriorHead | MultilabelHead:
        """The head, fitted to the held-out rows."""
        with self.training.stage("head"):
            f = self.training.outputs()
            held, seen = (Outputs(f[i], self.t[i]) for i in (self.held.to(f.device), self.seen.to(f.device)))
            rng = np.random.RandomState(self.data.seed)
            if self.data.multilabel:
                return heads.fit_multilabel_head(self.signs, held, seen, rng)
            return heads.fit_head(C, self.signs, held, seen, rng, self.error_diffusion, self.of_first)

    def of_first(self, value: float) -> float:
        """The value that the first process computed, so that all processes choose the same."""
        return float(self.data.ranks.gather(torch.tensor([value]))[0, 0])

    def final_head(self, state: RoundState) -> Head:
        """The head of the state with the final codewords, or a default one if no rows were held out."""
        C, rng = self.codewords(state.codes), np.random.RandomState(self.data.seed)
        if state.head is None and self.data.multilabel:
            return heads.default_multilabel_head(self.signs, self.share, rng)
        if state.head is None:
            return heads.default_head(C, self.signs, self.width**0.5, rng)  # as confident as in training
        head = state.head.to(C.device)
        return head.with_codewords(C) if isinstance(head, PosteriorHead) else head


# --- set in closed form ---


def regress_outputs(data: DeepFitData, model: HashingNet, targets: Tensor, rows: Tensor | None = None) -> None:
    """Set the output layer to the ridge regression of targets (n, R) on Φ, computed from some rows or all.

    Otherwise the first gradients, from random outputs, would damage a pretrained body.
    """
    some = _sample(data, rows, MAX_REGRESSED)
    Phi, T = extract_features(model, data.rows[some], data.ranks).double(), targets[some].double()
    mean, mean_T = Phi.mean(0), T.mean(0)
    G = (Phi - mean).T @ (Phi - mean)
    ridge = G.diagonal().mean().clamp(min=1e-12)  # near the optimum for 20 to 200 rows of each of ten classes
    G.diagonal().add_(ridge)
    W = torch.linalg.solve(G, (Phi - mean).T @ (T - mean_T))  # (D, R)
    outputs = model.hash
    assert isinstance(outputs, nn.Linear)
    with torch.no_grad():
        outputs.weight.copy_(W.T)
        outputs.bias.copy_(mean_T - mean @ W)


def recalibrate_batch_norm(data: DeepFitData, model: HashingNet, rows: Tensor | None = None) -> None:
    """Set the averages of batch norm to those of some rows, neither augmented nor mixed.

    Unlike ``torch.optim.swa_utils.update_bn`` it leaves dropout off.
    """
    some = _sample(data, rows, MAX_RECALIBRATED)
    layers = [layer for layer in model.eval().modules() if isinstance(layer, BATCH_NORMS)]
    kept = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
        layer.train()
    with torch.no_grad():
        for part in some.tensor_split(-(-len(some) // RECALIBRATION_BATCH)):
            model(model.prepare(data.rows[part]))
    for layer, momentum in zip(layers, kept, strict=True):
        layer.momentum = momentum
        layer.eval()
    data.ranks.broadcast(model.buffers())


def _sample(data: DeepFitData, rows: Tensor | None, most: int) -> Tensor:
    """A random sample of at most ``most`` indices out of ``rows`` (None: all rows), on the device."""
    n = data.n if rows is None else len(rows)
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(data.seed))[:most]
    return (drawn if rows is None else rows[drawn]).to(data.device)
