"""`dish features`: rows of features from images, for those who have none yet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dish.cli.options import check_writable, example
from dish.errors import InputError


@example(
    "dish features photos/ --net efficientnet_lite0 -o X.npy",
    "dish features tiny-imagenet-200 -o tiny.npy",
    "dish features cifar10 --net efficientnet_lite2 -o cifar.npy",
)
def features(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IMAGES", help="A folder of images, Tiny ImageNet's official folder, or the name cifar10."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the features go (.npy, float32).")],
    net: Annotated[
        str, typer.Option(help="A network with ImageNet weights: efficientnet_lite0, efficientnet_lite2, …")
    ] = "efficientnet_lite0",
) -> None:
    """Features of images by a network with ImageNet weights: rows of length one, for `dish fit X.npy X_labels.npy`.

    Beside X.npy come the labels (X_labels.npy), where every image lies in a sub-folder of the name of its label, and
    the names of the files (X.ids.npy). A call that was cut off is resumed by the same call.
    """
    if output.suffix != ".npy":
        raise InputError(f"features are written as .npy, not as {output.name!r}: name {output.stem}.npy")
    check_writable(output, Path(source))
    from dish import nets
    from dish.datasets.extract import write_features

    if nets.spec(net).weight_file == nets.spec(net).weight_package == "":
        with_weights = [name for name, known in nets.NETS.items() if known.weight_file or known.weight_package]
        raise InputError(f"--net must have published weights: {', '.join(with_weights)}; got {net!r}")
    done = write_features(source, output, net)
    beside = ", labels beside them" if done.labelled else ", no labels: not every image is in a sub-folder"
    print(f"{output}: {done.n:,} rows of {done.width:,} features{beside}")
    for problem in list(done.problems.values())[:10]:
        print(f"dish: note: left out: {problem}", file=sys.stderr)
    if len(done.problems) > 10:
        print(f"dish: note: left out: {len(done.problems) - 10} more", file=sys.stderr)
