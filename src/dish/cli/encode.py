"""`dish encode`, `dish eval` and `dish info`: encode rows, score a model, show what a model file contains."""

from __future__ import annotations

import json as js
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from typer.core import TyperCommand

from dish.cli.options import (
    ON_RAY,
    CodesPath,
    Header,
    IdColumn,
    LabelCodes,
    ModelPath,
    OnRay,
    RayAddress,
    RowsPath,
    XColumn,
    YColumn,
    check_picture,
    check_writable,
    columns_of,
    example,
    load_model,
    show_table,
)
from dish.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dish.io.readers import ColumnNames

MANY_ARRAYS = 20  # from here on, arrays are summarised: the model is a network
NOT_NPY = (".csv", ".tsv", ".txt", ".json", ".parquet", ".npz", ".h5")  # suffixes of other formats


@example(
    "dish encode model.dish X.npy -o codes.npy",
    "dish encode model.dish docs.parquet --x-column embedding --id-column id -o codes.npy",
    "dish encode model.dish docs.parquet --x-column embedding --y-column topic --label-codes -o database.npy",
    "dish encode photos.dish holiday.jpg -o query.npy",
    "dish encode model.dish shards/ -o codes/ --ray --x-column embedding --id-column id",
)
def encode(
    model: ModelPath,
    rows: RowsPath,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File of the codes (.npy, packed uint8); with --ray a folder.")
    ],
    x_column: XColumn = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    label_codes: LabelCodes = False,
    header: Header = None,
    ray: OnRay = False,
    ray_address: RayAddress = None,
    ray_workers: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=ON_RAY, help="Workers, with one CPU each. Default: all free CPUs."),
    ] = None,
) -> None:
    """Encode rows or images. The codes are an (n, bits/8) uint8 .npy file.

    For a folder of images, ids and labels are written next to codes.npy. The ids (codes.ids.npy) are paths in the
    folder without suffix, as `dish index --ids` and `dish serve --images` expect them; a suffix is kept if two images
    would have the same id. The labels (codes.labels.npy) are the names of the sub-folders. For a table, the columns
    --id-column and --y-column are written to the same files.

    --label-codes is for a database whose labels are known; queries are encoded without it. Rows without a label, or
    with one that the model does not know, are encoded from their features.

    --ray encodes .npy, .parquet or .lance files on all machines of a Ray cluster. It writes one Arrow file per block
    of rows to a folder; the same command resumes a job that was interrupted. `dish serve --ray` searches the folder.
    """
    if ray:
        _encode_on_ray(
            model, rows, output, ray_address, ray_workers, (x_column, id_column, y_column, header, label_codes)
        )
        return
    if ray_workers is not None:
        raise InputError("--ray-workers needs --ray")
    check_writable(output, model, rows)
    if output.suffix in NOT_NPY:
        raise InputError(f"codes are written as .npy (packed uint8), not {output.suffix}: use -o {output.stem}.npy")
    from dish import parallel
    from dish.io.batch_jobs import encode_file
    from dish.io.data_cache import save_npy

    columns = columns_of(rows, x=x_column, y=y_column, ids=id_column, header=header)
    hasher, columns = load_model(model, columns)
    with parallel.from_environment() as ranks:
        with ranks.raise_together():
            X, extra, labels = _rows_and_columns(hasher, rows, columns)
            if label_codes and labels is None:
                raise InputError(f"--label-codes: {rows} has no labels; name their column with --y-column")
        n, width = encode_file(hasher, X, output, ranks, labels if label_codes else None)
        if ranks.first:
            for suffix, array in extra.items():
                save_npy(output.with_suffix(suffix), array)
            print(f"{output}: {n:,} codes of {hasher.n_bits} bits ({width} bytes each)")


def _encode_on_ray(
    model: Path, rows: Path, output: Path, address: str | None, workers: int | None, options: tuple[Any, ...]
) -> None:
    x, ids, labels, header, label_codes = options
    if label_codes or header is not None:
        raise InputError("--label-codes and --header do not go with --ray: labels are carried along, and not encoded")
    from dish.ray.connection import cluster
    from dish.ray.jobs import encode_files

    column = "vector" if not x else x[0] if len(x) == 1 else x
    with cluster(address):
        n = encode_files(model, rows, output, column=column, ids=ids, labels=labels, workers=workers)
    print(f"{output}: {n:,} codes")


def _rows_and_columns(hasher: Any, path: Path, columns: ColumnNames) -> tuple[Any, dict[str, NDArray[Any]], Any]:
    """Rows to encode, the arrays to write next to their codes, by suffix, and the labels of the rows."""
    import numpy as np

    from dish.io import images, readers

    X, own_labels = rows_for(hasher, path, columns)
    if isinstance(X, Path):
        X, labels, names = images.read_folder(X, None, hasher.image_side)
        return X, {".ids.npy": np.array(names)} | ({} if labels is None else {".labels.npy": labels}), labels
    extra = {}
    for suffix, name in {".ids.npy": columns.ids, ".labels.npy": columns.y}.items():
        if name is not None:
            column = columns.only(name)
            extra[suffix] = readers.as_saved(path, name, readers.read_labels(path, column))
    return X, extra, extra.get(".labels.npy", own_labels)


