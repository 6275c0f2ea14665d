"""Kernel features of the training rows: anchors, and K (n, m) in memory or on disk.

The map k(x) itself is ``encoder.FeatureMap``. K is a tensor, or ``KernelRows`` if it does not fit in memory.
Everything that reads K does so in blocks of rows, and sums over rows go through a ``parallel.Ranks``.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.cbcd import pack_signs
from dish.encoder import ROWS_IN_CACHE, FeatureMap, row_blocks, rows_at_a_time
from dish.errors import InputError
from dish.io.rows import RowSource, release, scratch, take_everywhere
from dish.kernel.typical_rows import (
    RowSample,
    TypicalRows,
    as_scale,
    centre_of,
    choose_gamma,
    find_typical_rows,
    warn_of_outliers,
)
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks
from dish.progress import progress


def make_feature_map(
    rows: RowSource,
    sample: RowSample,
    kernel: Any,
    anchors: Any,
    n_anchors: int,
    gamma: float | str,
    scale: Any,
    rng: np.random.RandomState,
    device: torch.device,
    ranks: Ranks = ALONE,
    centre: NDArray[Any] | None = None,
) -> FeatureMap:
    """k(x) without its mean: anchors first, so that equal seeds give equal anchors, then γ.

    ``centre`` (d,): that of another model, whose geometry bits are kept. None: that of typical rows.
    """
    typical = find_typical_rows(sample, kernel, scale)
    if kernel == "linear":
        none = torch.zeros(0, rows.shape[1], dtype=rows.dtype, device=device)
        origin = none.sum(0) if centre is None else torch.as_tensor(centre).to(none)
        return FeatureMap("linear", none, 1.0, origin, scale=as_scale(typical, none))
    outliers = None
    if isinstance(anchors, str):
        n = ranks.offset_and_total(len(rows))[1]
        if n_anchors > n:
            warnings.warn(
                f"n_anchors={n_anchors} is more than the {n} rows of X: all rows become anchors", stacklevel=6
            )
        A, outliers = choose_anchors(rows, n_anchors, anchors, typical, rng, device, ranks)
    else:
        A = given_anchors(anchors, rows, device)
    if isinstance(gamma, str):
        gamma = choose_gamma(typical, sample.rows, A)
        warn_of_outliers(typical, sample, A, outliers)
    origin = centre_of(typical, A) if centre is None else torch.as_tensor(centre).to(A)
    return FeatureMap(kernel, A, float(gamma), origin, scale=as_scale(typical, A))


def choose_anchors(
    X: RowSource,
    n_anchors: int,
    how: str,
    typical: TypicalRows,
    random_state: np.random.RandomState,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> tuple[Tensor, NDArray[np.intp]]:
    """Anchors (m, d) from the typical rows of all processes: random rows or k-means centres; and outliers it met.

    If rows are on disk or on several processes, k-means sees a sample of 50 rows per anchor.
    """
    n = ranks.offset_and_total(len(X))[1]
    n_anchors = min(n_anchors, n)
    if how == "random" or n_anchors == n:
        picked = np.sort(random_state.choice(n, n_anchors, replace=False))
        return replace_outliers(X, picked, typical, random_state, device, ranks)
    from sklearn.cluster import MiniBatchKMeans

    seed = random_state.randint(2**31 - 1)
    means = MiniBatchKMeans(n_anchors, n_init=1, batch_size=max(1024, n_anchors), random_state=seed)
    most = 50 * n_anchors if X.on_disk or ranks.world > 1 else n
    picked = np.arange(n) if n <= most else np.sort(random_state.choice(n, most, replace=False))
    some = take_everywhere(X, picked, device, ranks)
    near = typical.includes(some)
    rows = some if typical.scale is None else some * typical.scale.to(some)  # distances are those of scaled features
    means.set_params(n_clusters=min(n_anchors, int(near.sum()))).fit(rows[near].cpu().numpy())
    centres = torch.from_numpy(means.cluster_centers_).to(some)
    return centres if typical.scale is None else centres / typical.scale.to(some), picked[~near.cpu().numpy()]


def replace_outliers(
    X: RowSource,
    picked: NDArray[np.intp],
    typical: TypicalRows,
    random_state: np.random.RandomState,
    device: torch.device,
    ranks: Ranks,
) -> tuple[Tensor, NDArray[np.intp]]:
    """The picked rows with other rows in the place of outliers, and the outliers among the picked rows."""
    A = take_everywhere(X, picked, device, ranks)
    near = typical.includes(A).cpu().numpy()
    far = picked[~near]
    if not len(far):
        return A, far
    n = ranks.offset_and_total(len(X))[1]
    left = np.setdiff1d(np.arange(n), picked)
    more = np.sort(random_state.choice(left, min(len(left), 2 * len(far)), replace=False))
    others = take_everywhere(X, more, device, ranks)
    others = others[typical.squares(others) <= typical.reach**2][: len(far)] if len(more) else others
    return torch.cat([A[torch.from_numpy(near).to(A.device)], others]), far


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


# --- K ---


def compute_features(
    features: FeatureMap, X: RowSource, device: torch.device, budget: int | None = None, ranks: Ranks = ALONE
) -> tuple[FeatureMap, Any]:
    """The map with its mean, and K (n, m) of the training rows.

    K is a tensor if it takes at most ``budget`` bytes on every process (None: no limit; on a GPU: most of the free
    memory), else ``KernelRows``.
    """
    n, m = len(X), features.m
    if _fits(features, X, device, budget, ranks):
        K: Any = _empty(n, m, X.dtype, device)
        keep: Tensor | None = K
    else:
        K = KernelRows(X, features, device)
        with ranks.raise_together():
            K.choose_storage()
        keep = K.stored
    with ranks.raise_together():
        total = _fill(features, X, device, keep, K)
    sums, n_all = ranks.sum(total, torch.tensor([float(n)], device=device))
    if not bool(sums.isfinite().all()):
        raise InputError(
            f"X holds values whose kernel features overflow {str(X.dtype).removeprefix('torch.')}: scale X, "
            "for example to unit variance"
        )
    features = replace(features, mean=(sums / n_all).to(X.dtype))
    if isinstance(K, KernelRows):
        K.features = features
        return features, K
    return features, K.sub_(features.mean)


def _fill(features: FeatureMap, X: RowSource, device: torch.device, keep: Tensor | None, K: Any) -> Tensor:
    """Write the raw features of all rows to ``keep`` and return their sum (m,)."""
    n, m = len(X), features.m
    total = torch.zeros(m, dtype=torch.float64, device=device)
    finite = []
    in_place = keep is not None and keep.device.type == device.type and features.kernel != "linear"
    with progress("kernel features", n) as step:
        for rows in row_blocks(n, rows_at_a_time(device, X.shape[1], m)):
            x = X.read(rows, device, check=device.type == "cpu")
            if device.type == "cuda":  # checked at the end: an answer now would wait for the GPU
                finite.append(x.sum().isfinite())  # one pass; a sum that overflows is checked again below
            block = features.raw(x, out=keep[rows] if keep is not None and in_place else None)
            if keep is not None and (not in_place or block.data_ptr() != keep[rows].data_ptr()):
                keep[rows] = block
            total += block.sum(0, dtype=torch.float64)
            if isinstance(K, KernelRows):
                K.release(rows)
            step(rows.stop - rows.start)
    if finite and not bool(torch.stack(finite).all()):
        for rows in row_blocks(n):
            X.read(rows, device)  # raises an error that names the row
    return total


def _fits(features: FeatureMap, X: RowSource, device: torch.device, budget: int | None, ranks: Ranks) -> bool:
    """Whether K fits in memory on every process. All processes must take the same path."""
    room = budget if device.type == "cpu" else int(0.8 * torch.cuda.mem_get_info(device)[0])
    bytes_needed = len(X) * features.m * torch.finfo(X.dtype).bits // 8
    fits = room is None or bytes_needed <= room
    return bool(ranks.gather(torch.tensor([float(fits)])).min() == 1)


class KernelRows:
    """K (n, m) that does not fit in memory: read from a scratch file or recomputed, whichever is faster."""

    def __init__(self, X: RowSource, features: FeatureMap, device: torch.device) -> None:
        self.X, self.features, self.device = X, features, device
        self.shape = (len(X), features.m)
        self.dtype = X.dtype
        self.file: np.memmap[Any, Any] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def stored(self) -> Tensor | None:
        """The scratch file as a tensor: features before centring."""
        return None if self.file is None else torch.from_numpy(self.file)

    def choose_storage(self) -> None:
        """Use a scratch file if reading a row from it is faster than computing the row."""
        n, m = self.shape
        some = slice(0, min(n, 4 * ROWS_IN_CACHE))
        np_dtype = np.dtype(str(self.dtype).removeprefix("torch."))
        start = time.perf_counter()
        block = self.features.raw(self.X.read(some, self.device)).cpu().numpy()
        made = time.perf_counter() - start
        try:
            trial = scratch(len(block), m, np_dtype)
            start = time.perf_counter()
            trial[:] = block
            trial.flush()  # to disk and back, as for a file larger than memory
            release(trial)
            trial.sum()
            if time.perf_counter() - start < made:
                self.file = scratch(n, m, np_dtype)
        except OSError as error:
            folder = tempfile.gettempdir()
            warnings.warn(
                f"cannot write a scratch file in {folder} ({error}): features are recomputed in every pass",
                stacklevel=2,
            )

    def release(self, rows: slice) -> None:
        """Release the memory that holds these rows of the scratch file."""
        if self.file is not None:
            release(self.file[rows])

    def blocks(self, size: int) -> Iterator[tuple[slice, Tensor]]:
        """Centred row blocks with their slices."""
        assert self.features.mean is not None
        for rows in row_blocks(len(self), size):
            stored = self.stored
            if stored is None:
                yield rows, self.features(self.X.read(rows, self.device))
            else:
                yield rows, stored[rows].to(self.device) - self.features.mean
                self.release(rows)

    def __getitem__(self, picked: Tensor) -> Tensor:
        """Some rows, centred."""
        assert self.features.mean is not None
        if self.file is None:
            return self.features(self.X.take(picked.cpu().numpy(), self.device))
        rows = torch.from_numpy(self.file[picked.cpu().numpy()]).to(self.device) - self.features.mean
        self.release(slice(0, len(self)))
        return rows


KernelMatrix = Tensor | KernelRows


def _empty(n: int, m: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised (n, m) matrix; on the CPU from NumPy, which uses huge pages (fewer page faults)."""
    if device.type == "cpu":
        return torch.from_numpy(np.empty((n, m), str(dtype).removeprefix("torch.")))
    return torch.empty(n, m, dtype=dtype, device=device)


def feature_blocks(K: KernelMatrix, size: int | None = None, title: str = "") -> Iterator[tuple[slice, Tensor]]:
    """Row blocks of K with their slices; with a title, they show their progress."""
    size = size or max(8 * ROWS_IN_CACHE, rows_at_a_time(K.device, K.shape[1]))
    blocks = ((rows, K[rows]) for rows in row_blocks(len(K), size)) if isinstance(K, Tensor) else K.blocks(size)
    with progress(title, len(K)) if title else nullcontext(lambda step: None) as step:
        for rows, block in blocks:
            yield rows, block
            step(len(block))


def F_blocks(K: KernelMatrix, W: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """F = K W by row blocks."""
    for rows, block in feature_blocks(K, title="F = KW"):
        yield rows, block @ W


def pack_F(K: KernelMatrix, W: Tensor) -> Tensor:
    """sgn(K W), packed, uint8 (n, ceil(r/8)) on the device of K."""
    out = torch.empty(len(K), codes.n_bytes(W.shape[1]), dtype=torch.uint8, device=K.device)
    for rows, F in F_blocks(K, W):
        out[rows] = torch.from_numpy(codes.pack(F.numpy())) if F.device.type == "cpu" else pack_signs(F)
    return out
