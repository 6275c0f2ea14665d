"""`dish serve` and `dish demo`: search over HTTP, and the demonstration on digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from dish.cli.options import Host, Port, console, example
from dish.errors import InputError


@example(
    "dish serve --model m.dish --index ix.dish --images photos --writable; "
    "dish serve --model m.dish --index ix.dish --workers 4"
)
def serve(
    model: Annotated[Path, typer.Option(help="A model file made by `dish fit`.")],
    index: Annotated[Path, typer.Option(help="An index of its codes, made by `dish index`.")],
    images: Annotated[Path | None, typer.Option(help="Folder of pictures, named by the ids of the items.")] = None,
    takes: Annotated[
        str | None,
        typer.Option(
            "--input", help="What becomes of an uploaded picture: vector, gist32, digits8, efficientnet_lite0, image."
        ),
    ] = None,
    writable: Annotated[
        bool, typer.Option("--writable", help="Take new items (POST /items) and remove them (DELETE /items/ID).")
    ] = False,
    title: Annotated[str | None, typer.Option(help="Heading of the page; default: the name of the folder.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="DISH_TOKEN", help="Bearer token that clients must send.")
    ] = None,
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes per request, at most.")] = 4 << 20,
    max_k: Annotated[int, typer.Option(min=1, help="Hits per search, at most.")] = 1000,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of an uploaded picture, at most.")] = 16_000_000,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests under way; the next ones get 503.")] = 32,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A further host name to answer to; repeatable; * answers to any.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that answer; several share the index's file and take no items.")
    ] = 1,
) -> None:
    """Serve search over HTTP, with a page. Needs the extra: pip install 'dish-hash\\[serve]'."""
    if token is not None and not token.strip():
        raise InputError("--token must not be empty")
    if workers > 1 and writable:
        raise InputError(
            f"--workers {workers} and --writable do not go together: several workers share one index, which none of "
            "them may change; leave out one of the two"
        )
    from dish.web.logs import start_log
    from dish.web.middleware import Limits

    limits = Limits(max_body=max_body, max_k=max_k, max_pixels=max_pixels, concurrency=concurrency, token=token)
    start_log()
    if workers > 1:
        from dish.web.workers import Served
        from dish.web.workers import serve as serve_together

        served = Served(model, index, images, takes, title)
        serve_together(served, limits, workers, host=host, port=port, allowed_hosts=allowed_host or ())
        return
    from dish.web import server

    found = server.open_collection(model, index, images=images, takes=takes, writable=writable, title=title)
    server.serve(found, limits, host=host, port=port, allowed_hosts=allowed_host or ())


@example("dish demo --output demo; dish demo --serve")
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the page and the model.")] = Path("demo"),
    serve: Annotated[bool, typer.Option("--serve", help="Serve a page to search on instead.")] = False,
    data: Annotated[str, typer.Option(help="With --serve: digits or cifar10.")] = "digits",
    host: Host = "127.0.0.1",
    port: Port = 8000,
) -> None:
    """Train on real handwritten digits, compare with l2 and LSH, search, and draw the neighbours."""
    if serve:
        _serve_demo(data, host, port)
        return
    if data != "digits":
        raise InputError(f"--data {data} needs --serve")
    from dish.experiments import demo as demonstration

    output.mkdir(parents=True, exist_ok=True)
    result = demonstration.run()
    table = Table(title="scikit-learn digits (real data): 300 queries, 1,497 database rows")
    for name in ("ranking by", "bytes per row", "MAP", "precision within radius 2"):
        table.add_column(name, justify="left" if name == "ranking by" else "right")
    for row in result.rows:
        precision = "–" if row.precision is None else f"{row.precision:.3f}"
        table.add_row(row.method, str(row.bytes), f"{row.map:.3f}", precision)
    console.print(table)
    for i, label in enumerate(result.query_labels[:5]):
        found = " ".join(str(result.labels[j]) for j in result.neighbours[i])
        print(f"query {label}: nearest by 64-bit code are {found}")
    result.hasher.save(output / "digits.dish")
    demonstration.write_page(result, output / "digits.html")
    demonstration.write_table(result, output / "digits.json")
    print(f"written to {output}: digits.html (the picture), digits.dish (the model), digits.json (the figures)")


def _serve_demo(data: str, host: str, port: int) -> None:
    from dish.web import server
    from dish.web.demo import DEMOS
    from dish.web.logs import start_log
    from dish.web.middleware import Limits

    if data not in DEMOS:
        raise InputError(f"--data must be one of {', '.join(DEMOS)}; got {data!r}")
    start_log()
    print(f"dish: learning codes of {data} …", flush=True)
    server.serve(DEMOS[data](), Limits(), host=host, port=port)
