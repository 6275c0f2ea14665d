"""CUDA kernels of this package, compiled when first used in a process by the compiler that torch comes with."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

from dish.lazy import torch


def can_compile(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device: for an NVIDIA GPU under Linux, by torch 2.9 or later."""
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
    """Start a kernel, given by its files and the options it is compiled with, on the current stream of a device.

    Arguments are ctypes' values. ``together``: all blocks at once, or not at all, since they wait for each other.
    """
    with torch.cuda.device(device):
        function = _compiled(*kernel, torch.cuda.current_device())
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        start = _driver().cuLaunchCooperativeKernel if together else _driver().cuLaunchKernel
        extra = () if together else (None,)
        failed = start(function, blocks, 1, 1, threads, 1, 1, shared, stream, places, *extra)
    if failed:
        raise RuntimeError(
            f"the GPU did not start the kernel of {kernel[0][-1].name}: error {failed} of the CUDA driver"
        )


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _compiled(sources: tuple[Path, ...], options: str, device: int) -> ctypes.c_void_p:
    """The kernel that bears the name of its last file, for the GPU in use."""
    text = "".join(source.read_text() for source in sources)
    compiled = torch.cuda._compile_kernel(text, sources[-1].stem, nvcc_options=options.split())
    function: ctypes.c_void_p = compiled.func
    _kept.append(compiled)
    return function


_kept: list[Any] = []  # kernels live as long as the process
