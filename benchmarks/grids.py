"""Settings that each rival may choose from in benchmarks/real.py, and the choice on held-out training rows.

``DISH`` makes such choices in ``fit``; rivals have no such step, so the benchmark makes them. All kernel methods have
the same number of anchors and the same γ, which are not tuned. This writes the table of docs/baselines.md:

    python benchmarks/grids.py
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import pages
from dish import metrics, registry
from dish.errors import DishError
from dish.experiments.tables import markdown_grid
from real_protocols import CUT, Part

BITS = 64  # of every choice
HELD_OUT, MOST_QUERIES, MOST_ROWS = 0.2, 1000, 20_000  # share and number of held-out rows; rows to learn from

Setting = dict[str, Any]
RIDGES = (1e-6, 1e-4, 1e-2)


def product(**values: tuple[Any, ...]) -> list[Setting]:
    """All combinations of the values, the first of each first."""
    found: list[Setting] = [{}]
    for name, several in values.items():
        found = [{**setting, name: value} for setting in found for value in several]
    return found


GRIDS: dict[str, list[Setting]] = {
    "dish_k": product(ridge=RIDGES),
    "sdh": product(ridge=RIDGES, nu=(1e-5, 1e-3)),
    "fssh": product(ridge=RIDGES, mu=(1.0, 0.1)),
    "ksh": product(similar_weight=(2.0, "auto")),
    "lfh": product(n_columns=(None, 256), ridge=RIDGES),
    "cosdish": product(n_columns=(None, 256, 1000), ridge=(1e-6, 1e-2)),
    "fasth": product(similar_weight=(2.0, "auto"), ridge=RIDGES),
    "logistic_lsh": product(ridge=(1e-6, 1e-1)),
    "cca_itq": [*product(ridge=(0.1, 1.0)), *product(kernel=("rbf",), ridge=(0.1, 0.01))],
    "whitened_itq": product(shrinkage=(1.0, 0.1, 10.0)),
    "dgh": product(n_anchors=(300, 1000), rho=(0.1, 1.0, 10.0)),
}


@dataclass
class Tuned:
    """The scores of all settings of a method on held-out rows."""

    scores: list[dict[str, Any]]  # params, and map or why there is none
    rows: int
    queries: int
    seconds: float

    def record(self) -> dict[str, Any]:
        """As it is written to the results."""
        return {"chosen": self.chosen, "settings": self.scores, **self._sizes()}

    def _sizes(self) -> dict[str, Any]:
        return {"rows": self.rows, "queries": self.queries, "seconds": self.seconds}

    @property
    def chosen(self) -> Setting:
        """The setting with the highest score; the first of several. The defaults if none has a score."""
        known = [score for score in self.scores if "map" in score]
        return dict(max(known, key=lambda score: score["map"])["params"]) if known else {}


def held_out(train: Part) -> tuple[Part, Part]:
    """Queries, and the rows to learn from, which are also the database: random training rows."""
    order = np.random.default_rng(0).permutation(len(train.X))
    n = min(int(HELD_OUT * len(order)), MOST_QUERIES)
    return train.rows(order[:n]), train.rows(order[n:][:MOST_ROWS])


def tune(name: str, train: Part, make: Callable[[Setting], Any], within: Callable[[], Any]) -> Tuned:
    """Score all settings of a method. ``make`` gives an unfitted hasher; ``within`` limits the time of a fit.

    The score is the MAP (MAP@5000 for several labels per row) of held-out rows against the rows learned from.
    """
    queries, rows = held_out(train)
    start, scores = time.perf_counter(), []
    for setting in GRIDS[name]:
        try:
            with within():
                hasher = make(setting).fit(rows.X, rows.y)
                q, b = hasher.transform(queries.X), hasher.transform(rows.X)
            h = metrics.histograms(q, queries.y, b, rows.y, hasher.n_bits)
            cut = min(CUT, len(rows.X)) if rows.y.ndim == 2 else None
            found = {"map": float(metrics.expected_average_precision(h, cut).mean())}
        except (DishError, ValueError, TimeoutError) as error:
            found = {"not_run": f"{type(error).__name__}: {error}"}
        scores.append({"params": setting, **found})
    return Tuned(scores, len(rows.X), len(queries.X), time.perf_counter() - start)


# --- the table of docs/baselines.md ---

TOOLKIT, KSH_CODE, DISH_CODE = "[public code][toolkit]", "[authors' code][ksh]", "[authors' code][dish]"
LINKS = {
    "toolkit": "https://github.com/Eddie-Wang1120/single-modal-supervised-hashing-baseline-for-image-retrieval",
    "ksh": "https://github.com/ColumbiaDVMM/Supervised-Hashing-with-Kernels",
    "dish": "https://github.com/zsffq999/DISH",
}
AUTHORS: dict[tuple[str, str], tuple[str, str]] = {  # (method, parameter) → value, source
    ("dish_k", "n_anchors"): ("1000", DISH_CODE),
    ("dish_k", "nu"): ("1e-4", DISH_CODE),
    ("dish_k", "ridge"): ("0", DISH_CODE),
    ("dish_k", "similar_weight"): ("2; 10 for 1,000 classes", "paper"),
    ("sdh", "n_anchors"): ("1000", TOOLKIT + ", demo_SDH.m"),
    ("sdh", "lam"): ("1", TOOLKIT + ", demo_SDH.m"),
    ("sdh", "nu"): ("1e-5", TOOLKIT + ", demo_SDH.m"),
    ("sdh", "ridge"): ("0.01, on KᵀK with γ = 3.1", TOOLKIT + ", demo_SDH.m"),
    ("sdh", "n_iter"): ("5", TOOLKIT + ", demo_SDH.m"),
    ("fssh", "mu"): ("10⁴/n", TOOLKIT + ", FSSH.m; its terms are not multiplied by n"),
    ("fssh", "theta"): ("0.01/n", TOOLKIT + ", FSSH.m"),
    ("fssh", "n_iter"): ("5", TOOLKIT + ", FSSH.m"),
    ("fssh", "ridge"): ("1, on KᵀK of standardised features", TOOLKIT + ", FSSH.m"),
    ("ksh", "n_anchors"): ("300", KSH_CODE),
    ("ksh", "n_steps"): ("500", KSH_CODE),
    ("ksh", "similar_weight"): ("2 (S = ±1), 2,000 labelled rows", KSH_CODE),
    ("lfh", "beta"): ("30", TOOLKIT + ", demo_LFH.m"),
    ("lfh", "n_iter"): ("50", TOOLKIT + ", demo_LFH.m"),
    ("lfh", "n_columns"): ("r", TOOLKIT + ", LFH.m"),
    ("lfh", "ridge"): ("n/d, on XᵀX", TOOLKIT + ", LFH.m; linear features"),
    ("cosdish", "n_draws"): ("10", TOOLKIT + ", COSDISH.m"),
    ("cosdish", "n_alternations"): ("3", TOOLKIT + ", COSDISH.m"),
    ("cosdish", "n_columns"): ("r", TOOLKIT + ", COSDISH.m"),
    ("cosdish", "ridge"): ("1, on XᵀX", TOOLKIT + ", COSDISH.m; linear features"),
    ("fasth", "classifier"): ("trees", "paper"),
    ("cca_itq", "kernel"): ("linear", "paper"),
    **dict.fromkeys([("logistic_lsh", "ridge"), ("whitened_itq", "shrinkage")], ("–", "a method of our own")),
}
SHOWN: dict[str, tuple[str, ...]] = {  # parameters of the table, of each method
    "dish_k": ("n_anchors", "nu", "ridge", "similar_weight"),
    "sdh": ("n_anchors", "lam", "nu", "n_iter", "ridge"),
    "fssh": ("mu", "theta", "n_iter", "ridge"),
    "ksh": ("n_anchors", "n_steps", "similar_weight"),
    "lfh": ("beta", "n_iter", "n_columns", "ridge"),
    "cosdish": ("n_draws", "n_alternations", "n_columns", "ridge"),
    "fasth": ("classifier", "similar_weight", "ridge"),
    "logistic_lsh": ("ridge",),
    "cca_itq": ("kernel", "ridge", "n_iter"),
    "whitened_itq": ("shrinkage",),
    "dgh": ("n_anchors", "n_neighbors", "rho"),
    "pca_itq": ("n_iter",),
}


def table() -> str:
    """Method, parameter, default, the authors' value, its source, and the values of the grid."""
    rows = []
    for method, names in SHOWN.items():
        defaults = inspect.signature(registry.find(method)).parameters
        for name in names:
            value, source = AUTHORS.get((method, name), ("not found", "–"))
            tried = dict.fromkeys(shown(s[name]) for s in GRIDS.get(method, []) if name in s)
            cells = [shown(defaults[name].default), value, source, ", ".join(tried) or "–"]
            rows.append([f"`{method}`", f"`{name}`", *cells])
    heads = ["method", "parameter", "default", "authors' value", "source", "grid"]
    return markdown_grid(heads, rows) + "\n" + "\n".join(f"[{name}]: {link}" for name, link in LINKS.items())


def shown(value: Any) -> str:
    """A value in the table."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Write the table into its page, between its marks."""
    pages.write("grids", table())


if __name__ == "__main__":
    main()
