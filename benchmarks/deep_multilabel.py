"""The paper's networks for several labels per row (Table 5), on features: into the files of benchmarks/real.py.

The images of NUS-WIDE could not be obtained, so every method trains a small perceptron on the features of other real
data. Protocol: "trained on". Every method has the settings of the library.

    python benchmarks/deep_multilabel.py data/mirflickr20k_vgg16.npz data/corel16k001.npz --trials 1 --device cuda
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import real

METHODS, BITS = ["dish_d", "dhn", "sfhc", "ftde"], [12, 24, 32, 48]


def main() -> None:
    """Measure every file and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that a method may fit and encode")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no run is begun after so long")
    parser.add_argument("--output", type=Path, default=real.RESULTS, help="folder of the results")
    given = parser.parse_args()
    deadline = time.monotonic() + 60 * given.minutes
    options = real.Options(
        METHODS, BITS, ["trained on"], given.trials, given.device, given.limit, set(), deadline, tuned=False
    )
    for path in given.files:
        real.measure(path, options, given.output, given.output)


if __name__ == "__main__":
    main()
