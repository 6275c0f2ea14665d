"""Messages between processes: sums, gathers and broadcasts. Their size does not depend on the number of rows."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import RankError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import Tensor


class Transport:
    """Process ``rank`` of ``world``. ``messages`` and ``bytes`` count what it has sent.

    With one process every operation returns its input.
    """

    def __init__(self, rank: int = 0, world: int = 1, store: dist.Store | None = None) -> None:
        self.rank, self.world, self.store = rank, world, store
        self.messages = self.bytes = 0

    def sum(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Sum each tensor over all processes, in one message. The sums are float64, on the tensors' own devices."""
        if self.world == 1:
            return tensors
        import torch

        flat = torch.cat([t.double().flatten() for t in tensors])
        self._before_sending(flat.numel())
        parts = self._reduce(flat).split([t.numel() for t in tensors])
        return tuple(part.view(t.shape) for part, t in zip(parts, tensors, strict=True))

    def total(self, tensor: Tensor) -> Tensor:
        """Sum one tensor over all processes."""
        return self.sum(tensor)[0]

    def gather(self, tensor: Tensor) -> Tensor:
        """Collect the tensors (k,) of all processes as (world, k) float64."""
        return self.total(self._in_my_row(tensor))

    def gather_arrays(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        """Collect the arrays of all processes; they may differ in shape and type."""
        if self.world == 1:
            return [array]
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        parts = self._gather_bytes(buffer.getvalue())
        return [np.load(io.BytesIO(part), allow_pickle=False) for part in parts]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors with those of the first process."""
        if self.world == 1:
            return
        import torch.distributed as dist

        for tensor in tensors:
            self._before_sending(tensor.numel())
            with self._reachable():
                dist.broadcast(tensor.data, 0)
            self._count(tensor)

    def sum_in_place(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over all processes, in its own type and on its own device (for gradients)."""
        if self.world == 1:
            return
        import torch.distributed as dist

        self._before_sending(tensor.numel())
        with self._reachable():
            dist.all_reduce(tensor)
        self._count(tensor)

    def barrier(self) -> None:
        """Wait until all processes have come here."""
        if self.world == 1:
            return
        import torch

        self.total(torch.zeros(1))

    def _before_sending(self, size: int) -> None:
        """Called before every message; ``Ranks`` checks here that all processes are about to send the same."""

    def _gather_bytes(self, mine: bytes) -> list[bytes]:
        """Collect the bytes of all processes: first their lengths, then the bytes padded to the longest."""
        import torch
        import torch.distributed as dist

        lengths = self._all_lengths(len(mine))
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(mine)] = torch.from_numpy(np.frombuffer(mine, np.uint8).copy())
        padded = padded.to(sending_device(padded.device))
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
        """(world, k) with this process's tensor in its row and 0 elsewhere; the sum holds the tensors of all."""
        mine = tensor.new_zeros((self.world, *tensor.shape)).double()
        mine[self.rank] = tensor
        return mine

    def _reduce(self, flat: Tensor) -> Tensor:
        import torch.distributed as dist

        device = flat.device
        flat = flat.to(sending_device(device))
        with self._reachable():
            dist.all_reduce(flat)
        self._count(flat)
        return flat.to(device)

    def _count(self, sent: Tensor) -> None:
        self.messages += 1
        self.bytes += sent.numel() * sent.element_size()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """Turn a failed message into a RankError, with the reason that another process published, if there is one."""
        try:
            yield
        except RuntimeError as error:
            reason = published_failure(self.store)
            raise RankError(
                reason
                or "another process of this job ended or cannot be reached. Start all processes again; a fit of "
                "dish_k with --resume continues from its last checkpoint"
            ) from error


def sending_device(device: torch.device) -> torch.device:
    """The device from which a tensor on ``device`` can be sent: the same, unless no backend serves it.

    nccl serves GPUs only. gloo sends from the CPU.
    """
    import torch
    import torch.distributed as dist

    backends = dict(part.split(":") for part in dist.get_backend_config().split(","))
    if device.type == "cuda":
        return device if backends.get("cuda") == "nccl" else torch.device("cpu")
    return device if "cpu" in backends else torch.device("cuda", torch.cuda.current_device())


FAILURE = "dish/failure"  # key in the store of the process group


def publish_failure(store: dist.Store, reason: str) -> None:
    """Store why this process stopped, for those that will wait for it in vain. The first reason is kept."""
    with suppress(RuntimeError):  # the process that holds the store may be gone
        store.compare_set(FAILURE, "", reason)


def published_failure(store: dist.Store | None) -> str:
    """Why another process stopped; empty if none has published a reason."""
    with suppress(RuntimeError):
        if store is not None and store.check([FAILURE]):
            return store.get(FAILURE).decode()
    return ""
