"""Pages of mapped files: releasing what has been read, reserving the disk space of what will be written."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from dish.io.errors import StrPath


def release(block: Any) -> None:
    """Drop the pages of a part of a memory-map from this process; the file keeps what it has."""
    if getattr(block, "mode", "c") == "c" or not hasattr(mmap, "MADV_DONTNEED"):
        return  # a private map would lose what was written to it
    whole = np.frombuffer(block._mmap, np.uint8)
    page = mmap.PAGESIZE
    low, high = np.lib.array_utils.byte_bounds(block)
    first = (low - whole.ctypes.data) // page * page
    length = min(len(whole) - first, high - whole.ctypes.data - first)
    del whole
    if length > 0:
        block._mmap.madvise(mmap.MADV_DONTNEED, first, length)


def allocate_npy(path: StrPath, shape: tuple[int, ...]) -> None:
    """A .npy file of zero bytes, with room for all of it: a full disk is an error now, not a crash later."""
    file = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    size = os.path.getsize(path)
    del file
    with open(path, "r+b") as opened:
        reserve(opened.fileno(), size)


def reserve(descriptor: int, size: int) -> None:
    """Have the system set aside the bytes of a file, where it can."""
    if hasattr(os, "posix_fallocate") and size:
        os.posix_fallocate(descriptor, 0, size)
