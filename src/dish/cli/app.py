"""The command line: parse, call one function, print."""

from __future__ import annotations

import os
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dish import __version__

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dish.hasher import Hasher

app = typer.Typer(
    name="dish",
    help="Supervised learning to hash: short binary codes from labelled rows.\n\n"
    "Files of rows and labels: .npy (memory-mapped), .npz, .parquet or .csv.",
    epilog="Example: dish fit X.npy y.npy -o model.dish --bits 64 && dish encode model.dish X.npy -o codes.npy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
store_app = typer.Typer(help="Codes in PostgreSQL with pgvector.", no_args_is_help=True)
app.add_typer(store_app, name="store")
console = Console()
RESULTS = Path("benchmarks/results/runs")  # in a checkout the committed runs; elsewhere a new folder

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A model file made by `dish fit`.")]
RowsPath = Annotated[
    Path,
    typer.Argument(
        metavar="X",
        help="Rows (n, d): .npy, .npz, .parquet or .csv, a folder of .npy or .parquet shards; or a folder of images.",
    ),
]
CodesPath = Annotated[Path, typer.Argument(metavar="CODES", help="Packed codes made by `dish encode`.")]
QueriesPath = Annotated[Path, typer.Option("--codes", help="Packed codes of the queries.")]
IdsPath = Annotated[Path | None, typer.Option("--ids", help="Ids, whole numbers or strings; without: 0, 1, 2, …")]
LabelsPath = Annotated[Path | None, typer.Option("--labels", help="Labels, one a row.")]
Nearest = Annotated[int, typer.Option("--k", "-k", help="How many nearest rows.")]
Radius = Annotated[int | None, typer.Option(help="All rows within that distance instead of the k nearest.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, a line a query.")]
Dsn = Annotated[str, typer.Option(envvar="DISH_DSN", help="Of the server: postgresql://user@host/database.")]
TableName = Annotated[str, typer.Option("--table", help="Table of the codes.")]
Host = Annotated[str, typer.Option(help="Address to listen on; others than loopback are open to the network.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]


def main() -> None:
    """Entry point: bad input ends with one clear line and exit code 2, never a traceback."""
    warnings.showwarning = lambda message, *_, **__: print(f"dish: note: {message}", file=sys.stderr)
    try:
        code = app(standalone_mode=False) or 0
        if code != 130:  # 130: Control-C
            sys.exit(code)
        _end("stopped", 130)
    except (KeyboardInterrupt, typer.Abort):
        _end("stopped", 130)
    except (ValueError, TypeError, OSError, MemoryError, RuntimeError, ImportError) as error:
        _end(str(error) or type(error).__name__, 2)
    except Exception as error:
        if not hasattr(error, "format_message"):  # a usage error knows how to say itself; the rest are bugs
            raise
        if len(sys.argv) == 1:  # no command at all: the message is the help
            print(error.format_message(), file=sys.stderr)
            sys.exit(2)
        _end(error.format_message() + " (try --help)", 2)


def _end(message: str, code: int) -> None:
    print(f"dish: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dish {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before any command."""


@app.command(
    epilog="Example: dish fit X.npy y.npy -o model.dish --bits 64 --anchors 2000\n\n"
    "Example: dish fit shards/ -o model.dish --memory-budget 2GB --resume\n\n"
    "Example: torchrun --nproc-per-node 4 -m dish fit shards/ -o model.dish --bits 128\n\n"
    "Example: dish fit images/ --net 6conv --bits 48 --epochs 60 -o model.dish"
)
def fit(
    rows: RowsPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the model goes.")],
    labels: Annotated[
        Path | None,
        typer.Argument(
            metavar="[Y]",
            help="Labels: (n,) classes, or (n, l) of 0/1. Without: y*.npy in the folder; of images the sub-folders.",
        ),
    ] = None,
    bits: Annotated[int, typer.Option(help="Code length.")] = 64,
    anchors: Annotated[int, typer.Option(help="Anchors of the kernel map; more are better and slower.")] = 1000,
    gamma: Annotated[str, typer.Option(help="Of the RBF kernel exp(-gamma |x-a|^2): 'auto' or a number.")] = "auto",
    loss: Annotated[str, typer.Option(help="ridge, hinge or logistic.")] = "ridge",
    kernel: Annotated[str, typer.Option(help="rbf or linear.")] = "rbf",
    iterations: Annotated[int, typer.Option(help="Most H-steps.")] = 5,
    nu: Annotated[float, typer.Option(help="Weight of the loss in the H-step.")] = 1e-4,
    similar_weight: Annotated[float, typer.Option(help="w of S = w YY' - 1; 10 for many classes.")] = 2.0,
    multilabel: Annotated[str, typer.Option(help="For (n, l) labels: count, share_one or jaccard.")] = "count",
    init: Annotated[str, typer.Option(help="spectral or random.")] = "spectral",
    polish: Annotated[int, typer.Option(help="Steps at the end that fit the hash function to the labels.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    net: Annotated[
        str | None, typer.Option(help="For images: 6conv (default), nin, alexnet, vgg16 or efficientnet_lite0.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="For images: imagenet, or a .pth or .safetensors file.")] = None,
    epochs: Annotated[int, typer.Option(help="For images: passes over them in each round.")] = 60,
    rounds: Annotated[int, typer.Option(help="For images: rounds of H-step and training.")] = 3,
    image_size: Annotated[int | None, typer.Option(help="For images: side of the network's input.")] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Where the state after every iteration is kept until the end: of rows a folder of its own "
            "(OUTPUT.checkpoint), of images a file."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Of rows: go on from the checkpoint, if there is one of the same data and options."
        ),
    ] = False,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            help="Of rows, on the CPU, of each process: memory to use, as 2GB (else half of what is free). "
            "What has no room goes to a scratch file in $TMPDIR."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Learn codes from rows and labels, or from a folder with a sub-folder of images a label; write a model."""
    _check_writable(output, rows, *([labels] if labels else []))
    import numpy as np

    from dish import parallel
    from dish.deep.dish import DeepDISH
    from dish.io import tables
    from dish.io.checkpoint import Checkpoint
    from dish.kernel.dish import DISH

    y = None if labels is None else tables.read_labels(labels)
    verbose = 0 if quiet or not sys.stderr.isatty() else 1
    if rows.is_dir() and not _has_shards(rows):
        deep = DeepDISH(
            n_bits=bits,
            net=net or "6conv",
            weights=weights,
            n_iter=rounds,
            epochs=epochs,
            nu=nu,
            image_size=image_size,
            checkpoint=checkpoint,
            device=device,
            random_state=seed,
            verbose=verbose,
        )
        with parallel.from_environment() as ranks:
            deep.fit(rows, y)
            if ranks.first:
                _keep(deep, output, len(deep.codes_), "images", quiet)
        return
    if net is not None:
        raise ValueError(f"--net {net} needs a folder of images, and {rows} is none")
    if y is None:
        y = _labels_within(rows)
    checkpoint = checkpoint or output.with_name(output.name + ".checkpoint")
    hasher = DISH(
        n_bits=bits,
        n_anchors=anchors,
        gamma=gamma if gamma == "auto" else _number("--gamma", gamma),
        loss=loss,
        kernel=kernel,
        n_iter=iterations,
        nu=nu,
        similar_weight=similar_weight,
        multilabel=multilabel,
        init=init,
        polish=polish,
        memory_budget=memory_budget,
        checkpoint=checkpoint,
        device=device,
        random_state=seed,
        verbose=verbose,
    )
    with parallel.from_environment() as ranks:
        hasher._goes_on = resume  # else it begins anew, and the old state stands until there is a new one
        hasher.fit(*_rows_to_fit(rows, y, ranks))
        codes = ranks.gather_arrays(hasher.codes_)  # the model holds those of all rows
        if ranks.first:
            hasher.codes_ = codes[0] if len(codes) == 1 else np.concatenate(codes)
            _keep(hasher, output, len(hasher.codes_), "rows", quiet)
            Checkpoint(checkpoint, "", (0, 0), parallel.ALONE).remove()


def _has_shards(folder: Path) -> bool:
    return any(folder.glob("*.npy")) or any(folder.glob("*.parquet"))


def _rows_to_fit(path: Path, y: Any, group: Any) -> tuple[Any, Any]:
    """What is read a block at a time by its path; of other files this process's share."""
    from dish.io import tables

    if path.is_dir() or path.suffix == ".npy":
        return path, y
    X = tables.read_rows(path)
    if len(y) != len(X):
        raise ValueError(f"X has {len(X)} rows but y has {len(y)}; they must be equal")
    mine = group.my_rows(len(X))
    if mine.start == mine.stop:
        raise ValueError(f"{path} has {len(X)} rows, too few for {group.world} processes")
    return X[mine], y[mine]


def _labels_within(rows: Path) -> Any:
    """Labels that come with the rows: in a .npz or a folder of shards, or beside X.npy in X_labels.npy."""
    from dish.io.features import read_features

    y = read_features(rows)[1] if rows.is_dir() or rows.suffix in (".npy", ".npz") else None
    if y is None:
        raise ValueError(
            f"labels Y are missing: name a file of labels, or put them with {rows} (y.npy or y-*.npy in a folder of "
            "shards, X_labels.npy beside X.npy, y in a .npz or .parquet). Images have a sub-folder a label"
        )
    return y


def _keep(hasher: Any, output: Path, n: int, what: str, quiet: bool) -> None:
    hasher.save(output)
    if not quiet:
        seconds = sum(hasher.timings_.values())
        print(f"{output}: {hasher.n_bits} bits learned from {n:,} {what} in {seconds:.1f} s")


@app.command(epilog="Example: dish encode model.dish X.npy -o codes.npy")
def encode(
    model: ModelPath,
    rows: RowsPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the codes go (.npy, packed uint8).")],
) -> None:
    """Codes of rows: an (n, bits/8) uint8 .npy file. For a folder of images also their names and labels.

    Beside codes.npy, names (codes.ids.npy) are paths in the folder without suffix, as `dish index --ids` and `dish
    serve --images` want them; labels (codes.labels.npy) are the names of the sub-folders.
    """
    _check_writable(output, model, rows)
    import numpy as np

    from dish import parallel
    from dish.io import files as bulk
    from dish.io import images
    from dish.io.cache import save_npy

    hasher: Any = _load(model)
    X, beside = _rows_for(hasher, rows), {}
    with parallel.from_environment() as ranks:
        if isinstance(X, Path):
            X, labels, names = images.read_folder(X, None, hasher._side() or 224)
            beside = {".ids.npy": np.array(names)} | ({} if labels is None else {".labels.npy": labels})
        n, width = bulk.encode_file(hasher, X, output, ranks)
        if ranks.first:
            for suffix, array in beside.items():
                save_npy(output.with_suffix(suffix), array)
            print(f"{output}: {n:,} codes of {hasher.n_bits} bits ({width} bytes each)")


@app.command(name="eval", epilog="Example: dish eval model.dish --db X.npy y.npy --queries Xq.npy yq.npy")
def evaluate(
    model: ModelPath,
    db: Annotated[
        tuple[Path, Path],
        typer.Option(metavar="X Y", help="Database rows and labels; for images Y may be -: their folders' names."),
    ],
    queries: Annotated[tuple[Path, Path], typer.Option(metavar="XQ YQ", help="Query rows and labels.")],
    top: Annotated[int | None, typer.Option(help="Cut the MAP at that many places.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """MAP, precision within radius 2 and precision@k of a model on labelled queries."""
    from dish import parallel
    from dish.io import files as bulk

    hasher = _load(model)
    base, wanted = (_labelled_for(hasher, x, y) for x, y in (db, queries))
    with parallel.from_environment() as ranks:
        report = bulk.evaluate_files(hasher, wanted, base, top, ranks)
        if not ranks.first:
            return
    if json:
        import json as js

        print(js.dumps(report.to_dict()))
        return
    lines = {
        "MAP" if top is None else f"MAP@{top}": report.map,
        "precision within radius 2": report.precision_within_2,
    }
    lines |= {"queries with nothing within 2": report.empty_balls}
    lines |= {f"precision@{k}": p for k, p in report.precision_at.items()}
    table = Table(title=f"{report.n_queries:,} queries, {report.n_database:,} rows, {report.n_bits} bits")
    table.add_column("score")
    table.add_column("value", justify="right")
    for name, value in lines.items():
        table.add_row(name, f"{value:.4f}")
    console.print(table)


@app.command(epilog="Example: dish info model.dish")
def info(model: ModelPath) -> None:
    """What a model file holds."""
    from dish.io import modelfile

    kind, content, arrays = modelfile.read(model)
    table = Table(title=f"{escape(str(model))}: {kind}")
    table.add_column("what")
    table.add_column("value")
    for name, value in {**content["init"], **content["fitted"]}.items():
        table.add_row(name, str(value))
    for name, array in sorted(arrays.items()):
        table.add_row(name, f"{array.dtype} {' × '.join(map(str, array.shape))}")
    console.print(table)


@app.command(epilog="Example: dish index codes.npy -o ix.dish --labels y.npy")
def index(
    codes: CodesPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the index goes.")],
    ids: IdsPath = None,
    labels: LabelsPath = None,
    bits: Annotated[int | None, typer.Option(help="Code length, if not eight times the bytes.")] = None,
) -> None:
    """Make a searchable index of packed codes."""
    _check_writable(output, codes, *(path for path in (ids, labels) if path))
    from dish.index.hamming import HammingIndex

    B, given, y = _read_coded(codes, ids, labels)
    ix = HammingIndex(8 * B.shape[1] if bits is None else bits)
    ix.add(B, given, y)
    ix.save(output)
    print(f"{output}: {len(ix):,} codes of {ix.n_bits} bits")


@app.command(epilog="Example: dish search ix.dish --codes q.npy --k 10")
def search(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="An index made by `dish index`.")],
    queries: QueriesPath,
    k: Nearest = 10,
    radius: Radius = None,
    json: AsJson = False,
) -> None:
    """The nearest rows of each query, exact."""
    from dish.index.hamming import HammingIndex

    _show_hits(HammingIndex.load(index), _read_codes(queries), k, radius, json)


@store_app.command(epilog="Example: dish store push codes.npy --dsn postgresql://me@localhost/db --table codes")
def push(
    codes: CodesPath,
    dsn: Dsn,
    table: TableName,
    ids: IdsPath = None,
    labels: LabelsPath = None,
    bits: Annotated[int | None, typer.Option(help="Code length, if not eight times the bytes.")] = None,
    batch: Annotated[int, typer.Option(help="Rows a transaction.")] = 10_000,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an upload that broke off.")] = False,
) -> None:
    """Upload packed codes; makes the table if there is none."""
    from dish.stores.postgres import PostgresStore

    B, given, y = _read_coded(codes, ids, labels)
    kind = "string" if given is not None and given.dtype.kind in "UO" else "integer"
    with PostgresStore(dsn, table, 8 * B.shape[1] if bits is None else bits, ids=kind) as store:
        store.create()
        written = store.push(B, given, y, batch=batch, resume=resume)
        print(f"{table}: {written:,} rows written, {len(store):,} there")


@store_app.command(name="search", epilog="Example: dish store search --dsn … --table codes --codes q.npy --k 10")
def search_store(
    dsn: Dsn,
    table: TableName,
    queries: QueriesPath,
    k: Nearest = 10,
    radius: Radius = None,
    bits: Annotated[int | None, typer.Option(help="Code length, if not eight times the bytes.")] = None,
    strings: Annotated[bool, typer.Option("--string-ids", help="The table's ids are strings.")] = False,
    json: AsJson = False,
) -> None:
    """The nearest rows of each query, exact."""
    from dish.stores.postgres import PostgresStore

    Q = _read_codes(queries)
    kind = "string" if strings else "integer"
    with PostgresStore(dsn, table, 8 * Q.shape[1] if bits is None else bits, ids=kind) as store:
        _show_hits(store, Q, k, radius, json)


@app.command(epilog="Example: dish demo --output demo; dish demo --serve")
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
        raise ValueError(f"--data {data} needs --serve")
    from dish.experiments import demo as demonstration

    output.mkdir(parents=True, exist_ok=True)
    result = demonstration.run()
    table = Table(title="scikit-learn digits (real data): 300 queries, 1,497 database rows")
    for name in ("ranking by", "bytes a row", "MAP", "precision within radius 2"):
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


@app.command(epilog="Example: dish serve --model m.dish --index ix.dish --images photos --writable")
def serve(
    model: Annotated[Path, typer.Option(help="A model file made by `dish fit`.")],
    index: Annotated[Path, typer.Option(help="An index of its codes, made by `dish index`.")],
    images: Annotated[Path | None, typer.Option(help="Folder of pictures, named by the ids of the items.")] = None,
    takes: Annotated[
        str | None,
        typer.Option("--input", help="What becomes of an uploaded picture: vector, gist32, digits8, image."),
    ] = None,
    writable: Annotated[bool, typer.Option("--writable", help="Take new items (POST /items).")] = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="DISH_TOKEN", help="Bearer token that clients must send.")
    ] = None,
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes of a request, at most.")] = 4 << 20,
    max_k: Annotated[int, typer.Option(min=1, help="Hits of a search, at most.")] = 1000,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of an uploaded picture, at most.")] = 16_000_000,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests under way; the next ones get 503.")] = 32,
) -> None:
    """Serve search over HTTP, with a page. Needs the extra: pip install 'dish[serve]'."""
    if token is not None and not token.strip():
        raise ValueError("--token must not be empty")
    from dish.web import server
    from dish.web.guard import Limits

    limits = Limits(max_body=max_body, max_k=max_k, max_pixels=max_pixels, concurrency=concurrency, token=token)
    server.start_log()
    found = server.open_collection(model, index, images=images, takes=takes, writable=writable)
    server.serve(found, limits, host=host, port=port)


def _serve_demo(data: str, host: str, port: int) -> None:
    from dish.web import server
    from dish.web.demo import DEMOS
    from dish.web.guard import Limits

    if data not in DEMOS:
        raise ValueError(f"--data must be one of {', '.join(DEMOS)}; got {data!r}")
    print(f"dish: learning codes of {data} …", flush=True)
    server.serve(DEMOS[data](), Limits(), host=host, port=port)


@app.command(epilog="Example: dish bench --data cifar10 --methods all --bits 16,32,64,96 --trials 5")
def bench(
    data: Annotated[str, typer.Option(help="A dataset's name or a path of features.")] = "digits",
    methods: Annotated[str, typer.Option(help="Names with commas between them, or all.")] = "all",
    bits: Annotated[str, typer.Option(help="Code lengths with commas between them.")] = "16,32,64",
    train: Annotated[
        str, typer.Option(help="Rows with commas; all: the database; paper: what the paper trained on.")
    ] = "all",
    trials: Annotated[int, typer.Option(help="Random splits.")] = 1,
    cut: Annotated[int | None, typer.Option(help="Cut the MAP at that many places.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of run files.")] = RESULTS,
    force: Annotated[bool, typer.Option("--force", help="Run again what is finished.")] = False,
) -> None:
    """Run methods on a dataset; one JSON a run. Finished runs are skipped, failing ones recorded."""
    from dish.experiments import bench as benchmark
    from dish.experiments import definition, paper

    known = benchmark.method_names() + benchmark.method_names(images=True)
    wanted = benchmark.method_names(images=data == "cifar10_images") if methods == "all" else methods.split(",")
    if unknown := set(wanted) - set(known):
        raise ValueError(f"--methods must be of {', '.join(known)}; got {', '.join(sorted(unknown))}")
    sizes = {
        method: paper.training_sizes(data, method)
        if train == "paper"
        else [None if size == "all" else _whole("--train", size) for size in train.split(",")]
        for method in wanted
    }
    lengths = [_whole("--bits", text) for text in bits.split(",")]
    runs = [
        definition.Run(data, method, r, n_train, trial, cut=cut)
        for method in wanted
        for n_train in sizes[method]
        for r in lengths
        for trial in range(trials)
    ]
    found = benchmark.run_all(runs, results, force=force, report=_status)
    table = Table(title=f"{data}: MAP" + (f"@{cut}" if cut else ""))
    for name in ("method", "training rows", *(f"{r} bits" for r in lengths), "fit, s"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for method in wanted:
        for n_train in sizes[method]:
            cells = [
                [found[run] for run in runs if (run.method, run.n_train, run.bits) == (method, n_train, r)]
                for r in lengths
            ]
            maps = [_mean(cell, "map", 3) for cell in cells]
            table.add_row(method, str(n_train or "all"), *maps, _mean(cells[-1], "fit_s", 2))
    console.print(table)
    for run, result in found.items():
        if "failed" in result:
            print(f"failed: {run.path(results)}: {result['failed']}")


@app.command(epilog="Example: dish reproduce table1 --trials 5 --output report")
def reproduce(
    what: Annotated[str, typer.Argument(help="table1, 2, 4, 6, 7, 8 (as table1), figures, sensitivity or all.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for tables, figures and the page.")] = Path(
        "report"
    ),
    trials: Annotated[int, typer.Option(help="Random splits.")] = 5,
    data: Annotated[str | None, typer.Option(help="Real data in place of a stand-in: a name or a path.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of run files.")] = RESULTS,
) -> None:
    """The paper's tables and figures, its figures beside ours. Runs what is missing first."""
    from dish.experiments.reproduce import reproduce as make

    page = make(what, results, output, trials=trials, data=data, say=_status)
    print(f"written: {page}")


def _read_codes(path: Path) -> NDArray[Any]:
    from dish.io import tables

    codes = tables.read_rows(path)
    if codes.dtype != "uint8":
        raise ValueError(f"{path}: packed codes are uint8 (dish encode makes them), found {codes.dtype}")
    return codes


def _read_coded(codes: Path, ids: Path | None, labels: Path | None) -> tuple[NDArray[Any], Any, Any]:
    """Codes, ids and labels from files."""
    from dish.io import tables

    given, y = (None if path is None else tables.read_labels(path) for path in (ids, labels))
    return _read_codes(codes), given, y


def _show_hits(where: Any, Q: NDArray[Any], k: int, radius: int | None, as_json: bool) -> None:
    """A line a query: ids with distances, and labels where rows have them."""
    if radius is None:
        D, found = where.search(Q, k)
        hits = [list(zip(ids.tolist(), d.tolist(), strict=True)) for ids, d in zip(found, D, strict=True)]
    else:
        lims, D, found = where.radius_search(Q, radius)
        flat = list(zip(found.tolist(), D.tolist(), strict=True))
        hits = [flat[a:b] for a, b in pairwise(lims)]
    for i, line in enumerate(hits):
        labels = where.labels_of([one for one, _ in line]).tolist()
        if as_json:
            import json

            rows = [{"id": one, "distance": d, "label": y} for (one, d), y in zip(line, labels, strict=True)]
            print(json.dumps({"query": i, "hits": rows}))
        else:
            parts = [f"{one} ({d}{'' if y is None else f', {y}'})" for (one, d), y in zip(line, labels, strict=True)]
            print(f"query {i}: " + (", ".join(parts) or "nothing"))


def _status(line: str) -> None:
    """Tables to standard output, progress to standard error."""
    print(line, file=sys.stdout if line.startswith("**") else sys.stderr, flush=True)


def _mean(results: list[dict[str, Any]], key: str, digits: int) -> str:
    known = [result[key] for result in results if key in result]
    failed = any("failed" in result for result in results)
    return f"{sum(known) / len(known):.{digits}f}" if known else "failed" if failed else "–"


def _whole(option: str, text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError(f"{option} must be whole numbers with commas between them, got {text!r}")
    return int(text)


def _rows_for(hasher: Any, path: Path) -> Any:
    """Rows of a file, or the folder itself for a hasher that reads images."""
    from dish.io import tables

    if path.suffix == ".npy" or (path.is_dir() and _has_shards(path)):
        from dish.io.features import read_features

        return read_features(path)[0]
    if not path.is_dir():
        return tables.read_rows(path)
    if not getattr(hasher, "takes_images", False) or hasher.vectors_:
        raise ValueError(f"{path} is a folder, but this {type(hasher).__name__} learned from rows of features")
    return path


def _labelled_for(hasher: Any, rows: Path, labels: Path) -> tuple[Any, NDArray[Any]]:
    """Rows and labels; labels "-" are the names of the sub-folders of images."""
    from dish.io import tables

    X = _rows_for(hasher, rows)
    y = None if str(labels) == "-" else tables.read_labels(labels)
    if isinstance(X, Path):
        from dish.io import images

        X, y = images.with_labels(X, y, hasher._side())
    if y is None:
        raise ValueError(f"labels - need a folder with a sub-folder of images a label, not {rows}")
    return X, y


def _load(model: Path) -> Hasher:
    from dish.registry import load

    return load(model)


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} must be 'auto' or a number, got {text!r}") from None


def _check_writable(path: Path, *inputs: Path) -> None:
    """Fail before hours of work, not after; never write over an input."""
    if any(path.resolve() == given.resolve() for given in inputs):
        raise ValueError(f"cannot write {path}: it is one of the inputs")
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    if any(given.is_dir() and given.resolve() == path.resolve().parent for given in inputs):
        raise ValueError(f"cannot write {path}: it would lie among the inputs")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(f"cannot write {path}: the folder {path.parent} is not writable")


if __name__ == "__main__":
    main()
