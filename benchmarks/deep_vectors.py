"""A perceptron or a kernel on feature vectors: DeepDISH, DISHD, DISH and SDH on real features.

Each argument is a file as ``benchmarks/real.py`` reads it; protocols and splits are those of real_protocols.py. Rows
with several labels are scored by MAP@5000. "held out" learns from four fifths of the training rows and scores the
rest, half against half: by it the passes and the loss are chosen, never by queries. Every finished run is added to
OUTPUT/deep_vectors.json.

    python benchmarks/deep_vectors.py data/mirflickr20k_vgg16.npz data/mediamill.npz --output out --jobs 4
    python benchmarks/deep_vectors.py data/clinc150_use.npz --methods "dish;perceptron, 20 passes"
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from dish import DISH, DISHD, DeepDISH, machine, metrics
from dish.baselines.sdh import SDH
from dish.experiments.bench import write_json
from real_protocols import CUT, Split, read, split, trainings

PROTOCOLS = ("held out", "trained on", "disjoint", "unseen classes")
Method = tuple[type, dict[str, Any], dict[str, Any]]  # its class, parameters, and what differs in codewords.VECTORS


def perceptron(passes: int, **changed: Any) -> Method:
    """DeepDISH with this many epochs in four rounds."""
    return DeepDISH, {"n_iter": 3, "epochs": passes // 4}, changed


METHODS: dict[str, Method] = {
    "dish": (DISH, {}, {}),
    "sdh": (SDH, {}, {}),
    "perceptron, paper's head": (DISHD, {"n_iter": 3, "epochs": 5}, {}),
    **{f"perceptron, {n} passes": perceptron(n) for n in (8, 20, 60)},
    "perceptron, 20 passes, rows not mixed": perceptron(20, mixup=0.0),
}
NAMES = {"perceptron": [name for name in METHODS if name.startswith("perceptron")]}


def parts_of(path: Path, protocol: str, trial: int) -> Any:
    """The rows of one run; None where the protocol does not apply."""
    rows, queries = read(path)
    if protocol != "held out":
        shared = trainings(rows.y.ndim == 2)
        training = next((name for name, protocols in shared.items() if protocol in protocols), None)
        return None if training is None else split(rows, queries, training, trial).of(protocol)
    train = split(rows, queries, "half", trial).train
    order = np.random.default_rng(trial).permutation(len(train.X))
    n = len(order) // 10
    return Split(train.rows(order[2 * n :]), train.rows(order[:n]), train.rows(order[n : 2 * n]))


def work(path: Path, protocol: str, trial: int, name: str, bits: int) -> dict[str, Any]:
    """Fit, encode, score."""
    import torch

    from dish.deep import codewords

    torch.set_num_threads(2)
    kind, params, changed = METHODS[name]
    codewords.VECTORS = replace(codewords.VECTORS, **changed)
    parts = parts_of(path, protocol, trial)
    if parts is None:
        return {"skipped": "rows have several labels"}
    hasher = kind(n_bits=bits, random_state=trial, **params)
    start = time.perf_counter()
    hasher.fit(parts.train.X, parts.train.y)
    seconds = time.perf_counter() - start
    q, b = (hasher.transform(part.X) for part in (parts.queries, parts.base))
    cut = None
    if parts.base.y.ndim == 2:
        cut = len(b) // 2 if protocol == "held out" else min(CUT, len(b))
    score = metrics.evaluate(q, parts.queries.y, b, parts.base.y, n_bits=bits, k=cut)
    return {"map": score.map, "precision_within_2": score.precision_within_2, "fit_s": seconds}


def main() -> None:
    """Run what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--protocols", default="held out,trained on,disjoint,unseen classes")
    parser.add_argument("--methods", default="dish;sdh;perceptron", help="names, separated by ;")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    out = args.output / "deep_vectors.json"
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"runs": {}}
    results["environment"] = machine.environment()
    methods = [m for name in args.methods.split(";") for m in NAMES.get(name, [name])]
    wanted = {
        f"{path.stem}/{protocol}/{name}/{args.bits}/{trial}": (path, protocol, trial, name, args.bits)
        for trial in range(args.trials)
        for path in args.files
        for protocol in args.protocols.split(",")
        for name in methods
    }
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(work, *run): key for key, run in wanted.items() if key not in results["runs"]}
        for future in as_completed(futures):
            key = futures[future]
            try:
                results["runs"][key] = future.result()
            except Exception as error:  # the other runs go on, and the file says what went wrong
                print(f"{key} failed: {type(error).__name__}: {error}", flush=True)
                continue
            print(key, results["runs"][key], flush=True)
            write_json(out, results)


if __name__ == "__main__":
    main()
