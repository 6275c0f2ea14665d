"""The deep tables on a GPU: several runs at a time, one JSON each.

python benchmarks/deep.py table4 table8 --trials 3 --jobs 4 [--methods dish_d,cnnbh] [--results FOLDER]
Needs the CIFAR-10 images in the cache folder (``dish.datasets.load_cifar10`` fetches them), and for AlexNet and
VGG-16 their weights (see ``dish.nets``). Finished runs are skipped.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from dish.experiments import bench, paper
from dish.experiments.bench import Run


def work(run: Run, folder: Path, jobs: int) -> str:
    """Do one run; note how many shared the GPU, which its times depend on."""
    import torch

    torch.set_num_threads(2)
    torch.backends.cudnn.benchmark = True
    start = time.perf_counter()
    result = bench.run_all([run], folder)[run]
    path = run.path(folder)
    bench.write_json(path, {**result, "runs_at_a_time": jobs})
    seconds = time.perf_counter() - start
    return f"{path.stem}: {result.get('failed') or json.dumps(round(result['map'], 4))} in {seconds:.0f} s"


def main() -> None:
    """Run what is not finished yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=["table4", "table6", "table8"])
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--methods", default="dish_d,cnnh,sfhc,cnnbh,dhn,ftde")
    parser.add_argument("--nets", default="6conv", help="6conv, or names of pre-trained nets")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "runs")
    args = parser.parse_args()
    nets = set(args.nets.split(","))
    runs = [
        run
        for name in args.tables
        for run in paper.TABLES[name].runs(args.methods.split(","), args.trials)
        if dict(run.params).get("net", "6conv") in nets and not run.path(args.results).exists()
    ]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for line in pool.map(work, runs, [args.results] * len(runs), [args.jobs] * len(runs)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
