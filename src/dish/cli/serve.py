"""`dish serve` and `dish demo`: search over HTTP, and the demo on handwritten digits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dish.cli.options import (
    ON_RAY,
    Host,
    IndexFilePath,
    ModelFile,
    OnRay,
    Port,
    RayAddress,
    Token,
    VectorIdsPath,
    VectorsPath,
    check_service_installed,
    check_token,
    example,
    show_table,
)
from dish.errors import InputError

if TYPE_CHECKING:
    from dish.alias import Alias, CollectionFiles
    from dish.web.source import Source

Takes = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="How an uploaded image becomes model input: vector, gist32, digits8, efficientnet_lite0 or image.",
    ),
]
Writable = Annotated[
    bool, typer.Option("--writable", help="Allow adding (POST /items) and removing items (DELETE /items/ID).")
]
AllowedHosts = Annotated[
    list[str] | None, typer.Option(help="Another host name to answer to; may be repeated; * for any.")
]
Workers = Annotated[
    int,
    typer.Option(min=1, help="Number of processes. Several share the index file, and items cannot be changed."),
]
Shards = Annotated[
    int | None,
    typer.Option(min=1, rich_help_panel=ON_RAY, help="Ranges of rows, one per process. Default: one per file."),
]
Replicas = Annotated[int, typer.Option(min=1, rich_help_panel=ON_RAY, help="Processes per shard.")]


@example(
    "dish serve products.alias",
    "dish serve --model m.dish --index ix.dish --images photos --writable",
    "dish serve --model m.dish --index ix.dish --workers 4",
    "dish serve --model m.dish --index codes/ --ray --shards 4 --replicas 2",
)
def serve(
    alias: Annotated[
        Path | None, typer.Argument(metavar="[ALIAS]", help="An alias made by `dish alias set`, or give these files:")
    ] = None,
    model: ModelFile = None,
    index: IndexFilePath = None,
    vectors: VectorsPath = None,
    vector_ids: VectorIdsPath = None,
    images: Annotated[Path | None, typer.Option(help="Folder of images, named by the ids of the items.")] = None,
    takes: Takes = None,
    writable: Writable = False,
    title: Annotated[str | None, typer.Option(help="Heading of the page. Default: the name of the folder.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    max_body: Annotated[int, typer.Option(min=1024, help="Largest request in bytes.")] = 4 << 20,
    max_k: Annotated[int, typer.Option(min=1, help="Largest number of hits per search.")] = 1000,
    max_pixels: Annotated[int, typer.Option(min=1, help="Largest uploaded image in pixels.")] = 16_000_000,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time; further ones get status 503.")] = 32,
    allowed_host: AllowedHosts = None,
    workers: Workers = 1,
    ray: OnRay = False,
    ray_address: RayAddress = None,
    shards: Shards = None,
    replicas: Replicas = 1,
) -> None:
    """Serve search over HTTP, with a page to search on. Needs the extra: pip install 'dish-hash\\[serve]'.

    POST /admin/reload or SIGHUP loads what the alias names then, and switches to it without a failed request.

    --ray divides the index, or a folder of `dish encode --ray`, into shards, each searched by a process on some
    machine of a Ray cluster. Results are the same; a search covers all shards or is an error. With
    --ray-address, Ray Serve runs the service in --workers replicas. Restart the server to switch to other files.
    """
    _check_options(token, workers, writable, ray, shards is not None or replicas > 1)
    from dish.web.limits import Limits
    from dish.web.logs import start_log
    from dish.web.source import Source

    limits = Limits(max_body=max_body, max_k=max_k, max_pixels=max_pixels, concurrency=concurrency, token=token)
    source = Source(_given(alias, model, index, vectors, vector_ids), images, takes, title, writable)
    start_log()
    if ray:
        _check_for_ray(source)
        from dish.web.on_ray import ServedShards
        from dish.web.on_ray import serve as serve_on_ray

        sharded = ServedShards(source.files.model, source.files.index, shards, replicas, workers, title)
        serve_on_ray(sharded, limits, address=ray_address, host=host, port=port, allowed_hosts=allowed_host or ())
        return
    if workers > 1:
        from dish.web.workers import serve as serve_together

        serve_together(source, limits, workers, host=host, port=port, allowed_hosts=allowed_host or ())
        return
    from dish.web import server

    found = server.open_source(source, source.files)
    server.serve(found, limits, host=host, port=port, allowed_hosts=allowed_host or (), source=source)


def _check_options(token: str | None, workers: int, writable: bool, ray: bool, sharded: bool) -> None:
    """Raise an error for options that exclude each other, and if packages of the service are not installed."""
    check_service_installed("dish serve")
    check_token(token)
    if workers > 1 and writable:
        raise InputError(
            f"--workers {workers} and --writable exclude each other: workers share one index, which none of them may "
            "change; leave out one of the two"
        )
    if sharded and not ray:
        raise InputError("--shards and --replicas need --ray")


def _check_for_ray(source: Source) -> None:
    if source.writable or source.images is not None or source.takes is not None or source.files.vectors is not None:
        raise InputError(
            "--ray serves a read-only index of vectors: leave out --writable, --images, --input and --vectors"
        )


def _given(alias: Path | None, *files: Path | None) -> Alias | CollectionFiles:
    """Return the alias, or the files if there is none."""
    from dish.alias import Alias, CollectionFiles

    model, index, vectors, vector_ids = files
    if alias is not None:
        if any(files):
            raise InputError(f"{alias} names the model, the index and the vectors: leave out the options for them")
        return Alias(alias)
    if model is None or index is None:
        raise InputError("give --model and --index, or an alias made by `dish alias set`")
    return CollectionFiles(model, index, vectors, vector_ids)


@example("dish demo --output demo", "dish demo --serve")
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the page and the model.")] = Path("demo"),
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve a page to search on, instead of writing one.")
    ] = False,
    data: Annotated[str, typer.Option(help="With --serve: digits or cifar10.")] = "digits",
    host: Host = "127.0.0.1",
    port: Port = 8000,
) -> None:
    """Train DISH-K and DISH on handwritten digits, compare them with l2 distance and LSH, and show searches."""
    if serve:
        _serve_demo(data, host, port)
        return
    if data != "digits":
        raise InputError(f"--data {data} needs --serve")
    from dish.experiments import demo as demonstration

    result = demonstration.run()
    output.mkdir(parents=True, exist_ok=True)
    show_table(
        "Handwritten digits of scikit-learn: 300 queries, 1,497 database rows",
        ("ranking by", "bytes per row", "MAP", "precision within radius 2"),
        (
            (r.method, str(r.bytes), f"{r.map:.3f}", "–" if r.precision is None else f"{r.precision:.3f}")
            for r in result.rows
        ),
    )
    for i, label in enumerate(result.query_labels[:5]):
        found = " ".join(str(result.labels[j]) for j in result.neighbours[i])
        print(f"query {label}: the nearest 64-bit codes are of {found}")
    result.hasher.save(output / "digits.dish")
    demonstration.write_page(result, output / "digits.html")
    demonstration.write_table(result, output / "digits.json")
    print(f"written to {output}: digits.html (a page), digits.dish (the model), digits.json (the scores)")


def _serve_demo(data: str, host: str, port: int) -> None:
    check_service_installed("dish demo --serve")
    from dish.web import server
    from dish.web.demo import DEMOS
    from dish.web.limits import Limits
    from dish.web.logs import start_log

    if data not in DEMOS:
        raise InputError(f"--data must be one of {', '.join(DEMOS)}; got {data!r}")
    start_log()
    print(f"dish: learning codes of {data} …", flush=True)
    server.serve(DEMOS[data](), Limits(), host=host, port=port)
