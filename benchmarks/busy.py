"""Times that users see: fits next to busy processes, first use, imports. All in one run, measured in turn.

    python benchmarks/busy.py               # everything; writes benchmarks/results/busy.json
    python benchmarks/busy.py first neighbours     # some parts; the others stay in the file as they were
    python benchmarks/busy.py page                 # the table of docs/scale-results.md, from the file

Every number is the fastest of a few runs. Compared runs alternate, so that a change of the load affects both. The
load average before and after each part is stored. Rows are synthetic. Parts, with the limit of each in brackets:

neighbours   a fit alone, and next to two endless loops (3 times as long); NUMBA_NUM_THREADS=16 (1.3 times)
products     60,000 × 512, 1,000 anchors, 64 bits, relative to its own matrix products (1.5 times), DISH-K and DISH
labels       12,928 label sets over 60,000 rows, relative to one label per row (2 times), DISH-K and DISH
first        the README's ten lines on scikit-learn's digits, nothing compiled before (6 s) and again (2.5 s); imports
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pages
from dish import DISH, DISHK, machine
from dish.experiments import bench

RESULTS = Path(__file__).parent / "results" / "busy.json"
README = Path(__file__).parents[1] / "README.md"
REPEATS = 3
N, NEIGHBOURS = 60_000, (62_000, 3_000)  # rows: of products and labels; of neighbours
METHODS = {"paper": DISHK, "default": DISH}


def rows(n: int, d: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping Gaussian classes on the sphere."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    X = rng.standard_normal((n, d)) + 0.4 * rng.standard_normal((classes, d))[y]
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y


def seconds_of(work: Callable[[], Any]) -> float:
    """Wall-clock seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turn(works: dict[str, Callable[[], float]], repeats: int = REPEATS) -> dict[str, float]:
    """The fewest seconds of each; all run once before any runs again."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            found[name].append(work())
    return {name: min(times) for name, times in found.items()}


@contextmanager
def busy_loops(n: int = 2) -> Iterator[None]:
    """``n`` processes that never wait."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def beside_loops(work: Callable[[], Any]) -> float:
    """Seconds of ``work`` next to two busy loops."""
    with busy_loops():
        return seconds_of(work)


def compared(found: dict[str, float], over: str, under: str, bar: float) -> dict[str, Any]:
    """Seconds, their ratio, and whether it is within the limit ``bar``."""
    ratio = found[over] / found[under]
    return {"s": found, "ratio": ratio, "bar": bar, "holds": ratio <= bar}


# --- parts ---


def neighbours() -> dict[str, Any]:
    """Fits next to busy loops, and with more threads than cores."""
    out = {}
    for n in NEIGHBOURS:
        X, y = rows(n, 256, 80)

        def fit(X: Any = X, y: Any = y) -> None:
            DISH(n_bits=32).fit(X, y)

        fit()  # libraries load, kernels compile
        works = {"quiet": lambda fit=fit: seconds_of(fit), "two busy loops": lambda fit=fit: beside_loops(fit)}
        out[f"{n:,} x 256, 80 classes, 32 bits"] = compared(in_turn(works), "two busy loops", "quiet", 3.0)
    works = {name: lambda env=env: fit_elsewhere(env) for name, env in THREADS.items()}
    out[f"threads: {NEIGHBOURS[0]:,} x 256, 80 classes, 32 bits"] = compared(
        in_turn(works), "16", "as many as cores", 1.3
    )
    return out


THREADS = {"as many as cores": {}, "16": {"NUMBA_NUM_THREADS": "16"}}
ELSEWHERE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from busy import DISH, NEIGHBOURS, rows
X, y = rows(NEIGHBOURS[0], 256, 80)
for _ in range(2):
    start = time.perf_counter()
    DISH(n_bits=32).fit(X, y)
