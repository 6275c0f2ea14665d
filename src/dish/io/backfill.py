"""Encode a file of codes again with a newer, compatible model: a budget of rows at a time, the least certain first.

Codes of both models can be compared all the while. Which rows are done is kept next to the codes
(``codes.npy.backfill``) until all are. The codes are replaced before that file: if a run is killed in between, the
next one begins again, which costs time and changes nothing. So it does if something else has written the codes.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.checks import check_integer
from dish.errors import InputError, ModelFileError
from dish.io import modelfile
from dish.io.atomic import replacing
from dish.io.code_provenance import file_digest, note_model, note_of
from dish.io.readers import read_npy
from dish.progress import progress

KIND = "Backfill"
BLOCK_ROWS = 1 << 14


@dataclass(frozen=True)
class Backfilled:
    """What a run of ``backfill`` did."""

    encoded: int  # rows that were encoded again
    changed: int  # those whose code changed
    remaining: int  # rows that still have the code of an older model


@dataclass(frozen=True)
class _State:
    """Which rows have codes of the newer model."""

    newer: str  # fingerprints
    older: str
    done: NDArray[np.bool_]  # (n,)
    codes: str  # ``_version`` of the file of codes that ``done`` is about

    def write(self, path: Path) -> None:
        """Write the state to a file."""
        values = {"newer": self.newer, "older": self.older, "n": len(self.done), "codes": self.codes}
        modelfile.save(path, KIND, values, {"done": np.packbits(self.done)})

    @classmethod
    def read(cls, path: Path, n: int) -> _State | None:
        """The state in a file; None if there is none, or if it is about other codes."""
        if not path.exists():
            return None
        kind, values, arrays = modelfile.read(path)
        if kind != KIND:
            raise ModelFileError(f"{path} is not the state of a backfill: move it away")
        if values["n"] != n:
            return None
        done = np.unpackbits(arrays["done"], count=n).astype(bool)
        return cls(values["newer"], values["older"], done, values["codes"])


def _version(path: Path) -> str:
    """What differs if a file of codes has been written again."""
    return f"{file_digest(path)} {path.stat().st_mtime_ns}"


def backfill(hasher: Any, X: Any, path: Path, budget: int, labels: Any = None) -> Backfilled:
    """Encode at most ``budget`` rows of a file of codes again with a newer model of the same family.

    X (n, d) are the rows of the codes, in their order. The least certain codes come first: those whose class bits are
    farthest from the nearest codeword of a class. ``labels`` (n,): rows with a known label get the code of their
    label. Call it again to go on with the next rows.
    """
    check_integer("budget", budget, low=1)
    old = read_npy(path, mmap_mode="r")
    n = len(old)
    _check_rows(hasher, X, labels, old, path)
    state_path = path.with_name(f"{path.name}.backfill")
    state = _state(hasher.fingerprint_, path, _State.read(state_path, n), n)
    left = np.flatnonzero(~state.done)
    if len(left) == 0:
        return Backfilled(0, 0, 0)
    chosen = left if budget >= len(left) else np.sort(least_certain(hasher, old, left)[:budget])
    state.write(state_path)  # the family stays known if this run is killed before the note is written
    changed = _encode_again(hasher, X, path, chosen, labels)
    state.done[chosen] = True
    state = replace(state, codes=_version(path))
    finished = bool(state.done.all())
    note_model(path, state.newer if finished else state.older, hasher.n_bits)
    if finished:
        state_path.unlink()
    else:
        state.write(state_path)
    return Backfilled(len(chosen), changed, int((~state.done).sum()))


def _check_rows(hasher: Any, X: Any, labels: Any, old: Any, path: Path) -> None:
    """Raise InputError for codes of another length, or another number of rows."""
    codes.check_codes(old[:1], hasher.n_bits, name=str(path))
    for what, given in (("X", X), ("labels", labels)):
        if given is not None and len(given) != len(old):
            raise InputError(f"{what} has {len(given):,} rows, but {path} has {len(old):,} codes; they must be equal")


def _state(newer: str, path: Path, saved: _State | None, n: int) -> _State:
    """The state to continue from. Raises an error if codes of the newer model cannot be compared with those there."""
    older = note_of(path).model or (saved.older if saved else None)
    if older is None:
        raise InputError(
            f"the model of the codes in {path} is unknown: {path.name}.model.json is missing, or about other codes. "
            "Encode all rows again with `dish encode`"
        )
    modelfile.check_same_model(older, newer, str(path), "the newer model")
    if saved is not None and (saved.newer, saved.codes) == (newer, _version(path)):
        return saved
    done = older == newer and saved is None  # a backfill with another model, which has not ended, has changed some
    return _State(newer, older, np.full(n, done), _version(path))


def least_certain(hasher: Any, packed: NDArray[np.uint8], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """The given rows of a matrix of codes, the least certain first; of equal ones, the lower row.

    A code of a row that surely belongs to one class is the codeword of this class. Bits differ from it where the
    classes that the row may belong to disagree, and these are the bits that a newer model may change.
    """
    distance = np.empty(len(rows), np.int32)
    with progress("certainty", len(rows)) as step:
        for start in range(0, len(rows), BLOCK_ROWS):
            some = rows[start : start + BLOCK_ROWS]
            distance[start : start + len(some)] = hasher.distance_to_classes(packed[some])
            step(len(some))
    return np.asarray(rows[np.argsort(-distance, kind="stable")])


def _encode_again(hasher: Any, X: Any, path: Path, chosen: NDArray[np.intp], labels: Any) -> int:
    """Replace the codes of the chosen rows, atomically. Return how many changed."""
    changed = 0
    with replacing(path) as temporary:
        shutil.copyfile(path, temporary)
        out = np.lib.format.open_memmap(str(temporary), "r+")
        with progress("encoding", len(chosen)) as step:
            for start in range(0, len(chosen), BLOCK_ROWS):
                rows = chosen[start : start + BLOCK_ROWS]
                new = hasher.transform(np.asarray(X[rows]), **({} if labels is None else {"labels": labels[rows]}))
                changed += int((new != out[rows]).any(axis=1).sum())
                out[rows] = new
                step(len(rows))
        out.flush()
        del out  # Windows cannot rename a mapped file
    return changed
