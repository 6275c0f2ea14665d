"""Which model the codes of a .npy file are of: a note in a small JSON file beside it (``codes.npy.model.json``).

A .npy file has no room for it. The note says by which bytes it knows its file, so that one that was left beside other
codes is not believed; codes without a note are of an unknown model, and nothing is checked.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dish.io.atomic import write_atomically
from dish.io.modelfile import check_fingerprint

log = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]
EDGE = 1 << 16  # bytes at either end by which a file is known: reading all of it might take minutes


def note_model(path: StrPath, fingerprint: str, n_bits: int | None = None) -> None:
    """Write down that the codes of a file are of the model with this ``fingerprint_``, and how long they are.

    Their width in bytes does not say that where ``n_bits`` is no multiple of eight.
    """
    note: dict[str, Any] = {"model": check_fingerprint("fingerprint", fingerprint), "codes": _digest(path)}
    note |= {} if n_bits is None else {"bits": n_bits}
    write_atomically(_beside(path), (json.dumps(note) + "\n").encode())


@dataclass(frozen=True)
class Note:
    """What is known about the codes of a file."""

    model: str | None = None  # the fingerprint of the model they are of
    bits: int | None = None

    def n_bits(self, n_bytes: int) -> int:
        """How many bits codes that are ``n_bytes`` wide have: all, where the note does not say otherwise."""
        return self.bits if self.bits is not None and -(-self.bits // 8) == n_bytes else 8 * n_bytes


def model_of(path: StrPath) -> str | None:
    """The fingerprint of the model whose codes a file holds, to be passed to ``HammingIndex(model=…)`` and the like.

    None, with a line in the log, if there is no note, or if it is of other codes.
    """
    return note_of(path).model


def note_of(path: StrPath) -> Note:
    """The note beside the codes of a file; an empty one, with a line in the log, where there is none that holds."""
    try:
        note = json.loads(_beside(path).read_bytes())
        if note["codes"] == _digest(path):
            return Note(check_fingerprint("model", note["model"]), int(note["bits"]) if "bits" in note else None)
        log.warning("%s is of other codes than those in %s: it is ignored", _beside(path), path)
    except FileNotFoundError:
        log.info("%s has no %s: which model its codes are of is not known", path, _beside(path).name)
    except (ValueError, KeyError, TypeError):
        log.warning("%s is damaged: it is ignored", _beside(path))
    return Note()


def _beside(path: StrPath) -> Path:
    path = Path(path)
    return path.with_name(f"{path.name}.model.json")


def _digest(path: StrPath) -> str:
    """Of the size and both ends of a file."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(f"{size} ".encode() + file.read(EDGE))
        file.seek(max(0, size - EDGE))
        digest.update(file.read(EDGE))
    return digest.hexdigest()[:32]
