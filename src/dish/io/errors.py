"""Errors of data files: every one names its file, and damage never surfaces as whatever a parser happens to raise."""

from __future__ import annotations

import csv
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from dish.errors import DataFileError

StrPath = str | os.PathLike[str]

# What NumPy's and the standard library's parsers raise on damaged files: a .npy header is a Python literal.
DAMAGE: tuple[type[Exception], ...] = (
    OSError, ValueError, EOFError, SyntaxError, OverflowError, TypeError, KeyError, IndexError, AttributeError,
    RecursionError, NotImplementedError, csv.Error, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextmanager
def reading(path: StrPath, kind: str, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what goes wrong inside into errors that name the file."""
    try:
        yield
    except DataFileError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}") from None
    except (*DAMAGE, *also) as error:
        reason = str(error)
        if "Python objects" in reason or "Object arrays" in reason:
            raise DataFileError(
                f"{path} holds Python objects, which are not read: they could run code. Save text as text: "
                "np.save(path, y.astype(str))"
            ) from error
        if "allow_pickle" in reason:
            reason = "it holds no array"
        raise DataFileError(f"{path} is not a {kind}, or is damaged ({reason})") from error
