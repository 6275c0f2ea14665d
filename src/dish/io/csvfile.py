"""Comma-separated values: rows of numbers and files of labels, with one rule for what is a header.

A first line is a header if it has text over a column of numbers, or counts the columns 0 … d−1 over numbers that are
not whole (pandas' names for unnamed columns). Where it could be either, the file is refused and the message says how
to tell: ``--header`` or ``--no-header`` (``Columns.header``).
"""

from __future__ import annotations

import csv
import re
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import DataFileError
from dish.io.columns import Columns
from dish.io.errors import reading
from dish.labels import as_array

ENCODING = "utf-8-sig"  # with or without a byte order mark
INDEX = ("", "Unnamed: 0")  # what pandas calls its index
WHOLE = re.compile(r"0|-?[1-9]\d*")  # str(int(v)) == v
FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?|[+-]?inf|nan", re.IGNORECASE)

Line = list[str]


def read_rows(path: Path, columns: Columns) -> NDArray[np.float64]:
    """The features of a file, (n, d)."""
    with reading(path, "table of comma-separated values"):
        head, names = _head(path), names_of(path, columns)
        _check_index_column(path, head)
        head = head[1:] if names else head
        if not head:
            raise DataFileError(f"{path}: has a header, but no rows")
        wanted = columns.features_in(path, names) if names else []
        used = [names.index(name) for name in wanted] or list(range(len(head[0])))
        for j in used:
            _check_number(path, head[0], j, names)
        X = np.loadtxt(
            path, np.float64, comments=None, delimiter=",", skiprows=1 if names else 0, usecols=used, ndmin=2,
            encoding=ENCODING, quotechar='"',
        )  # fmt: skip
    if len(X) > 2 and X.shape[1] > 1 and np.array_equal(X[:, 0], np.arange(len(X))):
        warnings.warn(
            f"{path}: the first column counts the rows 0, 1, 2, … and is learned as a feature; if it is an index "
            "column, write the file with index=False",
            stacklevel=4,
        )
    return X


def names_of(path: Path, columns: Columns) -> list[str]:
    """The names in the header of a file of rows; none if it has no header."""
    head = _head(path)
    return head[0] if _has_header(path, head, columns) or _text_over_numbers(head) else []


def read_labels(path: Path, columns: Columns) -> NDArray[Any]:
    """The labels of a file: a column of classes (n,), or several columns of 0 and 1, (n, l)."""
    with reading(path, "table of comma-separated values"):
        lines = _all_lines(path)
        _check_index_column(path, lines)
        if _has_header(path, lines, columns):
            names, lines = lines[0], lines[1:]
            name = columns.labels_in(path, names)
            if name is not None:
                lines = [[line[names.index(name)]] for line in lines]
        if not lines:
            raise DataFileError(f"{path}: has a header, but no labels")
        if len(lines[0]) == 1:
            return _classes([line[0] for line in lines])
        if not all(WHOLE.fullmatch(value) for line in lines for value in line):
            raise DataFileError(
                f"{path}: labels in {len(lines[0])} columns must be 0 and 1; if one column holds the classes, "
                "name it with --y-column"
            )
        return np.array(lines, np.int64)


def _head(path: Path) -> list[Line]:
    with path.open(encoding=ENCODING, newline="") as file:
        head = list(islice((line for line in csv.reader(file) if line), 4))
    if not head:
        raise DataFileError(f"{path}: is empty")
    return head


def _all_lines(path: Path) -> list[Line]:
    with path.open(encoding=ENCODING, newline="") as file:
        lines = list(csv.reader(file))
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataFileError(f"{path}: is empty")
    for i, line in enumerate(lines):
        if not line:
            raise DataFileError(f'{path}: line {i + 1} is blank; a row without a label is written as ""')
        if len(line) != len(lines[0]):
            raise DataFileError(f"{path}: line {i + 1} has {len(line)} fields, but line 1 has {len(lines[0])}")
    return lines


def _classes(values: list[str]) -> NDArray[Any]:
    """Labels exactly as they were written: whole numbers as int64, decimal numbers as float64, or text.

    "001" and "1" are two labels, and so are 2⁵³ and 2⁵³ + 1; an empty field is a row without a label, None.
    """
    given = [value for value in values if value]
    if all(WHOLE.fullmatch(value) for value in given):
        numbers: list[int | None] = [int(value) if value else None for value in values]
        if all(number is None or -(2**63) <= number < 2**63 for number in numbers):
            return np.array(numbers, np.int64 if len(given) == len(values) else object)
    elif all(FLOAT.fullmatch(value) or WHOLE.fullmatch(value) for value in given):
        return np.array([float(value or "nan") for value in values])
    return as_array([value or None for value in values])


# --- Headers ----------------------------------------------------------------------------------------------


def _has_header(path: Path, lines: list[Line], columns: Columns) -> bool:
    """Whether the first of some lines names the columns; ``lines`` may be the beginning of the file."""
    if columns.named and columns.header is False:
        raise DataFileError(f"{path}: columns are asked for by name, but --no-header says that it has none")
    if columns.named or columns.header is not None:
        return columns.named or bool(columns.header)
    first, rest = lines[0], lines[1:]
    if not rest:
        return False
    if _text_over_numbers(lines):
        return True
    if first == [str(j) for j in range(len(first))]:  # as pandas names unnamed columns
        whole = [WHOLE.fullmatch(value) is not None for line in rest for value in line]
        if not all(whole) and (len(first) > 1 or not any(whole)):
            return True
        if all(whole) and len(first) == 1:
            return False  # labels that begin with the class 0
    elif len(first) > 1 or _is_number(first[0]):
        return False
    if first in rest:
        return False
    raise _undecided(path, first)


def _undecided(path: Path, first: Line) -> DataFileError:
    shown = ",".join(first[:4]) + (",…" if len(first) > 4 else "")
    return DataFileError(
        f"{path}: the first line ({shown}) may be a header or a row like the others: say --header or --no-header"
    )


def _text_over_numbers(lines: list[Line]) -> bool:
    """Whether some column has text in the first line and numbers, or nothing, in all the others."""
    return len(lines) > 1 and any(
        value
        and not _is_number(value)
        and all(j < len(line) and (not line[j] or _is_number(line[j])) for line in lines[1:])
        for j, value in enumerate(lines[0])
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_index_column(path: Path, lines: list[Line]) -> None:
    """Refuse the index that pandas writes as the first column unless told not to."""
    counts = all(line and line[0] == str(i) for i, line in enumerate(lines[1:]))
    if len(lines) > 1 and len(lines[0]) > 1 and lines[0][0] in INDEX and counts:
        raise DataFileError(f"{path}: the first column looks like an index column: write the file with index=False")


def _check_number(path: Path, line: Line, j: int, names: Line) -> None:
    if j >= len(line):
        raise DataFileError(f"{path}: its first row has {len(line)} fields, but its header has {len(names)}")
    if not line[j].strip():
        raise DataFileError(f"{path}: has an empty field in its first row, column {names[j] if names else j + 1}")
    if not _is_number(line[j]):
        column = repr(names[j]) if names else str(j + 1)
        raise DataFileError(
            f"{path}: rows must be numbers, found {line[j]!r} in column {column}; name a column of labels with "
            "--y-column, one of ids with --id-column, or those of features with --x-column"
        )
