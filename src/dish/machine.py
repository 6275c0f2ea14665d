"""The machine: device, cores, memory, limits on library threads, and its description for results files."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from dish.errors import InputError
from dish.lazy import torch
from dish.provenance import code, commit

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def resolve_device(device: str) -> torch.device:
    """The torch device of a parameter: "auto" is a GPU if there is one.

    Every use of torch starts here, so it also notes that torch's threads are in use (see ``lost_threads``).
    """
    global _threads_used
    _threads_used = True
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}") from None
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={device!r}, but torch sees no GPU here; use 'auto' or 'cpu'")
    return chosen


def usable_cores() -> int:
    """Cores that this process may use: by its affinity, or by its control groups' CPU quota if that is lower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in control_groups("cpu"):
        quota, period = _numbers(group / "cpu.max")[:2] or (None, None)  # version 2: "max 100000" or "150000 100000"
        if quota is None:
            quota = next(iter(_numbers(group / "cpu.cfs_quota_us")), None)  # version 1: -1 is none
            period = next(iter(_numbers(group / "cpu.cfs_period_us")), None)
        if quota is not None and period and quota > 0:
            cores = min(cores, max(1, -(-quota // period)))
    return cores


def control_groups(controller: str) -> list[Path]:
    """Folders of the control groups that limit this process, from the innermost to the outermost."""
    try:
        lines = (PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return _upwards(CGROUPS / controller, path)
    unified = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return _upwards(CGROUPS, unified[0]) if unified else []


def _upwards(root: Path, path: str) -> list[Path]:
    """``root/path`` and its parents up to ``root``, as far as the container shows them."""
    own = root / path.strip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(root) and folder.is_dir()]


def _numbers(path: Path) -> list[int | None]:
    """The integers in a one-line file, with None for "max"; an empty list if there is no such file."""
    try:
        return [None if word == "max" else int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


_limits: list[int] = []  # limits of all callers that are inside ``torch_threads`` now
_limits_lock = threading.Lock()
_threads_before = 0


@contextmanager
def torch_threads(most: int) -> Iterator[None]:
    """Limit torch to ``most`` threads, and to ``usable_cores``.

    Torch has one setting for the whole process. It is the lowest limit of all callers inside, and is restored when
    the last one leaves, in whatever order they leave.
    """
    _keep_threads_from_spinning()
    global _threads_before
    limit = min(most, usable_cores()) if most > 1 else 1
    with _limits_lock:
        if not _limits:
            _threads_before = torch.get_num_threads()
        _limits.append(limit)
        torch.set_num_threads(min(_threads_before, *_limits))
    try:
        yield
    finally:
        with _limits_lock:
            _limits.remove(limit)
            torch.set_num_threads(min(_threads_before, *_limits) if _limits else _threads_before)


_calm: threading.Thread | None = None


def _keep_threads_from_spinning() -> None:
    """Make torch's threads sleep while they wait, even if torch was imported before dish.

    GNU OpenMP, which torch uses, spins for milliseconds as long as it has no more threads than cores. An idle second
    team of threads changes that: waiting threads then spin for microseconds only. Next to busy neighbours, fits take
    a third of the time (tests/test_machine.py measures it).
    """
    global _calm
    if _calm is not None or "OMP_WAIT_POLICY" in os.environ or torch.get_num_threads() == 1 or _lost_threads:
        return
    started = threading.Event()

    def stay() -> None:
        torch.ones(1 << 20).add_(1)  # starts a team of OpenMP threads that belongs to this thread
        started.set()
        threading.Event().wait()

    _calm = threading.Thread(target=stay, name="dish-calm", daemon=True)
    _calm.start()
    started.wait()


_blas_users = 0  # callers inside ``one_blas_thread`` now
_blas_lock = threading.Lock()
_blas_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit NumPy's and SciPy's linear algebra to one thread, for many small problems.

    BLAS threads spin while they wait for each other. Next to a busy neighbour, an eigenproblem of size 80 then takes
    200 ms instead of 1 ms. The setting applies to the whole process and is restored when the last caller leaves.
    """
    global _blas_users, _blas_limit
    with _blas_lock:
        if _blas_users == 0:
            controller = ThreadpoolController()  # takes 3 ms; new libraries may have been loaded since the last call
            _blas_limit = controller.limit(limits=1, user_api="blas")
        _blas_users += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0:
                _blas_limit.restore_original_limits()


def threads_for(n: int) -> AbstractContextManager[None]:
    """Limit torch's threads for many products over n rows each: for few rows, waking a thread does not pay."""
    return torch_threads(n // 16384)


_threads_used = False  # dish may have started torch's threads
_lost_threads = False  # this process was forked from one where that is true


def lost_threads() -> bool:
    """Whether this process was forked after threads were used. OpenMP would wait for those threads forever."""
    return _lost_threads


def _after_fork() -> None:
    global _lost_threads
    if not _threads_used:
        return
    _lost_threads = True
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # works without the lost threads
    warnings.warn(
        "this process was forked after dish used torch's threads, which do not survive a fork: it uses one thread. "
        "Start processes with multiprocessing.get_context('spawn') to use all cores",
        stacklevel=2,
    )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


UNITS = {"": 1} | {k: 1000**i for i, k in enumerate("KMGT", 1)} | {k + "I": 1024**i for i, k in enumerate("KMGT", 1)}


def memory_budget(value: Any) -> int:
    """A ``memory_budget`` in bytes: from a number, a text such as "2GB", or None for half of the free memory."""
    if value is None:  # shared by the processes on this machine
        return free_memory() // 2 // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if isinstance(value, str):
        text = value.strip().upper().replace(" ", "").removesuffix("B")
        number = text.rstrip("KMGTI")
        try:
            bytes_ = float(number) * UNITS[text[len(number) :]]
        except (ValueError, KeyError):
            bytes_ = None
        if bytes_ is not None:
            return _positive(bytes_, value)
    elif isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        return _positive(float(value), value)
    raise InputError(f"memory_budget must be a number of bytes or a text such as '2GB', got {value!r}")


def _positive(number: float, given: Any) -> int:
    if not 0 < number < float("inf"):
        raise InputError(f"memory_budget must be above 0, got {given!r}")
    return int(number)


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Refuse work that needs more bytes than are free, before it starts."""
    if needed > (free := free_memory()):
        raise InputError(f"{what} need {needed / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free: {remedy}")


def free_memory() -> int:
    """Memory in bytes that is available without swapping, on the machine or in the control groups."""
    free = 4 << 30
    with suppress(OSError, StopIteration, ValueError):
        lines = (PROC / "meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    for group in control_groups("memory"):
        limit = _numbers(group / "memory.max") or _numbers(group / "memory.limit_in_bytes")
        used = _numbers(group / "memory.current") or _numbers(group / "memory.usage_in_bytes")
        if limit and used and limit[0] is not None and used[0] is not None:
            free = min(free, max(0, limit[0] - used[0] + _reclaimable(group)))
    return free


def _reclaimable(group: Path) -> int:
    """Bytes of cached files that a control group frees when it needs memory."""
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


class PeakMemory:
    """Measures the peak of resident memory above its value at the start (0 if the system does not report it)."""

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # reset the recorded peak
        self.start = resident("VmRSS")

    def bytes(self) -> int:
        """Peak in bytes above the start."""
        return max(0, resident("VmHWM") - self.start)


def resident(field: str) -> int:
    """Resident memory of this process in bytes: current (VmRSS) or peak (VmHWM)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def environment(*packages: str) -> dict[str, Any]:
    """Machine, versions, date, commit and hashes of the code, for results files.

    ``packages`` names packages of dish that other processes used for the result (see ``provenance.code``).
    """
    libraries = ("numpy", "scipy", "scikit-learn", "torch", "numba")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": usable_cores(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in libraries},
        **_gpu(),
        "commit": commit(),
        "code": code(*packages),
    }


def _gpu() -> dict[str, str]:
    """The name of the GPU, if torch is loaded and sees one."""
    torch = sys.modules.get("torch")
    return {"gpu": torch.cuda.get_device_name()} if torch is not None and torch.cuda.is_available() else {}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
