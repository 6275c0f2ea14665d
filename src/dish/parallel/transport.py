"""Messages between processes: sums and gathers. No message grows with the rows. Alone, all of it is the identity."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import RankError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import Tensor


class Transport:
    """Sums and gathers over ``world`` processes; this is number ``rank``. Counts messages and their bytes."""

    def __init__(self, rank: int = 0, world: int = 1, store: dist.Store | None = None) -> None:
        self.rank, self.world, self.store = rank, world, store
        self.messages = self.bytes = 0

    def sum(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Each tensor summed over all processes, in one message, float64, on the device it was on."""
        if self.world == 1:
            return tensors
        import torch

        flat = torch.cat([t.double().flatten() for t in tensors])
        self._before_sending(flat.numel())
        parts = self._reduce(flat).split([t.numel() for t in tensors])
        return tuple(part.view(t.shape) for part, t in zip(parts, tensors, strict=True))

    def total(self, tensor: Tensor) -> Tensor:
        """One tensor summed over all processes."""
        return self.sum(tensor)[0]

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors (k,) of all processes, (world, k) float64."""
        return self.total(self._in_my_row(tensor))

    def gather_arrays(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        """The arrays of all processes, of any shapes and plain types."""
        if self.world == 1:
            return [array]
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        parts = self._gather_bytes(buffer.getvalue())
        return [np.load(io.BytesIO(part), allow_pickle=False) for part in parts]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the first one's values, in place."""
        if self.world == 1:
            return
        import torch.distributed as dist

        for tensor in tensors:
            self._before_sending(tensor.numel())
            with self._reachable():
                dist.broadcast(tensor.data, 0)
            self._count(tensor)

    def sum_in_place(self, tensor: Tensor) -> None:
        """Sum over all processes in the tensor's own type and on its own device: for gradients."""
        if self.world == 1:
            return
        import torch.distributed as dist

        self._before_sending(tensor.numel())
        with self._reachable():
            dist.all_reduce(tensor)
        self._count(tensor)

    def barrier(self) -> None:
        """Wait for the others."""
        if self.world == 1:
            return
        import torch

        self.total(torch.zeros(1))

    def _before_sending(self, size: int) -> None:
        """Called before every message of ``sum`` and its relatives."""

    def _gather_bytes(self, mine: bytes) -> list[bytes]:
        """The bytes of all processes: their lengths first, then all padded to the longest."""
        import torch
        import torch.distributed as dist

        lengths = self._all_lengths(len(mine))
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(mine)] = torch.from_numpy(np.frombuffer(mine, np.uint8).copy())
        padded = padded.to(home_of(padded.device))
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        with self._reachable():
            dist.all_gather(parts, padded)
        self._count(padded)
        return [part[:n].cpu().numpy().tobytes() for part, n in zip(parts, lengths, strict=True)]

    def _all_lengths(self, length: int) -> list[int]:
        import torch

        self._before_sending(1)
        return [int(n) for n in self._reduce(self._in_my_row(torch.tensor([float(length)]))).flatten().tolist()]

    def _in_my_row(self, tensor: Tensor) -> Tensor:
        """(world, k) with our tensor in our row and 0 elsewhere: summed, it holds everybody's."""
        mine = tensor.new_zeros((self.world, *tensor.shape)).double()
        mine[self.rank] = tensor
        return mine

    def _reduce(self, flat: Tensor) -> Tensor:
        import torch.distributed as dist

        came_from = flat.device
        flat = flat.to(home_of(came_from))
        with self._reachable():
            dist.all_reduce(flat)
        self._count(flat)
        return flat.to(came_from)

    def _count(self, sent: Tensor) -> None:
        self.messages += 1
        self.bytes += sent.numel() * sent.element_size()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """A message that cannot be delivered: the reason another process left behind, if it left one."""
        try:
            yield
        except RuntimeError as error:
            reason = last_words(self.store)
            raise RankError(
                reason
                or "another process of this job ended or cannot be reached: start all of them again (a fit with "
                "--resume continues from its last checkpoint)"
            ) from error


def home_of(device: torch.device) -> torch.device:
    """Where a tensor of ``device`` has to be to be sent: there, if a backend for it is up; nccl has GPUs alone."""
    import torch
    import torch.distributed as dist

    backends = dict(part.split(":") for part in dist.get_backend_config().split(","))
    if device.type == "cuda":
        return device if backends.get("cuda") == "nccl" else torch.device("cpu")
    return device if "cpu" in backends else torch.device("cuda", torch.cuda.current_device())


LAST_WORDS = "dish/last-words"  # key in the store that the processes met in


def leave_last_words(store: dist.Store, text: str) -> None:
    """Tell the processes that will miss this one why it stopped; the first reason stays."""
    try:
        store.compare_set(LAST_WORDS, "", text)
    except RuntimeError:  # the process that holds the store is gone, and the others will say so
        return


def last_words(store: dist.Store | None) -> str:
    """Why another process stopped, if it said so."""
    try:
        return store.get(LAST_WORDS).decode() if store is not None and store.check([LAST_WORDS]) else ""
    except RuntimeError:
        return ""
