"""Synthetic stand-ins for sets too large to ship, made from a seed and always called synthetic."""

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
    """A synthetic stand-in for NUS-WIDE: (n, 500) sparse word counts, 21 concepts that occur together.

    Every row shows one of 12 scenes; a scene makes some concepts likely (sky with clouds, water with
    beach). Some words come from the concepts that are there, most from styles that no label names. The
    sizes of the concepts fall off as in the real set. Made in seeded blocks: the first rows do not depend
    on ``n``.
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
    """Scenes → concepts → words."""

    ROWS = 10_000
    SCENES = 12
    STYLES = 40
    WORDS_PER_ROW = 150.0
    CONCEPT_SHARE = 0.2  # of the words; the others tell the style of the picture, which no label names

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = np.random.default_rng([seed, 0])
        frequency = 0.4 * np.arange(1, NUSWIDE_CONCEPTS + 1) ** -0.9  # 40 % of the rows, falling to about 3 %
        taste = rng.gamma(0.3, size=(self.SCENES, NUSWIDE_CONCEPTS))
        self.concept = np.minimum(frequency * taste / taste.mean(axis=0), 0.9)  # (scenes, concepts)
        self.topic = rng.dirichlet(np.full(NUSWIDE_WORDS, 0.3), size=NUSWIDE_CONCEPTS)  # (concepts, words)
        self.style = rng.dirichlet(np.full(NUSWIDE_WORDS, 0.3), size=self.STYLES)  # (styles, words)

    def block(self, i: int, rows: int) -> tuple[sp.csr_array, sp.csr_array]:
        """Counts (rows, 500) and concepts (rows, 21) of block i: always made whole, then cut."""
        rng = np.random.default_rng([self.seed, 1, i])
        p = self.concept[rng.integers(self.SCENES, size=self.ROWS)]  # (ROWS, concepts)
        Y = rng.random(p.shape) < p
        likeliest = (p * rng.random(p.shape)).argmax(axis=1)  # a row without any concept gets one
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

    A row is ReLU(W z − shift) of a latent z, less the mean, of l2 norm one. 64 entries of z lie around the centre
    of the class; centres lie around 50 families, and classes differ in how far they spread. 16 more, twice as
    large, tell nothing of the class: the l2 distance suffers from them, a supervised map can learn to leave
    them out, so that labels help here more than on real features. Block i is the same whatever was made
    before it: any worker can make any block.
    """

    n: int = 1_280_000
    seed: int = 0

    ROWS = 10_000  # per block: ten of every class
    N_CLASSES = 1000
    N_FEATURES = 4096
    FAMILIES = 50
    SIGNAL, NUISANCE = 64, 16  # entries of the latent
    FAMILY_SHARE = 0.3  # of the variance between classes
    SPREAD = 0.7  # within a class, over that between classes
    NUISANCE_SPREAD = 2.28  # l2 MAP 0.31 (1,000 queries)
    SHIFT = 0.8  # leaves about a fifth of the features above zero

    def __post_init__(self) -> None:
        check_integer("n", self.n, low=1)
        check_integer("seed", self.seed, low=0)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, 4096)."""
        return self.n, self.N_FEATURES

    @property
    def n_blocks(self) -> int:
        """Blocks 0 … n_blocks − 1 hold all rows."""
        return -(-self.n // self.ROWS)

    def labels(self) -> NDArray[np.int64]:
        """Classes (n,), without making the rows."""
        return np.concatenate([self._latent(i)[0][: self._rows(i)] for i in range(self.n_blocks)])

    def block(self, i: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Rows and classes of block i."""
        i = check_integer("i", i, low=0, high=self.n_blocks - 1)
        y, Z = self._latent(i)
        rows = self._rows(i)
        X = self._activations(Z[:rows]) - self._mean
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        return X, y[:rows]

    def __iter__(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        return (self.block(i) for i in range(self.n_blocks))

    def write(self, path: StrPath) -> NDArray[np.float32]:
        """All rows as a .npy file (21 GB for 1.28 million), made in blocks; returned memory-mapped.

        A file that is there already is used if its shape, first and last rows are those of this set.
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
            raise DataFileError(f"{path} holds {X.dtype} {X.shape}, not float32 {self.shape}: remove or rename it")
        same = np.allclose(X[: self._rows(0)], self.block(0)[0], atol=1e-5)
        if not same or not np.allclose(X[last * self.ROWS :], self.block(last)[0], atol=1e-5):
            raise DataFileError(f"{path} holds other rows than seed {self.seed} makes: remove or rename it")
        return X

    def _rows(self, i: int) -> int:
        return min(self.ROWS, self.n - i * self.ROWS)

    def _latent(self, i: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Classes and latents of block i, whole."""
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
        """Centres (classes, signal), spreads (classes, 1) and W (latent, 4096), which makes W z of variance one."""
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
        """Mean activation, of block 0."""
        return self._activations(self._latent(0)[1]).mean(axis=0)


def synthetic_imagenet(n: int = 1_280_000, seed: int = 0, path: StrPath | None = None) -> Dataset:
    """The synthetic stand-in for ImageNet as one matrix: in memory, or memory-mapped from the .npy ``path``.

    The whole set is 21 GB; ``SyntheticImageNet`` makes it a block at a time instead.
    """
    source = SyntheticImageNet(n, seed)
    if path is not None:
        X = source.write(path)
    else:
        X = np.empty(source.shape, np.float32)
        for i, (rows, _) in enumerate(source):
            X[i * source.ROWS : i * source.ROWS + len(rows)] = rows
    return Dataset("synthetic_imagenet", X, source.labels(), queries=50, synthetic=True)
