"""`dish features`: extract features from images."""

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
    output: Annotated[Path, typer.Option("-o", "--output", help="File of the features (.npy, float32).")],
    net: Annotated[
        str, typer.Option(help="A network with ImageNet weights: efficientnet_lite0, efficientnet_lite2, …")
    ] = "efficientnet_lite0",
) -> None:
    """Extract features of images by a network with ImageNet weights, for `dish fit X.npy X_labels.npy`.

    Every row has unit length. The names of the files are written to X.ids.npy, and if every image is in a sub-folder,
    the names of the sub-folders to X_labels.npy. An interrupted call is resumed by the same call.
    """
    if output.suffix != ".npy":
        raise InputError(
            f"features are written as .npy, not {output.suffix or output.name!r}: use -o {output.stem}.npy"
        )
    check_writable(output, Path(source))
    from dish import nets
    from dish.datasets.extract import write_features

    if nets.spec(net).weight_file == nets.spec(net).weight_package == "":
        with_weights = [name for name, known in nets.NETS.items() if known.weight_file or known.weight_package]
        raise InputError(f"--net must have published weights: {', '.join(with_weights)}; got {net!r}")
    done = write_features(source, output, net)
    labels = (
        f"labels in {output.stem}_labels.npy" if done.labelled else "no labels: not every image is in a sub-folder"
    )
    print(f"{output}: {done.n:,} rows of {done.width:,} features; {labels}")
    for problem in list(done.problems.values())[:10]:
        print(f"dish: note: skipped: {problem}", file=sys.stderr)
    if len(done.problems) > 10:
        print(f"dish: note: skipped: {len(done.problems) - 10} more", file=sys.stderr)
