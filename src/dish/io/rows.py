"""Rows wherever they lie: arrays, memory-maps, shards, blocks from any iterable, tensors on a GPU.

``RowSource`` gives them a block at a time as finite floating-point tensors. Blocks of a memory-map are released once
they have been read, so that reading a file larger than memory does not fill it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.io.features import read_features
from dish.io.pages import release, reserve
from dish.io.shards import Shards, as_array, check_widths, is_blocks, is_map, is_path, not_finite
from dish.lazy import Tensor, torch


class RowSource:
    """Rows (n, d) that are read a block at a time, as tensors of float32 or float64."""

    def __init__(self, array: Any, part: slice | None = None, *, checked: bool = False) -> None:
        """``array`` has a shape, a dtype and rows by slice or numbers; ``part`` is the range that counts.

        ``checked``: its numbers are known to be finite.
        """
        self.checked = checked
        if len(array.shape) != 2:
            raise InputError(f"X must be a matrix (n, d), got shape {tuple(array.shape)}")
        self.array = array
        self.start, stop, _ = (part or slice(None)).indices(array.shape[0])
        self.shape = (stop - self.start, array.shape[1])
        if 0 in self.shape:
            raise InputError(f"X has no rows or no features: {self.shape}")
        wide = str(array.dtype).endswith("float64")
        self.dtype = torch.float64 if wide else torch.float32

    @classmethod
    def of(cls, X: Any) -> RowSource:
        """Rows of anything that can be read a block at a time; iterables are copied to a scratch file first."""
        if is_path(X):
            X, _ = read_features(X)
        elif isinstance(X, list | tuple) and is_blocks(X):
            X = _in_memory(X)
        elif is_blocks(X):
            X = spool(X)
        if getattr(X.dtype, "kind", "f") not in "fiub":
            raise InputError(f"X must hold numbers, got {X.dtype}")
        return cls(X)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def on_disk(self) -> bool:
        """Whether reading costs more than a copy."""
        return is_map(self.array) or isinstance(self.array, Shards)

    def read(self, rows: slice, device: torch.device, *, check: bool = True) -> Tensor:
        """A block of rows on the device; finite, unless the caller checks that."""
        start, stop, _ = rows.indices(len(self))
        block = self.array[self.start + start : self.start + stop]
        tensor = _tensor(block, self.dtype, device)
        if check:
            self._finite(tensor, range(start, stop))
        if is_map(block):
            if tensor.device.type == "cpu" and tensor.data_ptr() == block.ctypes.data:
                return tensor  # float rows are used where they lie; ``release`` gives them back
            release(block)
        return tensor

    def release(self, rows: slice) -> None:
        """Release the memory that holds rows of a file."""
        if is_map(self.array):
            release(self.array[self.start + rows.start : self.start + rows.stop])

    def take(self, picked: NDArray[np.intp], device: torch.device) -> Tensor:
        """Rows by ascending numbers, finite, on the device."""
        if isinstance(self.array, Tensor):
            index = torch.from_numpy(picked + self.start).to(self.array.device)
            return self._finite(self.array[index].to(device, self.dtype), picked)
        block = self.array[picked + self.start]
        if is_map(self.array):
            release(self.array)
        return self._finite(_tensor(block, self.dtype, device), picked)

    def _finite(self, block: Tensor, numbers: Any) -> Tensor:
        """The block, if it has no NaN; ``numbers`` are those of its rows, for the error."""
        if self.checked or bool(block.isfinite().all()):
            return block
        row = self.start + int(numbers[int((~block.isfinite()).any(1).nonzero()[0])])
        raise not_finite(row, self.array)


def _tensor(block: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(block, Tensor):
        if block.device.type == "cuda" or device.type == "cpu" or block.dtype == torch.bfloat16:
            return block.to(device, dtype)
        block = block.numpy()
    if block.dtype.kind == "u" or not block.dtype.isnative or block.dtype.itemsize > 8:  # torch has no type for it
        block = block.astype(str(dtype).removeprefix("torch."))
    tensor = as_tensor(np.ascontiguousarray(block))
    if device.type == "cuda" and tensor.dtype.is_floating_point:  # through page-locked memory, without waiting
        return tensor.pin_memory().to(device, non_blocking=True).to(dtype)
    return tensor.to(device, dtype)


def as_tensor(X: NDArray[Any]) -> Tensor:
    """The same memory as a tensor. A read-only memory-map is fine: rows are never written to."""
    return torch.from_numpy(X if X.flags.writeable else np.asarray(_Writable(X)))


class _Writable:
    """A read-only array as NumPy's array interface, said to be writable: torch warns of any other.

    (To silence the warning instead would change the filters of all threads.)
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # keeps the memory alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _in_memory(blocks: Any) -> Shards:
    """A list of row blocks as one matrix, without a copy."""
    arrays = [as_array(block) for block in blocks]
    check_widths({a.shape[1:] for a in arrays})
    dtype = np.result_type(*(a.dtype for a in arrays))
    return Shards([lambda a=a: a for a in arrays], [len(a) for a in arrays], arrays[0].shape[1], dtype)  # type: ignore[misc]


def spool(blocks: Iterable[Any]) -> NDArray[Any]:
    """Row blocks, which come only once, as a memory-map of a scratch file that vanishes with it."""
    n, width, dtype = 0, None, np.dtype("float32")
    with tempfile.TemporaryFile(prefix="dish-rows-") as file:  # without a name: gone whatever happens
        for block in blocks:
            rows = as_array(block)
            if rows.ndim != 2 or rows.dtype.kind not in "fiub":
                raise InputError(f"X: a row block must be numbers (rows, d), got {rows.dtype} {rows.shape}")
            if width is None:
                width, dtype = rows.shape[1], np.dtype("float64" if rows.dtype == np.float64 else "float32")
            check_widths({(width,), rows.shape[1:]})
            np.ascontiguousarray(rows, dtype).tofile(file)
            n += len(rows)
        if not n or not width:
            raise InputError("X: there are no row blocks, or they are empty")
        file.flush()
        return np.memmap(file, dtype, "r", shape=(n, width))


def scratch(n: int, m: int, dtype: Any) -> np.memmap[Any, Any]:
    """Room for (n, m) numbers in a scratch file that vanishes with the map."""
    with tempfile.TemporaryFile(prefix="dish-K-") as file:
        size = n * m * np.dtype(dtype).itemsize
        file.truncate(size)
        reserve(file.fileno(), size)
        return np.memmap(file, dtype, "r+", shape=(n, m))
