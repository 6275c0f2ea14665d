"""The machine: its device, memory, threads, and what a results file says about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch


def resolve_device(device: str) -> torch.device:
    """The torch device of a parameter: "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}") from None
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}, but torch sees no GPU here; use 'auto' or 'cpu'")
    return chosen


@contextmanager
def threads_for(n: int) -> Iterator[None]:
    """Threads of torch for many products over n rows each: waking a thread costs more than it saves on a few rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, n // 16384)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


UNITS = {"": 1} | {k: 1000**i for i, k in enumerate("KMGT", 1)} | {k + "I": 1024**i for i, k in enumerate("KMGT", 1)}


def memory_budget(value: Any) -> int:
    """Bytes of a ``memory_budget``: a number, "2GB", or None for half of what is free."""
    if value is None:  # the processes on a machine share it
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
    raise ValueError(f"memory_budget must be a number of bytes or a text such as '2GB', got {value!r}")


def _positive(number: float, given: Any) -> int:
    if not 0 < number < float("inf"):
        raise ValueError(f"memory_budget must be above 0, got {given!r}")
    return int(number)


def free_memory() -> int:
    """Bytes that can be had without swapping: of the machine, or of its container if that has less."""
    free = 4 << 30
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            free = min(free, max(0, int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text())))
    except (OSError, StopIteration, ValueError):
        pass
    return free


class PeakMemory:
    """Resident memory beyond what there was at the start, at its peak (0 where the system does not tell)."""

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self.start = resident("VmRSS")

    def bytes(self) -> int:
        """Bytes at the peak beyond the start."""
        return max(0, resident("VmHWM") - self.start)


def resident(field: str) -> int:
    """Resident bytes of this process: now (VmRSS) or at the peak (VmHWM)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def environment() -> dict[str, Any]:
    """Machine, versions, commit and date: what every results file carries."""
    packages = ("numpy", "scipy", "scikit-learn", "torch", "numba")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        **_gpu(),
        "commit": commit(),
    }


def _gpu() -> dict[str, str]:
    """The GPU, if there is one and torch is in use."""
    import sys

    torch = sys.modules.get("torch")
    return {"gpu": torch.cuda.get_device_name()} if torch is not None and torch.cuda.is_available() else {}


def commit() -> str:
    """The commit of the checkout this code runs from; "+" if code differs; $DISH_COMMIT outside a checkout."""

    def git(*args: str) -> str:
        folder = Path(__file__).parent
        done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("DISH_COMMIT", "")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
