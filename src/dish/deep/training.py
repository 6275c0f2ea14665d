"""Rounds of SGD on one network, by one process or several.

Several processes share every batch: each takes every world-th row of it, gradients are weighted by the shares and
summed, and random draws are made for the whole batch on all of them. They take the steps of one process up to
rounding, except where a layer looks at the batch: batch norm sees a process's own share, dropout draws its own
masks, and losses over pairs or triplets (DHN, HashNet, DTSH, SFHC) see those within a share.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dish import codes
from dish.deep.augment import augment
from dish.deep.checkpoint import Checkpoint, State
from dish.deep.data import Problem
from dish.deep.graph import GraphedStep
from dish.deep.model import HashingNet, encode
from dish.deep.optimiser import Group, Optimiser
from dish.deep.solved import BATCH_NORMS
from dish.errors import InputError
from dish.progress import Stopwatch, progress

CLIP = 1.0  # the norm of the gradient of all weights that came with the network, at most
ENOUGH_ROWS = 64  # to see whether all codes are the same
GRAPHS = True  # whether steps are recorded as CUDA graphs where they can be


@dataclass(frozen=True)
class Settings:
    """Parameters of the training loop, as ``DeepHasher`` documents them."""

    epochs: int
    batch_size: int
    lr: float | str
    weight_decay: float | str
    accumulate: int
    augment: bool
    mirror: bool
    fine_tuning: bool
    recordable: bool  # the network is one of ours, whose steps a GPU can record
    report: Callable[[str], None]  # takes a line per epoch


@dataclass(frozen=True)
class Batch:
    """This process's rows of a batch, and what it needs to draw as if it had all of them."""

    rows: Tensor  # (b,) on the device
    size: int  # rows of the batch on all processes
    mine: slice  # which of those are ours
    mixed: Tensor | None = None  # (b,): the share of the row before it that was mixed into each

    @property
    def share(self) -> float:
        """The part of the batch that is ours."""
        return len(self.rows) / self.size

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Numbers from 0 to 1 for each row, (b, *shape): drawn for the whole batch, so that all processes agree."""
        whole = torch.rand((self.size, *shape), generator=generator, device=generator.device)
        return whole[self.mine]

    def parts(self, k: int) -> list[Batch]:
        """The rows in k parts, as k processes would share them."""
        first, step = self.mine.start, self.mine.step
        shares = [replace(self, rows=self.rows[j::k], mine=slice(first + j * step, None, k * step)) for j in range(k)]
        return [part for part in shares if len(part.rows)]

    def blend(self, x: Tensor) -> Tensor:
        """Values (b, …) of the rows, mixed as the rows were."""
        if self.mixed is None:
            return x
        return torch.lerp(x, x.roll(1, 0), self.mixed.view(-1, *[1] * (x.ndim - 1)))


BatchLoss = Callable[[Tensor, Tensor, Batch], Tensor]  # (Φ (b, D), F (b, r), batch) → the mean loss of its rows


class Training(Stopwatch):
    """The network of one fit on its way. It exists only while ``fit`` runs."""

    def __init__(
        self,
        problem: Problem,
        model: HashingNet,
        fresh: frozenset[str],
        settings: Settings,
        checkpoint: Checkpoint,
        frozen: nn.Module | None = None,
    ) -> None:
        """``fresh``: parameters of the network's body that start without weights although others have them.

        ``frozen``: a body that is not trained; the rows are what it made of them.
        """
        self.problem, self.model, self.fresh, self.settings = problem, model, fresh, settings
        self.checkpoint, self.frozen = checkpoint, frozen
        self.size = min(settings.batch_size, problem.n)
        self.history: list[dict[str, float]] = []
        # Whether the body keeps what it knows: batch norm's averages as they came, and clipped gradients. Weights do
        # not fit averages they were not trained with; with their own, gradients are large at first.
        self.careful = False
        self.rate = math.nan  # of the optimiser that was made last
        self.timings_ = {}
        world = problem.ranks.world
        if settings.accumulate > 1 and self.size < 2 * world * settings.accumulate:
            raise InputError(
                f"accumulate: a batch of {self.size} rows cannot be split into {world * settings.accumulate} parts "
                "of at least two rows: lower accumulate, or raise batch_size"
            )
        if world > 1 and self.size < 2 * world:  # batch norm needs two rows
            raise InputError(
                f"batch_size: {self.size} rows cannot be shared by {world} processes, each of which needs at least "
                f"two: use a batch_size (and as many training rows) of at least {2 * world}, or fewer processes"
            )

    def thaw(self) -> None:
        """Put a body that was not trained back in its place."""
        if self.frozen is not None:
            self.model.body = self.frozen

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Time what is done inside."""
        return self._stage(name)

    def steps_of(self, n: int) -> int:
        """Steps of one round over n rows."""
        return self.settings.epochs * max(1, n // min(self.size, n))

    def optimiser(
        self,
        head: nn.Module | None = None,
        scale: float = 1.0,
        rounds: int = 1,
        n: int | None = None,
        rate: float | None = None,
        decay: float | None = None,
    ) -> Optimiser:
        """For so many rounds over n rows, at ``scale`` times the rate.

        ``rate`` and ``decay``, that of the network's body, are what "auto" stands for, if not the usual ones.
        ``head`` are layers of the loss that learn too. When fine-tuning, layers that came with weights learn at a
        tenth of the rate.
        """
        s = self.settings
        usual = 0.01 if s.fine_tuning else 0.1
        lr = scale * ((rate or usual) if isinstance(s.lr, str) else float(s.lr))
        self.rate = lr
        light = s.fine_tuning or self.problem.rows.ndim == 2
        usual_decay = 5e-4 if light else 2e-3
        new = [*self.model.hash.parameters(), *(head.parameters() if head is not None else ())]
        old: list[nn.Parameter] = []
        for name, p in self.model.body.named_parameters():
            (new if s.fine_tuning and name in self.fresh else old).append(p)
        rates = [0.1 * lr if s.fine_tuning else lr, lr]
        decays = [usual_decay if decay is None else decay, usual_decay]
        if not isinstance(s.weight_decay, str):
            decays = [float(s.weight_decay)] * 2
        groups = [Group(*each) for each in zip((old, new), rates, decays, strict=True)]
        steps = rounds * self.steps_of(n or self.problem.n)
        return Optimiser.one_cycle(groups, steps, self.problem.device if self.graphs() else None)

    def graphs(self) -> bool:
        """Whether steps may be recorded: those of a network of ours, on a GPU that one process has.

        They are the ordinary steps up to rounding: the optimiser's kernels differ, and sums on a GPU have no fixed
        order anyway.
        """
        alone = self.problem.device.type == "cuda" and self.problem.ranks.world == 1
        return GRAPHS and self.settings.recordable and alone

    def run(
        self,
        loss: BatchLoss,
        round_: int,
        optimiser: Optimiser,
        rows: Tensor | None = None,
        mixup: float = 0.0,
        same: bool = False,
        enough: Callable[[], bool] | None = None,
    ) -> bool:
        """``epochs`` passes over all rows or some; up to a share ``mixup`` of another row is mixed into each.

        ``enough`` is asked after every pass; whether it ended the round before its time.

        ``same``: the loss does the same in every step, so that a GPU may record it.
        Seeded by round: a fit that resumes takes the same steps as one that was never stopped.
        """
        ranks, seed = self.problem.ranks, self.problem.seed + 1000 * round_
        order = torch.Generator().manual_seed(seed)
        noise = torch.Generator(self.problem.device).manual_seed(seed + 1)
        if not ranks.first:
            seed_generators(seed + 3 + ranks.rank, self.problem.device)  # dropout: masks of its own
        ranks.broadcast([*optimiser.params, *self.model.buffers()])
        epochs = self.settings.epochs
        rows = torch.arange(self.problem.n) if rows is None else rows
        one_step: Callable[[Batch], Tensor]
        one_step = partial(self._step, loss=loss, noise=noise, optimiser=optimiser, mixup=mixup)
        if same and self.graphs():
            one_step = GraphedStep(one_step, noise)
        stopped = False
        with self.stage(f"round {round_}"), progress(f"round {round_}", epochs) as step:
            for epoch in range(epochs):
                self._train_mode()
                total = torch.zeros((), device=self.problem.device)
                steps = 0
                for batch in self._batches(rows, order):
                    total += one_step(batch)
                    optimiser.schedule.step()
                    steps += 1
                self._epoch_done(round_, epoch, float(ranks.total(total)) / steps)
                step(1)
                if enough is not None and enough():
                    stopped = True
                    break
            ranks.broadcast(self.model.buffers())  # batch norm's averages are each process's own
        return stopped

    def _train_mode(self) -> None:
        self.model.train()
        if self.careful:
            for layer in self.model.body.modules():
                if isinstance(layer, BATCH_NORMS):
                    layer.eval()

    def _batches(self, rows: Tensor, order: torch.Generator) -> Iterator[Batch]:
        """This process's part of the batches of one pass; rows beyond the last whole batch wait for another pass."""
        ranks, n = self.problem.ranks, len(rows)
        size = min(self.size, n)
        mine = slice(ranks.rank, None, ranks.world)
        shuffled = rows[torch.randperm(n, generator=order)[: n // size * size]]
        for some in shuffled.to(self.problem.device).view(-1, size):  # one transfer per pass
            yield Batch(some[mine], size, mine)

    def _step(
        self, batch: Batch, loss: BatchLoss, noise: torch.Generator, optimiser: Optimiser, mixup: float
    ) -> Tensor:
        """One step of SGD; this process's part of the batch's mean loss."""
        optimiser.sgd.zero_grad(set_to_none=True)
        value = torch.zeros((), device=self.problem.device)
        for part in batch.parts(self.settings.accumulate):
            value += self._slopes(part, loss, noise, mixup)
        self._sum_gradients(optimiser.params)
        if self.careful:
            nn.utils.clip_grad_norm_(self.model.body.parameters(), CLIP)
        optimiser.sgd.step()
        return value

    def _slopes(self, batch: Batch, loss: BatchLoss, noise: torch.Generator, mixup: float) -> Tensor:
        """Add the gradient of some rows to what there is; their part of the batch's mean loss."""
        x = self.problem.rows[batch.rows]
        if self.settings.augment and x.ndim == 4:
            x = augment(x, lambda: batch.draw(noise), self.model.size)
        if mixup:
            batch = replace(batch, mixed=mixup * batch.draw(noise))
            x = batch.blend(x.float())
        with self._autocast():
            phi, F = self.model(self.model.prepare(x))
        value = loss(phi.float(), F.float(), batch) * batch.share
        value.backward()
        return value.detach()

    def _sum_gradients(self, params: list[nn.Parameter]) -> None:
        """One message carries all gradients; what one process did not use counts as zero there."""
        if self.problem.ranks.world == 1:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])
        self.problem.ranks.sum_in_place(flat)
        for p, g in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.grad = g.view_as(p).to(p.dtype)

    def _epoch_done(self, round_: int, epoch: int, loss: float) -> None:
        self.history.append({"round": round_, "epoch": epoch, "loss": loss})
        self.settings.report(f"round {round_}, epoch {epoch + 1}/{self.settings.epochs}: loss {loss:.4f}")
        if not np.isfinite(loss):
            raise InputError(f"training diverged in epoch {epoch + 1}: lower lr (it is {self.rate:g})")

    def _autocast(self) -> Any:
        """Half precision where it is fast."""
        return torch.autocast("cuda", torch.bfloat16) if self.problem.device.type == "cuda" else nullcontext()

    def outputs(self, rows: Tensor | None = None) -> Tensor:
        """F (n, r) of the training rows or others, or what is trained, not augmented; each process encodes a part."""
        ranks, rows = self.problem.ranks, self.problem.rows if rows is None else rows
        size = self.model.rows_at_once(rows.shape)
        starts = range(ranks.rank * size, len(rows), ranks.world * size)
        parts = [encode(self.model, rows[i : i + size], self.settings.mirror) for i in starts]
        some = parts[0] if parts else encode(self.model, rows[:1], False)
        F = some.new_zeros(len(rows), some.shape[1])
        for i, part in zip(starts, parts, strict=True):
            F[i : i + size] = part
        ranks.sum_in_place(F)
        return F

    def codes(self) -> NDArray[np.uint8]:
        """The packed signs of F."""
        return codes.pack(self.outputs().cpu().numpy())

    def warn_of_one_code(self) -> None:
        """Say so if rows with different labels have all got the same code."""
        some = slice(None, None, -(-self.problem.n // ENOUGH_ROWS))
        labels, bits = self.problem.targets[some], self.outputs(self.problem.rows[some]) >= 0
        if self.problem.ranks.first and bool((labels != labels[0]).any()) and bool((bits == bits[0]).all()):
            warnings.warn(
                "all training rows have the same code: the network has learned nothing. Give it more passes (epochs) "
                f"or another lr (it was {self.rate:g})",
                stacklevel=3,
            )

    def save(
        self,
        round_: int,
        packed: NDArray[np.uint8],
        agreement: Sequence[float] = (),
        optimiser: Optimiser | None = None,
        top: dict[str, NDArray[Any]] | None = None,
    ) -> State:
        """The state after a round, kept in the checkpoint if there is one; with an optimiser that outlasts it.

        ``top`` is what the network gets on top of it in the end, if that is known.
        """
        state = State(round_, packed, self.problem.seed, list(agreement), self.history)
        state.top = top or {}
        if optimiser is not None:
            state.rates, state.momentum = optimiser.rates, optimiser.momentum
        self.checkpoint.write(state, self.model)
        return state


def reporter(name: str, verbose: int) -> Callable[[str], None]:
    """What takes the lines of a report: standard error, or nothing."""
    return (lambda line: print(f"{name} {line}", file=sys.stderr)) if verbose else lambda line: None


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The same initial weights and dropout for the same seed; the caller's generators, and other GPUs, untouched."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        seed_generators(seed, device)
        yield


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's own generators of the CPU and of ``device`` (``torch.manual_seed`` would seed all GPUs)."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
