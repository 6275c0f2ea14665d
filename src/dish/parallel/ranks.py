"""The few things that cross processes: sums, and the selection of the k largest values of all of them.

Every process holds a contiguous range of the rows, in the order of their ranks. A lone process has the group
``ALONE``, in which all of this is the identity. No message grows with the rows.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

SAMPLE, BINS, FEW = (
    2048,
    4096,
    1024,
)  # of a selection: values of the first bounds, of a histogram, of the last message


class RankError(RuntimeError):
    """Another process of the group ended, or cannot be reached."""


class Ranks:
    """Processes that learn together, each with its own rows. Counts its messages and their bytes."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self.messages = self.bytes = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def sum(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Each tensor summed over all processes, in one message, float64."""
        if self.world == 1:
            return tensors
        flat = torch.cat([t.double().flatten() for t in tensors])
        parts = self._reduce(flat).split([t.numel() for t in tensors])
        return tuple(part.view(t.shape) for part, t in zip(parts, tensors, strict=True))

    def total(self, tensor: Tensor) -> Tensor:
        """One tensor summed over all processes."""
        return self.sum(tensor)[0]

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors (k,) of all processes, (world, k) float64."""
        mine = tensor.new_zeros((self.world, *tensor.shape), dtype=torch.float64)
        mine[self.rank] = tensor
        return self.total(mine)

    def gather_arrays(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        """The arrays of all processes, of any shapes and plain types."""
        if self.world == 1:
            return [array]
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        mine = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        lengths = self.gather(torch.tensor([len(mine)])).long().flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded).to(_home()) for _ in range(self.world)]
        with _together():
            dist.all_gather(parts, padded.to(_home()))
        self._count(padded)
        raw = [part[:n].cpu().numpy().tobytes() for part, n in zip(parts, lengths, strict=True)]
        return [np.load(io.BytesIO(one), allow_pickle=False) for one in raw]

    def offset_and_total(self, n: int) -> tuple[int, int]:
        """(first row, all rows), given the rows of this process."""
        counts = self.gather(torch.tensor([n])).flatten()
        return int(counts[: self.rank].sum()), int(counts.sum())

    def my_rows(self, n: int, align: int = 8192) -> slice:
        """This process's range of n rows, its ends at multiples of ``align`` if there are enough.

        Sums over such blocks of rows are the same numbers however many processes there are.
        """
        if n < 4 * align * self.world:
            align = 1
        ends = [round(n * i / self.world / align) * align for i in range(self.world)] + [n]
        return slice(ends[self.rank], ends[self.rank + 1])

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the first one's values, in place."""
        if self.world == 1:
            return
        for tensor in tensors:
            with _together():
                dist.broadcast(tensor.data, 0)
            self._count(tensor)

    def sum_in_place(self, tensor: Tensor) -> None:
        """Sum over all processes in the tensor's own type and on its own device: for gradients."""
        if self.world == 1:
            return
        with _together():
            dist.all_reduce(tensor)
        self._count(tensor)

    def barrier(self) -> None:
        """Wait for the others."""
        self.total(torch.zeros(1))

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """An error inside, on any process, is an error on all of them: none waits for one that gave up."""
        error: Exception | None = None
        try:
            yield
        except RankError:
            raise
        except Exception as caught:
            error = caught
        if self.world > 1:
            told = self.gather_arrays(np.array(str(error) if error else ""))
            if error is None:
                for rank, text in enumerate(told):
                    if str(text):
                        raise RankError(f"process {rank} of {self.world} stopped: {text}")
        if error is not None:
            raise error

    def _reduce(self, flat: Tensor) -> Tensor:
        home = flat.device
        flat = flat.to(_home())
        with _together():
            dist.all_reduce(flat)
        self._count(flat)
        return flat.to(home)

    def _count(self, sent: Tensor) -> None:
        self.messages += 1
        self.bytes += sent.numel() * sent.element_size()


ALONE = Ranks()


def current() -> Ranks:
    """The initialised process group, or ``ALONE``."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Ranks(dist.get_rank(), dist.get_world_size())
    return ALONE


@contextmanager
def from_environment(timeout_s: float = 600) -> Iterator[Ranks]:
    """The group that torchrun describes in the environment, closed at the end; ``ALONE`` outside of it.

    $DISH_STORE may name a file that the processes meet in, in place of an address.
    """
    import os
    from datetime import timedelta

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    store = os.environ.get("DISH_STORE")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        init_method=f"file://{os.path.abspath(store)}" if store else "env://",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        yield current()
    finally:
        dist.destroy_process_group()


def _home() -> torch.device:
    """Where the backend wants its tensors."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            "another process of this job ended or cannot be reached: start all of them again (a fit with --resume "
            "goes on from its last checkpoint)"
        ) from error


