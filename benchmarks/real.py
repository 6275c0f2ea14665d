"""DISH and its rivals on real features, in three protocols: database trained on, disjoint, classes never seen.

Each argument is a .npz file with X (n, d) and y (n,) or Y (n, l), and perhaps ``scale`` (X is X·scale), ``split``
(2: queries) and ``n_labels`` (Y is packed bits). Rows are l2-normalised unless they are 0/1. Queries are the rows
that the file marks, or 1,000 random ones. Writes benchmarks/results/real/NAME.json.

    python benchmarks/real.py clinc150_use.npz mediamill.npz --trials 3
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import DISH, machine, metrics
from dish.baselines import REGISTRY
from dish.experiments import bench

RESULTS = Path(__file__).parent / "results" / "real"
CUT = 5000  # places of a ranking that count, where rows have several labels
PROTOCOLS = ("trained on", "disjoint", "unseen classes")
METHODS = {
    "DISH": (DISH, {}, (32, 64, 128)),
    "DISH-K, w = 2 (the paper's)": (DISH, {"loss": "ridge", "similar_weight": 2.0}, (64,)),
    "DISH-K, w = auto": (DISH, {"loss": "ridge"}, (32, 64, 128)),
    "SDH": (REGISTRY["sdh"], {}, (32, 64, 128)),
    "LFH": (REGISTRY["lfh"], {}, (64,)),
    "COSDISH": (REGISTRY["cosdish"], {}, (64,)),
    "CCA-ITQ": (REGISTRY["cca_itq"], {}, (64,)),
    "PCA-ITQ": (REGISTRY["pca_itq"], {}, (64,)),
}
SEVERAL_LABELS = ("DISH", "DISH-K, w = 2 (the paper's)", "SDH", "CCA-ITQ", "PCA-ITQ")


@dataclass
class Part:
    """Rows with their labels."""

    X: NDArray[Any]
    y: NDArray[Any]

    def rows(self, which: NDArray[Any]) -> Part:
        """Some of them."""
        return Part(self.X[which], self.y[which])


def read(path: Path) -> tuple[Part, Part | None]:
    """All rows that may be trained on, and the file's own queries."""
    file = np.load(path)
    X = file["X"].astype(np.float32) * (file["scale"].astype(np.float32) if "scale" in file else np.float32(1))
    y = file["y"] if "y" in file else file["Y"]
    if "n_labels" in file:
        y = np.unpackbits(y, axis=1)[:, : int(file["n_labels"])]
    if not np.isin(X[:100], (0, 1)).all():
        X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
    if y.ndim == 2:
        X, y = X[y.any(1)], y[y.any(1)].astype(np.uint8)
    every = Part(X, y)
    if "split" in file:
        return every.rows(file["split"] < 2), every.rows(file["split"] == 2)
    if path.stem.startswith("tinyimagenet"):  # the first 100,000 rows are its training images
        return every.rows(np.arange(100_000)), every.rows(np.arange(100_000, 102_000))
    return every, None


def split(rows: Part, queries: Part | None, protocol: str, trial: int) -> tuple[Part, Part, Part] | None:
    """Training rows, database and queries of one trial."""
    rng = np.random.default_rng(trial)
    order = rng.permutation(len(rows.X))
    if queries is None:
        queries, order = rows.rows(order[:1000]), order[1000:]
    if protocol == "trained on":
        return rows.rows(order), rows.rows(order), queries
    if protocol == "disjoint":
        half = len(order) // 2
        return rows.rows(order[:half]), rows.rows(order[half:]), queries
    if rows.y.ndim == 2:
        return None
    classes = rng.permutation(np.unique(rows.y))
    unseen = classes[int(0.75 * len(classes)) :]
    new = order[np.isin(rows.y[order], unseen)]
    old = order[~np.isin(rows.y[order], unseen)]
    return rows.rows(old), rows.rows(new), queries.rows(np.isin(queries.y, unseen))


def score(name: str, r: int, trial: int, train: Part, base: Part, queries: Part, device: str) -> dict[str, Any]:
    """Fit one method and score its codes."""
    kind, params, _ = METHODS[name]
    if "device" in kind().get_params():
        params = params | {"device": device}
    hasher = kind(n_bits=r, random_state=trial, **params)
    start = time.perf_counter()
    hasher.fit(train.X, train.y)
    seconds = time.perf_counter() - start
    cut = CUT if train.y.ndim == 2 else None
    found = metrics.evaluate(
        hasher.transform(queries.X), queries.y, hasher.transform(base.X), base.y, n_bits=r, k=cut
    )
    return {"bits": r, "map": found.map, "precision_within_2": found.precision_within_2, "fit_s": seconds}


def measure(path: Path, trials: int, device: str) -> dict[str, Any]:
    """Every protocol, method, code length and trial on one set."""
    rows, queries = read(path)
    runs = []
    for protocol in PROTOCOLS:
        for trial in range(trials):
            parts = split(rows, queries, protocol, trial)
            if parts is None:
                continue
            train, base, asked = parts
            common = {"protocol": protocol, "trial": trial}
            cut = CUT if rows.y.ndim == 2 else None
            few = asked.rows(np.arange(min(500, len(asked.X))))
            floats = metrics.l2_mean_average_precision(few.X, few.y, base.X, base.y, k=cut)
            runs.append({**common, "method": "l2 distance (float32)", "bits": None, "map": floats})
            for name in METHODS if rows.y.ndim == 1 else SEVERAL_LABELS:
                for r in METHODS[name][2]:
                    runs.append({**common, "method": name, **score(name, r, trial, train, base, asked, device)})
                    print(
                        path.stem, *(f"{v:.4g}" if isinstance(v, float) else v for v in runs[-1].values()), flush=True
                    )
    n, d = rows.X.shape
    return {"what": __doc__.splitlines()[0], "data": path.stem, "rows": n, "features": d, "runs": runs}


def main() -> None:
    """Measure every file and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for path in given.files:
        found = measure(path, given.trials, given.device)
        bench.write_json(given.output / f"{path.stem}.json", found | {"environment": machine.environment()})


if __name__ == "__main__":
    main()
