"""The figures of docs/parameters.md and docs/gallery.md, and their numbers (results/teach.json).

    python benchmarks/teach.py parameters tinyimagenet_lite0.npz   # real photos: 100 classes of Tiny ImageNet
    python benchmarks/teach.py gallery                             # real digits of scikit-learn, and results/real/

Parameters: of each class, 60 rows are for training, 40 for the database, and 10 are queries.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dish import DISH, DISHK, codes, metrics
from dish.baselines import REGISTRY
from dish.experiments.bench import write_json
from dish.machine import environment
from real_tables import README_SETS

HERE = Path(__file__).parent
FIGURES, RESULTS = HERE.parent / "docs" / "figures", HERE / "results" / "teach.json"
CLASSES, TRAIN, BASE, QUERIES = 100, 60, 40, 10
VALUES: dict[str, tuple[Any, ...]] = {
    "n_bits": (8, 16, 32, 64, 128),
    "n_anchors": (30, 100, 300, 1000, 2000),
    "gamma": ("auto/16", "auto/4", "auto", "auto*4", "auto*16"),
    "similar_weight": (1.5, 2.0, 5.0, 10.0, 40.0),
    "loss": ("DISH", "logistic", "hinge", "ridge", "pca_itq"),
    "n_iter": (1, 2, 3, 5, 10),
    "nu": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
}
OF_DISH_K = ("gamma", "similar_weight", "loss", "n_iter", "nu")  # shown for DISH-K, the others for DISH
GREEN, ORANGE = "#17594a", "#c2410c"
plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"})


def parameters(file: Path) -> dict[str, Any]:
    """Plot each parameter: distances within and between classes at five of its values."""
    X, y, parts = _split(file)
    found: dict[str, Any] = {}
    for knob, values in VALUES.items():
        figure, axes = plt.subplots(1, 5, figsize=(11, 2.3), sharey=True, layout="constrained")
        found[knob] = []
        for value, ax in zip(values, axes, strict=True):
            scored = _score(_hasher(knob, value, X[parts["train"]]), X, y, parts)
            _histograms(ax, scored.pop("within"), scored.pop("between"))
            name = "PCA-ITQ, no labels" if value == "pca_itq" else f"{knob}={value}"
            ax.set_title(f"{name}\nMAP {scored['map']:.3f}", fontsize=9)
            found[knob].append({"value": value, **scored})
            print(knob, value, scored, flush=True)
        axes[0].set_ylabel("share of pairs")
        axes[0].legend(["same class", "other class"], frameon=False, fontsize=8)
        figure.savefig(FIGURES / f"knob-{knob}.png", dpi=90)
        plt.close(figure)
    return {"data": file.stem, "classes": CLASSES, "rows": {k: len(v) for k, v in parts.items()}, "knobs": found}


def _split(file: Path) -> tuple[Any, Any, dict[str, Any]]:
    with np.load(file) as archive:
        X, y = archive["X"].astype(np.float32), archive["y"]
        X *= archive.get("scale", 1)  # features kept as int8
    rng, parts = np.random.default_rng(0), {"train": [], "database": [], "queries": []}
    for label in rng.permutation(np.unique(y))[:CLASSES]:
        rows = rng.permutation(np.flatnonzero(y == label))
        parts["train"] += rows[:TRAIN].tolist()
        parts["database"] += rows[TRAIN : TRAIN + BASE].tolist()
        parts["queries"] += rows[TRAIN + BASE : TRAIN + BASE + QUERIES].tolist()
    return X, y, {name: np.array(rows) for name, rows in parts.items()}


def _hasher(knob: str, value: Any, X: Any) -> Any:
    if value == "pca_itq":
        return REGISTRY["pca_itq"](n_bits=32)
    given = {"n_bits": 32, "n_anchors": 1000}
    if value == "DISH":
        return DISH(**given)
    if knob == "gamma":
        factor = {"auto": 1.0, "auto/16": 1 / 16, "auto/4": 0.25, "auto*4": 4.0, "auto*16": 16.0}[value]
        return DISHK(**given, gamma=factor * DISHK(**given).fit(X, np.arange(len(X)) % 2).gamma_)
    return (DISHK if knob in OF_DISH_K else DISH)(**(given | {knob: value}))


def _score(hasher: Any, X: Any, y: Any, parts: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    hasher.fit(X[parts["train"]], y[parts["train"]])
    seconds = time.perf_counter() - start
    base, query = (hasher.transform(X[parts[name]]) for name in ("database", "queries"))
    D = codes.hamming(query, base) / hasher.n_bits
    same = y[parts["queries"]][:, None] == y[parts["database"]]
    score = metrics.mean_average_precision(query, y[parts["queries"]], base, y[parts["database"]])
    return {"map": float(score), "fit_s": seconds, "within": D[same], "between": D[~same]}


def _histograms(ax: Any, within: Any, between: Any) -> None:
    bins = np.linspace(0, 1, 33)
    for values, colour in ((within, GREEN), (between, ORANGE)):
        ax.hist(values, bins, weights=np.full(len(values), 1 / len(values)), color=colour, alpha=0.65)
    ax.set(xlabel="share of bits that differ", yticks=[])
    ax.spines["left"].set_visible(False)


# --- gallery ---


def gallery() -> dict[str, Any]:
    """Codewords, distances and neighbours of digits; MAP against bytes of the real sets."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    query, base = order[:300], order[300:]
    hasher = DISH(n_bits=64, n_anchors=500).fit(X[base], y[base])
    B, Q = hasher.transform(X[base]), hasher.transform(X[query])
    _codewords(B, y[base])
    D = codes.hamming(Q, B)
    same = y[query][:, None] == y[base]
    figure, ax = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
    _histograms(ax, D[same] / 64, D[~same] / 64)
    ax.set_ylabel("share of pairs")
    ax.legend(["same digit", "another digit"], frameon=False)
    figure.savefig(FIGURES / "gallery-distances.png", dpi=100)
    told = _neighbours(X, y, query, base, D)
    fronts = {name: _front(name) for name in ("clinc150_use", "tinyimagenet_lite0")}
    return {"digits": {"same": float(D[same].mean()), "other": float(D[~same].mean()), **told}, "fronts": fronts}