print(time.perf_counter() - start)
"""


def fit_elsewhere(environment: dict[str, str]) -> float:
    """Seconds of the second fit in another process."""
    return float(python(ELSEWHERE, str(Path(__file__).parent), **environment).splitlines()[-1])


def products() -> dict[str, Any]:
    """Fits, relative to the matrix products that they need."""
    X, y = rows(N, 512, 10)
    out = {}
    for name, kind in METHODS.items():
        fits: list[Any] = []

        def fit(fits: list[Any] = fits, kind: Any = kind) -> None:
            fits.append(kind(n_bits=64).fit(X, y))

        fit()
        floor = floors(X, fits[0], 10)
        works = {
            "fit": lambda fit=fit: seconds_of(fit),
            **{n: lambda w=w: seconds_of(w) for n, (w, _) in floor.items()},
        }
        found = in_turn(works)
        parts = {part: times * found[part] for part, (_, times) in floor.items()}
        seconds = {"fit": found["fit"], "products": sum(parts.values())}
        stages = min(fits[1:], key=lambda fit: sum(fit.timings_.values())).timings_
        out[name] = compared(seconds, "fit", "products", 1.5) | {"products_s": parts, "stages_s": stages}
    return out


def floors(X: np.ndarray, hasher: Any, classes: int) -> dict[str, tuple[Callable[[], Any], int]]:
    """Each product of a fit as one torch product, and how often a fit needs it."""
    n, m, r = len(X), len(hasher.mean_), hasher.n_bits
    kept, sweeps = hasher.n_iter_, min(hasher.n_iter_ + 1, hasher.n_iter)
    given, anchors = torch.from_numpy(X), torch.from_numpy(X[: len(hasher.anchors_)].copy())
    K, W, H, square = torch.empty(n, m), torch.randn(m, r), torch.randn(n, r), torch.randn(m, m)
    found: dict[str, tuple[Callable[[], Any], int]] = {
        "RBF product": (lambda: given @ anchors.T, 1),
        "KᵀK": (lambda: K.T @ K, 1),
        "KW": (lambda: K @ W, sweeps),
        "KᵀH": (lambda: K.T @ H, kept),
    }
    if isinstance(hasher, DISH):  # regression on whitened rows: two products per step over 1,024 rows
        batch, B, excess = K[:1024].clone(), torch.randn(m, classes), torch.randn(1024, classes)
        found |= {
            "K times its whitening": (lambda: K @ square, 1),
            "regression, forward": (lambda: batch @ B, 1400),
            "regression, back": (lambda: batch.T @ excess, 1400),
        }
        codes, gradients = torch.randn(2048, r), torch.randn(1024, 2048)  # projection: 1,024 queries, 1,024 others
        found |= {
            "projection, forward": (lambda: codes[:1024] @ codes.T, 100),
            "projection, back to queries": (lambda: gradients @ codes, 100),
            "projection, back to all": (lambda: gradients.T @ codes[:1024], 100),
        }
    return found


def labels() -> dict[str, Any]:
    """Several labels per row, compared with one."""
    n, n_labels, rng = N, 80, np.random.default_rng(0)
    sets = (rng.random((N // 4, n_labels)) < 4 / n_labels).astype(np.uint8)
    Y = sets[rng.integers(0, len(sets), n)]
    distinct, y = len(np.unique(Y, axis=0)), np.where(Y.any(1), Y.argmax(1), n_labels)  # the first label, or none
    X = Y @ rng.standard_normal((n_labels, 512)) + 2 * rng.standard_normal((n, 512))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    out = {}
    for name, kind in METHODS.items():
        stages = {}

        def fit(what: str, labels: Any, kind: Any = kind, stages: Any = stages) -> float:
            start = time.perf_counter()
            stages[what] = kind(n_bits=64).fit(X, labels).timings_
            return time.perf_counter() - start

        works = {"one label": lambda fit=fit: fit("one label", y), "several": lambda fit=fit: fit("several", Y)}
        in_turn(works, 1)
        out[name] = compared(in_turn(works), "several", "one label", 2.0) | {"stages_s": stages, "sets": distinct}
    return out


def first() -> dict[str, Any]:
    """The README's first example with an empty cache and again, and imports."""
    text = README.read_text()
    ten_lines = re.search(r"^```python\n(import numpy as np\nfrom dish import .*?)^```", text, re.S | re.M)
    assert ten_lines is not None
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder))

        def run(cache: str) -> float:
            return seconds_of(lambda: python(ten_lines[1], folder=folder, NUMBA_CACHE_DIR=cache))

        run(f"{folder}/kept")
        cold = iter(range(REPEATS))
        works = {"cold": lambda: run(f"{folder}/{next(cold)}"), "warm": lambda: run(f"{folder}/kept")}
        found = in_turn(works)
    imports = {line: lambda line=line: seconds_of(lambda: python(line)) for line in IMPORTS}
    found |= in_turn(imports, 2 * REPEATS)
    bars = {"cold": 6.0, "warm": 2.5, **IMPORTS}
    return {name: {"s": s, "bar": bars[name], "holds": s <= (bars[name] or s)} for name, s in found.items()}


