"""Which columns of a table are rows, labels and ids: by the names people give them, or as the user says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dish.errors import DataFileError
from dish.io.errors import StrPath

LABELS = ("y", "label")  # columns that are labels, not features
IDS = ("id",)
PANDAS_INDEX = "__index_level_"  # what pandas calls an index in a .parquet file


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a .csv or .parquet file, where they do not speak for themselves.

    ``x``: the features, or the one column of vectors; ``y``: the labels; ``ids``: the ids. ``header``: whether the
    first line of a .csv file names its columns (None: decided from the file, or refused where it could be either).
    """

    x: tuple[str, ...] = ()
    y: str | None = None
    ids: str | None = None
    header: bool | None = None

    @property
    def named(self) -> bool:
        """Whether any column is asked for by name, so that the file must have names."""
        return bool(self.x or self.y or self.ids)

    def without_labels(self) -> Columns:
        """For a file of rows whose labels are in another file."""
        return replace(self, y=None)

    def only_labels(self) -> Columns:
        """For a file of labels beside a file of rows."""
        return Columns(y=self.y, header=self.header)

    def only(self, name: str) -> Columns:
        """For one column of the file, whatever it holds."""
        return Columns(y=name, header=self.header)

    def labels_in(self, path: StrPath, names: Sequence[str]) -> str | None:
        """The column of labels: the one asked for, or one called y or label; None if there is none."""
        return _pick(path, names, self.y, LABELS)

    def ids_in(self, path: StrPath, names: Sequence[str]) -> str | None:
        """The column of ids: the one asked for, or one called id; None if there is none."""
        return _pick(path, names, self.ids, IDS)

    def features_in(self, path: StrPath, names: Sequence[str]) -> list[str]:
        """The columns of features: those asked for, or all that are neither labels, ids nor pandas' index."""
        if self.x:
            for name in self.x:
                _pick(path, names, name, ())
            return list(self.x)
        others = {self.labels_in(path, names), self.ids_in(path, names)}
        left = [name for name in names if name not in others and not name.startswith(PANDAS_INDEX)]
        if not left:
            raise DataFileError(f"{path} holds labels but no features: its columns are {', '.join(names)}")
        return left


def _pick(path: StrPath, names: Sequence[str], wanted: str | None, usual: tuple[str, ...]) -> str | None:
    if wanted is None:
        return next((name for name in usual if name in names), None)
    if names.count(wanted) != 1:
        found = "several columns" if wanted in names else "no column"
        some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        raise DataFileError(f"{path} has {found} {wanted!r}; it has {some}")
    return wanted
