"""Which model computed the codes in a .npy file: a note in a JSON file next to it (``codes.npy.model.json``).

A .npy file has no room for metadata. The note holds a hash of the codes, so that it is ignored if the codes have been
replaced. Codes without a note are of an unknown model, which is never compared with another.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dish.io.atomic import StrPath, write_atomically
from dish.io.modelfile import check_fingerprint

log = logging.getLogger(__name__)

EDGE = 1 << 16  # bytes at each end of a file that are hashed: hashing all of it could take minutes


def note_model(path: StrPath, fingerprint: str, n_bits: int | None = None) -> None:
    """Write the note for a file of codes: the ``fingerprint_`` of their model and, if known, their length in bits.

    The width in bytes does not tell the length unless ``n_bits`` is a multiple of eight.
    """
    note: dict[str, Any] = {"model": check_fingerprint("fingerprint", fingerprint), "codes": file_digest(path)}
    note |= {} if n_bits is None else {"bits": n_bits}
    write_atomically(_note_path(path), (json.dumps(note) + "\n").encode())


@dataclass(frozen=True)
class Note:
    """What is known about the codes in a file."""

    model: str | None = None  # fingerprint of the model
    bits: int | None = None

    def n_bits(self, n_bytes: int) -> int:
        """The length of codes that are ``n_bytes`` wide: 8 · ``n_bytes``, unless the note says otherwise."""
        return self.bits if self.bits is not None and -(-self.bits // 8) == n_bytes else 8 * n_bytes


def model_of(path: StrPath) -> str | None:
    """The fingerprint of the model that computed the codes in a file, for example for ``HammingIndex(model=…)``.

    None, with a log message, if there is no note, or if it is about other codes.
    """
    return note_of(path).model


def note_of(path: StrPath) -> Note:
    """The note for a file of codes. An empty note, with a log message, if there is none or it is not valid."""
    try:
        note = json.loads(_note_path(path).read_bytes())
        if note["codes"] == file_digest(path):
            return Note(check_fingerprint("model", note["model"]), int(note["bits"]) if "bits" in note else None)
        log.warning("%s is ignored: it is about other codes than those in %s", _note_path(path), path)
    except FileNotFoundError:
        log.info("the model of the codes in %s is unknown: there is no %s", path, _note_path(path).name)
    except (ValueError, KeyError, TypeError):
        log.warning("%s is ignored: it is damaged", _note_path(path))
    return Note()


def _note_path(path: StrPath) -> Path:
    path = Path(path)
    return path.with_name(f"{path.name}.model.json")


def file_digest(path: StrPath) -> str:
    """A hash of the size and both ends of a file."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(f"{size} ".encode() + file.read(EDGE))
        file.seek(max(0, size - EDGE))
        digest.update(file.read(EDGE))
    return digest.hexdigest()[:32]
