"""Which head suits a frozen network best: the paper's layer, codewords, or DISH on the features?

    python benchmarks/frozen.py          # minutes on two cores; writes benchmarks/results/frozen.json

Features of 3,500 CIFAR-10 images by EfficientNet-Lite0 with ImageNet weights, computed once. 500 images are queries,
and 1,000 or 2,000 others are training images. The database has all images but the queries, or ("disjoint") only those
that are neither queries nor training images. None of these images is a query in the tables.
Needs the CIFAR-10 images in the cache folder and dish-hash[efficientnet].
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dish import DISH, DISHD, DeepDISH, machine, metrics
from dish.datasets import load_cifar10
from dish.deep.image_features import BATCH, Extractor
from dish.experiments.bench import write_json
from dish.experiments.tables import cell, markdown_grid

RESULTS = Path(__file__).parent / "results" / "frozen.json"
IMAGES, QUERIES, ROWS, BITS, TRIALS = 3500, 500, (1000, 2000), (16, 48), 3
HEADS = {"paper": "the paper's head", "codewords": "codewords", "kernel": "kernel"}
Array = NDArray[Any]


def features() -> tuple[Array, Array]:
    """Rows of length one, and their classes."""
    data = load_cifar10()
    rows = data.split(0, 5000).train[:IMAGES]
    phi = Extractor("efficientnet_lite0", device="cpu")
    parts = [phi(resized(data.X[rows[i : i + BATCH]], phi.side)) for i in range(0, IMAGES, BATCH)]
    return np.concatenate(parts), data.y[rows]


def resized(images: Array, side: int) -> Array:
    """As ``HashingNet.prepare`` does it."""
    import torch

    x = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    x = nn.functional.interpolate(x, (side, side), mode="bilinear")
    return x.permute(0, 2, 3, 1).round().to(torch.uint8).numpy()


def hasher_of(head: str, bits: int, trial: int) -> Any:
    """A method on features; SGD runs at a tenth of its rate from scratch."""
    if head == "kernel":
        return DISH(bits, device="cpu", random_state=trial)
    scale = {"epochs": 15, "lr": 0.01}
    kind = DISHD if head == "paper" else DeepDISH
    return kind(bits, nn.Identity(), device="cpu", random_state=trial, **scale)


def scored(head: str, bits: int, n: int, trial: int, X: Array, y: Array) -> dict[str, Any]:
    """MAP of one fit against both databases."""
    order = np.random.default_rng(trial).permutation(IMAGES)
    query, train, rest = np.split(order, [QUERIES, QUERIES + n])
    if head != "kernel":  # the length of the features before they are normalised
        X = X * X.shape[1] ** 0.5 / 2
    hasher, start = hasher_of(head, bits, trial), time.perf_counter()
    hasher.fit(X[train], y[train])
    found: dict[str, Any] = {"head": head, "bits": bits, "n_train": n, "trial": trial}
    found["fit_s"] = time.perf_counter() - start
    asked = hasher.transform(X[query])
    for name, rows in (("map", np.concatenate([train, rest])), ("map_disjoint", rest)):
        found[name] = float(metrics.mean_average_precision(asked, y[query], hasher.transform(X[rows]), y[rows]))
    return found


def table(runs: list[dict[str, Any]]) -> str:
    """MAP with training rows in the database, and in brackets without."""

    def values(key: str, head: str, n: int, bits: int) -> list[float]:
        wanted = (head, n, bits)
        return [run[key] for run in runs if (run["head"], run["n_train"], run["bits"]) == wanted]

    columns = [(n, bits) for n in ROWS for bits in BITS]
    rows = [
        [
            label,
            *(f"{cell(values('map', head, *c))} ({np.mean(values('map_disjoint', head, *c)):.3f})" for c in columns),
        ]
        for head, label in HEADS.items()
    ]
    return markdown_grid(["on frozen features", *(f"{n:,} images, {bits} bits" for n, bits in columns)], rows)


def main() -> None:
    """Compute the features, fit, write."""
    X, y = features()
    runs = []
    for trial in range(TRIALS):
        for n in ROWS:
            for bits in BITS:
                runs += [scored(head, bits, n, trial, X, y) for head in HEADS]
    content = {"what": __doc__, "environment": machine.environment(), "load_average": os.getloadavg(), "runs": runs}
    write_json(RESULTS, content)
    print(table(runs))


if __name__ == "__main__":
    main()
