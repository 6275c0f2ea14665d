"""From `dish fit` on a folder of photos to the answer to the first query, by the real commands, without a GPU.

    python benchmarks/photo_fit.py --folder /tmp/photo_fit

Makes a folder of 1,000 JPEG files of 1024×768 pixels, 100 in each of ten sub-folders (CIFAR-10 images, enlarged: the
files are as large as photos, what they show is not), and another of 100 queries. Times fit, encode, index, the
encoding of one query and the search; then scores all queries. Writes results/photo_fit.json.
Needs the CIFAR-10 images in the cache folder and `dish-hash[efficientnet]`.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dish import metrics
from dish.datasets import Dataset, load_cifar10
from dish.experiments.bench import write_json
from dish.machine import environment

RESULTS = Path(__file__).parent / "results" / "photo_fit.json"
SIZE = (1024, 768)
PER_CLASS, QUERIES_PER_CLASS = 100, 10


def make(data: Dataset, folder: Path) -> None:
    """photos/CLASS/*.jpg, queries/CLASS/*.jpg and first/CLASS/*.jpg, one query."""
    shutil.rmtree(folder, ignore_errors=True)
    rng = np.random.default_rng(0)
    for c in range(10):
        rows = rng.permutation(np.flatnonzero(data.y == c))[: PER_CLASS + QUERIES_PER_CLASS]
        for k, row in enumerate(rows):
            part = folder / ("photos" if k < PER_CLASS else "queries") / f"class{c}"
            part.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(np.asarray(data.X[row])).resize(SIZE, Image.Resampling.BICUBIC)
            image.save(part / f"{row}.jpg", quality=90)
    query = next((folder / "queries").rglob("*.jpg"))
    (folder / "first" / query.parent.name).mkdir(parents=True)
    shutil.copy(query, folder / "first" / query.parent.name)


def timed(folder: Path, *arguments: str) -> dict[str, float]:
    """Seconds of one command, in its folder, by the clock and of the processors."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "dish", *arguments], cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"clock": time.perf_counter() - start, "processor": used}


def measure(folder: Path) -> dict[str, Any]:
    """Seconds by command, and MAP of all queries."""
    load = os.getloadavg()[0]
    seconds = {
        "fit": timed(folder, "fit", "photos", "-o", "m.dish"),
        "encode": timed(folder, "encode", "m.dish", "photos", "-o", "codes.npy"),
        "index": timed(folder, "index", "codes.npy", "--ids", "codes.ids.npy", "-o", "ix.dish"),
        "encode one query": timed(folder, "encode", "m.dish", "first", "-o", "first.npy"),
        "search": timed(folder, "search", "ix.dish", "--codes", "first.npy"),
    }
    timed(folder, "encode", "m.dish", "queries", "-o", "queries.npy")
    found = [np.load(folder / f"{name}.npy") for name in ("queries", "codes")]
    labels = [np.load(folder / f"{name}.labels.npy") for name in ("queries", "codes")]
    return {
        "seconds": seconds,
        "seconds_to_first_answer": {
            kind: sum(each[kind] for each in seconds.values()) for kind in ("clock", "processor")
        },
        "load": [load, os.getloadavg()[0]],
        "map": float(metrics.mean_average_precision(found[0], labels[0], found[1], labels[1])),
        "environment": environment("deep", "nets"),
    }


def main() -> None:
    """Make the folder and time the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("photo_fit"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    make(load_cifar10(), args.folder)
    result = measure(args.folder)
    write_json(args.output, result)
    print(result)


if __name__ == "__main__":
    main()
