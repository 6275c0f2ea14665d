"""`dish photos`: search a folder of photos, on a page in the browser."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dish.cli.options import Host, Port, Token, check_token, example
from dish.errors import InputError

if TYPE_CHECKING:
    from dish.photos import Library

MAX_BODY = 64 << 20  # bytes: enough for whole photos
MAX_PIXELS = 200_000_000
CONNECTIONS = 64  # each may hold a body in memory


@example(
    "dish photos ~/Pictures",
    "dish photos ~/Pictures --writable --port 8080",
    "dish photos ~/Pictures/by-kind --train",
)
def photos(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of photos, with or without sub-folders.")],
    bits: Annotated[
        int | None, typer.Option(min=8, help="Code length. Default: 64 with labels, 256 without.")
    ] = None,
    labels: Annotated[
        bool | None,
        typer.Option(
            "--labels/--no-labels",
            help="Whether sub-folders are labels to learn from. Default: yes if every photo is in one.",
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Fine-tune the network on the labels. The expected time is printed first.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="With --train: epochs per round. Default: 5.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Learn the codes again; features are kept.")] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for features, codes and index. Default: in the user's cache folder.")
    ] = None,
    writable: Annotated[
        bool, typer.Option("--writable", help="Allow adding and removing photos on the page.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Serve the page, or only update features, codes and index.")
    ] = True,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
) -> None:
    """Search a folder of photos for similar photos, copies, and photos that resemble an uploaded picture.

    The first call computes features of every photo (a minute for a few hundred). Later calls start at once, add new
    files and drop deleted ones. Nothing leaves this machine, and the photos are not changed.
    Needs the extras: pip install 'dish-hash\\[serve,efficientnet]'.
    """
    check_token(token)
    if epochs is not None and not train:
        raise InputError("--epochs needs --train")
    if find_spec("PIL") is None:  # one message for all missing packages
        raise ModuleNotFoundError("dish photos needs its extras: pip install 'dish-hash[serve,efficientnet]'")
    from dish.photos.options import EPOCHS, PhotoOptions
    from dish.photos.state import default_home
    from dish.web.photos import open_or_update, open_photos

    options = PhotoOptions(bits, labels, (epochs or EPOCHS) if train else None, again)
    if not page:
        _report(open_or_update(folder, options, cache or default_home(folder), _say))
        return
    from dish.web import server
    from dish.web.limits import Limits
    from dish.web.logs import start_log

    start_log(logging.WARNING)  # no line for every thumbnail
    found, library = open_photos(folder, options, cache, writable=writable, say=_say)
    _report(library)
    limits = Limits(max_body=MAX_BODY, max_pixels=MAX_PIXELS, connections=CONNECTIONS, token=token)
    server.serve(found, limits, host=host, port=port, show=browser and sys.stdout.isatty(), eager=False)


def _say(line: str) -> None:
    print(f"dish: {line}", flush=True)


def _report(library: Library) -> None:
    _say(f"{len(library.index):,} photos ({library.new:,} new, {library.gone:,} gone)")
    if library.problems:
        first = next(iter(library.problems.values()))
        _say(f"{len(library.problems):,} photos cannot be read and are skipped; the first: {first}")
