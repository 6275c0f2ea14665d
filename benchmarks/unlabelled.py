"""What unlabelled rows are good for: DISH on a few labelled digits, with and without the other rows.

Three ways to train: on the labelled rows only; with anchors from all rows (the features change, S does not); and on
rows that get a confident label from scikit-learn's LabelSpreading, too.
"""

import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.semi_supervised import LabelSpreading

from dish import DISH, DISHK, machine, metrics
from dish.experiments.bench import write_json

RESULTS = Path(__file__).parent / "results" / "unlabelled.json"
PER_CLASS, SEEDS, BITS, SURE = (3, 10, 30), 5, 32, 0.6


def one(X, y, per_class, seed):
    """MAP of 300 held-out queries against the other 1,497 rows, for every way to train."""
    order = np.random.default_rng(seed).permutation(len(X))
    query, base = order[:300], order[300:]
    labelled = np.concatenate([base[y[base] == c][:per_class] for c in range(10)])
    given = np.where(np.isin(base, labelled), y[base], -1)

    def score(hasher):
        return metrics.mean_average_precision(
            hasher.transform(X[query]), y[query], hasher.transform(X[base]), y[base]
        )

    settings = {"n_bits": BITS, "random_state": seed}
    spread = LabelSpreading(kernel="knn", n_neighbors=10, alpha=0.5, max_iter=50).fit(X[base], given)
    sure = (spread.label_distributions_.max(1) > SURE) | (given >= 0)
    filled = np.where(given >= 0, given, spread.transduction_)
    return {
        "labelled rows": score(DISH(**settings).fit(X[labelled], y[labelled])),
        "labelled rows, DISH-K": score(DISHK(**settings).fit(X[labelled], y[labelled])),
        "anchors from all rows": score(DISH(anchors=X[base[:1000]], **settings).fit(X[labelled], y[labelled])),
        "labels spread first": score(DISH(**settings).fit(X[base][sure], filled[sure])),
    }


def main():
    """Run, print, write."""
    warnings.simplefilter("ignore")
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    rows = []
    for per_class in PER_CLASS:
        runs = [one(X, y, per_class, seed) for seed in range(SEEDS)]
        for way in runs[0]:
            values = [run[way] for run in runs]
            rows.append(
                {"per_class": per_class, "way": way, "map": float(np.mean(values)), "std": float(np.std(values))}
            )
            print(f"{per_class:3d} per class, {way}: {np.mean(values):.3f} ± {np.std(values):.3f}")
    content = {"what": "scikit-learn digits (real), 32 bits, 300 queries, 1,497 rows", "seeds": list(range(SEEDS))}
    write_json(RESULTS, content | {"rows": rows, "environment": machine.environment()})


if __name__ == "__main__":
    main()
