"""Profiles: what is normal for a model, as a few counts, and how far other rows are from it.

A row is described by its bits and by a few numbers, such as the distance of its code to the nearest codeword. A
profile holds histograms of them over reference rows. Other rows are counted in the same bins and need not be kept.

Two histograms are compared by the Kolmogorov–Smirnov distance: the largest difference of their cumulative shares. It
is at most the share of rows that would have to be replaced to make both groups alike. ``beyond_chance`` subtracts
what chance alone exceeds once in a thousand comparisons, so the rest is a share of rows that really changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish.codes import hamming, unpack
from dish.errors import ModelFileError

Counts = NDArray[np.int64]  # of a group of rows, in the order of ``Profile``; those of two groups may be added

BINS = 64  # of a histogram, besides one below and one above
CORE = (0.005, 0.995)  # bins cover these quantiles of the reference rows, and half as much on each side
JUDGES = ("entropy", "ambiguity")  # a row with an unusually large one of these belongs to no known class
KNOWN = 0.95  # share of the reference rows that are said to belong to a known class
LEAST_P = 1e-30  # smaller probabilities count as this one
FALSE_ALARMS = 1e-3  # the chance that rows like the reference rows score above 0
PAIRS = 1 << 22  # distances computed at a time


@dataclass(frozen=True)
class RowTraits:
    """What a profile counts: the codes of some rows, and a few numbers per row."""

    codes: NDArray[np.uint8]  # (n, bytes)
    values: Mapping[str, NDArray[Any]]  # name → (n,)

    @classmethod
    def joined(cls, parts: list[RowTraits]) -> Self:
        """Those of several blocks of rows, at least one."""
        values = {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
        return cls(np.concatenate([part.codes for part in parts]), values)


@dataclass(frozen=True)
class Profile:
    """Histograms of reference rows.

    Counts are one vector: the number of rows, the number of unknown rows, how many rows have each bit set, and the
    bins of every histogram. A row is unknown, it belongs to no known class, if any value reaches its limit.
    """

    source: str  # what the reference rows are: "held-out rows", "training rows" or "given rows"
    n_bits: int
    edges: dict[str, NDArray[np.float64]]  # name → rising edges (b,) of b + 1 bins
    limits: dict[str, float]  # of some of these values; empty if the hasher does not tell
    counts: Counts = field(default_factory=lambda: np.zeros(0, np.int64))  # of the reference rows
    surer: Counts | None = None  # the same by a surer model: anything between the two is normal

    @classmethod
    def of(cls, traits: RowTraits, n_bits: int, source: str, surer: RowTraits | None = None) -> Profile:
        """The profile of reference rows; ``surer`` has their traits by a surer model."""
        edges = {name: bin_edges(values) for name, values in traits.values.items()}
        limits = joint_limits({name: traits.values[name] for name in JUDGES if name in edges})
        empty = cls(source, n_bits, edges, limits)
        return replace(empty, counts=empty.count(traits), surer=None if surer is None else empty.count(surer))

    def count(self, traits: RowTraits) -> Counts:
        """The counts of other rows."""
        unknown = np.zeros(len(traits.codes), bool)
        for name, limit in self.limits.items():
            unknown |= traits.values[name] >= limit
        ones = (unpack(traits.codes, self.n_bits) > 0).sum(0)
        bins = [
            np.bincount(np.searchsorted(edges, traits.values[name], side="right"), minlength=len(edges) + 1)
            for name, edges in self.edges.items()
        ]
        return np.concatenate([[len(unknown), unknown.sum()], ones, *bins]).astype(np.int64)

    @property
    def n_counts(self) -> int:
        """The length of a vector of counts."""
        return 2 + self.n_bits + sum(len(edges) + 1 for edges in self.edges.values())

    @property
    def nothing(self) -> Counts:
        """The counts of no rows."""
        return np.zeros(self.n_counts, np.int64)

    def n_rows(self, counts: Counts | None = None) -> int:
        """The number of rows that were counted; by default, of reference rows."""
        return int((self.counts if counts is None else counts)[0])

    def unknown_share(self, counts: Counts | None = None) -> float | None:
        """The share of rows that belong to no known class; None if the profile does not tell."""
        counts = self.counts if counts is None else counts
        return float(counts[1] / counts[0]) if self.limits else None

    def bit_shares(self, counts: Counts | None = None) -> NDArray[np.float64]:
        """The share of rows with each bit set (r,)."""
        counts = self.counts if counts is None else counts
        return np.asarray(counts[2 : 2 + self.n_bits] / counts[0])

    def shares(self, name: str, counts: Counts | None = None) -> NDArray[np.float64]:
        """The share of rows in each bin of a histogram (b + 1,)."""
        counts = self.counts if counts is None else counts
        first = 2 + self.n_bits
        for other, edges in self.edges.items():
            if other == name:
                break
            first += len(edges) + 1
        return np.asarray(counts[first : first + len(self.edges[name]) + 1] / counts[0])

    # --- model files ---

    def to_arrays(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and JSON values from which ``from_arrays`` makes the profile again."""
        arrays: dict[str, NDArray[Any]] = {f"edges.{name}": edges for name, edges in self.edges.items()}
        values = {"source": self.source, "n_bits": self.n_bits, "histograms": list(self.edges), "limits": self.limits}
        surer = {} if self.surer is None else {"surer": self.surer}
        return {**arrays, **surer, "counts": self.counts}, values

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], values: Mapping[str, Any]) -> Profile:
        """The inverse of ``to_arrays``; raises ModelFileError if they do not fit together."""
        edges = {name: np.asarray(arrays[f"edges.{name}"], np.float64) for name in values["histograms"]}
        limits = {name: float(limit) for name, limit in values["limits"].items()}
        both = {name: np.asarray(arrays[name], np.int64) for name in ("counts", "surer") if name in arrays}
        found = cls(str(values["source"]), int(values["n_bits"]), edges, limits, **both)
        for counts in both.values():
            if counts.shape != (found.n_counts,) or counts[0] < 1 or not limits.keys() <= edges.keys():
                raise ModelFileError("the profile of the model has counts that do not fit its histograms")
        return found


