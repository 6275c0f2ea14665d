"""Checkpoints of a fit: a folder from which the fit can be resumed, also by another number of processes.

``codes-T.npy`` holds the codes of all rows after T iterations; each process writes its own part. ``state.dish`` is
replaced atomically when all parts are written, so that a killed fit leaves the last complete state.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import DataFileError, InputError
from dish.io import modelfile
from dish.io.readers import read_npy
from dish.io.rows import allocate_npy
from dish.lazy import torch
from dish.parallel import Ranks


@dataclass
class State:
    """The state of a fit after ``len(objective)`` iterations."""

    codes: NDArray[np.uint8]  # codes of the rows of this process
    W: NDArray[Any]
    objective: NDArray[np.float64]
    anchors: NDArray[Any]
    mean: NDArray[Any]
    random: tuple[Any, ...]  # state of the random generator, from ``RandomState.get_state``


class Checkpoint:
    """A checkpoint folder. A marker file identifies it: a folder that holds other files is never changed."""

    KIND, MARK = "checkpoint", ".dish-checkpoint"

    def __init__(self, folder: str | os.PathLike[str], fingerprint: str, span: tuple[int, int], ranks: Ranks) -> None:
        """``span``: the index of the first row of this process, and the number of rows of all processes."""
        self.folder, self.fingerprint, self.ranks = Path(folder), fingerprint, ranks
        self.start, self.n = span

    def prepare(self) -> None:
        """Create the folder before the fit starts, so that a wrong path is an error now and not hours later."""
        with self.ranks.raise_together():
            if not self.ranks.first:
                return
            if self.folder.exists() and not self.folder.is_dir():
                raise InputError(f"checkpoint {self.folder} is a file: pass a folder")
            if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / self.MARK).exists():
                raise InputError(f"checkpoint {self.folder} holds other files: pass a new or an empty folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / self.MARK).write_text("The state of an unfinished fit. This folder may be removed.\n")

    def load(self, n: int, width: int) -> State | None:
        """The last state, with the (n, width) codes of the rows of this process; None if there is no state."""
        with self.ranks.raise_together():
            found = self._read(n, width)
        self._check_all_see_the_same(found)
        if found is None:
            return None
        state, expected = found
        if checksum(state.codes, self.start, self.ranks) != expected:
            raise DataFileError(f"checkpoint {self.folder}: its codes are damaged. Remove it to start over")
        return state

    def _read(self, n: int, width: int) -> tuple[State, int] | None:
        """The state as this process reads it, and the checksum of all codes. Does not communicate."""
        path = self.folder / "state.dish"
        if not path.exists():
            return None
        try:
            kind, content, arrays = modelfile.read(path)
            codes = read_npy(self._codes(content["iterations"]), mmap_mode="r")
        except (OSError, ValueError, KeyError) as error:
            raise DataFileError(f"{error}. Remove {self.folder} to start over") from None
        if kind != self.KIND or content.get("fingerprint") != self.fingerprint:
            raise DataFileError(
                f"checkpoint {self.folder} is of a fit with other parameters or labels: remove it, or use another"
            )
        if codes.shape != (self.n, width) or codes.dtype != np.uint8:
            raise DataFileError(
                f"checkpoint {self.folder}: its codes are not those of {self.n:,} rows. Remove it to start over"
            )
        mine = np.array(codes[self.start : self.start + n])
        try:
            random = ("MT19937", arrays["random"], *content["random"])
            np.random.RandomState().set_state(random)
            state = State(mine, arrays["W"], arrays["objective"], arrays["anchors"], arrays["mean"], random)
            shapes = [a.shape for a in (state.W, state.mean, state.objective)]
            if -(-shapes[0][1] // 8) != width or shapes[1] != shapes[0][:1] or len(shapes[2]) != 1:
                raise InputError(f"W, mean and objective have the shapes {shapes}")
            if {a.dtype.kind for a in (state.W, state.mean, state.objective)} != {"f"}:
                raise InputError("W, mean and objective must be floats")
            return state, int(content["checksum"])
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise DataFileError(
                f"checkpoint {self.folder}: its arrays do not match ({error}). Remove it to start over"
            ) from None

    def _check_all_see_the_same(self, found: tuple[State, int] | None) -> None:
        """Raise an error in all processes if they read different states."""
        iterations = -1 if found is None else len(found[0].objective)
        seen = self.ranks.gather(torch.tensor([float(iterations)])).flatten().long().tolist()
        if len(set(seen)) == 1:
            return
        which = ", ".join(
            f"{'none' if t < 0 else f'one of {t} iterations'} (process {i})" for i, t in enumerate(seen)
        )
        raise DataFileError(
            f"checkpoint {self.folder}: the processes read different states: {which}. All of them need the same "
            "folder, on shared storage"
        )

    def save(self, state: State) -> None:
        """Write the state of all processes."""
        t = len(state.objective)
        path = self._codes(t)
        with self.ranks.raise_together():
            if self.ranks.first:
                allocate_npy(path, (self.n, state.codes.shape[1]))
        with self.ranks.raise_together():
            file = np.lib.format.open_memmap(path, "r+")
            file[self.start : self.start + len(state.codes)] = state.codes
            file.flush()
        total = checksum(state.codes, self.start, self.ranks)
        with self.ranks.raise_together():
            if self.ranks.first:
                name, keys, *rest = state.random
                assert name == "MT19937"
                arrays = {
                    "W": state.W,
                    "objective": state.objective,
                    "anchors": state.anchors,
                    "mean": state.mean,
                    "random": np.asarray(keys),
                }
                content = {"fingerprint": self.fingerprint, "iterations": t, "random": rest, "checksum": total}
                modelfile.save(self.folder / "state.dish", self.KIND, content, arrays)
                for old in self._written():
                    if old != path:
                        old.unlink()

    def remove(self) -> None:
        """Remove the files of the checkpoint, and the folder if it is empty then."""
        if self.ranks.first and (self.folder / self.MARK).exists():
            for file in (*self._written(), self.folder / "state.dish", self.folder / self.MARK):
                file.unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _codes(self, t: int) -> Path:
        return self.folder / f"codes-{t}.npy"

    def _written(self) -> list[Path]:
        return [f for f in self.folder.iterdir() if re.fullmatch(r"codes-\d+\.npy", f.name)]


def checksum(rows: NDArray[np.integer[Any]], first: int, ranks: Ranks) -> int:
    """A checksum of integer rows (n,) or (n, k). It does not depend on how the processes share the rows."""
    rows = rows.reshape(len(rows), -1)
    with np.errstate(over="ignore"):
        each = np.zeros(len(rows), np.uint64)
        for column in rows.T:
            each = each * np.uint64(0x9E3779B97F4A7C15) + column.astype(np.uint64) + np.uint64(1)
        place = np.arange(first + 1, first + 1 + len(rows), dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = int((each * (place ^ (place >> np.uint64(29)))).sum()) % 2**40
    return int(ranks.total(torch.tensor(float(mixed), dtype=torch.float64))) % 2**40
