"""What most rows look like: outliers, and features of very different scales.

γ, the centre and the anchors come from typical rows alone, and features are scaled if their scales differ widely.
Both are estimated on a sample of the rows, with medians. Where it is not clear whether rows are outliers or a group
of their own, or whether scaling helps, least squares on the sample decides: the choice that predicts the labels of
held-out rows best.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.encoder import FeatureMap
from dish.errors import InputError
from dish.io.rows import RowSource, local_rows, take_everywhere
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks
from dish.similarity import Classes, LabelCounts, LabelSets, Similarity

FEWEST, ENTRIES = 8192, 1 << 24  # rows of a sample at least, and numbers in it at most, which has precedence
MEDIANS = 2048  # rows for medians of features, which take longer than sums
FAR = 1000.0  # rows beyond this many times the median squared distance are outliers, unless labels say otherwise
WIDE = 25.0  # so are rows beyond this, if labels say so clearly: the tail of ordinary rows may reach that far
CLEARLY, MANY = 0.95, 500  # held-out error relative to that of other choices, and rows, for a choice of WIDE
FEW = 200  # with fewer rows a trial of scales is left to chance
MOST_OUTLIERS = 1 / 3  # more rows than this share are not outliers
ROUNDING = 16  # units in the last place of a number; smaller differences do not count
UNEVEN = 100.0  # features are scaled if their scales differ by more than this factor
TRIAL_ROWS, TRIAL_ANCHORS = 4096, 256
TRIAL_RIDGES = (1e-3, 0.03, 1.0)  # of the mean diagonal; with a weak one alone, features that overfit would lose
TARGETS = 64  # more labels than this are replaced by random sums of them, which keeps the expected error


@dataclass(frozen=True)
class TypicalRows:
    """The centre and size of typical rows; rows further away than ``reach`` are outliers."""

    centre: Tensor  # (d,) float64: the median of every feature
    reach: float = np.inf  # distance from the centre in scaled features
    scale: Tensor | None = None  # (d,) factors; None: features are used as they are
    median: float = 0.0  # median distance from the centre

    @property
    def is_wide(self) -> bool:
        """Whether rows nearer than FAR are outliers."""
        return self.reach**2 < FAR / 2 * self.median**2

    def squares(self, X: Tensor) -> Tensor:
        """‖(x − centre) · scale‖² of rows (n,), in float64."""
        parts = [block.double() - self.centre for block in X.split(1024)]
        parts = parts if self.scale is None else [part * self.scale for part in parts]
        return torch.cat([part.square().sum(1) for part in parts])

    def includes(self, X: Tensor) -> Tensor:
        """(n,) bool: the rows that are not outliers; all of them if none would be left."""
        near = self.squares(X) <= self.reach**2
        return near if bool(near.any()) else torch.ones_like(near)


@dataclass(frozen=True)
class RowSample:
    """Some rows of all processes, and their labels if S was made from labels."""

    rows: Tensor  # (s, d)
    indices: NDArray[np.intp]  # of these rows
    groups: Tensor | None  # (s,): the group of equal labels of each row
    labels: Tensor | None  # (s, targets)

    @classmethod
    def of(cls, X: RowSource, S: Similarity | None, device: torch.device, ranks: Ranks = ALONE) -> RowSample:
        """Evenly spaced rows."""
        n, d = ranks.offset_and_total(len(X))[1], X.shape[1]
        indices = np.arange(0, n, max(1, n // FEWEST, -(-n * d // ENTRIES)))
        rows = take_everywhere(X, indices, device, ranks)
        if not isinstance(S, Classes | LabelCounts | LabelSets):
            return cls(rows, indices, None, None)
        mine, here = local_rows(len(X), indices, ranks)
        part = torch.zeros(len(indices), dtype=torch.float64, device=S.row_group.device)
        part[here] = S.row_group[torch.from_numpy(mine).to(part.device)].double()
        groups = ranks.total(part).long().to(device)
        return cls(rows, indices, groups, targets(S, groups, rows.dtype))

    @cached_property
    def few(self) -> Tensor:
        """The rows from which medians of features are computed."""
        return self.rows[:: -(-len(self.rows) // MEDIANS)]

    @cached_property
    def centre(self) -> Tensor:
        """The median of every feature (d,), in float64."""
        return self.few.double().median(0).values

    @property
    def moments(self) -> NDArray[np.float64]:
        """The mean and the standard deviation of every feature, (2, d)."""
        X = self.rows.double()
        return torch.stack([X.mean(0), X.std(0, correction=0)]).cpu().numpy()

    def outliers(self, typical: TypicalRows) -> Tensor:
        """Mask (s,)."""
        return typical.squares(self.rows) > typical.reach**2

    def held_out_error(self, typical: TypicalRows, kernel: str) -> float:
        """Squared error of the labels of held-out rows, predicted by least squares from kernel features.

        A row counts at most as if the mean had been predicted: the linear part of a few outliers would decide.
        """
        assert self.labels is not None
        picked = torch.from_numpy(np.random.RandomState(0).permutation(len(self.rows))[:TRIAL_ROWS])
        X, T = self.rows[picked], self.labels[picked]
        A = X[typical.includes(X)][:TRIAL_ANCHORS]
        gamma = 1 / max(mean_squared_distance(typical, X, A), 1e-300)
        K = FeatureMap(kernel, A, gamma, centre_of(typical, A), scale=as_scale(typical, A)).raw(X).double()
        K, T = K - K.mean(0), (T - T.mean(0)).double()
        seen = 3 * len(K) // 4
        G, KtT = K[:seen].T @ K[:seen], K[:seen].T @ T[:seen]
        at_most = T[seen:].square().sum(1)
        errors = [float(at_most.sum())]
        for ridge in TRIAL_RIDGES:
            size = float(G.diagonal().mean())
            L, failed = torch.linalg.cholesky_ex(G + ridge * size * torch.eye(len(G)).to(G))
            if size > 0 and not failed:  # else the features do not vary, or overflow
                E = K[seen:] @ torch.cholesky_solve(KtT, L) - T[seen:]
                errors.append(float(E.square().sum(1).nan_to_num(np.inf).minimum(at_most).sum()))
        return min(errors)


def find_typical_rows(sample: RowSample, kernel: Any, scale: Any) -> TypicalRows:
    """Which rows are typical, and by which factors features are scaled; ``scale``: "auto", None or (d,) factors."""
    factors = _factors(sample) if isinstance(scale, str) else _given(scale, sample.rows)
    undecided = isinstance(scale, str) and factors is not None and len(sample.rows) >= FEW
    scales = [factors, None] if undecided else [factors]
    choices = [one for each in scales for one in _choices(sample, each)]
    if len(choices) > 1 and sample.labels is not None and isinstance(kernel, str):
        errors = [sample.held_out_error(one, kernel) / (CLEARLY if one.is_wide else 1) for one in choices]
        choices = [choices[int(np.argmin(errors))]]
    typical = choices[0]
    if isinstance(scale, str) and typical.scale is not None:
        spread = 1 / typical.scale
        warnings.warn(
            f"X: the scales of its features differ by a factor of {float(spread.max() / spread.min()):.2g}; "
            "scale='auto' gives every feature the same median deviation. scale=None turns this off",
            stacklevel=2,
        )
    return typical


def _choices(sample: RowSample, scale: Tensor | None) -> list[TypicalRows]:
    """The sets of typical rows to choose from, the first one unless labels decide."""
    squares = TypicalRows(sample.centre, scale=scale).squares(sample.rows)
    median = float(squares.median())
    if median == 0:  # more than half of the rows are equal
        return [TypicalRows(sample.centre, scale=scale)]
    found: dict[int, TypicalRows] = {}
    for reach in (FAR, np.inf, WIDE) if len(squares) >= MANY else (FAR, np.inf):
        count = int((squares > reach * median).sum())
        if count <= MOST_OUTLIERS * len(squares):
            found.setdefault(count, TypicalRows(sample.centre, (reach * median) ** 0.5, scale, median**0.5))
    return list(found.values())


def _factors(sample: RowSample) -> Tensor | None:
    """1 / the scale of every feature; None if the scales are similar."""
    spread = deviations(sample.few)
    varies = spread > 0
    if not bool(varies.any()) or float(spread[varies].max()) <= UNEVEN * float(spread[varies].min()):
        return None
    return torch.where(varies, 1 / spread, 1 / spread[varies].median())


def deviations(X: Tensor) -> Tensor:
    """The scale of every feature (d,): the median distance from its median, among values that differ from it.

    Zeros of a sparse feature do not count, nor do outliers. The scale of a constant feature is 0.
    """
    rounding, X = ROUNDING * torch.finfo(X.dtype).eps, X.double()
    gaps = (X - X.median(0).values).abs()
    gaps = torch.where(gaps > rounding * X.abs().median(0).values, gaps, torch.nan)
    return gaps.nanmedian(0).values.nan_to_num(0.0)


def _given(scale: Any, rows: Tensor) -> Tensor | None:
    """The user's own factors, checked."""
    if scale is None:
        return None
    given = scale.cpu().numpy() if isinstance(scale, Tensor) else scale
    factors = torch.as_tensor(np.array(given, np.float64)).to(rows.device)
    if factors.shape != rows.shape[1:] or not bool((factors.isfinite() & (factors > 0)).all()):
        raise InputError(
            f"scale must be 'auto', None or {rows.shape[1]} factors above 0, one for each feature; got "
            f"{np.shape(scale)} numbers"
        )
    return factors


