"""Row matrices that need not fit in memory: arrays, memory maps, shards, tensors, iterables of row blocks.

``RowSource`` reads rows in blocks, as finite floating-point tensors; ``blocks_of`` reads them as arrays. Pages of a
memory map are released as soon as they have been copied, so that reading a file larger than memory does not fill it.
Files are opened by ``dish.io.readers``.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.io.atomic import StrPath
from dish.lazy import Tensor, torch
from dish.parallel import Ranks


class RowSource:
    """Rows (n, d) that are read in blocks, as float32 or float64 tensors."""

    def __init__(self, array: Any, part: slice | None = None, *, checked: bool = False) -> None:
        """``array`` has a shape, a dtype, and rows by slice or index; ``part`` selects a range of its rows.

        ``checked=True`` says that all values are known to be finite.
        """
        self.checked = checked
        if len(array.shape) != 2:
            raise InputError(f"X must be a matrix (n, d), got shape {tuple(array.shape)}")
        self.array = array
        self.start, stop, _ = (part or slice(None)).indices(array.shape[0])
        self.shape = (stop - self.start, array.shape[1])
        if 0 in self.shape:
            raise InputError(f"X must have at least one row and one feature, got shape {self.shape}")
        self.dtype = torch.float64 if float_type(array.dtype) == np.float64 else torch.float32

    @classmethod
    def of(cls, X: Any) -> RowSource:
        """The rows of X, which is not a path. Iterables that can be read only once are copied to a scratch file."""
        if isinstance(X, list | tuple) and is_blocks(X):
            X = _joined(X)
        elif is_blocks(X):
            X = spool(X)
        if getattr(X.dtype, "kind", "f") not in "fiub":
            raise InputError(f"X must hold numbers, got {X.dtype}")
        return cls(X)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def on_disk(self) -> bool:
        """Whether the rows are read from files."""
        return is_map(self.array) or isinstance(self.array, Shards)

    def read(self, rows: slice, device: torch.device, *, check: bool = True) -> Tensor:
        """A block of rows on the device. ``check=False`` leaves the test for NaN to the caller."""
        start, stop, _ = rows.indices(len(self))
        block = self.array[self.start + start : self.start + stop]
        if is_map(block):
            copy = np.array(block)
            release(block)
            block = copy
        tensor = _tensor(block, self.dtype, device)
        return self._finite(tensor, range(start, stop)) if check else tensor

    def blocks(self, size: int = 1 << 12) -> Iterator[Tensor]:
        """All rows, unchecked, a block at a time on the device that holds them."""
        device = self.array.device if isinstance(self.array, Tensor) else torch.device("cpu")
        for start in range(0, len(self), size):
            yield self.read(slice(start, start + size), device, check=False)

    def take(self, indices: NDArray[np.intp], device: torch.device) -> Tensor:
        """The rows with the given indices, in ascending order, on the device."""
        if isinstance(self.array, Tensor):
            index = torch.from_numpy(indices + self.start).to(self.array.device)
            return self._finite(self.array[index].to(device, self.dtype), indices)
        block = self.array[indices + self.start]
        if is_map(self.array):
            release(self.array)
        return self._finite(_tensor(block, self.dtype, device), indices)

    def _finite(self, block: Tensor, indices: Any) -> Tensor:
        """The block, or an error that names its first row with NaN or infinity; ``indices`` are those of its rows."""
        if self.checked or bool(block.isfinite().all()):
            return block
        row = self.start + int(indices[int((~block.isfinite()).any(1).nonzero()[0])])
        raise not_finite(row, self.array)


def _tensor(block: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(block, Tensor):
        if block.device.type == "cuda" or device.type == "cpu" or block.dtype == torch.bfloat16:
            return block.to(device, dtype)
        block = block.numpy()
    if block.dtype.kind == "u" or not block.dtype.isnative or block.dtype.itemsize > 8:  # torch lacks these types
        block = block.astype(str(dtype).removeprefix("torch."))
    tensor = as_tensor(np.ascontiguousarray(block))
    if device.type == "cuda" and tensor.dtype.is_floating_point:  # page-locked memory makes the copy asynchronous
        return tensor.pin_memory().to(device, non_blocking=True).to(dtype)
    return tensor.to(device, dtype)


def as_tensor(X: NDArray[Any]) -> Tensor:
    """X as a tensor that shares its memory; read-only arrays are copied, since torch has no read-only tensors."""
    return torch.from_numpy(X if X.flags.writeable else X.copy())


# --- Rows of several processes --------------------------------------------------------------------------------------


def take_everywhere(X: RowSource, picked: NDArray[np.intp], device: torch.device, ranks: Ranks) -> Tensor:
    """Rows by their global indices."""
    mine, rows = local_rows(len(X), picked, ranks)
    with ranks.raise_together():
        found = X.take(mine, device)
    if ranks.world == 1:
        return found
    out = torch.zeros(len(picked), X.shape[1], dtype=X.dtype, device=device)
    out[rows] = found
    return ranks.total(out).to(X.dtype)


def local_rows(n: int, picked: NDArray[np.intp], ranks: Ranks) -> tuple[NDArray[np.intp], slice]:
    """Of sorted global indices, those owned by this rank (as local indices) and their positions."""
    start = ranks.offset_and_total(n)[0]
    low, high = np.searchsorted(picked, [start, start + n])
    return picked[low:high] - start, slice(int(low), int(high))


# --- Several arrays or files as one matrix ------------------------------------------------------------------------


class Shards:
    """Several files or arrays as one matrix (n, d). A shard is opened when its rows are needed."""

    def __init__(
        self,
        parts: Sequence[Callable[[], NDArray[Any]]],
        lengths: list[int],
        n_features: int,
        dtype: Any,
        names: list[str] | None = None,
    ) -> None:
        """``parts`` return the shards, ``lengths`` are their numbers of rows, ``names`` their files."""
        self._parts = parts
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._open = threading.local()  # each thread keeps its own shard open
        self._names = names
        self.shape = (int(self._starts[-1]), n_features)
        self.dtype = np.dtype(dtype)
        self.ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> NDArray[Any]:
        if isinstance(which, slice) and which.step in (None, 1):
            return self._span(*which.indices(len(self))[:2])
        index = np.arange(len(self))[which]  # NumPy interprets masks and negative indices, and raises IndexError
        flat = np.atleast_1d(index)
        rows = np.empty((len(flat), self.shape[1]), self.dtype)
        shard = np.searchsorted(self._starts, flat, side="right") - 1
        for s in np.unique(shard):
            here = shard == s
            rows[here] = self._part(int(s))[flat[here] - self._starts[s]]
        return rows if np.ndim(index) else rows[0]

    def _span(self, start: int, stop: int) -> NDArray[Any]:
        """A copy of rows start … stop − 1. Pages of memory-mapped shards are released."""
        rows = np.empty((max(0, stop - start), self.shape[1]), self.dtype)
        done = start
        while done < stop:
            s = int(np.searchsorted(self._starts, done, side="right")) - 1
            end = min(stop, int(self._starts[s + 1]))
            block = self._part(s)[done - self._starts[s] : end - self._starts[s]]
            rows[done - start : end - start] = block
            if is_map(block):
                release(block)
            done = end
        return rows

    def where(self, row: int) -> str:
        """The name of the file that holds a row."""
        s = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._names[s] if self._names else f"block {s}"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def _part(self, s: int) -> NDArray[Any]:
        opened = getattr(self._open, "part", None)
        if opened is None or opened[0] != s:
            opened = self._open.part = (s, self._parts[s]())
        part: NDArray[Any] = opened[1]
        return part


def _joined(blocks: Sequence[Any]) -> Shards:
    """A list of row blocks as one matrix, without a copy."""
    arrays = [block_array(block) for block in blocks]
    check_widths({a.shape[1:] for a in arrays})
    dtype = np.result_type(*(a.dtype for a in arrays))
    return Shards([lambda a=a: a for a in arrays], [len(a) for a in arrays], arrays[0].shape[1], dtype)  # type: ignore[misc]


# --- Row blocks ---------------------------------------------------------------------------------------------------


def blocks_of(X: Any, size: int = 1 << 14, part: slice | None = None) -> Iterator[NDArray[Any]]:
    """The rows of X, or a part of them, as arrays of at most ``size`` rows. An iterable of row blocks is not cut."""
    if is_blocks(X):
        width = None
        for block in X:
            rows = block_array(block)
            width = rows.shape[1:] if width is None else width
            check_widths({width, rows.shape[1:]})
            if len(rows):
                yield rows
        if width is None:
            raise InputError("X has no row blocks")
        return
    start, stop, _ = (part or slice(None)).indices(X.shape[0])
    for i in range(start, stop, size):
        block = X[i : min(i + size, stop)]
        yield np.asarray(block)
        if is_map(block):
            release(block)


def spool(blocks: Iterable[Any]) -> NDArray[Any]:
    """Copy row blocks to a scratch file: its memory map. The file is deleted with the map."""
    n, width = 0, 0
    dtype: np.dtype[Any] = np.dtype(np.float32)
    with tempfile.TemporaryFile(prefix="dish-rows-") as file:
        for block in blocks:
            rows = block_array(block)
            if rows.ndim != 2 or rows.dtype.kind not in "fiub":
                raise InputError(f"X: a row block must hold numbers (rows, d), got {rows.dtype} {rows.shape}")
            width = rows.shape[1] if n == 0 else width
            check_widths({(width,), rows.shape[1:]})
            if float_type(rows.dtype) != dtype == np.float32:
                _widen(file, n * width)
                dtype = np.dtype(np.float64)
            np.ascontiguousarray(rows, dtype).tofile(file)
            n += len(rows)
        if not n or not width:
            raise InputError("X has no row blocks, or they are empty")
        file.flush()
        return np.memmap(file, dtype, "r", shape=(n, width))


def _widen(file: Any, count: int, size: int = 1 << 20) -> None:
    """Turn the float32 numbers in a file into float64, from the last to the first: none is overwritten unread."""
    for stop in range(count, 0, -size):
        start = max(0, stop - size)
        file.seek(4 * start)
        some = np.fromfile(file, np.float32, stop - start)
        file.seek(8 * start)
        some.astype(np.float64).tofile(file)
    file.seek(8 * count)


def block_array(block: Any) -> NDArray[Any]:
    """A row block as an array; it may be a tensor of any kind on any device."""
    if hasattr(block, "detach"):
        block = block.detach().cpu()
        block = block.float() if "bfloat16" in str(block.dtype) else block  # NumPy has no bfloat16
    return np.asarray(block)


# --- The number type of rows --------------------------------------------------------------------------------------


def float_type(dtype: Any) -> np.dtype[Any]:
    """float32 or float64: the type in which numbers of ``dtype`` (of NumPy or torch) are computed with.

    float32 if that is exact: for itself, for whole numbers of 1 or 2 bytes, and for truth values. float64 otherwise,
    so that equal values have equal codes whether a file holds them as int64 or as float64.
    """
    name = str(dtype).removeprefix("torch.")
    kind = np.dtype("float16" if name == "bfloat16" else name)  # NumPy has no bfloat16
    exact = kind.kind in "biuf" and np.result_type(np.float32, kind) == np.float32
    return np.dtype(np.float32 if exact else np.float64)


def number_type(X: Any) -> np.dtype[Any]:
    """``float_type`` of an array, a sparse matrix, a data frame or nested lists."""
    found = [X.dtype] if hasattr(X, "dtype") else list(getattr(X, "dtypes", []))
    kinds = [getattr(kind, "numpy_dtype", kind) for kind in found]  # pandas' types of columns with gaps
    if not kinds or not all(isinstance(kind, np.dtype) for kind in kinds):
        try:
            kinds = [np.asarray(X).dtype]
        except ValueError:  # lists of different lengths
            return np.dtype(np.float64)
    numbers = all(kind.kind in "biuf" for kind in kinds)
    return float_type(np.result_type(*kinds)) if numbers else np.dtype(np.float64)


# --- What X is, and checks ----------------------------------------------------------------------------------------


def is_streamed(X: Any) -> bool:
    """Whether X is read in blocks: a memory map, shards, a path, or an iterable of row blocks."""
    return is_path(X) or isinstance(X, Shards) or is_map(X) or is_blocks(X)


def is_path(X: Any) -> bool:
    """Whether X is the path of a file or a folder."""
    return isinstance(X, str | os.PathLike)


def is_blocks(X: Any) -> bool:
    """Whether X is an iterable of row blocks: not an array, a table or nested lists of numbers."""
    if isinstance(X, list | tuple):
        return len(X) > 0 and np.ndim(X[0]) == 2
    return isinstance(X, Iterable) and not hasattr(X, "shape") and not hasattr(X, "__array__") and not is_path(X)


def is_map(X: Any) -> bool:
    """Whether X is a memory map of a file."""
    return isinstance(X, np.memmap) and getattr(X, "_mmap", None) is not None


def check_widths(widths: set[tuple[int, ...]]) -> None:
    """Raise InputError unless all row blocks have the same width."""
    if len(widths) != 1:
        raise InputError(f"X: row blocks must have the same number of columns, got shapes {sorted(widths)}")


def check_finite(block: NDArray[Any], start: int, X: Any) -> None:
    """Raise InputError if a block has NaN or infinity. ``start`` is the index of its first row in X."""
    if block.dtype.kind == "f" and not np.isfinite(block).all():
        raise not_finite(start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0]), X)


def narrowed(X: NDArray[Any], dtype: Any, start: int = 0) -> NDArray[Any]:
    """Finite X as ``dtype``, not copied if it has that type; an error that names the first row beyond its range."""
    with np.errstate(over="ignore"):
        cast = X.astype(dtype, copy=False)
    if X.dtype.itemsize > cast.dtype.itemsize and not np.isfinite(cast).all():
        row = int(np.flatnonzero(~np.isfinite(cast).all(axis=1))[0])
        raise too_large(start + row, float(abs(X[row]).max()), cast.dtype.name)
    return cast


def too_large(row: int, value: float, kind: str) -> InputError:
    """The error for a finite row that overflows when it is encoded."""
    return InputError(
        f"X: row {row:,} has values up to {value:.3g}, too large for {kind}: scale X in fit and transform alike, "
        "for example to unit variance"
    )


def not_finite(row: int, X: Any) -> InputError:
    """The error for a row with NaN or infinity; it names the row and, for shards, the file."""
    file = f" ({X.where(row)})" if isinstance(X, Shards) else ""
    return InputError(f"Input X contains NaN or infinity in row {row:,}{file}")


# --- Memory maps --------------------------------------------------------------------------------------------------


def release(block: Any) -> None:
    """Remove the pages of a part of a memory map from this process's memory. The file is not changed."""
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


def scratch(n: int, m: int, dtype: Any) -> np.memmap[Any, Any]:
    """A writable (n, m) memory map of a scratch file, which is deleted with the map."""
    with tempfile.TemporaryFile(prefix="dish-K-") as file:
        size = n * m * np.dtype(dtype).itemsize
        file.truncate(size)
        reserve(file.fileno(), size)
        return np.memmap(file, dtype, "r+", shape=(n, m))


def allocate_npy(path: StrPath, shape: tuple[int, ...]) -> None:
    """Write a .npy file of zero bytes and reserve its disk space, so that a full disk is found out now."""
    file = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    size = os.path.getsize(path)
    del file
    with open(path, "r+b") as opened:
        reserve(opened.fileno(), size)


def reserve(descriptor: int, size: int) -> None:
    """Reserve disk space for a file, where the system can: writing to a map of a full disk would kill the process."""
    if hasattr(os, "posix_fallocate") and size:
        os.posix_fallocate(descriptor, 0, size)
