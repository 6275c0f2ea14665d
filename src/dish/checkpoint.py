"""The state of a fit in a folder, from which another process, or another number of them, can go on.

``codes-T.npy`` holds the codes of all rows after T iterations; every process writes its own part. ``state.dish`` is
replaced, whole, when they are all there: a kill at any moment leaves the last good state.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import modelfile
from dish.collective import Group
from dish.tables import DataFileError, read_npy


@dataclass
class State:
    """A fit after so many iterations."""

    codes: NDArray[np.uint8]  # of the rows of this process
    W: NDArray[Any]
    objective: NDArray[np.float64]
    anchors: NDArray[Any]
    random: tuple[Any, ...]  # of the generator, as ``RandomState.get_state`` gives it


class Checkpoint:
    """A folder, made when it is first written to."""

    KIND = "checkpoint"

    def __init__(self, folder: str | os.PathLike[str], fingerprint: str, span: tuple[int, int], group: Group) -> None:
        """``span``: this process's first row, and the rows of all processes."""
        self.folder, self.fingerprint, self.group = Path(folder), fingerprint, group
        self.start, self.n = span

    def load(self, n: int) -> State | None:
        """The last state, with the codes of this process's n rows; None if there is none."""
        path = self.folder / "state.dish"
        if not path.exists():
            return None
        kind, content, arrays = modelfile.read(path)
        if kind != self.KIND or content.get("fingerprint") != self.fingerprint:
            raise DataFileError(
                f"checkpoint {self.folder} is of a fit with other parameters or labels: remove it, or name another"
            )
        codes = read_npy(self.folder / f"codes-{content['iterations']}.npy", mmap_mode="r")
        if len(codes) != self.n:
            raise DataFileError(f"checkpoint {self.folder} is of {len(codes):,} rows, but there are {self.n:,}")
        mine = np.array(codes[self.start : self.start + n])
        random = ("MT19937", arrays["random"], *content["random"])
        return State(mine, arrays["W"], arrays["objective"], arrays["anchors"], random)

    def save(self, state: State) -> None:
        """Write the state of all processes."""
        t = len(state.objective)
        path = self.folder / f"codes-{t}.npy"
        with self.group.agreed():
            if self.group.first:
                self.folder.mkdir(parents=True, exist_ok=True)
                np.lib.format.open_memmap(path, "w+", np.uint8, (self.n, state.codes.shape[1]))
        with self.group.agreed():
            file = np.lib.format.open_memmap(path, "r+")
            file[self.start : self.start + len(state.codes)] = state.codes
            file.flush()
        with self.group.agreed():
            if self.group.first:
                name, keys, *rest = state.random
                assert name == "MT19937"
                arrays = {
                    "W": state.W,
                    "objective": state.objective,
                    "anchors": state.anchors,
                    "random": np.asarray(keys),
                }
                content = {"fingerprint": self.fingerprint, "iterations": t, "random": rest}
                modelfile.save(self.folder / "state.dish", self.KIND, content, arrays)
                for old in self.folder.glob("codes-*.npy"):
                    if old != path:
                        old.unlink()

    def remove(self) -> None:
        """The fit is done."""
        if self.group.first:
            shutil.rmtree(self.folder, ignore_errors=True)
