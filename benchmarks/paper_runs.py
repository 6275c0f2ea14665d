"""The paper's tables, several runs at a time on one machine; one JSON file per run.

python benchmarks/paper_runs.py table4 table8 --trials 3 --jobs 4 [--methods dish_d,cnnbh] [--nets vgg16] [--bits 48]
python benchmarks/paper_runs.py table1 --trials 5 --jobs 12 --minutes 8 --results out/runs
Finished runs are skipped. No run is begun after ``--minutes``; the same call goes on. Runs that share a machine take
longer than alone: their files say how many there were (``runs_at_a_time``). Networks need the CIFAR-10 images in the
cache folder (``dish.datasets.load_cifar10`` fetches them), AlexNet and VGG-16 also their weights (see ``dish.nets``).
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from dish.experiments import bench, paper
from dish.experiments.bench import Run

THREADS = 2  # per process


@cache
def opened() -> bench.OpenDatasets:
    """The data sets of this process, each loaded once."""
    return bench.OpenDatasets()


def work(run: Run, folder: Path, jobs: int, deadline: float) -> str:
    """Do one run; note how many shared the machine, which its times depend on."""
    import torch

    if time.time() > deadline:
        return f"{run.path(folder).stem}: not begun, the time is up"
    torch.set_num_threads(THREADS)
    torch.backends.cudnn.benchmark = True
    start = time.perf_counter()
    result = bench.run_all([run], folder, data=opened())[run]
    path = run.path(folder)
    bench.write_json(path, {**result, "runs_at_a_time": jobs})
    seconds = time.perf_counter() - start
    return f"{path.stem}: {result.get('failed') or json.dumps(round(result['map'], 4))} in {seconds:.0f} s"


def missing_runs(args: argparse.Namespace) -> list[Run]:
    """The runs to do: all of the first trial, then all of the second, and so on."""
    methods = args.methods.split(",") if args.methods else bench.method_names() + bench.method_names(images=True)
    nets, bits = args.nets.split(","), [int(r) for r in args.bits.split(",") if r]
    found = [
        run
        for name in args.tables
        for run in paper.TABLES[name].runs(methods, args.trials)
        if dict(run.params).get("net", "6conv") in nets and (not bits or run.bits in bits)
    ]
    unique = dict.fromkeys(sorted(found, key=lambda run: run.trial))
    return bench.plan(unique, args.results).missing


def main() -> None:
    """Run what is not finished yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=list(paper.TABLES))
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--methods", default="", help="names with commas between them; all if not given")
    parser.add_argument("--nets", default="6conv", help="for networks: 6conv, or names of other nets")
    parser.add_argument("--bits", default="", help="code lengths; all of the table if not given")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no run is begun after so long")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "runs")
    args = parser.parse_args()
    runs, deadline = missing_runs(args), time.time() + 60 * args.minutes
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        n = len(runs)
        for line in pool.map(work, runs, [args.results] * n, [args.jobs] * n, [deadline] * n):
            print(line, flush=True)


if __name__ == "__main__":
    main()
