"""Read rows and labels from files: .npy (memory-mapped), .npz, .parquet, .csv, and folders of shards.

``read_features`` is the entry point. Files are not trusted: pickled objects are never loaded, and a damaged file
raises a ``DataFileError`` that names it. Tables (.parquet and .csv) need pyarrow, the extra ``tables``.

The header of a .csv file: the first line names the columns. For a file without such a line pass ``--no-header``
(in Python: ``ColumnNames(header=False)``). A first line that looks like data is refused, not guessed at: one in
which every cell is a number, or the first of a single column of text (unless it is y, label or id). Pass ``--header``
(``header=True``) if it is a header all the same. Choosing columns by name implies a header. Blank lines are skipped.

Columns that have names are matched by name: a model that was fitted to a table remembers the names of its features
(``feature_names_in_``), and ``ColumnNames.for_model`` reads other tables in their order. Files without names (.npy,
.npz, .csv without a header, a column of vectors) go by position.

Rows without a complete vector (see ``io.gaps``) are an error, which counts and names them. ``ColumnNames(gaps=True)``
reads them as rows of NaN. In a memory map or in shards, whoever reads the rows finds them.
"""

from __future__ import annotations

import csv
import importlib
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from dish.errors import DataFileError
from dish.install import pip_install
from dish.io.atomic import StrPath
from dish.io.gaps import FLAG, check_vectors, without_vector
from dish.io.rows import Shards, is_streamed
from dish.labels import as_array

SUFFIXES = (".npy", ".npz", ".parquet", ".csv")
SHARD_SUFFIXES = (".npy", ".npz", ".parquet")
ROWS_IN_NPZ = ("X", "x", "features", "embeddings")
LABELS_IN_NPZ = ("y", "Y", "labels", "label")
IDS_IN_NPZ = ("ids", "id")
LABEL_COLUMNS = ("y", "label")
ID_COLUMNS = ("id",)
CSV_INDEX_COLUMNS = ("", "Unnamed: 0")  # pandas' names for the index in a .csv file
PARQUET_INDEX_COLUMN = "__index_level_"  # the beginning of pandas' names for the index in a .parquet file
TRUTH = ("True", "False", "true", "false", "TRUE", "FALSE")  # a column of these is read as 1 and 0
CSV_BLOCK = 1 << 20  # bytes parsed at a time, in addition to 64 bytes per column: a line must fit

