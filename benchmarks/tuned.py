"""A few hundred images and a pretrained network: train it, or freeze it?

    python benchmarks/tuned.py          # half an hour on two cores; writes benchmarks/results/tuned.json

EfficientNet-Lite0 with ImageNet weights, 400 CIFAR-10 images, four epochs if it is trained, 64 bits; 300 other images
are queries, and 600 more are the database. "classes" is the share of the 900 images that a ridge regression on Φ
classifies correctly before any training, with the batch-norm averages of the weight file and with those of the 400
images. "4,000 steps" learns from 4,000 images of 32 pixels, 32 at a time, at rate 0.3, without and with the usual
weight decay. None of these images is a query in the tables.
Needs the CIFAR-10 images in the cache folder and dish-hash[efficientnet].
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import machine, metrics
from dish.datasets import load_cifar10
from dish.experiments.bench import write_json

RESULTS = Path(__file__).parent / "results" / "tuned.json"
TRAIN, MANY, QUERIES, BASE, BITS = 400, 4000, 300, 600, 64
NET: dict[str, Any] = {"net": "efficientnet_lite0", "weights": "imagenet", "device": "cpu"}
SGD: dict[str, Any] = {**NET, "n_iter": 1, "epochs": 2, "batch_size": 32}
MANY_STEPS: dict[str, Any] = {**NET, "n_iter": 3, "epochs": 8, "batch_size": 32, "lr": 0.3, "image_size": 32}
WAYS: dict[str, dict[str, Any]] = {
    "left as it is, kernel": {**NET, "freeze": True},
    "trained, the paper's head": SGD,
    "trained, codewords": SGD,
    "trained, codewords, without care": {**SGD, "lr": 0.1},  # the rate of "auto" with preserve_body
    "4,000 steps": MANY_STEPS,
    "4,000 steps, weight decay": {**MANY_STEPS, "weight_decay": 5e-4},
    "classes, averages as they came": {},
    "classes, averages of these images": {},
}
Array = NDArray[Any]


def images(n: int) -> tuple[list[Array], list[Array]]:
    """Training images, queries and database, and their classes."""
    data = load_cifar10()
    rows = data.split(0, 5000).train[: n + QUERIES + BASE]
    parts = np.split(rows, [n, n + QUERIES])
    return [data.X[part] for part in parts], [data.y[part] for part in parts]


def work(way: str) -> dict[str, Any]:
    """MAP of one hasher, or the share of images that are classified correctly."""
    import torch

    from dish import DISHD, DeepDISH
    from dish.deep import codewords

    torch.set_num_threads(1)
    X, y = images(MANY if "steps" in way else TRAIN)
    if way.startswith("classes"):
        return {"accuracy": classes(X, y, "these" in way)}
    if way.endswith("without care"):
        codewords.PRETRAINED = replace(codewords.PRETRAINED, preserve_body=False)
    start = time.perf_counter()
    kind = DISHD if "paper" in way else DeepDISH
    hasher = kind(BITS, **WAYS[way]).fit(X[0], y[0])
    seconds = time.perf_counter() - start
    asked, base = (hasher.transform(part) for part in X[1:])
    return {"map": float(metrics.mean_average_precision(asked, y[1], base, y[2])), "fit_s": seconds}


def classes(X: list[Array], y: list[Array], anew: bool) -> float:
    """The share of new images that the initial regression classifies correctly."""
    import torch

    from dish.deep.codewords import recalibrate_batch_norm, regress_outputs
    from dish.deep.data import DeepFitData, read_labels
    from dish.deep.model import make_model
    from dish.parallel import ALONE

    S, labels = read_labels(y[0], TRAIN, "DeepDISH", graded=False, similarity=False)
    data = DeepFitData(torch.from_numpy(X[0]), labels, S, 0, torch.device("cpu"), ALONE)
    model, _ = make_model(NET["net"], NET["weights"], None, S.n_groups, data.rows[:1])
    if anew:
        recalibrate_batch_norm(data, model)
    regress_outputs(data, model, torch.eye(S.n_groups)[data.targets])
    rest, right = torch.from_numpy(np.concatenate(X[1:])), np.concatenate(y[1:])
    with torch.no_grad():
        said = [model.eval()(model.prepare(part))[1].argmax(1) for part in rest.split(16)]
    return float((torch.cat(said).numpy() == right).mean())


def main() -> None:
    """Two at a time."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        found = {}
        for way, result in zip(WAYS, pool.map(work, WAYS), strict=True):
            found[way] = result
            print(way, result, flush=True)
    write_json(RESULTS, {"runs": found, "environment": machine.environment()})


if __name__ == "__main__":
    main()
