"""How files are damaged: bytes in, other bytes out."""

from __future__ import annotations

import contextlib
import json
import re
import struct
from typing import Any

import numpy as np

from dish.io import modelfile

ODD_NUMBERS = (b"0", b"-1", b"3", b"1e9", b"1000000", b"99999999999", b"4294967296", b"18446744073709551615")
ODD_VALUES = (None, -1, 0, 1, 10**9, 2**70, "x", [], {}, 1e308, True, "../../etc/passwd", [1] * 50, float("nan"))
KINDS = ("DISH", "ITQ", "PCAITQ", "LSH", "HammingIndex", "checkpoint", "DeepDISH", "KSH", "os.system")
TYPES = ("F64", "I64", "U8", "BOOL", "F16", "BF16", "F8_E4M3", "I32")


def flip(d: bytes, rng: np.random.Generator) -> bytes:
    """One to three bits turned."""
    out = bytearray(d)
    for _ in range(int(rng.integers(1, 4))):
        out[int(rng.integers(len(out)))] ^= 1 << int(rng.integers(8))
    return bytes(out)


def overwrite(d: bytes, rng: np.random.Generator) -> bytes:
    """Another byte in the head."""
    out = bytearray(d)
    out[int(rng.integers(min(len(out), 200)))] = int(rng.integers(256))
    return bytes(out)


def cut(d: bytes, rng: np.random.Generator) -> bytes:
    """The beginning alone."""
    return d[: int(rng.integers(len(d) + 1))]


def extend(d: bytes, rng: np.random.Generator) -> bytes:
    """Rubbish at the end."""
    return d + rng.bytes(int(rng.integers(1, 64)))


def splice(d: bytes, rng: np.random.Generator) -> bytes:
    """A stretch taken out."""
    a, b = sorted(rng.integers(0, len(d) + 1, 2))
    return d[:a] + d[b:]


def repeat(d: bytes, rng: np.random.Generator) -> bytes:
    """A stretch twice."""
    a, b = sorted(rng.integers(0, len(d) + 1, 2))
    return d[:b] + d[a:b] + d[b:]


def odd_number(d: bytes, rng: np.random.Generator) -> bytes:
    """A number of the head made absurd."""
    spots = list(re.finditer(rb"\d+", d[:3000]))
    if not spots:
        return flip(d, rng)
    spot = spots[int(rng.integers(len(spots)))]
    return d[: spot.start()] + ODD_NUMBERS[int(rng.integers(len(ODD_NUMBERS)))] + d[spot.end() :]


MUTATIONS = (flip, overwrite, cut, extend, splice, repeat, odd_number)


def craft(d: bytes, rng: np.random.Generator) -> bytes:
    """The head of a model or an index edited as JSON, with its checksum put right where the arrays can be read."""
    length = struct.unpack("<Q", d[:8])[0]
    head, body = json.loads(d[8 : 8 + length]), d[8 + length :]
    meta = head["__metadata__"]
    names = [name for name in head if name != "__metadata__"]
    name = names[int(rng.integers(len(names)))]
    entry, params = head[name], json.loads(meta["params"])
    how = int(rng.integers(9))
    if how == 0:
        entry["dtype"] = TYPES[int(rng.integers(len(TYPES)))]
    elif how == 1:
        entry["shape"] = entry["shape"][::-1] if len(entry["shape"]) > 1 else [1, *entry["shape"]]
    elif how == 2:
        entry["shape"] = [int(np.prod(entry["shape"]))]
    elif how == 3:
        del head[name]
    elif how == 4:
        head[f"{name}2"] = dict(entry)
    elif how < 8:
        parts = [params, *(part for part in params.values() if isinstance(part, dict))]
        places = [(part, key) for part in parts for key in part]
        part, key = places[int(rng.integers(len(places)))]
        part[key] = ODD_VALUES[int(rng.integers(len(ODD_VALUES)))]
        meta["params"] = json.dumps(params)
    else:
        meta["kind"] = KINDS[int(rng.integers(len(KINDS)))]
    with contextlib.suppress(Exception):
        meta["sha256"] = modelfile._checksum(meta, _arrays(head, body))
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def _arrays(head: dict[str, Any], body: bytes) -> dict[str, np.ndarray]:
    types = {code: np.dtype(name) for name, code in modelfile.DTYPES.items()}
    arrays = {}
    for name, entry in head.items():
        if name != "__metadata__":
            start, stop = entry["data_offsets"]
            arrays[name] = np.frombuffer(body[start:stop], types[entry["dtype"]]).reshape(entry["shape"])
    return arrays
