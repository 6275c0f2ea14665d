"""Packed codes as files that other engines load: one file per form of ``codes.export``, written a block at a time."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.checks import check_integer, check_option
from dish.errors import InputError
from dish.io.atomic import StrPath, replacing, write_atomically
from dish.io.rows import blocks_of
from dish.progress import progress

BLOCK_ROWS = 1 << 14
SUFFIXES = {  # form → suffixes of the file, the usual one first
    **dict.fromkeys(("bits", "hex", "base64"), (".txt",)),
    **dict.fromkeys(("ubinary", "int8", "st_binary", "lsb", "words64", "pm1"), (".npy",)),
    "bson": (".bson",),
    "arrow": (".arrow", ".parquet"),
}


def write_form(path: StrPath, B: Any, n_bits: int, form: str, model: str | None = None) -> int:
    """Write packed codes to a file in one of the forms of ``codes.export``, atomically. Return the number of codes.

    ========================================== ==============================================================
    forms                                      file
    ========================================== ==============================================================
    "bits", "hex", "base64"                    .txt, one code per line
    "ubinary", "int8", "st_binary", "lsb",     .npy
    "words64", "pm1"
    "bson"                                     .bson, documents {_id: row, code: …} as mongorestore reads them
    "arrow"                                    .arrow (the file format of Arrow) or .parquet
    ========================================== ==============================================================

    Parameters
    ----------
    path : str or Path
        The file.
    B : uint8 (n, ceil(n_bits / 8))
        Packed codes: an array, a memory map or shards. They are read a block at a time.
    n_bits : int
        Code length.
    form : str
        One of the forms above.
    model : str or None, default=None
        ``fingerprint_`` of the hasher that made the codes, stored in the metadata of "arrow".
    """
    check_integer("n_bits", n_bits, low=1)
    check_option("form", form, codes.FORMS)
    path = Path(path)
    if path.suffix not in SUFFIXES[form]:
        raise InputError(f"the form {form!r} is written to a {' or '.join(SUFFIXES[form])} file, got {path.name!r}")
    if form == "arrow":
        _write_arrow(path, B, n_bits, model)
    elif form == "bson":
        write_atomically(path, _documents(B, n_bits))
    elif SUFFIXES[form] == (".txt",):
        write_atomically(path, ("".join(f"{one}\n" for one in block).encode() for block in _blocks(B, n_bits, form)))
    else:
        write_atomically(path, _npy(B, n_bits, form))
    return int(B.shape[0])


def _blocks(B: Any, n_bits: int, form: str, model: str | None = None) -> Iterator[Any]:
    """The codes in that form, a block at a time."""
    with progress("exporting", B.shape[0]) as step:
        for block in blocks_of(B, BLOCK_ROWS):
            yield codes.export(block, n_bits, form, model=model)
            step(len(block))


def _npy(B: Any, n_bits: int, form: str) -> Iterator[bytes]:
    """A .npy file in pieces: the header, and the rows of each block."""
    empty: NDArray[Any] = codes.export(np.empty((0, codes.n_bytes(n_bits)), np.uint8), n_bits, form)
    header = io.BytesIO()
    description = {"descr": empty.dtype.str, "fortran_order": False, "shape": (B.shape[0], empty.shape[1])}
    np.lib.format.write_array_header_1_0(header, description)
    yield header.getvalue()
    for block in _blocks(B, n_bits, form):
        yield block.tobytes()


def _documents(B: Any, n_bits: int) -> Iterator[bytes]:
    """BSON documents with the 64-bit integer _id, the number of the row, and the binary vector code."""
    row = 0
    for block in _blocks(B, n_bits, "bson"):
        pieces = []
        for one in block:
            fields = b"\x12_id\0" + struct.pack("<q", row) + b"\x05code\0" + struct.pack("<ib", len(one), 9) + one
            pieces.append(struct.pack("<i", len(fields) + 5) + fields + b"\0")
            row += 1
        yield b"".join(pieces)


def _write_arrow(path: Path, B: Any, n_bits: int, model: str | None) -> None:
    none = np.empty((0, codes.n_bytes(n_bits)), np.uint8)
    schema = codes.export(none, n_bits, "arrow", model=model).schema  # also says so if pyarrow is not installed
    from pyarrow import ipc, parquet

    opened = parquet.ParquetWriter if path.suffix == ".parquet" else ipc.new_file
    with replacing(path) as temporary, opened(str(temporary), schema) as writer:
        for table in _blocks(B, n_bits, "arrow", model):
            writer.write_table(table)
