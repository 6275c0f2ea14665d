"""Versioned, pickle-free model files, written whole or not at all.

A file is a safetensors container: named arrays, and a header that holds the format's version, the class of
the hasher, its parameters as JSON and a checksum of the arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = "dish-model"
VERSION = 1

Arrays = dict[str, NDArray[Any]]


class ModelFileError(ValueError):
    """A file that is not a model, is damaged, or comes from a newer version."""


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, nothing between."""
    path = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is not an ordinary file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)  # permissions stay as they were
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def save(path: str | os.PathLike[str], kind: str, params: dict[str, Any], arrays: Arrays) -> None:
    """Write a model: its class name, its parameters (JSON values) and its arrays."""
    from safetensors.numpy import save as to_bytes

    arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "params": json.dumps(params),
    }
    header["sha256"] = _checksum(header, arrays)
    write_atomically(path, to_bytes(arrays, metadata=header))


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, Any], Arrays]:
    """Read a model file: (class name, parameters, arrays)."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no model file at {path}")
    if path.is_dir():
        raise ModelFileError(f"{path} is a folder, not a model file")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ModelFileError(f"{path} is a safetensors file, but not a dish model")
            if int(header["version"]) > VERSION:
                raise ModelFileError(
                    f"{path} has format version {header['version']}; this dish reads up to {VERSION}: upgrade it"
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        params = json.loads(header["params"])
        kind = header["kind"]
    except ModelFileError:
        raise
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise ModelFileError(f"{path} is not a dish model, or is damaged ({error})") from None
    if _checksum(header, arrays) != header.get("sha256"):
        raise ModelFileError(f"{path} is damaged: its checksum does not match its content")
    return kind, params, arrays


def _checksum(header: dict[str, str], arrays: Arrays) -> str:
    digest = hashlib.sha256(f"{header['kind']} {header['params']}".encode())
    for name in sorted(arrays):
        a = arrays[name]
        digest.update(f"{name} {a.dtype} {a.shape}".encode())
        digest.update(a.tobytes())
    return digest.hexdigest()
