"""`dish search` with filters and rescoring: an index that is searched among some of its rows, and the queries."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dish.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dish.index.hamming import HammingIndex


@dataclass(frozen=True)
class Queries:
    """Packed codes, and what rescored queries are compared by: outputs or float vectors."""

    codes: NDArray[Any]
    finer: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, some: slice) -> Queries:
        return Queries(self.codes[some], None if self.finer is None else self.finer[some])


@dataclass(frozen=True)
class FilteredIndex:
    """An index with the filters and the rescoring of one command."""

    index: HammingIndex
    filters: dict[str, Any]
    rescore: str | None = None
    shortlist: int | None = None

    def search(self, queries: Queries, k: int) -> Any:
        """Return distances, or scores if the hits are rescored, and ids."""
        options: dict[str, Any] = {**self.filters, "rescore": self.rescore, "shortlist": self.shortlist}
        if self.rescore == "asymmetric":
            return self.index.search(queries.finer, k, **options)  # type: ignore[arg-type]
        return self.index.search(queries.codes, k, query_vectors=queries.finer, **options)

    def radius_search(self, queries: Queries, radius: int) -> Any:
        """Return limits, distances and ids."""
        return self.index.radius_search(queries.codes, radius, **self.filters)

    def labels_of(self, ids: Any) -> NDArray[Any]:
        """Return the labels of some ids."""
        return self.index.labels_of(ids)


def label_values(texts: list[str]) -> list[Any]:
    """Return labels as an index may store them: as text, and those that read as numbers also as numbers."""
    values: list[Any] = list(texts)
    for text in texts:
        for number in (int, float):
            with suppress(ValueError):
                values.append(number(text))
                break
    return values


def check_rescore(rescore: str | None, radius: int | None, shortlist: int | None, **files: Path | None) -> None:
    """Refuse options that do not go together. ``files`` are those of --model, --vectors and --query-vectors."""
    needed = {"asymmetric": ("model", "query_vectors"), "float": ("vectors", "query_vectors")}
    if rescore is not None and rescore not in needed:
        raise InputError(f"--rescore must be asymmetric or float; got {rescore!r}")
    if rescore is not None and radius is not None:
        raise InputError("--rescore orders the k best rows: give -k instead of --radius")
    if rescore is None and shortlist is not None:
        raise InputError("--shortlist is the number of rows that --rescore orders: give --rescore, too")
    wanted = needed.get(rescore or "", ())
    for name, path in files.items():
        option = f"--{name.replace('_', '-')}"
        if name in wanted and path is None:
            raise InputError(f"--rescore {rescore} needs {option}")
        if name not in wanted and path is not None:
            other = "asymmetric" if name == "model" else "float"
            raise InputError(f"{option} is for --rescore {other}")


def finer_queries(path: Path, model: Path | None, n: int) -> NDArray[Any]:
    """Return the float vectors of the queries, or the outputs of a model for them."""
    from dish.io.readers import read_features
    from dish.registry import load

    X = read_features(path)[0]
    if len(X) != n:
        raise InputError(f"{path} has {len(X):,} rows for {n:,} codes: give one vector per query")
    return X if model is None else load(model).without_names().decision_function(X)
