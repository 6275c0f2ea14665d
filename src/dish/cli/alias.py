"""`dish alias`: name the collection that a server serves, switch to another one, and roll back."""

from __future__ import annotations

import json as js
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dish.cli.options import VectorIdsPath, VectorsPath, example, existing_index

if TYPE_CHECKING:
    from dish.alias import Verified

AliasPath = Annotated[Path, typer.Argument(metavar="ALIAS", help="The alias file, such as products.alias.")]
NEXT = "A running `dish serve` switches to it after POST /admin/reload or SIGHUP."


@example(
    "dish alias set products.alias --model m2.dish --index ix2.dish",
    "dish alias set products.alias --model m2.dish --index ix2.dish --vectors x2.npy --vector-ids ids2.npy",
)
def set_alias(
    alias: AliasPath,
    model: Annotated[Path, typer.Option(help="A model file made by `dish fit`.")],
    index: Annotated[
        Path, typer.Option(callback=existing_index, help="An index of its codes, made by `dish index`.")
    ],
    vectors: VectorsPath = None,
    vector_ids: VectorIdsPath = None,
) -> None:
    """Verify a model and an index, then let the alias name them. The collection before them is kept for rollback.

    Both files are loaded with their checksums, must belong together, and must answer a few searches. If they are
    refused, the alias stays as it is.
    """
    from dish.alias import Alias, CollectionFiles

    _report(alias, Alias(alias).set(CollectionFiles(model, index, vectors, vector_ids)))


@example("dish alias rollback products.alias")
def rollback(alias: AliasPath) -> None:
    """Verify the collection before the present one, then let the alias name it again. A second call undoes this."""
    from dish.alias import Alias

    _report(alias, Alias(alias).roll_back())


@example("dish alias show products.alias")
def show(alias: AliasPath, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the files that an alias names, and those before them."""
    from dish.alias import Alias

    now, before = Alias(alias).entries()
    entries = {"current": now, "previous": before}
    if json:
        print(js.dumps({name: one and {**one.paths, "since": one.since} for name, one in entries.items()}))
        return
    for name, one in entries.items():
        files = "nothing" if one is None else f"{', '.join(one.paths.values())} since {one.since}"
        print(f"{name}: {files}")


def _report(path: Path, verified: Verified) -> None:
    from dish.alias import Alias

    files = Alias(path).files
    about = f"{verified.items:,} items, codes of {verified.n_bits} bits, {verified.kind} {verified.model}"
    print(f"{path}: {files} ({about}). {NEXT}")
