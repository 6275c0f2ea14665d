"""Error diffusion or a projection: which ranks better, for how many classes and bits?

Each argument is a file as ``benchmarks/real.py`` reads it. A perceptron learns from four fifths of the training rows
of some classes; the other rows of these classes are queries and database, half against half. The queries of the file
are not used: these runs chose the share of the errors that is passed on and the most classes per bit
(``dish.deep.heads``). Writes OUTPUT/carried.json.

    python benchmarks/carried.py data/tinyimagenet_lite0.npz --output out
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import deep_vectors
from deep_codewords import float_map, outputs
from dish import DeepDISH, codes, machine, metrics
from dish.deep import heads
from dish.experiments.bench import write_json
from real_protocols import Split

CLASSES, BITS, SHARES = (10, 25, 50, 100), (32, 64, 128), (0.3, 0.5, 0.7, 1.0)


def main() -> None:
    """Every number of classes and bits that the files have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    runs = []
    for path in args.files:
        parts = deep_vectors.parts_of(path, "held out", 0)
        most = len(np.unique(parts.train.y))
        for n_classes in (l for l in CLASSES if l <= most):  # noqa: E741
            for n_bits in BITS:
                run = {"file": path.stem, "classes": n_classes, "bits": n_bits}
                runs.append({**run, **work(some_classes(parts, n_classes), n_bits)})
                print(runs[-1], flush=True)
                write_json(args.output / "carried.json", {"environment": machine.environment(), "runs": runs})


def some_classes(parts: Split, n_classes: int) -> Split:
    """The rows of a random choice of classes."""
    drawn = np.random.default_rng(3).permutation(np.unique(parts.train.y))[:n_classes]
    kept = [part.rows(np.flatnonzero(np.isin(part.y, drawn))) for part in (parts.train, parts.base, parts.queries)]
    return Split(*kept)


def work(parts: Split, n_bits: int) -> dict[str, Any]:
    """One network, and MAP and precision within radius 2 of every head on it."""
    given: list[Any] = []
    fit_head = heads.fit_head

    def noted(*args: Any) -> Any:
        given.extend(args)
        return fit_head(*args)

    heads.fit_head = noted
    hasher = DeepDISH(n_bits, n_iter=3, epochs=5, device="cpu").fit(parts.train.X, parts.train.y)
    heads.fit_head = fit_head
    fitted, (C, signs, held, seen, *_), rng = hasher.model_.head, given, np.random.RandomState(0)
    outputs_of = [outputs(hasher, np.asarray(part.X, np.float32)) for part in (parts.queries, parts.base)]
    y = [parts.queries.y, parts.base.y]
    beta = fitted.beta
    found_heads: dict[str, heads.PosteriorHead] = {
        f"carried, {share}": heads.diffusing_head(fitted.C, signs, beta, share) for share in SHARES
    }
    start = heads.default_head(C, signs, float(beta), rng)
    found_heads["frame"] = heads.refined(start, held, seen, rng).with_codewords(fitted.C)
    found: dict[str, Any] = {"floats": float_map([fitted.probabilities(f) for f in outputs_of], y)}
    for name, each in found_heads.items():
        packed = [codes.pack(each(f).numpy()) for f in outputs_of]
        score = metrics.evaluate(packed[0], y[0], packed[1], y[1], n_bits=n_bits)
        found[name] = {"map": score.map, "precision_within_2": score.precision_within_2}
    return found


if __name__ == "__main__":
    main()
