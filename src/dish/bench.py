"""Measured runs: where and with what a figure was made."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dish import modelfile


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
        "commit": commit(),
    }


def commit() -> str:
    """The commit of the checkout this code runs from; "+" if files differ from it; "" outside a checkout."""

    def git(*args: str) -> str:
        folder = Path(__file__).parent
        return subprocess.run(
            ["git", *args], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a results file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    modelfile.write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