# --- γ and the centre ---


def mean_squared_distance(typical: TypicalRows, X: Tensor, A: Tensor) -> float:
    """Mean of ‖x − a‖² over typical rows and anchors, as the mean of ‖x − c‖² + ‖a − c‖² with c the mean of A."""
    X, A = X[typical.includes(X)], A[typical.includes(A)]
    around = TypicalRows(A.double().mean(0), scale=typical.scale)
    mean = float(around.squares(X).mean()) + float(around.squares(A).mean())
    scaled = around.centre if typical.scale is None else around.centre * typical.scale
    rounding = 1e-30 * float(scaled.square().sum())  # what remains if all rows are equal
    return mean if mean > rounding else 0.0


def choose_gamma(typical: TypicalRows, X: Tensor, A: Tensor) -> float:
    """γ = 1 / the mean squared distance of typical rows X to anchors A.

    γ is rounded to 9 digits, so that it does not depend on how the rows are distributed over processes.
    """
    mean = mean_squared_distance(typical, X, A)
    tiny, huge = (1e-30, 1e35) if X.dtype == torch.float32 else (1e-290, 1e300)
    if mean > 0 and not tiny < mean < huge:
        raise InputError(
            f"X: the mean squared distance of rows to anchors is {mean:.1e}, too {'small' if mean < 1 else 'large'} "
            f"for the arithmetic of {str(X.dtype).removeprefix('torch.')}: scale X, for example to unit variance"
        )
    return float(f"{1.0 / mean:.9g}") if mean > 0 else 1.0