@example(
    "dish backfill new.dish X.npy codes.npy --budget 100000",
    "dish backfill new.dish docs.parquet db.npy --budget 9999 --x-column embedding --y-column topic --label-codes",
)
def backfill(
    model: ModelPath,
    rows: RowsPath,
    codes: CodesPath,
    budget: Annotated[int, typer.Option("--budget", help="Number of rows to encode again, at most.")],
    x_column: XColumn = None,
    y_column: YColumn = None,
    label_codes: LabelCodes = False,
    header: Header = None,
) -> None:
    """Encode codes again with a newer model: the least certain rows first, a budget at a time.

    The model must be fitted with --compatible-with the model of CODES, or with one of its family, so that old and new
    codes can be compared. X has the rows of CODES, in their order. The least certain codes are those farthest from
    the codeword of any class. CODES is replaced; call the command again for the next rows, until none remain.

    --label-codes, as in `dish encode`: give it if CODES was made with it.
    """
    check_writable(codes, model, rows)
    from dish.io import backfill as job

    columns = columns_of(rows, x=x_column, y=y_column, header=header)
    hasher, columns = load_model(model, columns)
    X, _, labels = _rows_and_columns(hasher, rows, columns)
    if label_codes and labels is None:
        raise InputError(f"--label-codes: {rows} has no labels; name their column with --y-column")
    done = job.backfill(hasher, X, codes, budget, labels if label_codes else None)
    did = f"{done.encoded:,} rows encoded again, {done.changed:,} codes changed"
    print(f"{codes}: {did}; {done.remaining:,} rows remain")


