"""The feature map k(x), and K (n, m), the centred features of the training rows.

K is a tensor, or ``KernelRows`` where it does not fit in memory. All that touches it runs over blocks of rows, and
what is summed over rows goes through a ``parallel.Ranks``.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.cbcd import pack_signs
from dish.cuda.tf32 import add_product, split, worth_splitting
from dish.errors import InputError
from dish.io.rows import RowSource, release, scratch
from dish.kernel.anchors import ordinary, spread_out
from dish.kernel.outliers import FARTHEST
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks
from dish.progress import LONG, progress

KernelFunction = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
ROWS_IN_CACHE = 512  # rows of K computed at a time: with 1,000 anchors 2 MB, which stays in cache


@dataclass
class FeatureMap:
    """k(x) = [φ(x, a_1) − mean_1, …, φ(x, a_m) − mean_m]; for ``kernel="linear"`` k(x) = x − mean.

    ``"rbf"`` is φ(x, a) = exp(−γ‖x − a‖²); a function (X, A) → (rows, m) can stand in for it. ``"rbf+linear"`` has
    √γ (x − centre of the anchors) beside it, m + d features; rows far out are drawn in, or nothing else would count.
    """

    kernel: str | KernelFunction
    anchors: Tensor  # (m, d); (0, d) for the linear kernel
    gamma: float
    mean: Tensor | None = None  # (m,), of the training rows
    _prepared: tuple[Tensor, ...] = field(default=(), repr=False)  # what every block of rows needs of the anchors

    @property
    def m(self) -> int:
        """Features per row."""
        m, d = self.anchors.shape
        return d if self.kernel == "linear" else m + d if self.kernel == "rbf+linear" else m

    def raw(self, X: Tensor, out: Tensor | None = None) -> Tensor:
        """Features before centring: (rows, d) → (rows, m), in ``out`` if that saves a copy."""
        if callable(self.kernel):
            K = np.asarray(self.kernel(X.cpu().numpy(), self.anchors.cpu().numpy()))
            if K.shape != (len(X), len(self.anchors)):
                raise InputError(
                    f"kernel must return an array of shape {(len(X), len(self.anchors))} "
                    f"for {len(X)} rows and {len(self.anchors)} anchors, got {K.shape}"
                )
            if not np.isfinite(K).all():
                raise InputError("kernel returned NaN or infinity")
            return torch.from_numpy(np.array(K)).to(X)  # a copy: the function may have returned its input
        if self.kernel == "linear":
            return X.clone()
        if not self._prepared:
            self._prepared = prepare_rbf(self.anchors, self.gamma)
        if self.kernel == "rbf":
            return rbf(X, self._prepared, self.gamma, out)
        out = X.new_empty(len(X), self.m) if out is None else out
        linear = torch.sub(X, self._prepared[0], out=out[:, len(self.anchors) :]).mul_(self.gamma**0.5)
        rbf(X, self._prepared, self.gamma, out[:, : len(self.anchors)])
        length = linear.norm(dim=1, keepdim=True)  # most rows are shorter than 1 in these units
        linear.mul_(FARTHEST / length.clamp_(min=FARTHEST))
        return out

    def __call__(self, X: Tensor) -> Tensor:
        """Centred features: (rows, d) → (rows, m)."""
        assert self.mean is not None
        return self.raw(X).sub_(self.mean)

    def fit_rows(self, X: RowSource, device: torch.device, budget: int | None = None, ranks: Ranks = ALONE) -> Any:
        """K (n, m) of the training rows, and ``mean`` on the way.

        K is a tensor if on every process it takes no more than ``budget`` bytes (None: whatever it takes; on a GPU:
        most of what is free), else ``KernelRows``.
        """
        n, m = len(X), self.m
        if self._fits(X, device, budget, ranks):
            K: Any = _empty(n, m, X.dtype, device)
            keep: Tensor | None = K
        else:
            K = KernelRows(X, self, device)
            with ranks.raise_together():
                K.choose_storage()
            keep = K.stored
        total = torch.zeros(m, dtype=torch.float64, device=device)
        finite = []
        with (
            ranks.raise_together(),
            progress("kernel features", n, worth=n >= LONG or n * X.shape[1] > 1 << 24) as step,
        ):
            for rows in row_blocks(n, rows_at_a_time(device, X.shape[1], m)):
                on_place = keep is not None and keep.device.type == device.type
                x = X.read(rows, device, check=device.type == "cpu")
                if device.type == "cuda":  # asked for at the end: an answer now would wait for all that is under way
                    finite.append(x.sum().isfinite())  # one pass; a sum that overflows is looked into as well
                block = self.raw(x, out=keep[rows] if keep is not None and on_place else None)
                if keep is not None and (not on_place or block.data_ptr() != keep[rows].data_ptr()):
                    keep[rows] = block
                total += block.sum(0, dtype=torch.float64)
                if isinstance(K, KernelRows):
                    K.release(rows)
                step(rows.stop - rows.start)
            if finite and not bool(torch.stack(finite).all()):
                for rows in row_blocks(n):
                    X.read(rows, device)  # says which row it is
        sums, n_all = ranks.sum(total, torch.tensor([float(n)], device=device))
        if not bool(sums.isfinite().all()):
            raise InputError(
                f"X holds values whose kernel features overflow {str(X.dtype).removeprefix('torch.')}: scale X, "
                "for example to unit variance"
            )
        self.mean = (sums / n_all).to(X.dtype)
        return K if isinstance(K, KernelRows) else K.sub_(self.mean)

    def _fits(self, X: RowSource, device: torch.device, budget: int | None, ranks: Ranks) -> bool:
        """Whether K fits in memory on every process: they all have to take the same path."""
        room = budget if device.type == "cpu" else int(0.8 * torch.cuda.mem_get_info(device)[0])
        bytes_needed = len(X) * self.m * torch.finfo(X.dtype).bits // 8
        fits = room is None or bytes_needed <= room
        return bool(ranks.gather(torch.tensor([float(fits)])).min() == 1)


class KernelRows:
    """K (n, m) that does not fit in memory: spilled to a scratch file or recomputed on every pass.

    Whichever of the two is faster.
    """

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
        """Take a scratch file if reading a row from it is faster than computing the row."""
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
            trial.flush()  # to the disk and back: what a pass over a file larger than memory pays
            release(trial)
            trial.sum()
            if time.perf_counter() - start < made:
                self.file = scratch(n, m, np_dtype)
        except OSError as error:
            folder = tempfile.gettempdir()
            warnings.warn(
                f"no room for a scratch file in {folder} ({error}): features are recomputed on every pass",
                stacklevel=2,
            )

    def release(self, rows: slice) -> None:
        """Release the memory of rows of the scratch file."""
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


def prepare_rbf(A: Tensor, gamma: float) -> tuple[Tensor, ...]:
    """Centre c of the anchors, −γ‖a − c‖², (A − c)ᵀ: distances do not change, cancellation in float32 does.

    On a GPU (A − c)ᵀ in two parts.
    """
    centre = A.mean(0)
    centred = A - centre
    squares = (centred * centred).sum(1)
    if spread_out(squares):  # a far anchor must not draw the centre away from the others
        centre = A[ordinary(A)].mean(0)
        centred = A - centre
        squares = (centred * centred).sum(1)
    parts = split(centred) if worth_splitting(A) else (centred,)
    return centre, -gamma * squares, *(part.T for part in parts)


def rbf(X: Tensor, prepared: tuple[Tensor, ...], gamma: float, out: Tensor | None = None) -> Tensor:
    """exp(−γ‖x − a‖²) for all pairs: (rows, d) and prepared anchors → (rows, m)."""
    centre, a, *At = prepared
    X = X - centre
    # −γ‖x − a‖² = 2γ x·a − γ‖a‖² − γ‖x‖²
    if len(At) == 1:
        exponent = torch.addmm(a, X, At[0], alpha=2 * gamma, out=out)
        return exponent.sub_(gamma * (X * X).sum(1, keepdim=True)).clamp_(max=0).exp_()
    exponent = torch.empty(len(X), len(a), dtype=X.dtype, device=X.device) if out is None else out
    torch.add(a, torch.linalg.vector_norm(X, dim=1, keepdim=True).square(), alpha=-gamma, out=exponent)
    return add_product(exponent, split(X), (At[0], At[1]), alpha=2 * gamma).clamp_(max=0).exp_()


def _empty(n: int, m: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for an (n, m) matrix; on the CPU from NumPy, which asks for huge pages (fewer page faults)."""
    if device.type == "cpu":
        return torch.from_numpy(np.empty((n, m), str(dtype).removeprefix("torch.")))
    return torch.empty(n, m, dtype=dtype, device=device)


def rows_at_a_time(device: torch.device, *widths: int) -> int:
    """RowSource of a block: what stays in cache on a CPU, a quarter of a gigabyte on a GPU."""
    return ROWS_IN_CACHE if device.type == "cpu" else max(ROWS_IN_CACHE, (1 << 26) // max(widths))


def row_blocks(n: int, size: int = ROWS_IN_CACHE) -> Iterator[slice]:
    """Slices that cover 0 … n−1."""
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))


def feature_blocks(K: KernelMatrix, size: int | None = None, title: str = "") -> Iterator[tuple[slice, Tensor]]:
    """Row blocks of K with their slices, for products; a pass with a title shows how far it is."""
    size = size or max(8 * ROWS_IN_CACHE, rows_at_a_time(K.device, K.shape[1]))
    blocks = ((rows, K[rows]) for rows in row_blocks(len(K), size)) if isinstance(K, Tensor) else K.blocks(size)
    with progress(title, len(K), worth=bool(title) and len(K) >= LONG) as step:
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