def sample(values: Tensor, ranks: Ranks) -> Tensor:
    """What a selection wants to know first: (world, size + 1), a few of our values and how many there are.

    Zero in the rows of other processes: to be summed over all of them, with whatever else is to be sent.
    """
    size = -(-SAMPLE // ranks.world)
    some = values.new_full((ranks.world, size + 1), 0.0)
    drawn = values[:: max(1, len(values) // size)][:size]
    some[ranks.rank] = torch.nan
    some[ranks.rank, : len(drawn)] = drawn
    some[ranks.rank, -1] = len(values)
    return some


Between = Callable[[Tensor, float, float], tuple[int, Tensor]]


def between(values: Tensor, low: float, high: float) -> tuple[int, Tensor]:
    """How many values exceed ``high``, and those in [low, high]."""
    return int((values > high).sum()), values[(values >= low) & (values <= high)]


def kth_largest(
    values: Tensor, k: int, ranks: Ranks, samples: Tensor | None = None, between: Between = between
) -> tuple[float, int]:
    """The k-th largest of the values of all processes, and how many of ours that equal it are among the k largest.

    Of equal values those of lower ranks come first. A sample gives two bounds, a histogram between them one bin, and
    the values of that bin are sorted if they are few, else binned again: two or three messages, none of which
    depends on how many values there are. ``samples`` are the summed ``sample`` of all, if they were sent already.
    """
    low, high = _bounds(ranks.total(sample(values, ranks)) if samples is None else samples, k)
    above, left = between(values, low, high)
    while True:
        bins, counts = _histogram(left, low, high)
        totals, all_above = ranks.sum(counts.cpu().double(), torch.tensor(float(above), dtype=torch.float64))
        n_above = int(all_above)
        if not n_above < k <= n_above + float(totals.sum()):  # the bounds missed it: look on that side
            left = values[values > high] if k <= n_above else values[values < low]
            above = 0 if k <= n_above else len(values) - len(left)
            inside = FEW + 1
        else:
            from_top = totals.flip(0).cumsum(0) + n_above
            chosen = BINS - 1 - int((from_top < k).sum())
            above += int((bins > chosen).sum())
            left = left[bins == chosen]
            inside = int(totals[chosen])
        if inside <= FEW:
            every = ranks.gather(_padded(left, FEW)).cpu()
            larger = n_above + int(totals[chosen + 1 :].sum())
            return _among(every, k - larger, ranks.rank)
        ends = ranks.gather(torch.stack(_ends(left))).cpu()
        low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
        if low == high:  # all equal
            numbers = ranks.gather(torch.tensor([float(above), float(len(left))]))
            ties, before = k - int(numbers[:, 0].sum()), int(numbers[: ranks.rank, 1].sum())
            return low, max(0, min(len(left), ties - before))


def _among(every: Tensor, k: int, rank: int) -> tuple[float, int]:
    """The k-th largest of the values (world, few), padded with NaN, and how many of our own are its ties."""
    ordered = every[~every.isnan()].sort(descending=True).values
    threshold = ordered[k - 1]
    ties = k - int((ordered > threshold).sum())
    equal = (every == threshold).sum(1)
    return float(threshold), max(0, min(int(equal[rank]), ties - int(equal[:rank].sum())))


def _bounds(samples: Tensor, k: int) -> tuple[float, float]:
    """Two numbers that very likely hold the k-th largest value between them."""
    some, n = samples[:, :-1].cpu(), float(samples[:, -1].sum())
    ordered = some[~some.isnan()].sort().values
    place, margin, last = (n - k) / n * len(ordered), 2 * len(ordered) ** 0.5, len(ordered) - 1
    return tuple(float(ordered[max(0, min(last, int(at)))]) for at in (place - margin, place + margin))  # type: ignore[return-value]


def _histogram(values: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Bins of values between two bounds, and how many are in each of them."""
    scale = BINS / (high - low) if high > low else 0.0
    bins = ((values - low) * scale).floor_().clamp_(0, BINS - 1).long()
    return bins, torch.bincount(bins, minlength=BINS)


def _padded(values: Tensor, size: int) -> Tensor:
    out = values.new_full((size,), float("nan"))
    out[: len(values)] = values[:size]
    return out


def _ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest, of nothing ±∞."""
    if len(values) == 0:
        return values.new_tensor(float("inf")), values.new_tensor(float("-inf"))
    return values.min(), values.max()
