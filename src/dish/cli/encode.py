"""`dish encode`, `dish eval` and `dish info`: encode rows, score a model, show what a model file contains."""

from __future__ import annotations

import json as js
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from typer.core import TyperCommand

from dish.cli.code_columns import column_of, write_column, write_vectors
from dish.cli.gaps import (
    check_same_rows,
    complete_rows,
    kept_values,
    labelled_rows,
    labels_with_gaps,
    rows_path,
    write_rows,
)
from dish.cli.options import (
    ON_RAY,
    CodesPath,
    DropMissing,
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

    from dish.evaluation.files import FileScores
    from dish.io.readers import ColumnNames
    from dish.parallel import Ranks

MANY_ARRAYS = 20  # from here on, arrays are summarised: the model is a network
DatabasePaths = Annotated[
    tuple[Path, Path],
    typer.Option(
        metavar="X Y",
        help="Database rows and labels. For Y, - means the labels that come with X, as in a .npz; for images, the "
        "names of the sub-folders.",
    ),
]
SaveVectors = Annotated[
    bool,
    typer.Option("--save-vectors", help="Also write the vectors, in the order of the codes, to rescore searches."),
]
NOT_NPY = (".csv", ".tsv", ".txt", ".json", ".parquet", ".npz", ".h5")  # suffixes of other formats


@example(
    "dish encode model.dish X.npy -o codes.npy",
    "dish encode model.dish docs.parquet --x-column embedding --id-column id -o codes.npy",
    "dish encode model.dish docs.parquet --x-column embedding --y-column topic --label-codes -o database.npy",
    "dish encode model.dish docs.parquet --x-column embedding --id-column id --save-vectors -o codes.npy",
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
    save_vectors: SaveVectors = False,
    drop_missing: DropMissing = False,
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
    --id-column and --y-column are written to the same files; labels with gaps to codes.labels.parquet.

    --label-codes is for a database whose labels are known; queries are encoded without it. Rows without a label, or
    with one that the model does not know, are encoded from their features.

    If --drop-missing leaves rows out, code i is not of row i: codes.rows.npy holds the row of each code, counted from
    0, and `dish index` asks for ids.

    --save-vectors writes codes.vectors.npy, for `dish serve --vectors codes.vectors.npy --vector-ids codes.ids.npy`.

    --ray encodes .npy, .parquet or .lance files on all machines of a Ray cluster. It writes one Arrow file per block
    of rows to a folder; the same command resumes a job that was interrupted. `dish serve --ray` searches the folder.
    """
    if ray:
        options = (x_column, id_column, y_column, header, label_codes, drop_missing, save_vectors)
        _encode_on_ray(model, rows, output, ray_address, ray_workers, options)
        return
    if ray_workers is not None:
        raise InputError("--ray-workers needs --ray")
    _check_output(output, model, rows)
    from dish import parallel
    from dish.io.gaps import counted

    columns = columns_of(rows, x=x_column, y=y_column, ids=id_column, header=header, gaps=drop_missing)
    hasher, columns = load_model(model, columns)
    with parallel.from_environment() as ranks:
        with ranks.raise_together():
            given = _rows_and_columns(hasher, rows, columns)
            _check_labels_given(rows, given, label_codes)
            if save_vectors and getattr(hasher, "takes_images", False):
                raise InputError("--save-vectors is for rows of numbers, but this model encodes images")
        with counted(rows, given.X):
            _write_codes(hasher, given, output, ranks, label_codes, save_vectors)


def _check_labels_given(rows: Path, given: _RowsToEncode, label_codes: bool) -> None:
    if label_codes and given.labels is None:
        raise InputError(f"--label-codes: {rows} has no labels; name their column with --y-column")


def _check_output(output: Path, *inputs: Path) -> None:
    """Raise InputError if codes cannot be written to a file."""
    check_writable(output, *inputs)
    if output.suffix in NOT_NPY:
        raise InputError(f"codes are written as .npy (packed uint8), not {output.suffix}: use -o {output.stem}.npy")


def _write_codes(
    hasher: Any, given: _RowsToEncode, output: Path, ranks: Ranks, label_codes: bool, save_vectors: bool
) -> None:
    """Write the codes, the columns that belong to them and, if rows were left out, the row of each code."""
    from dish.io.batch_jobs import encode_file

    if ranks.first and given.kept is not None:
        write_rows(output, given.kept)  # before the codes, which must never be without it
    n, width = encode_file(hasher, given.X, output, ranks, given.labels if label_codes else None)
    if not ranks.first:
        return
    print(f"{output}: {n:,} codes of {hasher.n_bits} bits ({width} bytes each)")
    for name, array in given.extra.items():
        print(f"{write_column(output, name, array)}: the {name} of the codes")
    if given.kept is None:
        write_rows(output, None)
    else:
        print(f"{rows_path(output)}: the row of each code in the input")
    if save_vectors:
        print(f"{write_vectors(output, given.X)}: the vectors of the codes")


def _encode_on_ray(
    model: Path, rows: Path, output: Path, address: str | None, workers: int | None, options: tuple[Any, ...]
) -> None:
    x, ids, labels, header, label_codes, drop_missing, save_vectors = options
    if save_vectors:
        raise InputError("--save-vectors does not go with --ray: write the vectors to a .npy file yourself")
    if drop_missing:
        raise InputError("--drop-missing does not go with --ray: leave rows with gaps out of the files")
    if label_codes or header is not None:
        raise InputError("--label-codes and --header do not go with --ray: labels are carried along, and not encoded")
    from dish.ray.connection import cluster
    from dish.ray.jobs import encode_files

    column = "vector" if not x else x[0] if len(x) == 1 else x
    with cluster(address):
        n = encode_files(model, rows, output, column=column, ids=ids, labels=labels, workers=workers)
    print(f"{output}: {n:,} codes")


@dataclass(frozen=True)
class _RowsToEncode:
    """Rows and what belongs to them; ``extra`` are the columns that are written next to the codes."""

    X: Any
    labels: Any = None
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)
    kept: NDArray[Any] | None = None  # the indices of the rows in the input; None: all rows


def _rows_and_columns(hasher: Any, path: Path, columns: ColumnNames) -> _RowsToEncode:
    """The rows to encode, without those that have gaps, and the columns that belong to them."""
    import numpy as np

    from dish.io import gaps, images, readers

    X, labels = rows_for(hasher, path, columns)
    if isinstance(X, Path):
        X, labels, names = images.read_folder(X, None, hasher.image_side)
        return _RowsToEncode(X, labels, {"ids": np.array(names)} | ({} if labels is None else {"labels": labels}))
    given = {"ids": columns.ids, "labels": columns.y}
    extra = {key: column_of(path, columns, name) for key, name in given.items() if name is not None}
    found = [(gaps.VECTOR, path, gaps.without_vector(X))] if columns.gaps else []
    if "ids" in extra:
        found.append((gaps.ID, path, gaps.without_id(extra["ids"])))
    kept = complete_rows(columns.gaps, columns, *found, of=path)
    labels = extra.get("labels", labels)
    if kept is not None:
        X, labels = gaps.take_rows(X, kept), None if labels is None else labels[kept]
        extra = {key: kept_values(column, kept) for key, column in extra.items()}
    if "ids" in extra:
        extra["ids"] = readers.as_saved(path, str(columns.ids), extra["ids"])
    if "labels" in extra and not labels_with_gaps(extra["labels"]):
        extra["labels"] = readers.as_saved(path, str(columns.y), extra["labels"])
    return _RowsToEncode(X, labels, extra, kept)


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
    drop_missing: DropMissing = False,
    header: Header = None,
) -> None:
    """Encode codes again with a newer model: the least certain rows first, a budget at a time.

    The model must be fitted with --compatible-with the model of CODES, or with one of its family, so that old and new
    codes can be compared. X has the rows of CODES, in their order. The least certain codes are those farthest from
    the codeword of any class. CODES is replaced; call the command again for the next rows, until none remain.

    --label-codes and --drop-missing, as in `dish encode`: give them if CODES was made with them.
    """
    check_writable(codes, model, rows)
    from dish.io import backfill as job
    from dish.io.gaps import counted

    columns = columns_of(rows, x=x_column, y=y_column, header=header, gaps=drop_missing)
    hasher, columns = load_model(model, columns)
    given = _rows_and_columns(hasher, rows, columns)
    _check_labels_given(rows, given, label_codes)
    check_same_rows(codes, given.X, given.kept)
    with counted(rows, given.X):
        done = job.backfill(hasher, given.X, codes, budget, given.labels if label_codes else None)
    did = f"{done.encoded:,} rows encoded again, {done.changed:,} codes changed"
    print(f"{codes}: {did}; {done.remaining:,} rows remain")


@example(
    "dish eval model.dish --db X.npy y.npy --queries Xq.npy yq.npy --picture eval.png",
    "dish eval model.dish --db all.npz - --queries new.npz - --seen y_train.npy",
)
def evaluate(
    model: ModelPath,
    db: DatabasePaths,
    queries: Annotated[tuple[Path, Path], typer.Option(metavar="XQ YQ", help="Query rows and labels.")],
    top: Annotated[int | None, typer.Option(metavar="K", help="Compute MAP@K instead of MAP.")] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="Also score rankings of the same rows by float cosine, sign bits, PCA-ITQ and class probabilities.",
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
    drop_missing: DropMissing = False,
    header: Header = None,
) -> None:
    """MAP, precision and recall of a model on labelled queries, compared with other rankings of the same rows.

    Database rows that the model was not trained on are scored first, and apart from the others, whose scores are
    higher than those of new rows. Queries should be neither training rows nor rows of the database. All rows and
    queries need a label.

    "sign bits" are those of the centred vectors, "PCA-ITQ" codes learned without labels, "class probabilities" floats
    of the model (or of a logistic regression), "label codes" codes of database rows whose labels are known. A second
    table counts how many of the 10 nearest rows by float cosine are found.
    """
    if not compare and (seen or picture):
        raise InputError("--seen and --picture need --compare, which is the default")
    check_picture(picture, model, *db, *queries)
    from dish import parallel
    from dish.evaluation.files import evaluate_files
    from dish.io.gaps import counted

    columns = columns_of(*db, *queries, seen, x=x_column, y=y_column, ids=id_column, header=header, gaps=drop_missing)
    hasher, columns = load_model(model, columns)
    base, columns = _labelled_for(hasher, *db, columns)
    wanted, _ = _labelled_for(hasher, *queries, columns)
    with parallel.from_environment() as ranks:
        with counted(queries[0], wanted[0]), counted(db[0], base[0]):
            scores = evaluate_files(hasher, wanted, base, top, ranks)
        if not ranks.first:
            return
    lines = _other_rankings(hasher, wanted, base, seen, columns, needed=bool(seen or picture)) if compare else []
    if picture is not None:
        _draw_rankings(lines, picture)
    if json:
        print(js.dumps(scores.to_dict() | {"rankings": [line.to_dict() for line in lines]}))
    else:
        _show_scores(scores)
        _show_rankings(scores, lines)


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
    if why:
        if needed:
            raise InputError(f"--seen and --picture cannot compare rankings here: {why}")
        typer.echo(f"dish: note: not compared with other rankings: {why}", err=True)
        return []
    from dish.evaluation.compare import compare

    labels = None if seen is None else read_labels(seen, columns.only_labels())
    return compare(hasher, queries, database, labels)


def _draw_rankings(lines: list[Any], path: Path) -> None:
    """Plot the rankings to a file."""
    from dish.experiments import figures, style

    style.write(figures.comparison_figure(lines), path)


def _show_scores(scores: FileScores) -> None:
    """Print how many rows the model was trained on, and its scores: a column for every part of the database."""
    print(_trained(scores))
    names = {"untrained": "not trained on", "trained": "trained on", "all": "all rows"}
    reports = [report.lines() for report in scores.reports.values()]
    rows = [
        (name, *(f"{found[name]:.4f}" if name in found else "–" for found in reports))
        for name in max(reports, key=len)  # a small part has no precision@1000
    ]
    sizes = (f"{names[part]}: {report.n_database:,}" for part, report in scores.reports.items())
    bits = next(iter(scores.reports.values())).n_bits
    show_table(f"{scores.n_queries:,} queries, {bits} bits", ("score, by database rows", *sizes), rows)


def _trained(scores: FileScores) -> str:
    """A sentence about the rows that the model was trained on."""
    if scores.trained_rows is None:
        return (
            f"unknown: how many of {scores.n_database:,} database rows were trained on. The model has no hashes of "
            "its training rows; `dish fit` keeps them, unless --no-row-hashes. Scores of training rows are too high"
        )
    found = f"{scores.trained_rows:,} of {scores.n_database:,} database rows were trained on"
    if scores.trained_rows == scores.n_database:
        return f"{found}. New rows will have lower scores: hold rows out of the fit"
    return found


def _show_rankings(scores: FileScores, lines: list[Any]) -> None:
    """Print the scores of all rankings for every group of queries and rows: by labels, and by nearest rows."""
    if lines and lines[0].n_queries < scores.n_queries:
        print(f"compared on {lines[0].n_queries:,} of {scores.n_queries:,} queries, chosen at random")
    for group in dict.fromkeys(line.group for line in lines):
        part = [line for line in lines if line.group == group]
        at = list(part[0].precision_at)
        names = [f"P@{k}" for k in at[:2]] + [f"R@{k}" for k in at[1:]]
        by_label, by_row = [], []
        for line in part:
            found = [*list(line.precision_at.values())[:2], *list(line.recall_at.values())[1:]]
            values = (line.map, *found, line.precision_within_2, line.recall_within_2)
            first = [line.ranking, f"{line.bytes:,}"]
            by_label.append([*first, *("–" if value is None else f"{value:.3f}" for value in values)])
            values = (*line.neighbours_at.values(), line.rescored_precision)
            by_row.append([*first, *(f"{value:.3f}" for value in values)])
        show_table(
            group,
            ("ranking by", "bytes", "MAP", *names, "P ≤2", "R ≤2"),
            by_label,
            box=box.SIMPLE_HEAD,
            caption="same label: P: precision, R: recall, ≤2: within radius 2; bytes per row",
        )
        show_table(
            "nearest rows",
            ("ranking by", "bytes", "found in 10", "found in 100", "P@10 rescored"),
            by_row,
            box=box.SIMPLE_HEAD,
            caption="found: share of the 10 nearest rows by float cosine. If the first 100 are rescored (sorted by "
            "float vectors), their recall@10 is found in 100",
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
    from dish.io.gaps import take_rows
    from dish.io.readers import feature_names, read_labels

    within = str(labels) == "-"
    own = None if within else labels
    columns_of_rows = columns if within else columns.without_labels()
    X, y = rows_for(hasher, rows, columns_of_rows)
    y = y if within else read_labels(labels, columns.only_labels())
    if isinstance(X, Path):
        X, y = images.with_labels(X, y, hasher.image_side)
    else:
        columns = replace(columns, order=columns.order or feature_names(rows, columns_of_rows))
        kept = None if y is None or len(y) != X.shape[0] else labelled_rows(rows, own, X, y, columns)
        if kept is not None:
            X, y = take_rows(X, kept), y[kept]
    if y is None:
        raise InputError(f"{rows} comes without labels: give a file of labels instead of -")
    return (X, y), columns
