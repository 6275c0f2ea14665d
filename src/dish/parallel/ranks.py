"""Ranks: how the processes of a job share the rows, and how an error in one becomes an error in all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from dish.errors import RankError
from dish.parallel.transport import Transport, publish_failure

if TYPE_CHECKING:
    import torch.distributed as dist

FAILED, DONE = -1.0, 0.0  # sent at the end of a section; before a message its size is sent


class Ranks(Transport):
    """This process among those of a job, each with its own rows."""

    def __init__(self, rank: int = 0, world: int = 1, store: dist.Store | None = None) -> None:
        super().__init__(rank, world, store)
        self._sections = 0
        self._shared: Exception | None = None  # the last error that all processes know

    @property
    def first(self) -> bool:
        """Whether this is the first process, the one that writes files."""
        return self.rank == 0

    def offset_and_total(self, n: int) -> tuple[int, int]:
        """(index of this process's first row, rows of all processes), from its number of rows n."""
        if self.world == 1:
            return 0, n
        import torch

        counts = self.gather(torch.tensor([n])).flatten()
        return int(counts[: self.rank].sum()), int(counts.sum())

    def my_rows(self, n: int, align: int = 8192) -> slice:
        """This process's range of n rows, which starts and ends at multiples of ``align`` if n is large enough.

        Sums over blocks of ``align`` rows are then the same for any number of processes.
        """
        if n < 4 * align * self.world:
            align = 1
        ends = [round(n * i / self.world / align) * align for i in range(self.world)] + [n]
        return slice(ends[self.rank], ends[self.rank + 1])

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """Make an error inside the block, on any process, an error on all of them.

        The process that failed raises its own error. The others raise a ``RankError`` with the same reason, at their
        next message in the block or at its end. All processes must send the same messages: before each one they
        compare its size, and raise a ``RankError`` if it differs.
        """
        error: Exception | None = None
        self._sections += 1
        try:
            yield
        except RankError:  # all processes raise it
            raise
        except Exception as caught:
            error = caught
        finally:
            self._sections -= 1
        if self.world > 1 and (error is None or error is not self._shared):  # else an inner section shared it
            self._agree(DONE if error is None else FAILED, error)
            self._shared = error
        if error is not None:
            raise error

    def _before_sending(self, size: int) -> None:
        if self._sections:
            self._agree(float(size))

    def _agree(self, step: float, error: Exception | None = None) -> None:
        """Compare the next steps of all processes; raise a RankError if one failed or if they differ."""
        import torch

        steps = self._reduce(self._in_my_row(torch.tensor([step]))).flatten().tolist()
        if FAILED in steps:
            text = "" if error is None else _describe(error)
            sections, self._sections = self._sections, 0
            try:
                reasons = [part.decode() for part in self._gather_bytes(text.encode("utf-8", "replace"))]
            finally:
                self._sections = sections
            if error is None:
                rank = steps.index(FAILED)
                raise RankError(f"process {rank} of {self.world} stopped: {reasons[rank]}")
        elif len(set(steps)) > 1:
            what = ", ".join(
                f"process {rank} " + ("has finished" if s == DONE else f"wants to send {s:.0f} numbers")
                for rank, s in enumerate(steps)
            )
            raise RankError(
                f"the processes are out of step ({what}). Start them with the same parameters, the same files and "
                "parts of the same data"
            )


def _describe(error: BaseException) -> str:
    """The message of an error, with its type unless it is a ValueError that has a message."""
    return str(error) if isinstance(error, ValueError) and str(error) else f"{type(error).__name__}: {error}"


ALONE = Ranks()
_store: dist.Store | None = None  # of the process group that ``from_environment`` opened


def current() -> Ranks:
    """The process group that torch.distributed has initialised, or ``ALONE``."""
    dist = sys.modules.get("torch.distributed")  # without this import there is no group
    if dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Ranks(dist.get_rank(), dist.get_world_size(), _store)
    return ALONE


@contextmanager
def from_environment(timeout_s: float = 600) -> Iterator[Ranks]:
    """Open the process group that torchrun describes in the environment, and close it at the end of the block.

    Without torchrun this is ``ALONE``. If $DISH_STORE is set, the processes meet in that file, not at an address.
    """
    global _store
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    path = os.environ.get("DISH_STORE")
    address, timeout = f"file://{os.path.abspath(path)}" if path else "env://", timedelta(seconds=timeout_s)
    _store = next(rendezvous(address, rank, world, timeout=timeout))[0]
    own_gpu = gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # nccl needs one GPU per process
    backend = "cpu:gloo,cuda:nccl" if gpus and own_gpu else "gloo"
    dist.init_process_group(backend, store=_store, rank=rank, world_size=world, timeout=timeout)
    try:
        yield current()
    except RankError:  # another process has published the reason
        raise
    except Exception as error:
        publish_failure(_store, f"process {rank} of {world} stopped: {_describe(error)}")
        raise
    finally:
        _store = None
        dist.destroy_process_group()
