"""CUDA kernels of this package, compiled on first use by the compiler that comes with torch.

torch has no public function for this: ``torch.cuda._compile_kernel`` (torch 2.9 and later) is private. It is used
only if it exists; without it, the same work runs as ordinary torch operations.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

from dish.lazy import torch


def can_compile(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device: an NVIDIA GPU under Linux with torch 2.9 or later."""
    nvidia = device.type == "cuda" and torch.version.hip is None and sys.platform == "linux"
    return nvidia and hasattr(torch.cuda, "_compile_kernel")


def launch(
    kernel: tuple[tuple[Path, ...], str],
    device: torch.device,
    blocks: int,
    threads: int,
    *arguments: Any,
    shared: int = 0,
    together: bool = False,
) -> None:
    """Launch a kernel, given by its source files and compiler options, on the current stream of a device.

    Arguments are ctypes values. ``together``: a cooperative launch, for blocks that wait for each other.
    """
    with torch.cuda.device(device):
        function = _compiled(*kernel, torch.cuda.current_device())
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        start = _driver().cuLaunchCooperativeKernel if together else _driver().cuLaunchKernel
        extra = () if together else (None,)
        failed = start(function, blocks, 1, 1, threads, 1, 1, shared, stream, places, *extra)
    if failed:
        raise RuntimeError(f"the GPU did not start the kernel {kernel[0][-1].name}: CUDA driver error {failed}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _compiled(sources: tuple[Path, ...], options: str, device: int) -> ctypes.c_void_p:
    """The kernel named after its last source file, compiled for the current GPU."""
    text = "".join(source.read_text() for source in sources)
    compiled = torch.cuda._compile_kernel(text, sources[-1].stem, nvcc_options=options.split())
    function: ctypes.c_void_p = compiled.func
    _kept.append(compiled)
    return function


_kept: list[Any] = []  # keeps compiled kernels alive
