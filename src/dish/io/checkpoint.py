"""The state of a fit in a folder, from which the same fit resumes after it was stopped.

``state.dish`` holds JSON values and arrays that are the same on all processes. Where each process has its own rows,
``codes-T.npy`` holds the codes of all rows after T steps, and every process writes its part. ``state.dish`` is
replaced atomically once all codes are written, so a kill at any moment leaves the last complete state.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.errors import DataFileError, InputError
from dish.io import modelfile
from dish.io.readers import read_npy
from dish.io.rows import allocate_npy
from dish.lazy import Tensor, torch
from dish.parallel import Ranks

VALUES_AT_ONCE = 1 << 20  # of a checksum
KIND, MARK, STATE = "checkpoint", ".dish-checkpoint", "state.dish"


@dataclass(frozen=True)
class FitState:
    """A fit after ``step`` iterations or rounds."""

    step: int
    values: dict[str, Any]  # JSON values
    arrays: modelfile.Arrays
    codes: NDArray[np.uint8] | None = None  # of this process's rows, where each process has its own


class Checkpoint:
    """A checkpoint folder. A marker file identifies it: a folder that holds other files is never changed."""

    def __init__(
        self, folder: str | os.PathLike[str], fingerprint: str, ranks: Ranks, span: tuple[int, int] = (0, 0)
    ) -> None:
        """``span``: this process's first row and the number of rows of all processes, if each has its own rows."""
        self.folder, self.fingerprint, self.ranks = Path(folder), fingerprint, ranks
        self.start, self.n = span

    def prepare(self) -> None:
        """Check the folder, so that a bad path is an error before the fit starts. The first state creates it."""
        with self.ranks.raise_together():
            if not self.ranks.first:
                return
            if self.folder.exists() and not self.folder.is_dir():
                raise InputError(f"checkpoint {self.folder} is a file: pass a folder")
            if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / MARK).exists():
                raise InputError(f"checkpoint {self.folder} holds other files: pass a new or an empty folder")
            there = next(path for path in (self.folder.absolute(), *self.folder.absolute().parents) if path.exists())
            if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
                raise InputError(
                    f"checkpoint {self.folder} cannot be written: {there} is not a folder, or is read-only"
                )

    def _create(self) -> None:
        with self.ranks.raise_together():
            if self.ranks.first:
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / MARK).write_text("The state of an unfinished fit. This folder may be removed.\n")

    def save(self, state: FitState) -> None:
        """Write the state of all processes, and delete the codes of the step before."""
        self._create()
        path = self._codes_path(state.step)
        total = None if state.codes is None else self._write_codes(path, state.codes)
        with self.ranks.raise_together():
            if self.ranks.first:
                content = {
                    "fingerprint": self.fingerprint,
                    "step": state.step,
                    "checksum": total,
                    "values": state.values,
                }
                modelfile.save(self.folder / STATE, KIND, content, state.arrays)
                for old in _written_codes(self.folder):
                    if old != path:
                        old.unlink()

    def _write_codes(self, path: Path, codes: NDArray[np.uint8]) -> int:
        """Write this process's part of the codes; returns the checksum of all parts."""
        with self.ranks.raise_together():
            if self.ranks.first:
                allocate_npy(path, (self.n, codes.shape[1]))
        with self.ranks.raise_together():
            file = np.lib.format.open_memmap(path, "r+")
            file[self.start : self.start + len(codes)] = codes
            file.flush()
        return self._checksum(codes)

    def load(self, codes_shape: tuple[int, int] | None = None) -> FitState | None:
        """The last state, or None if there is none.

        ``codes_shape`` is the shape of this process's codes, if each process has its own rows.
        """
        with self.ranks.raise_together():
            found = self._read(codes_shape)
        self._check_all_see_the_same(found)
        if found is None:
            return None
        state, expected = found
        if state.codes is not None and self._checksum(state.codes) != expected:
            raise DataFileError(f"checkpoint {self.folder}: its codes are damaged. Remove it to start over")
        return state

    def _read(self, codes_shape: tuple[int, int] | None) -> tuple[FitState, int | None] | None:
        """The state as this process reads it, and the checksum of all codes. Does not communicate."""
        path = self.folder / STATE
        if not path.exists():
            return None
        try:
            kind, content, arrays = modelfile.read(path)
            step = int(content["step"])
            file = None if codes_shape is None else read_npy(self._codes_path(step), mmap_mode="r")
            values, expected, other = content["values"], content["checksum"], content["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise DataFileError(f"{error}. Remove {self.folder} to start over") from None
        if kind != KIND or other != self.fingerprint:
            raise DataFileError(
                f"checkpoint {self.folder} belongs to a fit with other parameters or labels, or to other training "
                "rows: remove it, or use another folder"
            )
        if file is None or codes_shape is None:
            return FitState(step, values, arrays), None
        n, width = codes_shape
        if file.shape != (self.n, width) or file.dtype != np.uint8:
            raise DataFileError(
                f"checkpoint {self.folder}: its codes do not fit {self.n:,} rows. Remove it to start over"
            )
        return FitState(step, values, arrays, np.array(file[self.start : self.start + n])), expected

    @contextmanager
    def parsing(self) -> Iterator[None]:
        """Turn errors that a malformed state causes into one that says what to do, on all processes."""
        with self.ranks.raise_together():
            try:
                yield
            except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError) as error:
                raise DataFileError(
                    f"checkpoint {self.folder}: its arrays do not match ({error}). Remove it to start over"
                ) from None

    def _check_all_see_the_same(self, found: tuple[FitState, int | None] | None) -> None:
        """Raise an error on all processes if they read different states."""
        step = -1 if found is None else found[0].step
        seen = self.ranks.gather(torch.tensor([float(step)])).flatten().long().tolist()
        if len(set(seen)) == 1:
            return
        which = ", ".join(
            f"{'none' if t < 0 else f'one of {t} iterations'} (process {i})" for i, t in enumerate(seen)
        )
        raise DataFileError(
            f"checkpoint {self.folder}: the processes read different states: {which}. All of them need the same "
            "folder, on shared storage"
        )

    def _checksum(self, codes: NDArray[np.uint8]) -> int:
        return checksum([torch.from_numpy(np.ascontiguousarray(codes))], self.start, self.ranks)

    def _codes_path(self, step: int) -> Path:
        return self.folder / f"codes-{step}.npy"