def centre_of(typical: TypicalRows, A: Tensor) -> Tensor:
    """Mean of the anchors that are not outliers, which would pull it away from all others."""
    return A[typical.includes(A)].mean(0)


def as_scale(typical: TypicalRows, A: Tensor) -> Tensor | None:
    """The factors in the number type of the anchors."""
    return None if typical.scale is None else typical.scale.to(A)


def warn_of_outliers(typical: TypicalRows, sample: RowSample, A: Tensor, picked: NDArray[np.intp] | None) -> None:
    """Name the outliers: those in the sample, those ``picked`` as anchors first, and the user's own anchors."""
    if not np.isfinite(typical.reach):
        return
    rows = set(sample.indices[sample.outliers(typical).cpu().numpy()].tolist())
    rows |= set() if picked is None else set(picked.tolist())
    far_anchors = (typical.squares(A) > typical.reach**2).cpu().numpy()
    if not rows and not far_anchors.any():
        return
    if rows:
        share = "" if len(sample.rows) > sample.indices[-1] else f" of {len(sample.rows):,} rows that were examined"
        what = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, sorted(rows)[:5]))}"
        what += f" and {len(rows) - 5:,} more{share}" if len(rows) > 5 else ""
    else:
        what = f"anchor {int(far_anchors.argmax())}"
    are, them = ("are outliers", "them") if len(rows) > 1 else ("is an outlier", "it")
    warnings.warn(
        f"X: {what} (counted from 0) {are}, more than {typical.reach / typical.median:.0f} times the typical "
        f"distance away; gamma='auto' ignores {them}. Check your data for errors",
        stacklevel=2,
    )


# --- Labels ---


def targets(S: Similarity, groups: Tensor, dtype: torch.dtype) -> Tensor:
    """Labels (rows, l) of 0 and 1 for rows of these groups, or random sums of them if there are many labels."""
    sets = S.sets if isinstance(S, LabelCounts | LabelSets) else sp.eye_array(S.n_groups, format="csr")
    if sets.shape[1] > TARGETS:
        sets = sets @ np.random.RandomState(0).choice([-1.0, 1.0], (sets.shape[1], TARGETS))
    table = sets.toarray() if sp.issparse(sets) else sets
    return torch.from_numpy(np.asarray(table)).to(groups.device, dtype)[groups.long()]
