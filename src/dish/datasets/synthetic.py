"""Seeded synthetic stand-ins for data sets that are too large to ship. Their names say synthetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.checks import check_integer
from dish.datasets.dataset import Dataset
from dish.datasets.nuswide import NUSWIDE_CONCEPTS, NUSWIDE_WORDS
from dish.errors import DataFileError
from dish.io.atomic import replacing
from dish.io.readers import StrPath, read_npy
from dish.progress import progress


def synthetic_nuswide(n: int = 190_000, seed: int = 0) -> Dataset:
    """Return a synthetic stand-in for NUS-WIDE: (n, 500) sparse word counts, 21 correlated concepts.

    Every row shows one of 12 scenes, and a scene makes some concepts likely (sky with clouds, water with beach). Some
    words depend on the concepts of the row, most on styles that no label names. The frequencies of the concepts
    decrease as in the real set. Rows are made in seeded blocks, so the first rows do not depend on ``n``.
    """
    n = check_integer("n", n, low=1)
    seed = check_integer("seed", seed, low=0)
    model = _BagModel(seed)
    blocks = [model.block(i, min(model.ROWS, n - start)) for i, start in enumerate(range(0, n, model.ROWS))]
    X = sp.csr_array(sp.vstack([b[0] for b in blocks], format="csr"))
    Y = sp.csr_array(sp.vstack([b[1] for b in blocks], format="csr"))
    names = tuple(f"concept_{j:02d}" for j in range(NUSWIDE_CONCEPTS))
    return Dataset("synthetic_nuswide", X, Y, synthetic=True, label_names=names)


class _BagModel:
    """Draws scenes, then concepts, then words."""

    ROWS = 10_000
    SCENES = 12
    STYLES = 40
    WORDS_PER_ROW = 150.0
    CONCEPT_SHARE = 0.2  # share of words that depend on the concepts; the others depend on the style

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = np.random.default_rng([seed, 0])
        frequency = 0.4 * np.arange(1, NUSWIDE_CONCEPTS + 1) ** -0.9  # from 40 % of the rows down to about 3 %
        taste = rng.gamma(0.3, size=(self.SCENES, NUSWIDE_CONCEPTS))
        self.concept = np.minimum(frequency * taste / taste.mean(axis=0), 0.9)  # (scenes, concepts)
        self.topic = rng.dirichlet(np.full(NUSWIDE_WORDS, 0.3), size=NUSWIDE_CONCEPTS)  # (concepts, words)
        self.style = rng.dirichlet(np.full(NUSWIDE_WORDS, 0.3), size=self.STYLES)  # (styles, words)

    def block(self, i: int, rows: int) -> tuple[sp.csr_array, sp.csr_array]:
        """Return counts (rows, 500) and concepts (rows, 21) of block i; a whole block is drawn, then cut."""
        rng = np.random.default_rng([self.seed, 1, i])
        p = self.concept[rng.integers(self.SCENES, size=self.ROWS)]  # (ROWS, concepts)
        Y = rng.random(p.shape) < p
        likeliest = (p * rng.random(p.shape)).argmax(axis=1)  # for rows without any concept
        empty = ~Y.any(axis=1)
        Y[empty, likeliest[empty]] = True
        weight = Y * rng.gamma(1.0, size=Y.shape)
        weight /= weight.sum(axis=1, keepdims=True)
        style = rng.dirichlet(np.full(self.STYLES, 0.1), size=self.ROWS)  # a few styles per row
        words = self.CONCEPT_SHARE * (weight @ self.topic) + (1 - self.CONCEPT_SHARE) * (style @ self.style)
        length = self.WORDS_PER_ROW * rng.lognormal(-0.125, 0.5, size=(self.ROWS, 1))
        counts = rng.poisson(length * words)
        return sp.csr_array(counts[:rows].astype(np.float32)), sp.csr_array(Y[:rows].astype(np.float32))


@dataclass(frozen=True)
class SyntheticImageNet:
    """A synthetic stand-in for ImageNet's 4096-d network features: 1,000 classes, made block by block.

    A row is ReLU(W z − shift) of a latent z, minus the mean, scaled to norm one. 64 entries of z are distributed
    around the centre of the class; centres are distributed around 50 family centres, and classes differ in spread.
    16 more entries, twice as large, do not depend on the class. They harm the l2 distance, but a supervised method
    can learn to ignore them, so labels help more here than on real features. Blocks are independent of each other:
    any worker can make any block.
    """

    n: int = 1_280_000
    seed: int = 0

    ROWS = 10_000  # per block: ten of every class
    N_CLASSES = 1000
    N_FEATURES = 4096
    FAMILIES = 50
    SIGNAL, NUISANCE = 64, 16  # entries of the latent vector
    FAMILY_SHARE = 0.3  # share of the variance between classes that is between families
    SPREAD = 0.7  # standard deviation within a class, relative to that between classes
    NUISANCE_SPREAD = 2.28  # chosen for an l2 MAP of 0.31 (1,000 queries)
    SHIFT = 0.8  # about a fifth of the features stay positive

    def __post_init__(self) -> None:
        check_integer("n", self.n, low=1)
        check_integer("seed", self.seed, low=0)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (n, 4096) of all rows."""
        return self.n, self.N_FEATURES

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.n // self.ROWS)

    def labels(self) -> NDArray[np.int64]:
        """Return the classes (n,) without making the rows."""
        return np.concatenate([self._latent(i)[0][: self._rows(i)] for i in range(self.n_blocks)])

    def block(self, i: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return rows and classes of block i."""
        i = check_integer("i", i, low=0, high=self.n_blocks - 1)
        y, Z = self._latent(i)
        rows = self._rows(i)
        X = self._activations(Z[:rows]) - self._mean
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        return X, y[:rows]

    def __iter__(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        return (self.block(i) for i in range(self.n_blocks))

    def write(self, path: StrPath) -> NDArray[np.float32]:
        """Write all rows to a .npy file (21 GB for 1.28 million), block by block, and return it memory-mapped.

        An existing file is reused if its shape and its first and last blocks are right.
        """
        path = Path(path)
        if path.exists():
            return self._reopen(path)
        with replacing(path) as temporary:
            out = np.lib.format.open_memmap(temporary, "w+", np.float32, self.shape)
            with progress("synthetic ImageNet", self.n) as step:
                for i, (X, _) in enumerate(self):
                    out[i * self.ROWS : i * self.ROWS + len(X)] = X
                    step(len(X))
            out.flush()
        return read_npy(path, mmap_mode="r")

    def _reopen(self, path: Path) -> NDArray[np.float32]:
        X = read_npy(path, mmap_mode="r")
        last = self.n_blocks - 1
        if X.shape != self.shape or X.dtype != np.float32:
            raise DataFileError(f"{path} must hold float32 {self.shape}, got {X.dtype} {X.shape}: remove it")
        same = np.allclose(X[: self._rows(0)], self.block(0)[0], atol=1e-5)
        if not same or not np.allclose(X[last * self.ROWS :], self.block(last)[0], atol=1e-5):
            raise DataFileError(f"{path} holds rows of another seed than {self.seed}: remove it")
        return X

    def _rows(self, i: int) -> int:
        return min(self.ROWS, self.n - i * self.ROWS)

    def _latent(self, i: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return classes and latents of the whole block i."""
        rng = np.random.default_rng([self.seed, 1, i])
        y = rng.permutation(np.arange(self.ROWS) % self.N_CLASSES)
        centre, spread, _ = self._model
        Z = rng.standard_normal((self.ROWS, self.SIGNAL + self.NUISANCE), dtype=np.float32)
        Z[:, : self.SIGNAL] = centre[y] + spread[y] * Z[:, : self.SIGNAL]
        Z[:, self.SIGNAL :] *= self.NUISANCE_SPREAD
        return y, Z

    def _activations(self, Z: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.maximum(Z @ self._model[2] - np.float32(self.SHIFT), 0)

    @cached_property
    def _model(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Centres (classes, signal), spreads (classes, 1) and W (latent, 4096); W z has variance one."""
        rng = np.random.default_rng([self.seed, 0])
        family = rng.standard_normal((self.FAMILIES, self.SIGNAL), dtype=np.float32)
        own = rng.standard_normal((self.N_CLASSES, self.SIGNAL), dtype=np.float32)
        share = np.float32(self.FAMILY_SHARE)
        centre = np.sqrt(share) * family[np.arange(self.N_CLASSES) % self.FAMILIES] + np.sqrt(1 - share) * own
        spread = np.float32(self.SPREAD) * rng.uniform(0.7, 1.3, (self.N_CLASSES, 1)).astype(np.float32)
        W = rng.standard_normal((self.SIGNAL + self.NUISANCE, self.N_FEATURES), dtype=np.float32)
        variance = self.SIGNAL * (1 + self.SPREAD**2) + self.NUISANCE * self.NUISANCE_SPREAD**2
        return centre, spread, W / np.float32(np.sqrt(variance))

    @cached_property
    def _mean(self) -> NDArray[np.float32]:
        """Mean activation in block 0."""
        return self._activations(self._latent(0)[1]).mean(axis=0)


def synthetic_imagenet(n: int = 1_280_000, seed: int = 0, path: StrPath | None = None) -> Dataset:
    """Return the synthetic stand-in for ImageNet as one matrix: in memory, or memory-mapped from the .npy ``path``.

    The whole set has 21 GB; ``SyntheticImageNet`` makes one block at a time.
    """
    source = SyntheticImageNet(n, seed)
    if path is not None:
        X = source.write(path)
    else:
        X = np.empty(source.shape, np.float32)
        for i, (rows, _) in enumerate(source):
            X[i * source.ROWS : i * source.ROWS + len(rows)] = rows
    return Dataset("synthetic_imagenet", X, source.labels(), queries=50, synthetic=True)