@example(
    "dish eval model.dish --db X.npy y.npy --queries Xq.npy yq.npy --picture eval.png",
    "dish eval model.dish --db all.npz - --queries new.npz - --seen y_train.npy",
)
def evaluate(
    model: ModelPath,
    db: Annotated[
        tuple[Path, Path],
        typer.Option(
            metavar="X Y",
            help="Database rows and labels. For Y, - means the labels that come with X, as in a .npz; for images, "
            "the names of the sub-folders.",
        ),
    ],
    queries: Annotated[tuple[Path, Path], typer.Option(metavar="XQ YQ", help="Query rows and labels.")],
    top: Annotated[int | None, typer.Option(metavar="K", help="Compute MAP@K instead of MAP.")] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="Also score rankings of the same rows by float cosine, sign bits, PCA-ITQ and a classifier.",
        ),
    ] = True,
    seen: Annotated[
        Path | None,
        typer.Option(help="Labels of the training rows: score queries of seen and unseen classes separately."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Plot the rankings to a .pdf, .svg or .png file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    x_column: XColumn = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    header: Header = None,
) -> None:
    """MAP, precision and recall of a model on labelled queries, compared with other rankings of the same rows.

    "float cosine" ranks by the vectors themselves, "sign bits" by the signs of the centred vectors, "PCA-ITQ" by
    codes of the same length learned without labels, and "classifier" by class probabilities, an upper bound for codes
    that only know the labels. Queries should not be rows of the database.
    """
    if not compare and (seen or picture):
        raise InputError("--seen and --picture need --compare, which is the default")
    check_picture(picture, model, *db, *queries)
    from dish import parallel
    from dish.io.batch_jobs import evaluate_files

    columns = columns_of(*db, *queries, seen, x=x_column, y=y_column, ids=id_column, header=header)
    hasher, columns = load_model(model, columns)
    base, columns = _labelled_for(hasher, *db, columns)
    wanted, _ = _labelled_for(hasher, *queries, columns)
    with parallel.from_environment() as ranks:
        report = evaluate_files(hasher, wanted, base, top, ranks)
        if not ranks.first:
            return
    lines = _other_rankings(hasher, wanted, base, seen, columns, needed=bool(seen or picture)) if compare else []
    if picture is not None:
        from dish.experiments import figures, style

        style.write(figures.comparison_figure(lines), picture)
    if json:
        print(js.dumps(report.to_dict() | {"rankings": [line.to_dict() for line in lines]}))
    else:
        _show_scores(report, lines)


class EvalCommand(TyperCommand):
    """`dish eval`, which says that a file of labels is missing, and does not take the next option for it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check that --db and --queries are followed by two words."""
        for option in ("--db", "--queries"):
            given = args[args.index(option) + 1 :][:2] if option in args else ["-", "-"]
            if len(given) < 2 or any(word.startswith("-") and word != "-" for word in given):
                raise InputError(
                    f"{option} takes rows and labels, two files; got {' '.join(given[:1])}. Give a file of labels, "
                    "or - for labels that come with the rows"
                )
        return super().parse_args(ctx, args)


evaluate.cls = EvalCommand  # type: ignore[attr-defined]


def _other_rankings(
    hasher: Any, queries: Any, database: Any, seen: Path | None, columns: ColumnNames, needed: bool
) -> list[Any]:
    """Scores of the model and of other rankings. If they cannot be computed, print or raise the reason."""
    from dish.io.readers import read_labels
    from dish.lazy import has_torch

    why = "the model encodes images" if getattr(hasher, "takes_images", False) else ""
    why = why or ("" if has_torch() else "torch is not installed")
    if not why:
        from dish import machine
        from dish.io.rows import float_type

        size = 4 * sum(X.shape[0] * X.shape[1] * float_type(X.dtype).itemsize for X, _ in (queries, database))
        why = "" if size < machine.free_memory() else f"about {size >> 30} GB of memory would be needed"
    if why:
        if needed:
            raise InputError(f"--seen and --picture cannot compare rankings here: {why}")
        typer.echo(f"dish: note: not compared with other rankings: {why}", err=True)
        return []
    from dish.evaluation.compare import compare

    labels = None if seen is None else read_labels(seen, columns.only_labels())
    pairs = [(X[:], y) for X, y in (queries, database)]
    return compare(hasher, pairs[0], pairs[1], labels)


def _show_scores(report: Any, lines: list[Any]) -> None:
    """Print the scores of the model, and those of all rankings for every group of queries."""
    title = f"{report.n_queries:,} queries, {report.n_database:,} rows, {report.n_bits} bits"
    show_table(title, ("score", "value"), ((name, f"{value:.4f}") for name, value in report.lines().items()))
    for queries in dict.fromkeys(line.queries for line in lines):
        part = [line for line in lines if line.queries == queries]
        which = "all queries" if queries == "all" else f"queries of {queries} classes"
        at = list(part[0].precision_at)
        names = [f"P@{k}" for k in at[:2]] + [f"R@{k}" for k in at[1:]]
        rows = []
        for line in part:
            found = [*list(line.precision_at.values())[:2], *list(line.recall_at.values())[1:]]
            scores = (line.map, *found, line.precision_within_2, line.recall_within_2)
            rows.append(
                [line.ranking, f"{line.bytes:,}", *("–" if value is None else f"{value:.3f}" for value in scores)]
            )
        show_table(
            f"{which}: {part[0].n_queries:,}",
            ("ranking by", "bytes", "MAP", *names, "P ≤2", "R ≤2"),
            rows,
            box=box.SIMPLE_HEAD,
            caption="P: precision, R: recall, ≤2: within radius 2",
        )


@example("dish info model.dish")
def info(model: ModelPath) -> None:
    """Show what a model or index file contains."""
    from dish.io import modelfile

    kind, content, arrays = modelfile.read(model)
    values = {**content.get("init", {}), **content.get("fitted", {})}
    rows = [*((name, escape(str(value))) for name, value in values.items()), *_shapes(arrays)]
    show_table(f"{escape(str(model))}: {kind}", ("name", "value"), rows)


def _shapes(arrays: dict[str, NDArray[Any]]) -> list[tuple[str, str]]:
    """Names and shapes of arrays. Those of a network are summarised by part, since there are hundreds."""
    parts: dict[str, list[NDArray[Any]]] = {}
    for name, array in sorted(arrays.items()):
        part = ".".join(name.split(".")[:2])  # such as model.body
        parts.setdefault(name if len(arrays) <= MANY_ARRAYS else part, []).append(array)
    shapes = []
    for name, found in parts.items():
        shape = f"{found[0].dtype} {' × '.join(map(str, found[0].shape))}"
        many = f"{len(found)} arrays, {sum(array.size for array in found):,} numbers"
        shapes.append((name, shape if len(found) == 1 else many))
    return shapes


def rows_for(hasher: Any, path: Path, columns: ColumnNames) -> tuple[Any, Any]:
    """Rows of a file or of shards, and labels that come with them; the path itself if the model encodes images."""
    from dish.io import images
    from dish.io.readers import has_shards, read_features

    reads_images = getattr(hasher, "takes_images", False)
    if reads_images and path.is_file() and path.suffix.lower() in images.suffixes():
        return path, None
    if not path.is_dir() or has_shards(path):
        return read_features(path, columns=columns)
    if not reads_images:
        raise InputError(
            f"{path} is a folder without shards (.npy, .npz or .parquet files), but this {type(hasher).__name__} "
            "encodes rows of features"
        )
    return path, None


def _labelled_for(hasher: Any, rows: Path, labels: Path, columns: ColumnNames) -> tuple[tuple[Any, Any], ColumnNames]:
    """Rows and labels, and the columns in the order of these rows, for a second table to match.

    Labels "-" come with the rows, or are the names of the sub-folders of images.
    """
    from dish.io import images
    from dish.io.readers import feature_names, read_labels

    within = str(labels) == "-"
    columns_of_rows = columns if within else columns.without_labels()
    X, y = rows_for(hasher, rows, columns_of_rows)
    y = y if within else read_labels(labels, columns.only_labels())
    if isinstance(X, Path):
        X, y = images.with_labels(X, y, hasher.image_side)
    else:
        columns = replace(columns, order=columns.order or feature_names(rows, columns_of_rows))
    if y is None:
        raise InputError(f"{rows} comes without labels: give a file of labels instead of -")
    return (X, y), columns