def remove(folder: str | os.PathLike[str]) -> None:
    """Delete the files of a checkpoint, and its folder if nothing else is in it."""
    folder = Path(folder)
    if (folder / MARK).exists():
        for file in (*_written_codes(folder), folder / STATE, folder / MARK):
            file.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def _written_codes(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if re.fullmatch(r"codes-\d+\.npy", file.name)]


def fit_fingerprint(method: str, content: Mapping[str, Any], ranks: Ranks) -> str:
    """A fingerprint of everything that decides the result of a fit; an error if it differs between processes."""
    number = modelfile.fingerprint(method, {name: _stable(value) for name, value in content.items()})
    if len({str(each) for each in ranks.gather_arrays(np.array(number))}) > 1:
        raise InputError(
            "the processes of this fit have different parameters or data: start all of them with the same. To train "
            "a network, every process needs all rows and labels"
        )
    return number


def _stable(value: Any) -> Any:
    """A parameter as an array or a JSON value that is the same in every process and every run."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return repr(value.item())
    if sp.issparse(value):
        return _stable(value.toarray())
    if hasattr(value, "state_dict"):
        return _layers(value)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _layers(module: Any) -> str:
    """A network by its class, its layers and the shapes of its tensors.

    The values of the tensors are left out: a resumed fit takes them from its checkpoint.
    """
    kind, is_lazy = type(module), torch.nn.parameter.is_lazy
    shapes = [
        (name, None if is_lazy(tensor) else tuple(tensor.shape))
        for name, tensor in module.state_dict(keep_vars=True).items()
    ]
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(module))
    return f"{kind.__module__}.{kind.__qualname__} {text} {shapes}"


def checksum(blocks: Iterable[Tensor], first: int, ranks: Ranks) -> int:
    """64 bits that depend on all values of rows and on their order, but not on how blocks and processes share them.

    ``blocks`` are the rows of this process, in order; ``first`` is the index of its first row.
    """
    total = 0
    for block in blocks:
        block = block[:, None] if block.ndim == 1 else block.flatten(1)
        for rows in block.split(max(1, VALUES_AT_ONCE // max(1, block.shape[1]))):
            if rows.is_floating_point():
                rows = rows.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()])
            each = _products(rows, _odd_numbers(0, rows.shape[1], rows.device))
            each = (each ^ (each >> 32)) * _odd_numbers(2**40 + first, len(rows), rows.device)
            total += int(each.sum())
            first += len(rows)
    parts = ranks.gather_arrays(np.array([total % 2**64], np.uint64))
    return sum(int(part[0]) for part in parts) % 2**64


def _products(A: Tensor, x: Tensor) -> Tensor:
    """A x in integers that wrap at 64 bits; on a CPU by NumPy, whose one thread waits for no other."""
    return (A * x).sum(1) if A.is_cuda else torch.from_numpy(np.einsum("ij,j->i", A.numpy(), x.numpy()))


def _odd_numbers(first: int, n: int, device: torch.device) -> Tensor:
    """Entries first … first + n − 1 of a fixed sequence of odd 64-bit numbers that look random."""
    x = torch.arange(first + 1, first + n + 1, device=device) * -7046029254386353131
    x = (x ^ (x >> 30)) * -4658895280553007687
    return (x ^ (x >> 27)) | 1