def _codewords(B: Any, y: Any) -> None:
    """The mean bit of every class."""
    bits = np.unpackbits(B, axis=1).astype(float)
    mean = np.stack([bits[y == c].mean(0) for c in range(10)])
    figure, ax = plt.subplots(figsize=(9, 2.6), layout="constrained")
    drawn = ax.imshow(mean, cmap="PuOr", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set(xlabel="bit", ylabel="digit", yticks=range(10))
    figure.colorbar(drawn, ax=ax, label="share of ones")
    figure.savefig(FIGURES / "gallery-codewords.png", dpi=100)


def _neighbours(X: Any, y: Any, query: Any, base: Any, D: Any) -> dict[str, float]:
    """Plot the ten nearest rows, by floats and by codes, of the queries with the worst float neighbours."""
    distances = np.linalg.norm(X[query][:, None] - X[base][None], axis=2)
    by_float, by_code = (np.argsort(d, axis=1, kind="stable")[:, :10] for d in (distances, D))
    right = [(y[base][found] == y[query][:, None]).mean(1) for found in (by_float, by_code)]
    shown = np.argsort(right[0], kind="stable")[:4]
    figure, axes = plt.subplots(len(shown) * 2, 11, figsize=(8, 6.2))
    for i, q in enumerate(shown):
        for j, (name, found) in enumerate((("float", by_float), ("64 bits", by_code))):
            row = axes[2 * i + j]
            _digit(row[0], X[query[q]], "black", name)
            for ax, hit in zip(row[1:], found[q], strict=True):
                _digit(ax, X[base[hit]], GREEN if y[base[hit]] == y[query[q]] else ORANGE)
    figure.tight_layout(pad=0.3)
    figure.savefig(FIGURES / "gallery-neighbours.png", dpi=90)
    return {"precision_at_10_float": float(right[0].mean()), "precision_at_10_code": float(right[1].mean())}


def _digit(ax: Any, row: Any, colour: str, name: str = "") -> None:
    ax.imshow(row.reshape(8, 8), cmap="Greys")
    ax.set(xticks=[], yticks=[], ylabel=name)
    for spine in ax.spines.values():
        spine.set(visible=True, color=colour, linewidth=2)


def _front(name: str) -> dict[str, Any]:
    """Plot MAP against bytes per row of the committed runs, in the protocol "disjoint"."""
    results = json.loads((HERE / "results" / "real" / f"{name}.json").read_text())
    runs = [run for run in results["runs"] if run["protocol"] == "disjoint"]
    names = {"dish": "DISH", "sdh": "SDH", "pca_itq": "PCA-ITQ", "sign": "sign bits", "lsh": "LSH"}
    figure, ax = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
    points: dict[str, Any] = {}
    styles = {"dish": (GREEN, "o"), "sdh": ("#6b7280", "^"), "pca_itq": (ORANGE, "D"), "sign": ("#7c3aed", "v")}
    for method, (colour, marker) in (styles | {"lsh": ("#a16207", "X")}).items():
        bits = sorted({run["bits"] for run in runs if run["method"] == method})
        if not bits:  # not measured in this protocol
            continue
        points[method] = [[b / 8, _mean(runs, method, b)] for b in bits]
        ax.plot(
            *zip(*points[method], strict=True),
            f"{marker}-",
            color=colour,
            label=names[method],
            lw=2 if method == "dish" else 1,
        )
    points["cosine"] = [[4 * results["features"], _mean(runs, "cosine", None)]]
    ax.plot(*points["cosine"][0], "s", color="black", label="float32 cosine")
    ax.set(xscale="log", xlabel="bytes per row", ylabel="MAP", ylim=(0, None))
    ax.set_title(f"{README_SETS[name]}: database rows not trained on", fontsize=10)
    ticks = [4, 8, 16, 64, 256, 4 * results["features"]]
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(FIGURES / f"gallery-front-{name}.png", dpi=100)
    return points


def _mean(runs: Any, method: str, bits: int | None) -> float:
    return float(np.mean([run["map"] for run in runs if (run["method"], run["bits"]) == (method, bits)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("parameters", "gallery"))
    parser.add_argument("file", type=Path, nargs="?", help="with parameters: an .npz file with X and y")
    given = parser.parse_args()
    done = parameters(given.file) if given.what == "parameters" else gallery()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[given.what] = {**done, "environment": environment()}
    write_json(RESULTS, results)
