"""Geometry bits: where a row lies among the rows of its class, and which rows an item of a new class resembles.

Class bits say nothing about either. Geometry bits are linear in x. Rows are whitened with the covariance within
classes, which gives little weight to directions in which rows of one class differ by chance, and the principal
components are rotated by ITQ, so that their signs lose little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.encoder import Linear
from dish.io.rows import take_everywhere
from dish.kernel.fit_data import FitData
from dish.lazy import Tensor, torch
from dish.posterior.projection import rotation
from dish.posterior.regression import Indices
from dish.similarity import Classes, LabelCounts, LabelSets

SAMPLE, PER_CLASS = 1 << 14, 8  # rows that the bits are learned from, and the fewest rows per class among them
ENTRIES, MIN_SAMPLE, WIDE = 1 << 25, 512, 4096  # numbers of the sample, its rows at least, and many features
MOST_LABELS = 1024  # the most frequent ones count in multi-label data
SHRINKAGE = 1.0  # added to the covariance within classes, relative to the mean of its diagonal
ROUNDS = 50  # of ITQ
LONGEST = 5.0  # length of a row in medians
SHARES = (2, 1)  # eighths of all bits
OUTPUT = 0.5  # size of the outputs relative to those of class bits: asymmetric search weighs bits by it
COST = 0.01  # share of the held-out MAP that geometry bits may cost


@dataclass(frozen=True)
class Geometry:
    """Rows of a sample, and the directions that geometry bits may use, best first."""

    X: Tensor  # (n, d), centred, float64
    mean: Tensor  # (d,): of (x − centre) · scale
    W: Tensor  # (d, p)
    data: FitData

    @classmethod
    def of(cls, data: FitData, most: int) -> Geometry:
        """For at most ``most`` bits."""
        assert data.rows is not None
        groups = np.concatenate(data.ranks.gather_arrays(data.S.row_group.cpu().numpy()))
        size = min(SAMPLE, max(MIN_SAMPLE, ENTRIES // data.rows.shape[1]))
        picked = (sample_by_class if isinstance(data.S, Classes) else sample_rows)(groups, size)
        X = data.features.centred(take_everywhere(data.rows, picked, data.device, data.ranks)).double()
        centre = X.median(0).values
        X = centre + shortened(X - centre)
        mean = X.mean(0)
        X = X - mean
        Q = torch.linalg.qr(X.T).Q if X.shape[1] > WIDE else None  # the span of the sample: S_w would be too large
        Z = X if Q is None else X @ Q
        W = within_directions(Z.T @ Z / len(Z), within_covariance(Z, data, groups[picked]), SHRINKAGE, most)
        return cls(X, mean, W if Q is None else Q @ W, data)

    def bits(self, g: int) -> Linear:
        """g bits as a linear function of (x − centre) · scale, with outputs of root mean square ``OUTPUT``."""
        W = self.W[:, :g]
        R, _ = rotation(self.X @ W, g, ROUNDS, np.random.RandomState(0))
        W = W @ torch.from_numpy(R).to(W)
        W = OUTPUT * W / (self.X @ W).square().mean().sqrt().clamp(min=1e-30)
        return Linear(W.to(self.data.K.dtype), (-self.mean @ W).to(self.data.K.dtype))


def centred_rows(data: FitData, indices: Indices) -> Tensor:
    """(x − centre) · scale of some rows of all processes."""
    assert data.rows is not None
    wanted = indices.cpu().numpy() if isinstance(indices, Tensor) else indices
    ordered, place = np.unique(wanted, return_inverse=True)
    found = data.features.centred(take_everywhere(data.rows, ordered, data.device, data.ranks))
    return found[torch.from_numpy(place).to(found.device)]


def candidates(r: int) -> list[int]:
    """Numbers of geometry bits to choose from, largest first: a quarter and an eighth of r bits."""
    return sorted({r * share // 8 for share in SHARES}, reverse=True)


def sample_rows(groups: NDArray[np.int32], size: int) -> NDArray[np.intp]:
    """At most ``size`` random row indices, sorted."""
    return np.sort(np.random.RandomState(0).permutation(len(groups))[:size])


def sample_by_class(groups: NDArray[np.int32], size: int) -> NDArray[np.intp]:
    """About ``size`` row indices, sorted: as many rows of every class, or of some classes if there are many."""
    order = np.random.RandomState(0).permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]  # by class, at random within a class
    counts = np.bincount(groups)
    rank = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    per_class = max(PER_CLASS, -(-size // len(counts)))
    kept = np.random.RandomState(1).permutation(len(counts)) < size // per_class + 1
    return np.sort(order[(rank < per_class) & kept[groups[order]]])


def shortened(X: Tensor) -> Tensor:
    """Rows X (n, d) with lengths of at most ``LONGEST`` medians: a few outliers would decide the directions."""
    lengths = torch.linalg.vector_norm(X, dim=1, keepdim=True)
    longest = LONGEST * lengths.median()
    return torch.where(lengths > longest, X * (longest / lengths), X) if longest > 0 else X


def within_covariance(X: Tensor, data: FitData, groups: NDArray[np.int32]) -> Tensor:
    """S_w (d, d): the covariance of centred rows X (n, d) that their labels do not explain."""
    S = data.S
    if isinstance(S, LabelCounts | LabelSets):
        Y = sp.csc_array(S.sets[groups])
        Y = Y[:, np.argsort(-Y.sum(axis=0), kind="stable")[:MOST_LABELS]].toarray()
        Y = torch.from_numpy(Y - Y.mean(0)).to(X)
        YtX = Y.T @ X
        return (X.T @ X - YtX.T @ torch.linalg.pinv(Y.T @ Y, hermitian=True) @ YtX) / len(X)
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    index, size = torch.from_numpy(place).to(X.device), torch.from_numpy(counts).to(X)
    means = X.new_zeros(len(size), X.shape[1]).index_add_(0, index, X) / size[:, None]
    X = X - means[index]
    return X.T @ X / max(1, len(X) - len(size))


def within_directions(C: Tensor, S_w: Tensor, shrinkage: float, r: int) -> Tensor:
    """W (d, p), p ≤ r: the directions of largest variance of rows with covariance C after whitening with S_w."""
    size = max(float(S_w.diagonal().mean()), 1e-9 * float(C.diagonal().mean()))  # S_w may be rounding error
    S_w = S_w + (shrinkage * size if size > 0 else 1.0) * torch.eye(len(S_w)).to(S_w)
    L = torch.linalg.cholesky(S_w)
    half = torch.linalg.solve_triangular(L, C, upper=False)
    variance, U = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.T, upper=False))
    keep = (variance >= 1e-6 * variance[-1]).nonzero().ravel().flip(0)[:r]
    U = U[:, keep]
    U = U * torch.sign(U.gather(0, U.abs().argmax(0, keepdim=True)))  # the sign of a direction is arbitrary
    return torch.linalg.solve_triangular(L.T, U, upper=True)
