"""What should decide on error diffusion, given a few held-out rows: their labels, or their probabilities p?

Each argument is a file as ``benchmarks/real.py`` reads it. A perceptron learns from some training rows of some
classes and holds 15 % of them out. The gain of error diffusion that the labels and p of these rows predict
(``dish.deep.heads.diffusion_gain``) is compared with the MAP of up to 9,000 other training rows, of which 1,000 are
queries. The queries of the file are not used. Writes OUTPUT/judges.json: every run; per judge, how often it is right
and the MAP that its choices gain over a projection; and for one class with a larger share of the rows, the gain where
p predicts one, by the evenness of the classes.

    python benchmarks/judges.py data/tinyimagenet_lite0.npz data/clinc150_use.npz --classes 10,25 --output out
"""

from __future__ import annotations

import argparse
import copy
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deep_codewords import outputs
from dish import DeepDISH, codes, machine, metrics
from dish.deep import heads
from dish.deep.codewords import MIN_ROWS, CodewordFit
from dish.experiments.bench import write_json
from real_protocols import read

BITS, ROWS, QUERIES, OTHERS = (16, 24, 32, 48, 64, 96), (1000, 5000), 1000, 9000
SHARES = (0.0, 0.3, 0.4, 0.5, 0.6, 0.8)  # of one class; 0: classes as they are
CHOICES = ("always", "labels", "p")


