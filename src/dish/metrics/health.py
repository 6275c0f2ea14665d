"""Code health: whether all bits carry information, and whether classes are far apart."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dish.codes import check_codes, hamming, unpack
from dish.errors import InputError
from dish.labels import encode_classes, plain_labels, unique_rows
from dish.metrics.counting import histograms


@dataclass
class Health:
    """The result of ``code_health``. ``within`` and ``between`` need labels, ``codeword_distance`` needs classes."""

    n: int
    n_bits: int
    n_distinct: int  # distinct codes
    largest_group: int  # rows that share the most frequent code
    imbalance: float  # mean over bits of |mean of ±1|: 0 if all bits are balanced, 1 if all are constant
    constant_bits: int
    correlation: float  # mean |correlation| of two bits that are not constant
    within: float | None = None  # mean distance of two rows with a common label
    between: float | None = None  # mean distance of two rows without one
    codeword_distance: int | None = None  # smallest distance between the majority codes of two classes

    def to_dict(self) -> dict[str, Any]:
        """The values as a dictionary for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        values = {name: value for name, value in asdict(self).items() if value is not None}
        width = max(map(len, values))
        shown = {k: f"{v:.4f}" if isinstance(v, float) else f"{v:,}" for k, v in values.items()}
        return "\n".join(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in shown.items())


def code_health(
    codes: ArrayLike, labels: Any = None, *, n_bits: int | None = None, pairs_of: int = 2000, seed: int = 0
) -> Health:
    """Count distinct codes, and measure balance and correlation of the bits; with labels, also class distances.

    Class distances are those between all rows and a random sample of ``pairs_of`` rows (drawn with ``seed``); the
    distance of a row to itself does not count.
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
        (y,) = plain_labels(labels)
        health.within, health.between = _label_distances(B, y, r, pairs_of, seed)
        if y.ndim == 1:
            health.codeword_distance = _codeword_distance(H, y)
    return health


def _mean_correlation(H: NDArray[np.float32]) -> float:
    """Mean |correlation| of two columns."""
    r = H.shape[1]
    if r < 2:
        return 0.0
    C = np.corrcoef(H, rowvar=False)
    return float((np.abs(C).sum() - r) / (r * (r - 1)))


def _label_distances(
    B: NDArray[np.uint8], y: Any, r: int, pairs_of: int, seed: int
) -> tuple[float | None, float | None]:
    """Mean distance of rows with and without a common label; None if there is no such pair."""
    if y.shape[0] != len(B):
        raise InputError(f"labels has {y.shape[0]} rows for {len(B)} codes")
    rows = np.arange(len(B))
    if len(B) > pairs_of:
        rows = np.sort(np.random.default_rng(seed).choice(len(B), pairs_of, replace=False))
    h = histograms(B[rows], y[rows], B, y, r)
    same, other = h.relevant.sum(0), (h.all_ - h.relevant).sum(0)
    labelled = len(rows) if y.ndim == 1 else int((np.asarray(y[rows].sum(1)).ravel() > 0).sum())
    same[0] -= labelled  # pairs of a row with itself are relevant, unless the row has no label
    other[0] -= len(rows) - labelled
    return _mean_of(same), _mean_of(other)


def _mean_of(counts: NDArray[np.int64]) -> float | None:
    """Mean distance, given the number of pairs at each distance."""
    return float(np.arange(len(counts)) @ counts / counts.sum()) if counts.sum() else None


def _codeword_distance(H: NDArray[np.float32], labels: Any) -> int | None:
    """Smallest Hamming distance between the majority codes of two classes; None with one class."""
    code, classes = encode_classes(labels, "labels")
    if len(classes) < 2:
        return None
    words = np.stack([np.packbits(H[code == c].sum(0) >= 0) for c in range(len(classes))])
    D = hamming(words, words)
    return int(D[~np.eye(len(words), dtype=bool)].min())