IMPORTS = {
    "pass": None,
    "import torch": None,
    "import dish": 0.2,
    "from dish import DISH": 0.8,
}  # and their limits in seconds


def write_digits(folder: Path) -> None:
    """scikit-learn's digits under the names of the README: 1,497 rows and 300 queries."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    for name, which in (("", order[300:]), ("q", order[:300])):
        np.save(folder / f"X{name}.npy", X[which].astype(np.float32))
        np.save(folder / f"y{name}.npy", y[which])


def python(code: str, *arguments: str, folder: str | None = None, **environment: str) -> str:
    """The output of a program in another process."""
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    env = {**os.environ, **environment}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation has its bytecode
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{code}\n{done.stderr}")
    return done.stdout


# --- the page ---

TITLES = {  # result → title of its row
    "threads: 62,000 x 256, 80 classes, 32 bits": "the first of these, with `NUMBA_NUM_THREADS=16`",
    "paper": "{}DISH-K",
    "default": "{}DISH",
    "cold": "the README's first example, nothing compiled",
    "warm": "the same again",
    "pass": "`python -c pass`",
    **{line: f"`{line}`" for line in IMPORTS if line != "pass"},
}
GROUPS = {
    "neighbours": "{}, next to two busy loops",
    "products": "60,000 × 512, 64 bits, relative to its own products: ",
}
GROUPS |= {"labels": "60,000 × 512, 12,928 label sets, relative to one label per row: ", "first": ""}


def table(content: dict[str, Any]) -> str:
    """All results with their limits, and the highest load average of their part."""
    lines = ["| | s | relative to, s | ratio | limit | load |", "|---|---:|---:|---:|---:|---:|"]
    for part, group in GROUPS.items():
        load = max(value[0] for value in content[part]["load_average"].values())
        for name, one in content[part]["found"].items():
            title = TITLES[name].format(group) if name in TITLES else group.format(name.replace(" x ", " × "))
            bar, missed = f"{one['bar']:g}" if one["bar"] else "", "" if one["holds"] else " (missed)"
            if "ratio" in one:
                low, high = sorted(one["s"].values())
                over, under = (high, low) if one["ratio"] > 1 else (low, high)
                figures = f"{over:.1f} | {under:.1f} | {one['ratio']:.2f}{missed} | {bar} ×"
            else:
                figures = f"{one['s']:.2f}{missed} | | | {f'{bar} s' if bar else ''}"
            lines.append(f"| {title} | {figures} | {load:.1f} |")
    return "\n".join(lines)


def write_page() -> None:
    """Write the table into the page, between its marks."""
    pages.write("busy", table(json.loads(RESULTS.read_text())))


PARTS = {"neighbours": neighbours, "products": products, "labels": labels, "first": first}


def main(chosen: list[str]) -> None:
    """Measure, print, and write after every part."""
    if chosen == ["page"]:
        write_page()
        return
    content = json.loads(RESULTS.read_text()) if chosen and RESULTS.exists() else {}
    content |= {"what": "fits beside busy neighbours, first use, imports", "data": "synthetic, and digits for first"}
    for name in chosen or PARTS:
        before = os.getloadavg()
        found = PARTS[name]()
        load = {"before": before, "after": os.getloadavg()}
        content[name] = {"found": found, "load_average": load, "environment": machine.environment()}
        print(json.dumps({name: found}, indent=1, ensure_ascii=False), flush=True)
        bench.write_json(RESULTS, content)
    write_page()
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main(sys.argv[1:])
