"""The figures of docs/parameters.md and docs/gallery.md, and their numbers (results/teach.json).

    python benchmarks/teach.py parameters tinyimagenet_lite0.npz   # real photos: 100 classes of Tiny ImageNet
    python benchmarks/teach.py gallery                             # real digits of scikit-learn
    python benchmarks/teach.py draw                                # fits nothing: the figures made from results files

Parameters: of each class, 60 rows are for training, 40 for the database, and 10 are queries.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from dish import DISH, DISHK, codes, metrics
from dish.baselines import REGISTRY
from dish.experiments import style
from dish.experiments.bench import write_json
from dish.machine import environment
from real_tables import README_SETS

HERE = Path(__file__).parent
FIGURES, RESULTS = HERE.parent / "docs" / "figures", HERE / "results" / "teach.json"
FRONTS = ("clinc150_use", "tinyimagenet_lite0")
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
GREEN, ORANGE = style.COLOURS["deep_dish"], style.COLOURS["dish"]
BINS = np.linspace(0, 1, 33)


def parameters(file: Path) -> dict[str, Any]:
    """Distances within and between classes at five values of each parameter."""
    X, y, parts = _split(file)
    found: dict[str, Any] = {}
    for knob, values in VALUES.items():
        found[knob] = []
        for value in values:
            found[knob].append({"value": value, **_score(_hasher(knob, value, X[parts["train"]]), X, y, parts)})
            print(knob, value, found[knob][-1]["map"], flush=True)
        _draw_parameter(knob, found[knob])
    return {"data": file.stem, "classes": CLASSES, "rows": {k: len(v) for k, v in parts.items()}, "knobs": found}


def _draw_parameter(knob: str, scored: list[dict[str, Any]]) -> None:
    """Plot the distances at each value of a parameter, all with one scale."""
    figure, axes = style.panels(len(scored), f"{knob}: share of bits that differ", 1.9, columns=len(scored))
    for one, axis in zip(scored, axes, strict=True):
        _histograms(axis, one["within"], one["between"])
        name = "PCA-ITQ, no labels" if one["value"] == "pca_itq" else str(one["value"])
        axis.set_title(f"{name}\nMAP {one['map']:.3f}", fontsize=style.FONT - 1)
        axis.set(xlabel="share of bits", ylim=(0, 1.05 * max(max(x["within"] + x["between"]) for x in scored)))
    for axis in axes[1:]:
        axis.tick_params(labelleft=False)
    axes[0].set_ylabel("share of pairs")
    _name_histograms(axes[-1], "same class", "other class")
    style.write(figure, FIGURES / f"knob-{knob}.svg")


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
    return {"map": float(score), "fit_s": seconds, "within": _shares(D[same]), "between": _shares(D[~same])}


def _shares(distances: Any) -> list[float]:
    """The share of pairs in every bin."""
    found: list[float] = (np.histogram(distances, BINS)[0] / len(distances)).round(5).tolist()
    return found


def _histograms(ax: Any, within: list[float], between: list[float]) -> None:
    for shares, colour in ((within, GREEN), (between, ORANGE)):
        ax.stairs(shares, BINS, fill=True, color=colour, alpha=0.65)
    ax.set(xlabel="share of bits that differ")


def _name_histograms(ax: Any, within: str, between: str) -> None:
    """Write the names of both histograms beside a panel, in their colours."""
    for name, colour, height in ((within, GREEN, 0.9), (between, ORANGE, 0.75)):
        ax.text(1.03, height, name, transform=ax.transAxes, color=colour, weight="bold", fontsize=style.FONT - 1)


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
    figure, (ax,) = style.panels(1, "distances of 64-bit codes of digits")
    _histograms(ax, _shares(D[same] / 64), _shares(D[~same] / 64))
    ax.set_ylabel("share of pairs")
    _name_histograms(ax, "same digit", "another digit")
    style.write(figure, FIGURES / "gallery-distances.svg")
    told = _neighbours(X, y, query, base, D)
    fronts = {name: _front(name) for name in FRONTS}
    return {"digits": {"same": float(D[same].mean()), "other": float(D[~same].mean()), **told}, "fronts": fronts}


def _codewords(B: Any, y: Any) -> None:
    """The mean bit of every class."""
    bits = np.unpackbits(B, axis=1).astype(float)
    mean = np.stack([bits[y == c].mean(0) for c in range(10)])
    figure, (ax,) = style.panels(1, "mean bits of the codes of ten digits", 2.4)
    ax.grid(False)
    drawn = ax.imshow(mean, cmap="PuOr", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set(xlabel="bit", ylabel="digit", yticks=range(10))
    bar = figure.colorbar(drawn, ax=ax)
    bar.set_label("share of ones", color=style.INK)
    bar.ax.tick_params(color=style.INK, labelcolor=style.INK, labelsize=style.FONT - 1)
    style.write(figure, FIGURES / "gallery-codewords.svg")


def _neighbours(X: Any, y: Any, query: Any, base: Any, D: Any) -> dict[str, float]:
    """Plot the ten nearest rows, by floats and by codes, of the queries with the worst float neighbours."""
    distances = np.linalg.norm(X[query][:, None] - X[base][None], axis=2)
    by_float, by_code = (np.argsort(d, axis=1, kind="stable")[:, :10] for d in (distances, D))
    right = [(y[base][found] == y[query][:, None]).mean(1) for found in (by_float, by_code)]
    shown = np.argsort(right[0], kind="stable")[:4]
    figure, axes = style.panels(len(shown) * 2 * 11, "query, and its ten nearest digits", 0.68, columns=11)
    for i, q in enumerate(shown):
        for j, (name, found) in enumerate((("float", by_float), ("64 bits", by_code))):
            row = axes[11 * (2 * i + j) :][:11]
            _digit(row[0], X[query[q]], style.INK, name)
            for ax, hit in zip(row[1:], found[q], strict=True):
                _digit(ax, X[base[hit]], GREEN if y[base[hit]] == y[query[q]] else ORANGE)
    style.write(figure, FIGURES / "gallery-neighbours.svg")
    return {"precision_at_10_float": float(right[0].mean()), "precision_at_10_code": float(right[1].mean())}


def _digit(ax: Any, row: Any, colour: str, name: str = "") -> None:
    ax.imshow(row.reshape(8, 8), cmap="Greys")
    ax.grid(False)
    ax.set(xticks=[], yticks=[], ylabel=name)
    for spine in ax.spines.values():
        spine.set(visible=True, color=colour, linewidth=2)


def _front(name: str) -> dict[str, Any]:
    """Plot MAP against bytes per row of the committed runs, in the protocol "disjoint"."""
    results = json.loads((HERE / "results" / "real" / f"{name}.json").read_text())
    runs = [run for run in results["runs"] if run["protocol"] == "disjoint"]
    figure, (ax,) = style.panels(1, f"{README_SETS[name]}: database rows not trained on", 3.2)
    points: dict[str, Any] = {}
    for method in ("dish", "sdh", "pca_itq", "sign", "lsh"):
        bits = sorted({run["bits"] for run in runs if run["method"] == method})
        if bits:  # else not measured in this protocol
            points[method] = [[b / 8, _mean(runs, method, b)] for b in bits]
            ax.plot(*zip(*points[method], strict=True), label=style.name_of(method), **style.style(method))
    points["cosine"] = [[4 * results["features"], _mean(runs, "cosine", None)]]
    ax.plot(*points["cosine"][0], "s", color=style.INK, label="float32 cosine")
    ax.set(xscale="log", xlabel="bytes per row", ylabel="MAP", ylim=(0, None))
    ticks = [4, 8, 16, 64, 256, 4 * results["features"]]
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.minorticks_off()
    style.name_lines(ax, ax.lines)
    style.write(figure, FIGURES / f"gallery-front-{name}.svg")
    return points


def _mean(runs: Any, method: str, bits: int | None) -> float:
    return float(np.mean([run["map"] for run in runs if (run["method"], run["bits"]) == (method, bits)]))


def draw() -> None:
    """The figures whose numbers are in results files."""
    for name in FRONTS:
        _front(name)
    for knob, scored in json.loads(RESULTS.read_text())["parameters"]["knobs"].items():
        if "within" in scored[0]:  # results from before distances were stored have none
            _draw_parameter(knob, scored)


def main() -> None:
    """Measure and draw, or only draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("parameters", "gallery", "draw"))
    parser.add_argument("file", type=Path, nargs="?", help="with parameters: an .npz file with X and y")
    given = parser.parse_args()
    if given.what == "draw":
        draw()
        return
    done = parameters(given.file) if given.what == "parameters" else gallery()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[given.what] = {**done, "environment": environment()}
    write_json(RESULTS, results)


if __name__ == "__main__":
    main()