def main() -> None:
    """Every file, number of classes and of rows, and trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--classes", default="10,16,25,40", help="those of a file that has more")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    jobs = [
        (path, n_classes, rows, share, trial)
        for path in args.files
        for n_classes in at_most(len(np.unique(read(path)[0].y)), args.classes)
        for share in SHARES
        for rows in (ROWS if share == 0 else ROWS[:1])
        for trial in range(args.trials)
    ]
    runs: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for found in pool.map(work, *zip(*jobs, strict=True)):
            runs += [run for run in found if run not in runs]  # a small file has no 5,000 rows
            print(*found, sep="\n", flush=True)
    write_json(args.output / "judges.json", {"environment": machine.environment(), **summary(runs), "runs": runs})


def at_most(most: int, wanted: str) -> list[int]:
    """Numbers of classes of a file that has no more than these."""
    return sorted({min(int(n), most) for n in wanted.split(",")})


def work(path: Path, n_classes: int, n_rows: int, share: float, trial: int) -> list[dict[str, Any]]:
    """One network; per length what the judges say and what is true."""
    torch.set_num_threads(1)
    rows = read(path)[0]
    kept = np.random.default_rng(5).permutation(np.unique(rows.y))[:n_classes]
    rows = rows.rows(np.flatnonzero(np.isin(rows.y, kept)))
    if share:
        rows = rows.rows(uneven(rows.y, share))
    order = np.random.default_rng(trial).permutation(len(rows.y))
    n = min(n_rows, len(order) // 2)
    if n < MIN_ROWS:  # none would be held out
        return []
    train, other = rows.rows(order[:n]), rows.rows(order[n : n + OTHERS])
    fits: list[Any] = []
    fit_head = CodewordFit.fit_head

    def noted(self: CodewordFit, C: Any) -> Any:
        f = self.training.outputs()
        held, seen = (heads.Outputs(f[i], self.t[i]) for i in (self.held, self.seen))
        fits.append((C, held, seen, {r: signs_of(self, r) for r in BITS}))
        return fit_head(self, C)

    CodewordFit.fit_head = noted  # type: ignore[method-assign]
    hasher = DeepDISH(64, epochs=5, device="cpu", random_state=trial).fit(train.X, train.y)
    CodewordFit.fit_head = fit_head  # type: ignore[method-assign]
    run = {"file": path.stem, "classes": n_classes, "rows": n, "share": share, "trial": trial}
    f, C = outputs(hasher, other.X), hasher.model_.head.C
    lengths = [r for r in BITS if n_classes <= heads.MAX_CLASSES_PER_BIT * r]
    return [{**run, "bits": r, **judged(*fits[0], r), **true_scores(*fits[0], r, f, C, other.y)} for r in lengths]


def signs_of(fit: CodewordFit, n_bits: int) -> Any:
    """The codewords of another length."""
    other = copy.copy(fit)
    other.n_bits = n_bits
    return other.signs


def uneven(y: Any, share: float) -> Any:
    """Rows of which this share is of the first class, with equally many of every other class."""
    of_class = [np.flatnonzero(y == label) for label in np.unique(y)]
    n = int(len(of_class[0]) * (1 - share) / share / (len(of_class) - 1))
    return np.concatenate([of_class[0], *(rows[:n] for rows in of_class[1:])])


def evenness(run: dict[str, Any]) -> float:
    """1/Σπ² per class: 1 where all are of one size."""
    share, l = run["share"], run["classes"]  # noqa: E741
    return round(1 / (share**2 + (1 - share) ** 2 / (l - 1)) / l, 6)


def heads_of(C: Any, held: heads.Outputs, signs: Any) -> tuple[heads.PosteriorHead, heads.PosteriorHead]:
    """A projection before it is refined, and error diffusion."""
    start = heads.default_head(C, signs, heads.calibrate(C, held), np.random.RandomState(0))
    return start, heads.diffusing_head(C, signs, start.beta)


def judged(C: Any, held: heads.Outputs, seen: heads.Outputs, signs: dict[int, Any], r: int) -> dict[str, Any]:
    """The gain of error diffusion that held-out rows predict."""
    start, diffusing = heads_of(C, held, signs[r])
    scores = {"labels": label_map, "p": heads.expected_map}
    gains = {name: heads.diffusion_gain(diffusing, start, held, seen, score) for name, score in scores.items()}
    return {"held_out": len(held.f), **gains}


def label_map(head: heads.PosteriorHead, rows: heads.Outputs) -> float:
    """MAP of the codes of every second row among those of the others, and the other way round."""
    packed, y = codes.pack(head(rows.f).numpy()), rows.t.argmax(1).numpy()
    one, other = ((packed[i::2], y[i::2]) for i in range(2))
    return (metrics.mean_average_precision(*one, *other) + metrics.mean_average_precision(*other, *one)) / 2


def true_scores(
    C: Any, held: Any, seen: Any, signs: dict[int, Any], r: int, f: Any, last: Any, y: Any
) -> dict[str, Any]:
    """MAP of other rows with both heads, for the last codewords that the network was trained towards."""
    start, diffusing = heads_of(C, held, signs[r])
    q, found = min(QUERIES, len(y) // 3), {}
    for name, head in (("carried", diffusing), ("frame", heads.refined(start, held, seen, np.random.RandomState(0)))):
        packed = codes.pack(head.with_codewords(last)(f).numpy())
        found[name] = float(metrics.mean_average_precision(packed[:q], y[:q], packed[q:], y[q:]))
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Per judge: the share of right choices, and the mean and the least MAP over a frame, files and rows alike."""
    by_evenness: dict[str, list[float]] = {"even enough": [], "less even": []}
    for run in runs:
        if run["share"] and run["p"] > 0:
            name = "even enough" if evenness(run) >= heads.MIN_EVENNESS else "less even"
            by_evenness[name].append(run["carried"] - run["frame"])
    runs = [run for run in runs if run["share"] == 0]
    gained = np.array([run["carried"] - run["frame"] for run in runs])
    kinds = np.array([f"{run['file']} {run['classes']} {run['rows']}" for run in runs])
    found = {}
    for judge in CHOICES:
        taken = np.array([run.get(judge, 1.0) > 0 for run in runs])
        means = [(gained * taken)[kinds == kind].mean() for kind in np.unique(kinds)]
        right = float((taken == (gained > 0)).mean())
        found[judge] = {"right": right, "gain": float(np.mean(means)), "least": float((gained * taken).min())}
    means_of = {name: float(np.mean(each)) for name, each in by_evenness.items()}
    return {"cases": len(runs), "judges": found, "uneven_where_p_says_so": means_of}


if __name__ == "__main__":
    main()
