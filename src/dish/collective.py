"""The few things that cross processes: sums, and the selection of the k largest values of all of them.

Every process holds a contiguous range of the rows, in the order of their ranks. A lone process has the group
``ALONE``, in which all of this is the identity. No message grows with the rows.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
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


class Group:
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

    def span(self, n: int) -> tuple[int, int]:
        """(first row, all rows), given the rows of this process."""
        counts = self.gather(torch.tensor([n])).flatten()
        return int(counts[: self.rank].sum()), int(counts.sum())

    def share(self, n: int, align: int = 8192) -> slice:
        """This process's range of n rows, its ends at multiples of ``align`` if there are enough.

        Sums over such blocks of rows are the same numbers however many processes there are.
        """
        if n < 4 * align * self.world:
            align = 1
        ends = [round(n * i / self.world / align) * align for i in range(self.world)] + [n]
        return slice(ends[self.rank], ends[self.rank + 1])

    def barrier(self) -> None:
        """Wait for the others."""
        self.total(torch.zeros(1))

    @contextmanager
    def agreed(self) -> Iterator[None]:
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


ALONE = Group()


def current() -> Group:
    """The initialised process group, or ``ALONE``."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Group(dist.get_rank(), dist.get_world_size())
    return ALONE


@contextmanager
def from_environment(timeout_s: float = 600) -> Iterator[Group]:
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
        reason = str(error).splitlines()[0][:200]
        raise RankError(
            f"another process of this job ended or cannot be reached ({reason}); start all of them again, "
            "with --resume to go on from the last checkpoint"
        ) from None


def kth_largest(values: Tensor, k: int, group: Group) -> tuple[float, int]:
    """The k-th largest of the values of all processes, and how many of ours that equal it are among the k largest.

    Of equal values those of lower ranks come first. A sample gives two bounds, a histogram between them one bin, and
    the values of that bin are sorted if they are few, else binned again: about three messages, none of which
    depends on how many values there are.
    """
    low, high = _bounds(values, k, group)
    left, k_left = values, k
    while True:
        bins, chosen, k_left, inside = _refine(left, k_left, low, high, group)
        left = left[bins == chosen]
        if inside <= FEW:
            everyone = group.gather(_padded(left, FEW)).flatten()
            ordered = everyone[~everyone.isnan()].sort(descending=True).values
            threshold = float(ordered[k_left - 1])
            break
        ends = group.gather(torch.stack(_ends(left)))
        low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
        if low == high:
            threshold = low
            break
    counts = torch.stack([(left > threshold).sum(), (left == threshold).sum()])  # left has all that equal it
    counts = group.gather(counts)
    ties = k_left - int(counts[:, 0].sum())
    before = int(counts[: group.rank, 1].sum())
    return threshold, max(0, min(int(counts[group.rank, 1]), ties - before))


def _bounds(values: Tensor, k: int, group: Group) -> tuple[float, float]:
    """Two numbers that very likely hold the k-th largest value between them."""
    size = -(-SAMPLE // group.world)
    some = _padded(values[:: max(1, len(values) // size)][:size], size)
    known = torch.cat([some, values.new_tensor([len(values)])])
    every = group.gather(known)
    ordered = every[:, :-1][~every[:, :-1].isnan()].sort().values
    n = float(every[:, -1].sum())
    place, margin = (n - k) / n * len(ordered), 2 * len(ordered) ** 0.5
    last = len(ordered) - 1
    return float(ordered[max(0, min(last, int(place - margin)))]), float(
        ordered[max(0, min(last, int(place + margin)))]
    )


def _refine(values: Tensor, k: int, low: float, high: float, group: Group) -> tuple[Tensor, int, int, int]:
    """Bins (n,) of the values, the bin of the k-th largest, its place there, and how many values are there.

    Bin 0 is below ``low``, the last one above ``high``.
    """
    scale = BINS / (high - low) if high > low else 0.0
    bins = ((values - low) * scale).floor_().clamp_(0, BINS - 1).long() + 1
    bins = torch.where(values < low, 0, torch.where(values > high, BINS + 1, bins))
    counts = group.total(torch.bincount(bins, minlength=BINS + 2)).cpu()
    from_top = counts.flip(0).cumsum(0)
    place = int((from_top < k).sum())
    chosen = BINS + 1 - place
    above = int(from_top[place - 1]) if place else 0
    return bins, chosen, k - above, int(counts[chosen])


def _padded(values: Tensor, size: int) -> Tensor:
    out = values.new_full((size,), float("nan"))
    out[: len(values)] = values[:size]
    return out


def _ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest, of nothing ±∞."""
    if len(values) == 0:
        return values.new_tensor(float("inf")), values.new_tensor(float("-inf"))
    return values.min(), values.max()
