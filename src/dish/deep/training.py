"""Rounds of SGD on one network, by one process or several.

Several processes share every batch: each takes every world-th row, gradients are weighted by the shares and summed,
and random numbers are drawn for the whole batch on all processes. They take the same steps as one process, up to
rounding, except where a layer looks at the batch: batch norm sees the process's own share, dropout draws its own
masks, and losses over pairs or triplets (DHN, HashNet, DTSH, SFHC) see those within a share.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dish import codes
from dish.cuda.graph import CudaGraph
from dish.deep import heads
from dish.deep.augment import augment
from dish.deep.data import DeepFitData
from dish.deep.heads import Head
from dish.deep.model import HashingNet, encode, load_state, state_arrays
from dish.deep.optimiser import Group, Optimiser
from dish.errors import InputError
from dish.io.checkpoint import Checkpoint, FitState
from dish.progress import Stopwatch, progress

MAX_GRADIENT = 1.0  # norm to which the gradient of a pretrained body is clipped
ROWS_TO_COMPARE = 64  # enough to see whether all codes are the same
GRAPHS = True  # whether steps are recorded as CUDA graphs where that is possible
GRAPH_WARM_UP = 3  # steps before one is recorded: libraries choose their kernels then
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class Settings:
    """Parameters of the training loop; most are documented in ``DeepHasher``."""

    epochs: int
    batch_size: int
    lr: float | str
    weight_decay: float | str
    accumulate: int
    augment: bool
    mirror: bool
    fine_tuning: bool
    recordable: bool  # the network is one of ours, whose steps can be recorded as a CUDA graph
    report: Callable[[str], None]  # called with one line per epoch
    # A pretrained body keeps its batch-norm averages, and its gradients are clipped. Weights do not fit averages they
    # were not trained with; with their own averages, gradients are large at first.
    preserve_body: bool = False


@dataclass(frozen=True)
class Batch:
    """This process's rows of a batch, and what it needs to draw random numbers as if it had all of them."""

    rows: Tensor  # (b,) row indices on the device
    size: int  # rows of the batch on all processes
    mine: slice  # which of them are ours
    mixed: Tensor | None = None  # (b,): the share of the row before it that was mixed into each row

    @property
    def share(self) -> float:
        """The share of the batch that is ours."""
        return len(self.rows) / self.size

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Random numbers from 0 to 1 for each row, (b, *shape), drawn for the whole batch so that processes agree."""
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


@dataclass(frozen=True)
class Objective:
    """What a round of SGD minimises."""

    loss: BatchLoss
    layers: nn.Module | None = None  # layers of the loss that are trained, too
    recordable: bool = False  # the loss does the same in every step, so that a GPU may record it
    rate: float | None = None  # learning rate for lr="auto", if not the usual one


@dataclass(frozen=True)
class RoundState:
    """A fit after a round: what resuming needs in addition to the network."""

    round: int
    codes: NDArray[np.uint8]
    seed: int
    agreement: list[float] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # of an optimiser that spans several rounds
    momentum: list[NDArray[np.float32]] = field(default_factory=list)
    head: Head | None = None  # if it is known already

    def to_fit_state(self, model: HashingNet) -> FitState:
        """This state and the network as a checkpoint holds them."""
        values = {name: getattr(self, name) for name in ("seed", "agreement", "history", "rates")}
        values |= {"n_momentum": len(self.momentum), "head": None if self.head is None else self.head.config()}
        arrays = {"codes": self.codes, **state_arrays(model, "model.")}
        arrays |= {f"momentum.{i}": a for i, a in enumerate(self.momentum)}
        arrays |= {} if self.head is None else state_arrays(self.head, "head.")
        return FitState(self.round, values, arrays)

    @classmethod
    def load(cls, checkpoint: Checkpoint | None, model: HashingNet) -> RoundState | None:
        """The state in a checkpoint, whose network is copied into ``model``; None if there is none."""
        saved = None if checkpoint is None else checkpoint.load()
        if checkpoint is None or saved is None:
            return None
        with checkpoint.parsing():
            values, arrays = dict(saved.values), saved.arrays
            load_state(model, arrays, "model.")
            momentum = [arrays[f"momentum.{i}"] for i in range(values.pop("n_momentum"))]
            config = values.pop("head")
            tensors = {k.removeprefix("head."): a for k, a in arrays.items() if k.startswith("head.")}
            head = None if config is None else heads.restore(config, tensors)
            return cls(round=saved.step, codes=arrays["codes"], momentum=momentum, head=head, **values)


class Training(Stopwatch):
    """The network of one fit while it is trained."""

    def __init__(
        self,
        data: DeepFitData,
        model: HashingNet,
        fresh: frozenset[str],
        settings: Settings,
        checkpoint: Checkpoint | None = None,
        history: Sequence[dict[str, float]] = (),
    ) -> None:
        """``fresh``: names of parameters of the body for which there were no weights, if others have weights."""
        self.data, self.model, self.fresh, self.settings = data, model, fresh, settings
        self.checkpoint = checkpoint
        self.size = min(settings.batch_size, data.n)
        self.history = list(history)
        self.rate = math.nan  # learning rate of the last optimiser
        self.timings_ = {}
        world, accumulate = data.ranks.world, settings.accumulate
        if accumulate > 1 and self.size < 2 * world * accumulate:
            raise InputError(
                f"accumulate: a batch of {self.size} rows cannot be split into {world * accumulate} parts of at "
                "least two rows: lower accumulate, or raise batch_size"
            )
        if world > 1 and self.size < 2 * world:  # batch norm needs two rows
            raise InputError(
                f"batch_size: {self.size} rows cannot be shared by {world} processes, each of which needs at least "
                f"two: use a batch_size (and as many training rows) of at least {2 * world}, or fewer processes"
            )

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Measure the time spent inside."""
        return self._stage(name)

    def steps_per_epoch(self, n: int) -> int:
        """SGD steps of one epoch over n rows."""
        return max(1, n // min(self.size, n))

    def optimiser(
        self,
        layers: nn.Module | None = None,
        *,
        scale: float = 1.0,
        steps: int | None = None,
        rate: float | None = None,
        decay: float | None = None,
    ) -> Optimiser:
        """An optimiser for a number of steps (None: one round over all rows), at ``scale`` times the learning rate.

        ``layers`` of the loss are trained, too. ``rate``, and ``decay`` of the body, replace the usual values of
        "auto". In fine-tuning, layers that came with weights learn at a tenth of the rate.
        """
        s = self.settings
        default = 0.01 if s.fine_tuning else 0.1
        lr = scale * ((rate or default) if isinstance(s.lr, str) else float(s.lr))
        self.rate = lr
        light = s.fine_tuning or self.data.rows.ndim == 2
        default_decay = 5e-4 if light else 2e-3
        new = [*self.model.hash.parameters(), *(layers.parameters() if layers is not None else ())]
        old: list[nn.Parameter] = []
        for name, p in self.model.body.named_parameters():
            (new if s.fine_tuning and name in self.fresh else old).append(p)
        rates = [0.1 * lr if s.fine_tuning else lr, lr]
        decays = [default_decay if decay is None else decay, default_decay]
        if not isinstance(s.weight_decay, str):
            decays = [float(s.weight_decay)] * 2
        groups = [Group(*each) for each in zip((old, new), rates, decays, strict=True)]
        steps = s.epochs * self.steps_per_epoch(self.data.n) if steps is None else steps
        return Optimiser.one_cycle(groups, steps, self.data.device if self.records_graphs else None)

    @property
    def records_graphs(self) -> bool:
        """Whether steps may be recorded: those of a network of ours, on a GPU, in a single process.

        Recorded steps equal ordinary ones up to rounding: the optimiser uses other kernels, and sums on a GPU have no
        fixed order anyway.
        """
        alone = self.data.device.type == "cuda" and self.data.ranks.world == 1
        return GRAPHS and self.settings.recordable and alone

    def run_objective(self, objective: Objective, round_: int = 0) -> None:
        """One round with an optimiser of its own."""
        optimiser = self.optimiser(objective.layers, rate=objective.rate)
        self.run(objective.loss, round_, optimiser, recordable=objective.recordable)

    def run(
        self,
        loss: BatchLoss,
        round_: int,
        optimiser: Optimiser,
        *,
        rows: Tensor | None = None,
        epochs: int | None = None,
        mixup: float = 0.0,
        recordable: bool = False,
        held_out_loss: Callable[[], float] | None = None,
        patience: int = 0,
    ) -> bool:
        """Train for some epochs over all rows or some; each row is mixed with a share of up to ``mixup`` of another.

        ``held_out_loss`` is computed after every epoch. Training stops when it has not fallen for ``patience``
        epochs; returns whether it did. ``recordable``: the loss does the same in every step, so that a GPU may record
        it. The round seeds the generators, so a fit that resumes takes the same steps as one that was never stopped.
        """
        ranks, seed = self.data.ranks, self.data.seed + 1000 * round_
        order = torch.Generator().manual_seed(seed)
        noise = torch.Generator(self.data.device).manual_seed(seed + 1)
        if not ranks.first:
            seed_generators(seed + 3 + ranks.rank, self.data.device)  # dropout masks of its own
        ranks.broadcast([*optimiser.params, *self.model.buffers()])
        epochs = self.settings.epochs if epochs is None else epochs
        rows = torch.arange(self.data.n) if rows is None else rows
        one_step: Callable[[Batch], Tensor]
        one_step = partial(self._step, loss=loss, noise=noise, optimiser=optimiser, mixup=mixup)
        if recordable and self.records_graphs:
            one_step = self._recorded(one_step, noise)
        stopped = False
        n_steps = epochs * self.steps_per_epoch(len(rows))
        with self.stage(f"round {round_}"), progress("steps", n_steps, counts=1) as done:
            for epoch in range(epochs):
                self._train_mode()
                total = torch.zeros((), device=self.data.device)
                steps = 0
                for batch in self._batches(rows, order):
                    total += one_step(batch)
                    optimiser.schedule.step()
                    steps += 1
                    done(1)
                self._record_epoch(round_, epoch, epochs, float(ranks.total(total)) / steps)
                if held_out_loss is not None and self._is_overfitting(held_out_loss(), patience):
                    stopped = True
                    break
            ranks.broadcast(self.model.buffers())  # each process has its own batch-norm averages
        return stopped

    def _recorded(self, step: Callable[[Batch], Tensor], generator: torch.Generator) -> Callable[[Batch], Tensor]:
        """The step as a CUDA graph. Its loss must be used before the next step."""
        device = self.data.device
        graph = CudaGraph(device, warm_up=GRAPH_WARM_UP, generator=generator, free_memory=True)
        rows: Tensor | None = None
        value = torch.zeros((), device=device)

        def recorded(batch: Batch) -> Tensor:
            nonlocal rows
            rows = batch.rows.clone() if rows is None else rows.copy_(batch.rows)
            fixed = replace(batch, rows=rows)  # the graph reads the rows of every step from the same memory

            def work() -> None:
                value.copy_(step(fixed))

            graph(work)
            return value

        return recorded

    def _is_overfitting(self, loss: float, patience: int) -> bool:
        """Record a held-out loss; whether the last ``patience`` epochs have not lowered it."""
        self.history[-1]["held_out"] = loss
        losses = self.held_out_losses
        best = int(np.argmin(losses))
        self.settings.report(f"held-out loss {loss:.4f}, lowest after {1 + best} epochs")
        return len(losses) - 1 - best >= patience

    @property
    def held_out_losses(self) -> list[float]:
        """The held-out loss after each epoch for which it was computed."""
        return [epoch["held_out"] for epoch in self.history if "held_out" in epoch]

    def _train_mode(self) -> None:
        self.model.train()
        if self.settings.preserve_body:
            for layer in self.model.body.modules():
                if isinstance(layer, BATCH_NORMS):
                    layer.eval()

    def _batches(self, rows: Tensor, order: torch.Generator) -> Iterator[Batch]:
        """This process's part of the batches of one epoch; rows beyond the last whole batch are left out."""
        ranks, n = self.data.ranks, len(rows)
        size = min(self.size, n)
        mine = slice(ranks.rank, None, ranks.world)
        shuffled = rows[torch.randperm(n, generator=order)[: n // size * size]]
        for some in shuffled.to(self.data.device).view(-1, size):  # one transfer per epoch
            yield Batch(some[mine], size, mine)

    def _step(
        self, batch: Batch, loss: BatchLoss, noise: torch.Generator, optimiser: Optimiser, mixup: float
    ) -> Tensor:
        """One step of SGD; returns this process's part of the batch's mean loss."""
        optimiser.sgd.zero_grad(set_to_none=True)
        value = torch.zeros((), device=self.data.device)
        for part in batch.parts(self.settings.accumulate):
            value += self._add_gradients(part, loss, noise, mixup)
        self._sum_gradients(optimiser.params)
        if self.settings.preserve_body:
            nn.utils.clip_grad_norm_(self.model.body.parameters(), MAX_GRADIENT)
        optimiser.sgd.step()
        return value

    def _add_gradients(self, batch: Batch, loss: BatchLoss, noise: torch.Generator, mixup: float) -> Tensor:
        """Add the gradients of some rows; returns their part of the batch's mean loss."""
        x = self.data.rows[batch.rows]
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
        """Sum the gradients of all processes in one message; unused parameters count as zero."""
        if self.data.ranks.world == 1:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])
        self.data.ranks.sum_in_place(flat)
        for p, g in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.grad = g.view_as(p).to(p.dtype)

    def _record_epoch(self, round_: int, epoch: int, epochs: int, loss: float) -> None:
        self.history.append({"round": round_, "epoch": epoch, "loss": loss})
        self.settings.report(f"round {round_}, epoch {epoch + 1}/{epochs}: loss {loss:.4f}")
        if not np.isfinite(loss):
            raise InputError(f"training diverged in epoch {epoch + 1}: lower lr (it is {self.rate:g})")

    def _autocast(self) -> Any:
        """Half precision on GPUs."""
        return torch.autocast("cuda", torch.bfloat16) if self.data.device.type == "cuda" else nullcontext()

    def outputs(self, rows: Tensor | None = None, head: Head | None = None) -> Tensor:
        """Outputs (n, R) of the training rows or others, not augmented, or F if a head is given.

        Each process encodes a part of the rows.
        """
        ranks, rows = self.data.ranks, self.data.rows if rows is None else rows
        size = self.model.rows_at_once(rows.shape)
        starts = range(ranks.rank * size, len(rows), ranks.world * size)
        parts = [encode(self.model, rows[i : i + size], self.settings.mirror, head) for i in starts]
        some = parts[0] if parts else encode(self.model, rows[:1], False, head)
        F = some.new_zeros(len(rows), some.shape[1])
        for i, part in zip(starts, parts, strict=True):
            F[i : i + size] = part
        ranks.sum_in_place(F)
        return F

    def codes(self) -> NDArray[np.uint8]:
        """The packed signs of the outputs."""
        return codes.pack(self.outputs().cpu().numpy())

    def warn_if_codes_are_equal(self, head: Head) -> None:
        """Warn if rows with different labels all have the same code."""
        some = slice(None, None, -(-self.data.n // ROWS_TO_COMPARE))
        groups = self.data.S.row_group[some]
        bits = self.outputs(self.data.rows[some], head) >= 0
        if self.data.ranks.first and bool((groups != groups[0]).any()) and bool((bits == bits[0]).all()):
            warnings.warn(
                "all training rows have the same code: the network has learned nothing. Try more epochs or another "
                f"lr (it was {self.rate:g})",
                stacklevel=5,
            )

    def save(
        self,
        round_: int,
        packed: NDArray[np.uint8],
        agreement: Sequence[float] = (),
        optimiser: Optimiser | None = None,
        head: Head | None = None,
    ) -> RoundState:
        """The state after a round, written to the checkpoint if there is one.

        ``optimiser`` is given if it spans several rounds, ``head`` if it is known already.
        """
        rates, momentum = ([], []) if optimiser is None else (optimiser.rates, optimiser.momentum)
        state = RoundState(round_, packed, self.data.seed, list(agreement), self.history, rates, momentum, head)
        if self.checkpoint is not None:
            self.checkpoint.save(state.to_fit_state(self.model))
        return state


def reporter(name: str, verbose: int) -> Callable[[str], None]:
    """A function that prints lines to standard error if ``verbose`` is set."""
    return (lambda line: print(f"{name} {line}", file=sys.stderr)) if verbose else lambda line: None


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators; the caller's state is restored at the end, and other GPUs are not touched."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        seed_generators(seed, device)
        yield


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's default generators of the CPU and of ``device`` (``torch.manual_seed`` would seed all GPUs)."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
