"""Training towards codewords: rounds of H-step and SGD in two cycles of the learning rate, and the top they give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dish import codes
from dish.deep import codewords
from dish.deep.checkpoint import State
from dish.deep.codewords import codeword_loss, hold_out, label_loss, least_distance, one_hot, start_codes
from dish.deep.heads import PosteriorTop, Rows, fit_label_top, fit_top, plain_label_top, plain_top, top_of
from dish.deep.model import state_arrays
from dish.deep.solved import regress, settle
from dish.deep.training import Batch, Training, seed_generators
from dish.errors import InputError

Packed = NDArray[np.uint8]
Cycle = tuple[range, Tensor | None]  # its rounds, and the rows it has (None: all)


@dataclass
class CodewordFit:
    """One fit of ``DeepDISH(head="codewords")`` on its way."""

    training: Training
    n_bits: int
    n_rounds: int
    h_step: Callable[[Tensor, Packed], Packed]  # codes near the outputs that keep S, from former ones on
    patience: int | None = None  # passes that may go by without a lower loss of the rows that are held out
    carry: bool = True  # whether bits may carry rounding errors on

    def __post_init__(self) -> None:
        problem = self.training.problem
        self.recipe = codewords.recipe(problem.rows, self.training.settings.fine_tuning)
        needed = {name for name in self.training.model.body.state_dict() if not name.endswith("num_batches_tracked")}
        self.training.careful = self.recipe.careful and not needed & self.training.fresh  # averages came, too
        self.t = one_hot(problem.targets, problem.n_targets)
        self.share = self.t.nanmean(0).nan_to_num(0.0)
        self.width = self.n_bits if problem.several else self.training.model.n_outputs  # of codewords
        classes = None if problem.several else problem.targets.cpu()
        self.held, self.seen = hold_out(problem.n, problem.seed + 7, classes)

    def learn(self, done: State | None) -> tuple[Packed, list[float]]:
        """Train the network, from a state on if there is one, and put the top on it; codes and agreement."""
        problem = self.training.problem
        state = done or State(-1, start_codes(problem.S, self.width, problem.seed), problem.seed)
        for rounds, rows in self.cycles():
            if state.round + 1 < rounds.stop:
                state = self.run_cycle(rounds, rows, state)
        self.training.model.top = self.top(state)
        problem.ranks.broadcast(self.training.model.top.buffers())
        packed = self.h_step(self.training.outputs(), start_codes(problem.S, self.n_bits, problem.seed))
        return packed, state.agreement

    def cycles(self) -> list[Cycle]:
        """The first rounds leave rows out, unless rows are few, or classes have few rows."""
        first = max(1, int(self.recipe.first * self.n_rounds)) if self.n_rounds > 1 else 0
        too_few = len(self.held) < int(codewords.HELD_OUT * codewords.FEWEST_ROWS)
        if self.patience and (too_few or first == 0):
            raise InputError(
                f"patience needs rows to hold out: at least {codewords.FEWEST_ROWS} rows, several of each class (got "
                f"{self.training.problem.n} rows), and n_iter of at least 1; leave it None"
            )
        if too_few or first == 0:
            return [(range(self.n_rounds), None)]
        return [(range(first), self.seen), (range(first, self.n_rounds), None)]

    def run_cycle(self, rounds: range, rows: Tensor | None, state: State) -> State:
        """The rounds of a cycle that the state does not have yet, under one optimiser."""
        training, problem = self.training, self.training.problem
        n, first = problem.n if rows is None else len(rows), max(rounds.start, state.round + 1)
        if rows is None:
            training.settings = replace(training.settings, epochs=self.passes(len(rounds)))
        trained_before = training.settings.fine_tuning and training.frozen is None
        known = training.careful or not trained_before  # of other networks with weights less is known
        rate, decay = self.recipe.rate if known else None, self.recipe.decay if training.careful else None
        optimiser = training.optimiser(rounds=len(rounds), n=n, rate=rate, decay=decay)
        if first > rounds.start:
            optimiser.resume(state.rates, state.momentum, (first - rounds.start) * training.steps_of(n))
        for round_ in range(first, rounds.stop):
            packed = self.between_rounds(round_, state)
            C = self.codewords(packed)
            if round_ == 0 and training.careful and not problem.several:
                regress(problem, training.model, C[problem.targets], rows)

            def loss(phi: Tensor, f: Tensor, batch: Batch, C: Tensor = C) -> Tensor:
                return self.loss(f, C, batch.blend(self.t[batch.rows]))

            seed_generators(problem.seed + 1000 * round_ + 2, problem.device)  # dropout: the same on resuming
            enough = partial(self.enough, C) if self.patience and rows is not None else None
            stopped = training.run(loss, round_, optimiser, rows, self.recipe.mixup, same=True, enough=enough)
            last = stopped or round_ == rounds[-1]
            if last and self.recipe.settle:
                settle(problem, training.model, rows)
            top = state_arrays(self.fit_top(C)) if last and rows is not None else state.top
            state = training.save(rounds[-1] if last else round_, packed, state.agreement, optimiser, top)
            if last:
                break
        return state

    def enough(self, C: Tensor) -> bool:
        """Note the loss of the rows that are held out; whether it has not fallen for too long."""
        training, problem = self.training, self.training.problem
        held = self.held.to(problem.device)
        f = training.outputs(problem.rows[held])
        loss = self.of_first(float(self.loss(f, C, self.t[held])))
        training.history[-1]["held_out"] = loss
        losses = self.held_out_losses()
        training.settings.report(f"held-out loss {loss:.4f}, lowest after {1 + int(np.argmin(losses))} passes")
        return len(losses) - 1 - int(np.argmin(losses)) >= (self.patience or 0)

    def held_out_losses(self) -> list[float]:
        """Of the passes of the first cycle so far."""
        return [epoch["held_out"] for epoch in self.training.history if "held_out" in epoch]

    def passes(self, n_rounds: int) -> int:
        """Passes of each round of the second cycle: in all as many as the held-out rows wanted, if asked."""
        losses = self.held_out_losses()
        return -(-(1 + int(np.argmin(losses))) // n_rounds) if losses else self.training.settings.epochs

    def loss(self, f: Tensor, C: Tensor, t: Tensor) -> Tensor:
        """Of outputs towards codewords."""
        return label_loss(f, t, self.share) if self.training.problem.several else codeword_loss(f, C, t)

    def codewords(self, packed: Packed) -> Tensor:
        """C (l, R); none where rows have several labels, whose outputs are logits."""
        if self.training.problem.several:
            return self.t.new_zeros(0, 0)
        return codewords.codewords(packed, self.width, self.t)

    def between_rounds(self, round_: int, state: State) -> Packed:
        """Codes for the next round, given what the network says now, unless codewords would come closer together."""
        if round_ == 0 or self.training.problem.several:
            return state.codes
        f = self.training.outputs()
        packed = self.h_step(f, state.codes)
        former, new = (least_distance(self.codewords(each)) for each in (state.codes, packed))
        if new < former:
            packed = state.codes
        state.agreement.append(bit_agreement(f, packed))
        self.training.settings.report(f"H-step {round_}: agreement {state.agreement[-1]:.4f}")
        return packed

    @property
    def signs(self) -> NDArray[np.float64]:
        """The codewords of n_bits whose signs the frame has."""
        problem = self.training.problem
        packed = start_codes(problem.S, self.n_bits, problem.seed)
        return codewords.codewords(packed, self.n_bits, self.t.nan_to_num(0.0)).double().cpu().numpy()

    def fit_top(self, C: Tensor) -> PosteriorTop:
        """By the rows that were held out."""
        problem = self.training.problem
        with self.training.stage("frame"):
            f = self.training.outputs()
            held, seen = (Rows(f[i], self.t[i]) for i in (self.held.to(f.device), self.seen.to(f.device)))
            rng = np.random.RandomState(problem.seed)
            if problem.several:
                return fit_label_top(self.signs, held, seen, rng)
            return fit_top(C, self.signs, held, seen, rng, self.carry, self.of_first)

    def of_first(self, value: float) -> float:
        """The value that the first process has, so that all choose alike."""
        return float(self.training.problem.ranks.gather(torch.tensor([value]))[0, 0])

    def top(self, state: State) -> PosteriorTop:
        """The top of the state for its codewords; without held-out rows, one that is as sure as the training was."""
        C, problem = self.codewords(state.codes), self.training.problem
        rng = np.random.RandomState(problem.seed)
        if not state.top and problem.several:
            return plain_label_top(self.signs, self.share, rng)
        if not state.top:
            return plain_top(C, self.signs, self.width**0.5, rng)
        return top_of({**state.top, "C": C.cpu().numpy()}).to(C.device)


def bit_agreement(F: Tensor, packed: Packed) -> float:
    """The share of bits that are the sign of F."""
    return float(((F >= 0).cpu() == torch.from_numpy(codes.unpack(packed, F.shape[1]) > 0)).float().mean())
