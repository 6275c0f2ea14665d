"""Model files: versioned, without pickle, written atomically.

A model file is a safetensors container. It holds named arrays and a header with the version of the format, the class
of the hasher, its parameters as JSON and a checksum.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError, ModelFileError, ModelMismatchError
from dish.io.atomic import write_atomically

log = logging.getLogger(__name__)

FORMAT = "dish-model"
VERSION = 1

DTYPES = {
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint", "float") for bits in (16, 32, 64)},
    **{"int8": "I8", "uint8": "U8", "bool": "BOOL"},
}  # NumPy's name → safetensors' name

Arrays = dict[str, NDArray[Any]]


def save(
    path: str | os.PathLike[str],
    kind: str,
    params: dict[str, Any],
    arrays: Arrays,
    before_rename: Callable[[], None] | None = None,
) -> None:
    """Write a model file: the class name, the parameters (JSON values) and the arrays.

    ``before_rename`` may raise an error to keep the existing file.
    """
    arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    header = {"format": FORMAT, "version": str(VERSION), "kind": kind, "params": json.dumps(params)}
    header["sha256"] = _checksum(header, arrays)
    write_atomically(path, _pieces(header, arrays), before_rename)


def _pieces(header: dict[str, str], arrays: Arrays) -> Iterator[Any]:
    """The parts of the safetensors container: length of the head, head as JSON, arrays. Arrays are not copied."""
    head: dict[str, Any] = {"__metadata__": header}
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # wide types first: all stay aligned
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
    """Read a model file: its class name, parameters and arrays.

    ``mmap=True`` maps the arrays copy-on-write instead of reading them. ``verify=False`` skips the checksum, which
    takes one pass over the file.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no model file {path}")
    if path.is_dir():
        raise ModelFileError(f"{path} is a folder, not a model file")
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ModelFileError(f"{path} is a safetensors file, but not a dish model")
            if int(header["version"]) > VERSION:
                raise ModelFileError(
                    f"{path} has format version {header['version']}, but this dish reads up to {VERSION}: upgrade it"
                )
            names = list(file.keys())  # safe_open has checked the length of the file
            arrays = _mapped(path) if mmap else {name: file.get_tensor(name) for name in names}
        params = json.loads(header["params"])
        kind = header["kind"]
        if not isinstance(params, dict):
            raise TypeError("its parameters are not a JSON object")
    except ModelFileError:
        raise
    except (  # NumPy lacks some types, such as float8: AttributeError
        *(SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
    ) as error:
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
            empty = 0 in shape  # zero bytes cannot be mapped
            arrays[name] = np.empty(shape, kind) if empty else np.memmap(path, kind, "c", start, shape)
    return arrays


def _raw(a: NDArray[Any]) -> Any:
    return a.reshape(-1).view(np.uint8)


def _checksum(header: dict[str, str], arrays: Arrays) -> str:
    digest = hashlib.sha256(f"{header['kind']} {header['params']}".encode())
    for name in sorted(arrays):
        _update(digest, name, arrays[name])
    return digest.hexdigest()


def _update(digest: Any, name: str, a: NDArray[Any]) -> None:
    digest.update(f"{name} {a.dtype} {a.shape}".encode())
    digest.update(_raw(np.ascontiguousarray(a)))


# --- Fingerprints: which model computed these codes? --------------------------------------------------------------


def fingerprint(kind: str, content: Mapping[str, Any]) -> str:
    """A hash of a class name, named arrays and JSON values: 16 hexadecimal digits, the same on every machine."""
    digest = hashlib.sha256(kind.encode())
    for name in sorted(content):
        value = content[name]
        if isinstance(value, np.ndarray):
            _update(digest, name, value)
        else:
            digest.update(f"{name} {json.dumps(value, default=_as_json)}".encode())
    return digest.hexdigest()[:16]


def _as_json(value: Any) -> Any:
    """A NumPy number as a Python number, a function as its name."""
    return value.item() if isinstance(value, np.generic) else f"{value.__module__}.{value.__qualname__}"


def check_fingerprint(name: str, value: Any) -> str | None:
    """Return a fingerprint (``Hasher.fingerprint_``), or None for an unknown model; anything else is an error."""
    if value is not None and not (isinstance(value, str) and re.fullmatch("([0-9a-f]{16}-)?[0-9a-f]{16}", value)):
        raise InputError(
            f"{name} must be the fingerprint_ of a model (16 hexadecimal digits, or 16-16 for a compatible model) or "
            f"None, got {value!r}"
        )
    return value


def family(fingerprint: str) -> str:
    """The family of a model: the first 16 digits of its fingerprint. Codes of one family can be compared.

    A model fitted with ``compatible_with=old`` is of the family of ``old``. Any other model founds a family.
    """
    return fingerprint[:16]


def check_same_model(known: str | None, given: str | None, where: str, what: str) -> None:
    """Raise ModelMismatchError if two models are of different families.

    ``known`` is the fingerprint of the model that computed the codes in ``where``, ``given`` that of ``what``, a
    model, such as "the model of q.npy". If either is None, nothing is checked, and a message is logged.
    """
    if known is None:
        log.info("%s does not name the model of its codes: whether it is %s is not checked", where, what)
    elif given is None:
        log.info("the fingerprint of %s is unknown: whether it fits %s is not checked", what, where)
    elif family(known) != family(given):
        raise ModelMismatchError(
            f"{where} holds codes of the model with the fingerprint {known}, but {what} has the fingerprint {given}. "
            "Codes of different models cannot be compared: use the same model for both, use one that was fitted with "
            "compatible_with, or encode the rows again"
        )