# What the parsers of NumPy and the standard library raise on damaged files: a .npy header is a Python literal.
DAMAGE: tuple[type[Exception], ...] = (
    OSError, ValueError, EOFError, SyntaxError, OverflowError, TypeError, KeyError, IndexError, AttributeError,
    RecursionError, NotImplementedError, csv.Error, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextmanager
def reading(path: StrPath, kind: str, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn the exceptions of parsers (and those in ``also``) into a DataFileError that names the file."""
    try:
        yield
    except (DataFileError, PermissionError):
        raise
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except (*DAMAGE, *also) as error:
        reason = str(error)
        if "Python objects" in reason or "Object arrays" in reason:
            raise DataFileError(
                f"{path} holds Python objects, which are not loaded: they could run code. Save text as text: "
                "np.save(path, y.astype(str))"
            ) from error
        if "allow_pickle" in reason:
            reason = "it holds no array"
        raise DataFileError(f"{path} is not a {kind}, or is damaged ({reason})") from error


# --- Which columns of a table are features, labels and ids --------------------------------------------------------


@dataclass(frozen=True)
class ColumnNames:
    """The columns of a .csv or .parquet file, where they have other names than y, label and id.

    Parameters
    ----------
    x : tuple of str
        The columns of features, or the one column of vectors. Empty: all columns but labels and ids.
    y, ids : str or None
        The columns of labels and of ids.
    header : bool or None
        Whether the first line of a .csv file names its columns. None: yes, and a line like data is refused.
    order : tuple of str
        The names of all features in the order to read them, as a model knows them. Empty: as in the file.
    gaps : bool
        Whether rows without a complete vector are read, with NaN for what is missing, instead of refused.
    """

    x: tuple[str, ...] = ()
    y: str | None = None
    ids: str | None = None
    header: bool | None = None
    order: tuple[str, ...] = ()
    gaps: bool = False

    @property
    def named(self) -> bool:
        """Whether any column is chosen by name."""
        return bool(self.x or self.y or self.ids)

    def for_model(self, hasher: Any) -> ColumnNames:
        """The same columns, the features in the order that the model was fitted to, if it knows their names."""
        return replace(self, order=tuple(getattr(hasher, "feature_names_in_", ())))

    def without_labels(self) -> ColumnNames:
        """For a file of rows whose labels are in another file."""
        return replace(self, y=None)

    def only_labels(self) -> ColumnNames:
        """For a file that holds labels, but no rows."""
        return self.only(self.y)

    def only(self, name: str | None) -> ColumnNames:
        """For reading one column, as labels are read."""
        return ColumnNames(y=name, header=self.header)

    def only_ids(self, name: str | None) -> ColumnNames:
        """For reading one column, as ids are read."""
        return ColumnNames(ids=name, header=self.header)

    def labels_in(self, path: StrPath, names: Sequence[str], usual: tuple[str, ...] = LABEL_COLUMNS) -> str | None:
        """The name of the column of labels; None if there is none."""
        return self._pick(path, names, self.y, usual)

    def ids_in(self, path: StrPath, names: Sequence[str]) -> str | None:
        """The name of the column of ids; None if there is none."""
        return self._pick(path, names, self.ids, ID_COLUMNS)

    def features_in(self, path: StrPath, names: Sequence[str]) -> list[int]:
        """The positions of the columns of features, in ``order`` if that is known."""
        found = self.features_as_written(path, names)
        return self._ordered(path, names, found) if self.order else found

    def features_as_written(self, path: StrPath, names: Sequence[str]) -> list[int]:
        """The positions of the columns of features, as in ``x`` or in the file."""
        if self.x:
            found = [names.index(_find(path, names, name)) for name in self.x]
        else:
            others = {self.labels_in(path, names), self.ids_in(path, names)}
            found = [
                j for j, name in enumerate(names) if name not in others and not name.startswith(PARQUET_INDEX_COLUMN)
            ]
        if not found:
            raise DataFileError(f"{path} has no columns of features, only {', '.join(names)}")
        return found

    def _pick(self, path: StrPath, names: Sequence[str], wanted: str | None, usual: tuple[str, ...]) -> str | None:
        """The column called ``wanted``, which must exist; without it the one with a usual name, if any.

        A feature is not a label or an id, whatever its name.
        """
        if wanted is not None:
            return _find(path, names, wanted)
        found = [name for name in usual if name in names and name not in (*self.x, *self.order)]
        if len(found) > 1:
            raise DataFileError(
                f"{path} has the columns {' and '.join(map(repr, found))}: which one holds the labels? Name it with "
                "--y-column"
            )
        return found[0] if found else None

    def _ordered(self, path: StrPath, names: Sequence[str], found: list[int]) -> list[int]:
        """Columns of features in ``order``. Raises DataFileError if one is missing or unknown."""
        place, expected = {names[j]: j for j in found}, set(self.order)
        _check_distinct(path, [names[j] for j in found])
        missing, unknown = (
            [repr(name) for name in some if name not in other]
            for some, other in ((self.order, place), (place, expected))
        )
        if missing or unknown:
            problems = [
                f"{what} {', '.join(some[:5])}{', …' if len(some) > 5 else ''}"
                for what, some in (("without", missing), ("with", unknown))
                if some
            ]
            raise DataFileError(
                f"{path} has other columns than the {len(self.order)} features expected: {' and '.join(problems)}; "
                "name the columns of features with --x-column, of labels with --y-column, of ids with --id-column"
            )
        return [place[name] for name in self.order]


def _check_distinct(path: StrPath, names: Sequence[str]) -> None:
    """Raise DataFileError if two features have the same name: they could not be matched by name."""
    seen = set[str]()
    for name in names:
        if name in seen:
            raise DataFileError(f"{path} has several columns {name!r}; features are matched by name: rename one")
        seen.add(name)


def _find(path: StrPath, names: Sequence[str], wanted: str) -> str:
    """The column called ``wanted``, which must exist once."""
    if names.count(wanted) != 1:
        found = "several columns" if wanted in names else "no column"
        some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        raise DataFileError(f"{path} has {found} {wanted!r}; its columns are {some}")
    return wanted


# --- Any file -----------------------------------------------------------------------------------------------------


def read_features(
    path: StrPath, labels: StrPath | None = None, columns: ColumnNames | None = None
) -> tuple[Any, Any]:
    """X (n, d) and y (or None) from a file or a folder of shards.

    ========================  =======================  ==================================================
    path                      X                        y, unless ``labels`` names a file of labels
    ========================  =======================  ==================================================
    .npy                      memory-mapped            ``name_labels.npy`` in the same folder, if it exists
    .npz                      X, x, features,          its array y, Y, labels or label
                              embeddings, or its only
                              array
    .parquet, .csv            columns of numbers, or   its column y or label
                              one column of vectors
    folder of .npy            ``*.npy``                ``y*.npy`` or ``*_labels.npy``, in the same order
    folder of .npz, .parquet  as in one such file      as in one such file
    ========================  =======================  ==================================================

    ``columns`` names the columns of tables that have other names.
    """
    path, columns = Path(path), columns or ColumnNames()
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if labels is not None:
        X, _ = _read(path, columns.without_labels())
        y = read_labels(Path(labels), columns.only_labels())
    else:
        X, y = _read(path, columns)
    check_matrix(path, X)
    if y is not None and (y.ndim not in (1, 2) or y.shape[0] != X.shape[0]):
        raise DataFileError(f"{path} has {X.shape[0]:,} rows, but its labels have shape {y.shape}")
    if not columns.gaps and not is_streamed(X) and without_vector(X).any():
        names = feature_names(path, columns) if is_table(path) else ()
        check_vectors(path, X, own_ids(path, columns), names)
    return X, y


def own_ids(path: Path, columns: ColumnNames) -> Any:
    """The ids that come with the rows of a file: its column of ids, or array of ids; None if there is none."""
    if path.suffix == ".npz" and path.is_file():
        with _open_npz(path) as archive:
            return next((archive[name] for name in IDS_IN_NPZ if name in archive), None)
    if path.is_dir() or not is_table(path):
        return None
    names = _csv_header(path, columns)[0] if path.suffix == ".csv" else list(_parquet_layout(path)[0])
    name = columns.ids_in(path, names)
    return None if name is None else read_ids(path, columns.only_ids(name))


def _read(path: Path, columns: ColumnNames) -> tuple[Any, Any]:
    if path.is_dir():
        return _read_shards(path, columns)
    if path.suffix == ".npy":
        labels = path.with_name(f"{path.stem}_labels.npy")
        return read_npy(path, mmap_mode="r"), read_npy(labels) if labels.exists() else None
    if path.suffix == ".npz":
        with _open_npz(path) as archive:
            return archive[_array_name(path, archive, ROWS_IN_NPZ)], _npz_labels(archive)
    if path.suffix == ".csv":
        names, _ = _csv_header(path, columns)
        return _csv_rows(path, columns), _csv_labels(path, columns) if columns.labels_in(path, names) else None
    if path.suffix == ".parquet":
        name = columns.labels_in(path, list(_parquet_layout(path)[0]))
        return _parquet_matrix(path, _parquet_features(path, columns)), _parquet_labels(path, name) if name else None
    raise _unknown_kind(path)


def feature_names(path: StrPath, columns: ColumnNames | None = None) -> tuple[str, ...]:
    """The names of the features in the columns of a table or of shards; none for files without such names."""
    path, columns = Path(path), columns or ColumnNames()
    names: list[str] = []
    if path.suffix == ".csv" and path.is_file():
        header, _ = _csv_header(path, columns)
        names = [header[j] for j in _csv_features(path, columns, header)] if header else []
    else:
        tables = shard_files(path, ".parquet") if path.is_dir() else [path] if path.suffix == ".parquet" else []
        if tables:
            first = _first_filled(tables)
            names, types = _parquet_features(first, columns), _parquet_layout(first)[0]
            names = [] if _is_vectors(names, types) else names
    _check_distinct(path, names)
    return tuple(names)


def read_labels(path: Path, columns: ColumnNames | None = None) -> Any:
    """Labels from a file: (n,) classes of any type, (n, l) of 0 and 1, or (n,) lists of tags.

    A .txt file has one label per line; an empty line is a missing label.
    """
    return _read_column(path, columns or ColumnNames(), LABEL_COLUMNS, LABELS_IN_NPZ)


def read_ids(path: Path, columns: ColumnNames | None = None) -> Any:
    """Ids from a file, (n,) whole numbers or strings: its column ``columns.ids`` or id, or its only one.

    A .txt file has one id per line.
    """
    columns = columns or ColumnNames()
    return _read_column(path, columns.only(columns.ids), ID_COLUMNS, IDS_IN_NPZ)


def _read_column(path: Path, columns: ColumnNames, usual: tuple[str, ...], in_npz: tuple[str, ...]) -> Any:
    """The column ``columns.y``, the one with a usual name, or all columns of a file."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix == ".npy":
        y = read_npy(path)
    elif path.suffix == ".npz":
        with _open_npz(path) as archive:
            y = archive[_array_name(path, archive, in_npz)]
    elif path.suffix == ".csv":
        y = _csv_labels(path, columns, usual)
    elif path.suffix == ".txt":
        with reading(path, ".txt file in UTF-8"):
            text = path.read_text(encoding="utf-8-sig")
            y = _classes(text.removesuffix("\n").split("\n") if text else [])
    elif path.suffix == ".parquet":
        names = list(_parquet_layout(path)[0])
        if columns.y or len(names) > 1:
            name = columns.labels_in(path, names, usual)
            names = [name] if name else _parquet_features(path, columns)
        y = _parquet_labels(path, names[0]) if len(names) == 1 else _parquet_matrix(path, names)
    else:
        raise _unknown_kind(path, (*SUFFIXES, ".txt"))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2):
        raise DataFileError(f"{path}: labels must have shape (n,) or (n, l), found {y.shape}")
    return y


def as_saved(path: StrPath, name: str, column: Any) -> NDArray[Any]:
    """A column of a table as an array that a .npy file can hold: no Python objects, gaps or lists."""
    values = np.asarray(column)
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        if cut := next((value for value in values if value.endswith("\0")), None):
            raise DataFileError(
                f"{path}: column {name!r} holds {cut!r}; a .npy file drops zero characters at the end of a text, "
                "which could make two values equal. Remove them"
            )
        values = values.astype(str)
    if values.dtype.kind == "O":
        raise DataFileError(
            f"{path}: column {name!r} has gaps, lists or values of several types, which a .npy file cannot hold; "
            "pass the table itself as the file of ids or labels"
        )
    return values


def check_matrix(path: StrPath, X: Any) -> None:
    """Raise DataFileError unless X is a matrix of numbers with at least one row and column."""
    if len(X.shape) != 2 or X.dtype.kind not in "fiub" or 0 in X.shape:
        raise DataFileError(f"{path} must hold a matrix of numbers (n, d), got {X.dtype} of shape {X.shape}")


def _unknown_kind(path: Path, allowed: tuple[str, ...] = SUFFIXES) -> DataFileError:
    return DataFileError(f"{path}: files of this kind cannot be read; use {', '.join(allowed)}")


def _pyarrow(*modules: str) -> tuple[Any, ...]:
    """The package pyarrow, and modules of it."""
    try:
        return tuple(importlib.import_module(name) for name in ("pyarrow", *(f"pyarrow.{m}" for m in modules)))
    except ImportError:
        raise ImportError(f"reading .csv and .parquet files needs pyarrow: {pip_install('tables')}") from None


# --- .npy and .npz ------------------------------------------------------------------------------------------------


def read_npy(path: StrPath, mmap_mode: Any = None) -> NDArray[Any]:
    """The array in a .npy file. Pickled objects are refused."""
    with reading(path, ".npy file of numbers"):
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            array.close()
            raise DataFileError(f"{path} is not a .npy file of numbers: it is an archive of arrays")
        return array


@contextmanager
def _open_npz(path: StrPath) -> Iterator[NpzFile]:
    """The arrays of a .npz file by name. Each is read when it is used; pickled objects are refused."""
    with reading(path, ".npz file of numbers"):
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise DataFileError(f"{path} is not a .npz file of numbers: it is a single array")
        with archive:
            yield archive


def _array_name(path: StrPath, archive: NpzFile, usual: tuple[str, ...]) -> str:
    """The name of the wanted array: the first usual name that exists, or the name of the only array."""
    names = archive.files
    chosen = next((name for name in usual if name in names), names[0] if len(names) == 1 else None)
    if chosen is None:
        raise DataFileError(f"{path} holds {', '.join(names) or 'nothing'}; name the wanted array {usual[0]}")
    return chosen


def _npz_labels(archive: NpzFile) -> NDArray[Any] | None:
    return next((archive[name] for name in LABELS_IN_NPZ if name in archive), None)


# --- .csv ---------------------------------------------------------------------------------------------------------

WHOLE = re.compile(r"0|-?[1-9]\d*", re.ASCII)  # str(int(text)) == text; int() reads the digits of other scripts too
FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?|[+-]?inf|nan", re.ASCII | re.IGNORECASE)


def _csv_head(path: Path) -> list[list[str]]:
    """The first two lines of a .csv file that are not blank, or its only one."""
    with reading(path, "table of comma-separated values"), path.open(encoding="utf-8-sig", newline="") as file:
        head = list(islice((line for line in csv.reader(file) if line), 2))
    if not head:
        raise DataFileError(f"{path} is empty")
    return head


def _csv_header(path: Path, columns: ColumnNames) -> tuple[list[str], int]:
    """The column names of a .csv file (none if it has no header) and the number of its columns."""
    head = _csv_head(path)
    first = head[0]
    if columns.header is False:
        if columns.named:
            raise DataFileError(f"{path}: columns are chosen by name, but --no-header says that they have no names")
        return [], len(first)
    if columns.header is None and not columns.named and _looks_like_data(head):
        shown = ",".join(first[:4]) + (",…" if len(first) > 4 else "")
        raise DataFileError(
            f"{path}: the first line ({shown}) looks like data; pass --no-header if the file has no header, or "
            "--header if this is one (in Python: ColumnNames(header=False) or header=True)"
        )
    return first, len(first)


def _looks_like_data(head: list[list[str]]) -> bool:
    """Whether the first line could be a row: it has numbers only, or is the first of a single column of text."""
    first, rest = head[0], head[1:]
    if all(not cell or _is_number(cell) or cell in TRUTH for cell in first):
        return True
    names_itself = first[0] in (*LABEL_COLUMNS, *ID_COLUMNS)
    return len(first) == 1 and not names_itself and bool(rest) and not _is_number(rest[0][0] or "0")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _csv_rows(path: Path, columns: ColumnNames) -> NDArray[np.float64]:
    """The features (n, d) in a .csv file."""
    names, width = _csv_header(path, columns)
    used = _csv_features(path, columns, names) if names else list(range(width))
    hint = "name columns of labels with --y-column, of ids with --id-column, of features with --x-column"
    X = _csv_matrix(path, names, width, used, hint)
    if len(X) > 2 and len(used) > 1 and np.array_equal(X[:, 0], np.arange(len(X))):
        warnings.warn(
            f"{path}: the first column counts the rows 0, 1, 2, … and is used as a feature; if it is an index, write "
            "the file with index=False",
            stacklevel=5,
        )
    return X


def _csv_labels(path: Path, columns: ColumnNames, usual: tuple[str, ...] = LABEL_COLUMNS) -> NDArray[Any]:
    """The labels in a .csv file: a column of classes (n,), or several columns of 0 and 1, (n, l)."""
    names, width = _csv_header(path, columns)
    used = list(range(width))
    if names and (columns.y or len(names) > 1):
        name = columns.labels_in(path, names, usual)
        used = [names.index(name)] if name else _csv_features(path, columns, names)
    if len(used) > 1:
        hint = "labels in several columns must be 0 and 1; if one column holds the classes, name it with --y-column"
        return _csv_matrix(path, names, width, used, hint)
    (pa,) = _pyarrow()
    found: list[str] = []
    for batch in _csv_batches(path, names, width, used, [pa.string()], ""):
        found += batch.column(0).to_pylist()
    return _classes(found)


def _csv_features(path: Path, columns: ColumnNames, names: list[str]) -> list[int]:
    """The positions of the columns of features, without the index that pandas writes unless told not to."""
    used = columns.features_as_written(path, names)
    if len(used) > 1 and names[used[0]] in CSV_INDEX_COLUMNS:
        raise DataFileError(f"{path}: the first column looks like an index column: write the file with index=False")
    return columns.features_in(path, names)


def _csv_matrix(path: Path, names: list[str], width: int, used: list[int], hint: str) -> NDArray[np.float64]:
    """Columns of numbers or truth values as (n, d); an empty field is NaN.

    The matrix grows in place: no second copy of it is made.
    """
    (pa,) = _pyarrow()
    first = dict(enumerate(_csv_head(path)[-1]))  # a row that tells truth values from numbers
    types = [pa.bool_() if first.get(j) in TRUTH else pa.float64() for j in used]
    X = np.empty((0, len(used)))
    for batch in _csv_batches(path, names, width, used, types, hint):
        n = len(X)
        X.resize((n + batch.num_rows, len(used)), refcheck=False)
        for j, column in enumerate(batch.columns):
            X[n:, j] = _numbers(column)
    return X


def _csv_batches(
    path: Path, names: list[str], width: int, used: list[int], types: list[Any], hint: str
) -> Iterator[Any]:
    """Columns of a .csv file as Arrow record batches, read in blocks. ``hint`` ends the error for a bad value."""
    pa, arrow = _pyarrow("csv")
    columns = [str(j) for j in range(width)]  # names in the file may occur twice
    chosen = [columns[j] for j in used]
    empty = True
    try:
        with arrow.open_csv(
            path,
            arrow.ReadOptions(
                use_threads=False,  # without threads errors tell the row
                block_size=CSV_BLOCK + 64 * width,
                column_names=columns,
                skip_rows_after_names=1 if names else 0,
            ),
            arrow.ParseOptions(newlines_in_values=True),
            arrow.ConvertOptions(
                column_types=dict(zip(chosen, types, strict=True)),
                include_columns=chosen,
                null_values=[""],  # of numbers
                strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                empty = empty and not batch.num_rows
                yield batch
    except pa.ArrowException as error:
        raise DataFileError(f"{path}: {_csv_problem(str(error), names, width, hint)}") from None
    if empty:
        raise DataFileError(f"{path} has a header, but no rows")


def _csv_problem(message: str, names: list[str], width: int, hint: str) -> str:
    """pyarrow's message about a bad value or a row of another length, in the terms of the file."""
    counted = "(the first line is row 1)"
    if found := re.search(r"column #(\d+): Row #(\d+): .* invalid value '(.*)'", message, re.DOTALL):
        column = repr(names[int(found[1])]) if names else str(int(found[1]) + 1)
        no = "neither True nor False, as in other rows" if "error to bool" in message else "not a number"
        return f"row {found[2]} {counted} has {found[3]!r}, which is {no}, in column {column}; {hint}"
    if found := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message):
        return f"row {found[1]} {counted} has {found[3]} fields, but the first line has {width}"
    return message


def _classes(values: list[str]) -> NDArray[Any]:
    """Labels exactly as they are written: whole numbers as int64, decimal numbers as float64, or text.

    "001" and "1" are two labels, and so are 2⁵³ and 2⁵³ + 1. An empty field is a missing label, None.
    """
    given = [value for value in values if value]
    if all(WHOLE.fullmatch(value) for value in given):
        numbers: list[int | None] = [int(value) if value else None for value in values]
        if all(number is None or -(2**63) <= number < 2**63 for number in numbers):
            return np.array(numbers, np.int64 if len(given) == len(values) else object)
    elif all(FLOAT.fullmatch(value) or WHOLE.fullmatch(value) for value in given):
        return np.array([float(value or "nan") for value in values])
    return as_array([value or None for value in values])


# --- .parquet -----------------------------------------------------------------------------------------------------


def _parquet_layout(path: StrPath) -> tuple[dict[str, Any], int]:
    """The types of the columns by name, and the number of rows. Only the end of the file is read."""
    pa, pq = _pyarrow("parquet")
    with reading(path, "parquet file", (pa.ArrowException,)):
        schema = pq.read_schema(path)
        return dict(zip(schema.names, schema.types, strict=True)), pq.read_metadata(path).num_rows


def _parquet_features(path: StrPath, columns: ColumnNames) -> list[str]:
    """The names of the columns of features: one column of vectors, or columns of numbers."""
    types, _ = _parquet_layout(path)
    every = list(types)
    names = [every[j] for j in columns.features_as_written(path, every)]
    if not _is_vectors(names, types):
        names = [every[j] for j in columns.features_in(path, every)]
    if len(names) > 1 and not all(_is_numeric(types[name]) for name in names):
        shown = ", ".join(f"{name} ({types[name]})" for name in names[:20])
        raise DataFileError(
            f"{path}: which of the columns {shown} are the features? They must be one column of vectors, or columns "
            "of numbers. Name them with --x-column, those of labels and ids with --y-column and --id-column"
        )
    return names


def _is_vectors(names: list[str], types: dict[str, Any]) -> bool:
    """Whether the features are one column of vectors."""
    pa, _ = _pyarrow("parquet")
    return len(names) == 1 and bool(pa.types.is_nested(types[names[0]]))


def _parquet_matrix(path: StrPath, names: list[str], head: int | None = None) -> NDArray[Any]:
    """Columns of numbers, or one column of vectors, as (n, d). ``head``: only that many rows."""
    pa, pq = _pyarrow("parquet")
    with reading(path, "parquet file", (pa.ArrowException, StopIteration)):
        if head is None:
            table = pq.read_table(path, columns=names)
        else:
            with pq.ParquetFile(path) as file:
                table = pa.Table.from_batches([next(file.iter_batches(head, columns=names))])
        values = [table[name].combine_chunks() for name in names]
        if len(values) == 1 and pa.types.is_nested(values[0].type):
            return _matrix_of_lists(path, names[0], values[0])
        return np.column_stack([_numbers(value) for value in values])


def _parquet_labels(path: StrPath, name: str) -> Any:
    """A column of labels: (n,) classes, None where missing; (n, l) from vectors; or (n,) lists of tags."""
    pa, pq = _pyarrow("parquet")
    with reading(path, "parquet file", (pa.ArrowException,)):
        values = pq.read_table(path, columns=[name])[name].combine_chunks()
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_nested(values.type):
            if _is_numeric(values.type.value_type):
                return _matrix_of_lists(path, name, values)
            tags = np.empty(len(values), object)
            tags[:] = values.to_pylist()
            return tags
        if values.null_count or not _is_numeric(values.type):
            return as_array(values.to_pylist())  # NumPy would turn whole numbers with gaps into floats
        return np.asarray(values.to_numpy(zero_copy_only=False))


def _matrix_of_lists(path: StrPath, name: str, lists: Any) -> NDArray[Any]:
    """Lists of one length as (n, d). A list that is null or empty becomes a row of NaN."""
    _, compute = _pyarrow("compute")
    widths = compute.fill_null(compute.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    given = widths > 0
    width = int(np.bincount(widths[given]).argmax()) if given.any() else 0
    others = np.flatnonzero(given & (widths != width))
    if len(others):
        raise DataFileError(
            f"{path}: the lists in column {name!r} differ in length: {len(others):,} of {len(lists):,} do not have "
            f"{width:,} values, and the first of these is row {others[0]} (counted from 0) with {widths[others[0]]:,}"
        )
    values = _numbers(lists.flatten()).reshape(-1, width) if width else np.empty((0, 0))
    if given.all():
        return values
    X = np.full((len(lists), width), np.nan, values.dtype if values.dtype.kind == "f" else np.float64)
    X[given] = values
    return X


def _numbers(values: Any) -> NDArray[Any]:
    """An Arrow array of numbers or truth values as a NumPy array, with NaN for null."""
    pa, _ = _pyarrow("compute")
    if values.null_count and pa.types.is_boolean(values.type):  # else an array of Python objects
        values = values.cast(pa.float64())
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _is_numeric(kind: Any) -> bool:
    (pa,) = _pyarrow()
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


# --- Folders of shards --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shard:
    """What the head of a file says about its rows; ``rows()`` reads them. Files are not kept open."""

    file: Path
    shape: tuple[int, ...]
    dtype: Any
    rows: Any


def is_table(path: Path) -> bool:
    """Whether a file or a folder of shards may have columns with names."""
    return path.suffix in (".csv", ".parquet") or (path.is_dir() and bool(shard_files(path, ".parquet")))


def has_shards(folder: Path) -> bool:
    """Whether a folder holds files that can be shards."""
    return any(shard_files(folder, suffix) for suffix in SHARD_SUFFIXES)


def _read_shards(folder: Path, columns: ColumnNames) -> tuple[Shards, Any]:
    """The rows of all shards as one matrix, and their labels, or None."""
    found = {suffix: files for suffix in SHARD_SUFFIXES if (files := shard_files(folder, suffix))}
    if len(found) != 1:
        kinds = " and ".join(found) or "none"
        raise DataFileError(f"{folder} must hold shards of one kind, .npy, .npz or .parquet files; found {kinds}")
    ((suffix, files),) = found.items()
    check_none_missing([file.name for file in files], folder)
    if suffix == ".npy":
        return _npy_shards(folder, files, columns)
    return _npz_shards(files) if suffix == ".npz" else _parquet_shards(files, columns)


def shard_files(folder: Path, suffix: str) -> list[Path]:
    """The files in the order of the numbers in their names: part-2 before part-10."""

    def key(file: Path) -> list[Any]:
        return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", file.name)]

    return sorted(folder.glob(f"*{suffix}"), key=key)


def check_none_missing(names: list[str], folder: Path) -> None:
    """Raise DataFileError if the names count shards, and one is missing: part-00000, part-00002; or part-3-of-8."""
    series: dict[tuple[str, str], dict[int, str]] = {}
    for name in names:
        if found := re.fullmatch(r"(.*?)(\d+)(?:-of-(\d+))?(\D*)", name):
            series.setdefault((found[1], found[3] or ""), {})[int(found[2])] = name
    for (prefix, total), have in series.items():
        first = min(have)
        if not total and first > 1 and not re.search(rf"0{first}", have[first]):
            continue  # years or sizes: these numbers do not count from 0 or 1
        wanted = range(first if first <= 1 else 0, first + int(total)) if total else range(first, max(have) + 1)
        missing = [i for i in wanted if i not in have]
        if missing and (total or len(have) > 1):
            end = f"-of-{total}" if total else ""
            raise DataFileError(
                f"{folder}: shard {prefix}{missing[0]:0{_digits(have)}d}{end} is missing"
                + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")
            )


def _digits(have: dict[int, str]) -> int:
    """The number of digits to which the numbers of a series are padded with zeros; 1 if they are not."""
    number, name = next(iter(have.items()))
    found = re.search(rf"0*{number}", name)
    return len(found[0]) if found else 1


def _as_one(shards: list[_Shard]) -> Shards:
    for shard in shards:
        check_matrix(shard.file, shard)
        if shard.shape[1] != shards[0].shape[1]:
            raise DataFileError(
                f"{shard.file} has {shard.shape[1]} features, but {shards[0].file} has {shards[0].shape[1]}"
            )
    dtype = np.result_type(*(shard.dtype for shard in shards))
    lengths, names = [shard.shape[0] for shard in shards], [str(shard.file) for shard in shards]
    return Shards([shard.rows for shard in shards], lengths, shards[0].shape[1], dtype, names)


def _check_some_rows(file: Path, rows: NDArray[Any]) -> None:
    """Raise DataFileError for NaN in a few rows: a shard full of NaN is found before a long pass over all shards."""
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        raise DataFileError(f"{file} contains NaN or infinity: leave out the rows with NaN with {FLAG}")


def _join_labels(folder: Path, labels: list[Any], n_files: int) -> Any:
    """The labels of all shards; None if no shard has labels."""
    if not labels:
        return None
    if len(labels) != n_files:
        raise DataFileError(f"{folder}: only {len(labels)} of {n_files} shards hold labels")
    if len({(y.ndim, *y.shape[1:]) for y in labels}) > 1:
        raise DataFileError(f"{folder}: the labels of its shards differ in shape")
    if len({y.dtype.kind in "OUS" for y in labels}) > 1:
        raise DataFileError(f"{folder}: labels are text in some shards and numbers in others")
    return np.concatenate(labels)


def _npy_shards(folder: Path, files: list[Path], columns: ColumnNames) -> tuple[Shards, Any]:
    label_files = [f for f in files if re.match(r"(y|labels?)($|[-_.\d])", f.stem) or f.stem.endswith("_labels")]
    shards = [_npy_shard(file, columns) for file in files if file not in label_files]
    if not shards:
        raise DataFileError(f"{folder} holds labels (y*.npy, labels*.npy, *_labels.npy) but no features")
    X, labels = _as_one(shards), [read_npy(file) for file in label_files]
    if 1 < len(labels) != len(shards):
        raise DataFileError(f"{folder} has {len(shards)} files of features, but {len(labels)} of labels")
    if len(labels) == len(shards):
        for shard, file, y in zip(shards, label_files, labels, strict=True):
            if shard.shape[0] != len(y):
                raise DataFileError(f"{shard.file} has {shard.shape[0]:,} rows, but {file} has {len(y):,} labels")
    return X, _join_labels(folder, labels, len(labels))


def _npy_shard(file: Path, columns: ColumnNames) -> _Shard:
    rows = read_npy(file, mmap_mode="r")
    if rows.ndim == 2 and len(rows) and not columns.gaps:
        _check_some_rows(file, rows[[0, len(rows) // 2, len(rows) - 1]])
    return _Shard(file, rows.shape, rows.dtype, partial(read_npy, file, "r"))


def _npz_shards(files: list[Path]) -> tuple[Shards, Any]:
    shards, labels = [], []
    for file in files:
        with _open_npz(file) as archive:
            name = _array_name(file, archive, ROWS_IN_NPZ)
            shards.append(_Shard(file, *_npz_head(archive, name), partial(_npz_rows, file, name)))
            y = _npz_labels(archive)
        if y is not None:
            if y.shape[:1] != shards[-1].shape[:1]:
                raise DataFileError(f"{file} has {shards[-1].shape[0]:,} rows, but labels of shape {y.shape}")
            labels.append(y)
    return _as_one(shards), _join_labels(files[0].parent, labels, len(files))


def _npz_head(archive: Any, name: str) -> tuple[tuple[int, ...], Any]:
    """Shape and type of an array in an archive. Its values are not read."""
    with archive.zip.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


def _npz_rows(file: Path, name: str) -> NDArray[Any]:
    with _open_npz(file) as archive:
        return np.asarray(archive[name])


def _parquet_shards(files: list[Path], columns: ColumnNames) -> tuple[Shards, Any]:
    layouts = {file: _parquet_layout(file) for file in files}
    labels = [
        _parquet_labels(file, name)
        for file, (types, _) in layouts.items()
        if (name := columns.labels_in(file, list(types))) is not None
    ]
    y = _join_labels(files[0].parent, labels, len(files))
    filled = [file for file, (_, n) in layouts.items() if n]
    if not filled:
        raise DataFileError(f"{files[0].parent}: all shards are empty")
    names = _parquet_features(_first_filled(files), columns)
    shards = []
    for file in filled:
        head = _parquet_rows(file, names, columns, head=16)
        if not head.shape[1]:  # all these lists are null or empty
            head = _parquet_rows(file, names, columns)
        check_matrix(file, head)
        if not columns.gaps:
            _check_some_rows(file, head)
        dtype = np.result_type(np.float32, head.dtype)  # columns of whole numbers may have gaps, read as NaN
        shape = (layouts[file][1], head.shape[1])
        shards.append(_Shard(file, shape, dtype, partial(_parquet_rows, file, names, columns)))
    return _as_one(shards), y


def _first_filled(files: list[Path]) -> Path:
    """The first shard with rows, which sets the order of the features; without rows, the first of all."""
    return next((file for file in files if _parquet_layout(file)[1]), files[0])


def _parquet_rows(file: Path, names: list[str], columns: ColumnNames, head: int | None = None) -> NDArray[Any]:
    """The features of a shard, its columns in the order of the first shard."""
    here = _parquet_features(file, columns)
    if len(here) == len(names) and set(here) != set(names):
        raise DataFileError(
            f"{file} has other columns than the first shard: {', '.join(sorted(set(here) ^ set(names))[:4])}"
        )
    return _parquet_matrix(file, names if set(here) == set(names) else here, head)