def bin_edges(values: NDArray[Any]) -> NDArray[np.float64]:
    """Edges of equal bins for values like these (n,), with room on both sides; half integers for whole numbers."""
    low, high = np.quantile(np.asarray(values, np.float64), CORE)
    room = (high - low) / 2 or max(abs(high), 1.0) / 2
    low, high = low - room, high + room
    if np.issubdtype(values.dtype, np.integer):
        step = max(1, math.ceil((high - low) / BINS))
        return np.arange(math.floor(low), high + step, step) - 0.5
    return np.linspace(low, high, BINS + 1)


def joint_limits(judges: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """A limit for each kind of value (n,), such that at least ``KNOWN`` of the rows stay below all of them.

    Each limit is exceeded by about the same share of the rows.
    """
    if not judges:
        return {}
    rising = {name: np.sort(np.asarray(values, np.float64)) for name, values in judges.items()}
    below = {name: np.searchsorted(rising[name], values) for name, values in judges.items()}  # smaller values
    most = np.sort(np.max(list(below.values()), axis=0))  # (n,): how unusual each row is
    allowed = math.floor((1 - KNOWN) * len(most) + 1e-9)
    rank = most[-1 - allowed] + 1  # at most as many rows are this unusual
    return {name: _value_above(values, int(rank)) for name, values in rising.items()}


def _value_above(rising: NDArray[np.float64], rank: int) -> float:
    """The smallest of some values, or a little more than the largest, that at least ``rank`` of them are below."""
    if rank < len(rising):
        rank = max(rank, int(np.searchsorted(rising, rising[rank - 1], side="right")))
    return float(rising[rank] if rank < len(rising) else np.nextafter(rising[-1], np.inf))


# --- Distances of two groups of rows ---


@dataclass(frozen=True)
class Change:
    """How far new rows are from the reference rows in one respect."""

    distance: float  # the largest difference of cumulative shares, from 0 to 1
    beyond_chance: float  # what remains of it after subtracting what chance explains


def changes(profile: Profile, counts: Counts) -> dict[str, Change]:
    """How far counted rows are from the reference rows: in their bits and in every histogram."""
    n, m, parts = profile.n_rows(counts), profile.n_rows(), 1 + len(profile.edges)
    references = [profile.counts] if profile.surer is None else [profile.counts, profile.surer]
    by_bit = _outside(profile.bit_shares(counts), [profile.bit_shares(each) for each in references])
    found = {"bits": (by_bit, parts * profile.n_bits)}
    for name in profile.edges:
        new, *normal = (profile.shares(name, each).cumsum() for each in (counts, *references))
        found[name] = _outside(new, normal), parts
    return {name: Change(d, max(0.0, d - chance(n, m, tried))) for name, (d, tried) in found.items()}


def _outside(new: NDArray[np.float64], normal: list[NDArray[np.float64]]) -> float:
    """How far shares are outside the range of normal ones, where they are farthest."""
    return max(0.0, float((new - np.max(normal, axis=0)).max()), float((np.min(normal, axis=0) - new).max()))


def chance(n: int, m: int, comparisons: int = 1) -> float:
    """The distance of n rows from m rows like them that is exceeded with a probability of at most 0.001.

    This is the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart for two samples, with the factor 3 instead of 2
    (Wei and Dudley 2012), for the largest of several comparisons.
    """
    return math.sqrt(0.5 * math.log(3 * comparisons / FALSE_ALARMS) * (1 / n + 1 / m))


# --- Numbers per row ---


def codeword_distances(codes: NDArray[np.uint8], codewords: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The Hamming distance (n,) of packed codes (n, bytes) to the nearest of the codewords (c, bytes)."""
    if not len(codes):
        return np.zeros(0, np.int32)
    size = max(1, PAIRS // len(codewords))
    return np.concatenate([hamming(codes[i : i + size], codewords).min(1) for i in range(0, len(codes), size)])


def entropy(p: NDArray[Any], one_label: bool) -> NDArray[np.float64]:
    """The entropy (n,) in nats of label probabilities (n, l); of independent labels if a row may have several."""
    p = np.asarray(p, np.float64)
    of_labels = -p * np.log(np.maximum(p, 1e-300))
    if not one_label:
        of_labels -= (1 - p) * np.log(np.maximum(1 - p, 1e-300))
    return np.asarray(of_labels.sum(1))


def ambiguity(p: NDArray[Any], one_label: bool) -> NDArray[np.float64]:
    """How little the log-odds of a row single out one label, (n,), from label probabilities (n, l).

    If a row has one label, it is 1 − cos(z, e): z are the centred logits, and e singles out the likeliest label. It
    does not depend on the length of z, so it also notices rows far from all training rows, for which logits are large
    and p looks certain. If a row may have several labels, it is 1 − max p.
    """
    p = np.asarray(p, np.float64)
    if not one_label:
        return np.asarray(1 - p.max(1))
    z = np.log(np.maximum(p, LEAST_P))
    z -= z.mean(1, keepdims=True)
    length = np.sqrt(np.square(z).sum(1) * (1 - 1 / p.shape[1]))
    return np.asarray(1 - z.max(1) / np.maximum(length, 1e-300))


def shared_codes(codes: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """The distinct codes (c, bytes) of training rows if rows share them, two on average at least; else None."""
    distinct = np.unique(codes, axis=0)
    return distinct if 0 < 2 * len(distinct) <= len(codes) else None
