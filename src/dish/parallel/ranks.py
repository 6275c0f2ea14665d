"""Processes that learn together: which rows are whose, and one process's error as an error of all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from dish.errors import RankError
from dish.parallel.transport import Transport, leave_last_words

if TYPE_CHECKING:
    import torch.distributed as dist

FAILED, DONE = -1.0, 0.0  # what a process says at the end of a section; before a message, its size


class Ranks(Transport):
    """The processes of a job, each with its own rows."""

    def __init__(self, rank: int = 0, world: int = 1, store: dist.Store | None = None) -> None:
        super().__init__(rank, world, store)
        self._sections = 0
        self._told: Exception | None = None

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def offset_and_total(self, n: int) -> tuple[int, int]:
        """(first row, all rows), given the rows of this process."""
        if self.world == 1:
            return 0, n
        import torch

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

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """An error inside, on any process, is an error on all of them, with its reason, at once.

        The process that failed raises its own error, the others a ``RankError`` that tells it, at the end of the
        section or at their next message inside. So is a decision that only some processes took: before every message
        inside, all say what they are about to send.
        """
        error: Exception | None = None
        self._sections += 1
        try:
            yield
        except RankError:  # all know already
            raise
        except Exception as caught:
            error = caught
        finally:
            self._sections -= 1
        if self.world > 1 and (error is None or error is not self._told):  # else a section inside told it
            self._agree(DONE if error is None else FAILED, error)
            self._told = error
        if error is not None:
            raise error

    def _before_sending(self, size: int) -> None:
        if self._sections:
            self._agree(float(size))

    def _agree(self, step: float, error: Exception | None = None) -> None:
        """Tell the others our next step; if one failed, or steps differ, all stop here."""
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
                f"process {rank} " + ("has finished this part" if s == DONE else f"wants to send {s:.0f} numbers")
                for rank, s in enumerate(steps)
            )
            raise RankError(
                f"the processes disagree on what comes next ({what}): they must be started with the same parameters, "
                "see the same files and hold parts of the same data"
            )


def _describe(error: BaseException) -> str:
    """The text of an error; its type too where the text alone may say nothing."""
    return str(error) if isinstance(error, ValueError) and str(error) else f"{type(error).__name__}: {error}"


ALONE = Ranks()
_store: dist.Store | None = None  # of the group that ``from_environment`` opened


def current() -> Ranks:
    """The initialised process group, or ``ALONE``."""
    dist = sys.modules.get("torch.distributed")  # a group cannot be up before it is imported
    if dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Ranks(dist.get_rank(), dist.get_world_size(), _store)
    return ALONE


@contextmanager
def from_environment(timeout_s: float = 600) -> Iterator[Ranks]:
    """The group that torchrun describes in the environment, closed at the end; ``ALONE`` outside of it.

    $DISH_STORE may name a file that the processes meet in, in place of an address.
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
    meet, timeout = f"file://{os.path.abspath(path)}" if path else "env://", timedelta(seconds=timeout_s)
    _store = next(rendezvous(meet, rank, world, timeout=timeout))[0]
    own_gpu = gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # nccl wants one for each process
    backend = "cpu:gloo,cuda:nccl" if gpus and own_gpu else "gloo"
    dist.init_process_group(backend, store=_store, rank=rank, world_size=world, timeout=timeout)
    try:
        yield current()
    except RankError:  # the reason is another process's
        raise
    except Exception as error:
        leave_last_words(_store, f"process {rank} of {world} stopped: {_describe(error)}")
        raise
    finally:
        _store = None
        dist.destroy_process_group()
