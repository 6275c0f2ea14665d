"""Anchors: rows of all processes, or k-means centres, and the scale γ that suits them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.io.rows import RowSource
from dish.kernel.outliers import FAR, SPREAD, outliers
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks


def choose_anchors(X: Tensor, n_anchors: int, how: str, random_state: np.random.RandomState) -> Tensor:
    """(m, d): random rows of X, or k-means centres."""
    return find_anchors(RowSource(X), n_anchors, how, random_state, X.device)[0]


def find_anchors(
    X: RowSource,
    n_anchors: int,
    how: str,
    random_state: np.random.RandomState,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> tuple[Tensor, NDArray[np.intp] | None]:
    """Anchors (m, d) from the rows of all processes: random rows and their numbers, or k-means centres.

    Centres are those of at most 50 rows each where reading rows is not free.
    """
    n = ranks.offset_and_total(len(X))[1]
    n_anchors = min(n_anchors, n)
    if how == "random":
        picked = np.sort(random_state.choice(n, n_anchors, replace=False))
        return take_everywhere(X, picked, device, ranks), picked
    from sklearn.cluster import MiniBatchKMeans

    seed = random_state.randint(2**31 - 1)
    means = MiniBatchKMeans(n_anchors, n_init=1, batch_size=max(1024, n_anchors), random_state=seed)
    most = 50 * n_anchors if X.on_disk or ranks.world > 1 else n
    picked = np.arange(n) if n <= most else np.sort(random_state.choice(n, most, replace=False))
    some = take_everywhere(X, picked, device, ranks)
    return torch.from_numpy(means.fit(some.cpu().numpy()).cluster_centers_).to(some), None


def given_anchors(anchors: Any, X: RowSource, device: torch.device) -> Tensor:
    """The user's own anchors (m, d), checked."""
    d = X.shape[1]
    A = torch.as_tensor(np.array(anchors, np.float64)).to(device, X.dtype)
    fits = A.ndim == 2 and len(A) > 0 and A.shape[1] == d
    if not fits or not bool(A.isfinite().all()):
        raise InputError(
            f"anchors must be finite, of shape (m, {d}) as X has {d} features; got shape {tuple(A.shape)}"
        )
    return A


def take_everywhere(X: RowSource, picked: NDArray[np.intp], device: torch.device, ranks: Ranks) -> Tensor:
    """Rows by their numbers among those of all processes."""
    mine, rows = local_rows(len(X), picked, ranks)
    with ranks.raise_together():
        found = X.take(mine, device)
    if ranks.world == 1:
        return found
    out = torch.zeros(len(picked), X.shape[1], dtype=X.dtype, device=device)
    out[rows] = found
    return ranks.total(out).to(X.dtype)


def local_rows(n: int, picked: NDArray[np.intp], ranks: Ranks) -> tuple[NDArray[np.intp], slice]:
    """Of sorted global indices, those owned by this rank (as local indices) and their positions."""
    start = ranks.offset_and_total(n)[0]
    low, high = np.searchsorted(picked, [start, start + n])
    return picked[low:high] - start, slice(int(low), int(high))


# --- The scale ---


def scale_of(X: RowSource, A: Tensor, picked: NDArray[np.intp] | None = None, ranks: Ranks = ALONE) -> float:
    """γ = 1 / the mean squared distance of rows to anchors; ``picked``: the rows that the anchors are.

    Rounded to 9 digits, so that it is the same number however the rows are shared out.
    """
    mean = mean_squared_distance(X, A, picked, ranks)
    tiny, huge = (1e-30, 1e35) if X.dtype == torch.float32 else (1e-290, 1e300)
    if mean > 0 and not tiny < mean < huge:
        raise InputError(
            f"X: the mean squared distance of rows to anchors is {mean:.1e}, too {'small' if mean < 1 else 'large'} "
            f"for the arithmetic of {str(X.dtype).removeprefix('torch.')}: scale X, for example to unit variance"
        )
    return float(f"{1.0 / mean:.9g}") if mean > 0 else 1.0


def mean_squared_distance(
    X: RowSource, A: Tensor, picked: NDArray[np.intp] | None = None, ranks: Ranks = ALONE
) -> float:
    """Mean of ‖x − a‖² over pairs, which is that of ‖x − c‖² + ‖a − c‖² with c the mean of A, from ≤ 16,384 rows.

    A few rows far outside all others would decide it alone: they are left out, with a warning that names one.
    """
    n = ranks.offset_and_total(len(X))[1]
    sampled = np.arange(0, n, max(1, n // 8192))
    mine, _ = local_rows(len(X), sampled, ranks)
    near = ordinary(A)
    centre = A[near].double().mean(0)
    with ranks.raise_together():
        some = X.take(mine, A.device)
    parts = [(block.double() - centre).square().sum(1).cpu() for block in some.split(1024)]
    here = torch.cat(parts).numpy() if len(mine) else np.zeros(0)
    squares = np.concatenate(ranks.gather_arrays(here))
    far = outliers(squares)
    _warn_of_outliers(squares, far, sampled, ~near.cpu().numpy(), picked)
    mean = float(squares[~far].mean()) + float((A[near].double() - centre).square().sum(1).mean())
    rounding = 1e-30 * float(centre.square().sum())  # all that is left where rows are all alike
    return mean if mean > rounding else 0.0


def ordinary(A: Tensor) -> Tensor:
    """(m,) bool: the anchors that are not outliers by their distance from the others."""
    if not spread_out((A - A.mean(0)).square().sum(1)):
        return torch.ones(len(A), dtype=torch.bool, device=A.device)
    squares = (A.double() - A.double().median(0).values).square().sum(1)
    return ~torch.from_numpy(outliers(squares.cpu().numpy())).to(A.device)


def spread_out(squares: Tensor) -> bool:
    """Whether outliers are possible at all, given squared distances from the mean: it costs little to ask.

    One that is far out draws the mean to itself, but leaves (m − 1)² between itself and the others.
    """
    return bool(squares.max() > SPREAD * squares.median())


def _warn_of_outliers(
    squares: NDArray[np.float64],
    far: NDArray[np.bool_],
    sampled: NDArray[np.intp],
    far_anchors: NDArray[np.bool_],
    picked: NDArray[np.intp] | None,
) -> None:
    rows = set(sampled[far].tolist())
    if picked is not None:
        rows |= set(picked[far_anchors].tolist())
    if not rows and not far_anchors.any():
        return
    if rows:
        what = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, sorted(rows)[:5]))}"
        what += f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    else:
        what = f"anchor {int(far_anchors.argmax())}"
    warnings.warn(
        f"X: {what} (counted from 0) lies more than {FAR**0.5:.0f} times as far from the others as is usual; "
        "gamma='auto' leaves it out. Is it an error in the data?",
        stacklevel=2,
    )
