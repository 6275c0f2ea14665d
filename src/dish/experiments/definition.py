"""The definition of a run: what is trained on what, and how. Its file name says all of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Results = dict["Run", dict[str, Any]]
FLOATS = {  # rankings by real numbers, which have no code length: lines to compare codes with
    "l2": "cosine of the floats",  # rows have length one: the order of l2 distances is that of cosines
    "ceiling": "float ceiling (product of posteriors)",
}


@dataclass(frozen=True)
class Run:
    """One definition.

    ``data`` is a name of the registry, or the key that ``bench.data_key`` gives to somebody's own features;
    ``params`` are parameters of the method beyond its defaults; ``cut`` cuts the MAP at that many places;
    ``n_queries`` and ``n_database`` take some of the rows.
    """

    data: str
    method: str
    bits: int
    n_train: int | None = None
    trial: int = 0
    params: tuple[tuple[str, Any], ...] = ()
    cut: int | None = None
    n_queries: int | None = None
    n_database: int | None = None

    def path(self, folder: Path) -> Path:
        """Where its result goes."""
        method = re.sub(r"[^\w.]", "-", self.method)  # a class of one's own is named module:Class
        parts = [method, f"{self.bits}bits", f"train{self.n_train or 'all'}", f"trial{self.trial}"]
        parts += [f"{name}={_exactly(value)}" for name, value in self.params]
        parts += [f"cut{self.cut}"] if self.cut else []
        parts += [f"queries{self.n_queries}"] if self.n_queries else []
        parts += [f"database{self.n_database}"] if self.n_database else []
        return folder / self.data / ("_".join(parts) + ".json")

    def definition(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**vars(self), "params": dict(self.params)}


def _exactly(value: Any) -> str:
    """A parameter's value so that no two look the same: 10.0 is 10, and 1.0000001 has all its digits."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
