"""Versioned, pickle-free model files, written whole or not at all.

A file is a safetensors container: named arrays, and a header that holds the format's version, the class of
the hasher, its parameters as JSON and a checksum of the arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = "dish-model"
VERSION = 1

DTYPES = {
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint", "float") for bits in (16, 32, 64)},
    **{"int8": "I8", "uint8": "U8", "bool": "BOOL"},
}  # NumPy's name → the container's

Arrays = dict[str, NDArray[Any]]


class ModelFileError(ValueError):
    """A file that is not a model, is damaged, or comes from a newer version."""


def write_atomically(path: str | os.PathLike[str], data: bytes | Iterable[Any]) -> None:
    """Write a file (bytes, or pieces of bytes) so that a reader, or a crash, sees the old content or the new."""
    path = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is not an ordinary file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            pieces: Iterable[Any] = [data] if isinstance(data, bytes) else data
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)  # permissions stay as they were
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def save(path: str | os.PathLike[str], kind: str, params: dict[str, Any], arrays: Arrays) -> None:
    """Write a model: its class name, its parameters (JSON values) and its arrays, without a copy of them."""
    arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "params": json.dumps(params),
    }
    header["sha256"] = _checksum(header, arrays)
    write_atomically(path, _pieces(header, arrays))


def _pieces(header: dict[str, str], arrays: Arrays) -> Iterator[Any]:
    """The safetensors container piece by piece: length of the head, head as JSON, arrays."""
    head: dict[str, Any] = {"__metadata__": header}
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # wide ones first: all stay aligned
    end = 0
    for name in names:
        a = arrays[name]
        head[name] = {"dtype": DTYPES[a.dtype.name], "shape": a.shape, "data_offsets": [end, end + a.nbytes]}
        end += a.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in names:
        yield _raw(arrays[name])


def read(
    path: str | os.PathLike[str], *, mmap: bool = False, verify: bool = True
) -> tuple[str, dict[str, Any], Arrays]:
    """Read a model file: (class name, parameters, arrays).

    With ``mmap`` the arrays are mapped, not read; writing to them leaves the file as it is. ``verify=False`` leaves
    the checksum unchecked: checking it reads all of the file once.
    """
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
            names = list(file.keys())  # the file's length fits its head, or safe_open had failed
            arrays = _mapped(path) if mmap else {name: file.get_tensor(name) for name in names}
        params = json.loads(header["params"])
        kind = header["kind"]
    except ModelFileError:
        raise
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise ModelFileError(f"{path} is not a dish model, or is damaged ({error})") from None
    if verify and _checksum(header, arrays) != header.get("sha256"):
        raise ModelFileError(f"{path} is damaged: its checksum does not match its content")
    return kind, params, arrays


def _mapped(path: Path) -> Arrays:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(length))
    kinds = {code: np.dtype(name) for name, code in DTYPES.items()}
    arrays: Arrays = {}
    for name, entry in head.items():
        if name != "__metadata__":
            start, shape, kind = 8 + length + entry["data_offsets"][0], tuple(entry["shape"]), kinds[entry["dtype"]]
            empty = 0 in shape  # of nothing there is no map
            arrays[name] = np.empty(shape, kind) if empty else np.memmap(path, kind, "c", start, shape)
    return arrays


def _raw(a: NDArray[Any]) -> Any:
    return a.reshape(-1).view(np.uint8)


def _checksum(header: dict[str, str], arrays: Arrays) -> str:
    digest = hashlib.sha256(f"{header['kind']} {header['params']}".encode())
    for name in sorted(arrays):
        a = arrays[name]
        digest.update(f"{name} {a.dtype} {a.shape}".encode())
        digest.update(_raw(np.ascontiguousarray(a)))
    return digest.hexdigest()
