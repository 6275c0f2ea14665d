"""The health of codes: whether the bits are used, and whether classes lie apart."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.codes import check_codes, hamming, unpack
from dish.errors import InputError
from dish.labels import encode_classes, unique_rows
from dish.metrics.counting import histograms


@dataclass
class Health:
    """What ``code_health`` measures; the last three need labels (the last one classes)."""

    n: int
    n_bits: int
    n_distinct: int  # different codes
    largest_group: int  # rows that share the most frequent code
    imbalance: float  # mean over bits of |mean of ±1|: 0 if every bit is set in half of the rows, 1 if constant
    constant_bits: int
    correlation: float  # mean |correlation| of two different bits, constant ones left out
    within: float | None = None  # mean distance of two rows that share a label
    between: float | None = None  # and of two that do not
    codeword_distance: int | None = None  # the least distance between the majority codes of two classes

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        values = {name: value for name, value in asdict(self).items() if value is not None}
        width = max(map(len, values))
        shown = {k: f"{v:.4f}" if isinstance(v, float) else f"{v:,}" for k, v in values.items()}
        return "\n".join(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in shown.items())


def code_health(
    codes: ArrayLike, labels: Any = None, *, n_bits: int | None = None, pairs_of: int = 2000, seed: int = 0
) -> Health:
    """Distinct codes, balance and correlation of the bits; with labels, distances within and between classes.

    Distances are of all rows to ``pairs_of`` of them (drawn with ``seed``), or of all pairs where there are fewer
    rows; a row's distance to itself does not count.
    """
    B = check_codes(codes, n_bits)
    if len(B) < 2:
        raise InputError(f"codes must have at least two rows, got {len(B)}")
    r = 8 * B.shape[1] if n_bits is None else n_bits
    _, place = unique_rows(B)
    sizes = np.bincount(place)
    H = unpack(B, r).astype(np.float32)
    mean = H.mean(0, dtype=np.float64)
    health = Health(
        n=len(B),
        n_bits=r,
        n_distinct=len(sizes),
        largest_group=int(sizes.max()),
        imbalance=float(np.abs(mean).mean()),
        constant_bits=int((np.abs(mean) == 1).sum()),
        correlation=_mean_correlation(H[:, np.abs(mean) < 1]),
    )
    if labels is not None:
        health.within, health.between = _label_distances(B, labels, r, pairs_of, seed)
        if np.ndim(labels) == 1:
            health.codeword_distance = _codeword_distance(H, labels)
    return health


def _mean_correlation(H: NDArray[np.float32]) -> float:
    """Mean |correlation| of two different columns."""
    r = H.shape[1]
    if r < 2:
        return 0.0
    C = np.corrcoef(H, rowvar=False)
    return float((np.abs(C).sum() - r) / (r * (r - 1)))


def _label_distances(
    B: NDArray[np.uint8], labels: Any, r: int, pairs_of: int, seed: int
) -> tuple[float | None, float | None]:
    """Mean distance of rows that share a label, and of rows that do not (None where there is no such pair)."""
    y = labels if hasattr(labels, "tocsr") else np.asarray(labels)
    if y.shape[0] != len(B):
        raise InputError(f"labels has {y.shape[0]} rows for {len(B)} codes")
    rows = np.arange(len(B))
    if len(B) > pairs_of:
        rows = np.sort(np.random.default_rng(seed).choice(len(B), pairs_of, replace=False))
    h = histograms(B[rows], y[rows], B, y, r)
    same, other = h.relevant.sum(0), (h.all_ - h.relevant).sum(0)
    labelled = len(rows) if y.ndim == 1 else int((np.asarray(y[rows].sum(1)).ravel() > 0).sum())
    same[0] -= labelled  # a row and itself: relevant, unless it has no label at all
    other[0] -= len(rows) - labelled
    return _mean_of(same), _mean_of(other)


def _mean_of(counts: NDArray[np.int64]) -> float | None:
    """The mean distance of a histogram of distances."""
    return float(np.arange(len(counts)) @ counts / counts.sum()) if counts.sum() else None


def _codeword_distance(H: NDArray[np.float32], labels: Any) -> int | None:
    """The least Hamming distance between the classes' majority codes; None with one class."""
    code, classes = encode_classes(np.asarray(labels), "labels")
    if len(classes) < 2:
        return None
    words = np.stack([np.packbits(H[code == c].sum(0) >= 0) for c in range(len(classes))])
    D = hamming(words, words)
    return int(D[~np.eye(len(words), dtype=bool)].min())
