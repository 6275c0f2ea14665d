"""The collections of ``dish demo --serve``: handwritten digits, or the photographs of CIFAR-10."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import __version__, datasets
from dish.index.hamming import HammingIndex
from dish.io import modelfile
from dish.posterior.dish import DISH
from dish.registry import load
from dish.web.collection import Collection, Sample
from dish.web.pictures import ArrayPictures, Pixels

BITS = 64


def digits(n_queries: int = 300, seed: int = 0) -> Collection:
    """Return scikit-learn's digits: 1,497 for training and the index, 300 as samples to search with."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)  # (1797, 64) of 0 … 16
    order = np.random.default_rng(seed).permutation(len(X))
    query, base = order[:n_queries], order[n_queries:]
    hasher = DISH(n_bits=BITS, n_anchors=500, random_state=seed).fit(X[base], y[base])
    index = HammingIndex(BITS)
    index.add(hasher.transform(X[base], labels=y[base]), ids=base, labels=[str(digit) for digit in y[base]])
    images = (255 - X.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    return _collection("Handwritten digits", hasher, index, "digits8", images, query, y, tuple("0123456789"))


def cifar10(n_train: int = 20_000) -> Collection:
    """Return CIFAR-10 with DISH on GIST: 59,000 photographs in the index, 1,000 as samples. The model is cached."""
    photographs, rows = datasets.load_cifar10(), datasets.cifar10_gist()
    split = rows.split(trial=0, n_train=n_train)
    names = photographs.label_names
    hasher = _cached_model(rows, split.train, f"demo_cifar10_{BITS}_{n_train}_{__version__}.dish")
    index = HammingIndex(BITS)
    labels = [names[c] for c in rows.y[split.database]]
    codes = hasher.transform(rows.rows(split.database), labels=rows.y[split.database])
    index.add(codes, ids=split.database, labels=labels)
    return _collection("Photographs of CIFAR-10", hasher, index, "gist32", photographs.X, split.query, rows.y, names)


DEMOS: dict[str, Callable[[], Collection]] = {"digits": digits, "cifar10": cifar10}


def _cached_model(data: datasets.Dataset, train: NDArray[Any], name: str) -> Any:
    file = Path(datasets.cache_folder()) / name
    try:
        return load(file)
    except (FileNotFoundError, modelfile.ModelFileError):
        hasher = DISH(n_bits=BITS, n_anchors=2000, random_state=0).fit(data.rows(train), data.y[train])
        hasher.save(file)
        return hasher


def _collection(
    title: str,
    hasher: Any,
    index: HammingIndex,
    takes: str,
    images: NDArray[np.uint8],
    query: NDArray[np.int64],
    y: NDArray[Any],
    names: tuple[str, ...],
) -> Collection:
    """Return a collection whose pictures are named by their row, with the prefix ``sample-`` for the samples."""

    def find(key: str) -> Pixels | None:
        number = key.removeprefix("sample-")
        row = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else len(images)
        return np.asarray(images[row]) if row < len(images) else None

    samples = [Sample(names[int(y[i])], picture=f"sample-{i}") for i in query]
    return Collection(hasher, index, takes=takes, pictures=ArrayPictures(find), samples=samples, title=title)
