"""Similarity matrices S = P Rᵀ that are never built.

DISH only ever needs three things of S: a product with P, a product with Rᵀ, and its diagonal. Rows with
the same label (or the same set of labels) share a row of P and of R, so those are stored once per *group*:
with E the one-hot (n, g) matrix "row i is in group ``row_group[i]``", here

    P = E P_g ,   R = E R_g ,   S = E P_g R_gᵀ Eᵀ .

``Rt`` takes group sums Eᵀb and ``P`` gives a value per group; ``P(z)[row_group]`` is the product for all rows.
For a user's own ``LowRank(P, R)`` every row is a group of its own.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.cuda.tf32 import add_product, split, worth_splitting
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks


class Similarity(ABC):
    """S = P Rᵀ (n, n), symmetric, through products with its factors only."""

    row_group: Tensor  # (n,) int32: row i of P and R is row row_group[i] of P_g and R_g
    n_groups: int
    diag: Tensor  # (g,) float64: S_ii = P_i · R_i by group
    labels: NDArray[Any] | None = None  # (l,) sorted classes, or names of the label columns; None without labels
    _sizes: Tensor | None = None  # (g,) float64: rows of all processes, if there are several

    @property
    def n(self) -> int:
        """Rows of S."""
        return len(self.row_group)

    @abstractmethod
    def P(self, z: Tensor) -> Tensor:
        """P_g z: (l,) → (g,), or (l, k) → (g, k)."""

    @abstractmethod
    def Pt(self, sums: Tensor) -> Tensor:
        """P_gᵀ sums: (g,) → (l,), or (g, k) → (l, k)."""

    @abstractmethod
    def Rt(self, sums: Tensor) -> Tensor:
        """R_gᵀ sums: (g,) → (l,), or (g, k) → (l, k); with sums = Eᵀb this is Rᵀb."""

    @abstractmethod
    def squared_norm(self) -> float:
        """‖S‖² in the Frobenius norm."""

    def product_size(self) -> int:
        """Numbers that a product with P or R reads: what it costs."""
        return self.n_groups

    def project(self, blocks: Iterable[tuple[slice, Tensor]], ranks: Ranks = ALONE) -> tuple[Tensor, Tensor]:
        """(PᵀK, RᵀK), both (l, m) float64, from row blocks of K (n, m)."""
        A = self.group_totals(blocks, ranks)
        return self.Pt(A), self.Rt(A)

    def group_totals(self, blocks: Iterable[tuple[slice, Tensor]], ranks: Ranks = ALONE) -> Tensor:
        """EᵀK (g, m) float64, from row blocks of K (n, m)."""
        A: Any = 0.0  # in float64 from time to time: float32 sums of very many rows lose digits
        part, held = None, 0
        for rows, K in blocks:
            if part is None or held > 1 << 18:
                A = A if part is None else A + part.double()
                part, held = K.new_zeros(self.n_groups, K.shape[1]), 0
            self._add_by_group(part, self.row_group[rows].to(K.device), K)
            held += len(K)
        assert part is not None
        return ranks.total(A + part.double())

    def _add_by_group(self, sums: Tensor, row_group: Tensor, K: Tensor) -> None:
        """sums[group_i] += K_i, in the same order every time, also on a GPU: as a product, or sorted by group."""
        if K.device.type == "cpu":
            sums.index_add_(0, row_group, K)
        elif self.n_groups > 4096:
            sums.index_put_((row_group.long(),), K, accumulate=True)
        else:
            for g, block in zip(row_group.split(1 << 14), K.split(1 << 14), strict=True):
                E = torch.zeros(len(block), self.n_groups, dtype=K.dtype, device=K.device)
                E[torch.arange(len(block), device=K.device), g.long()] = 1
                add_product(sums, (E.T,), split(block) if worth_splitting(block) else (block,))

    def to(self, device: torch.device) -> Similarity:
        """The same similarity with its tensors on ``device``; this one stays where it is."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved

    def times(self, Z: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """S Z (n, k) for a dense Z (n, k)."""
        sums = Z.new_zeros(self.n_groups, Z.shape[1])
        self._add_by_group(sums, self.row_group, Z)
        return self.P(self.Rt(ranks.total(sums.double()))).to(Z.dtype)[self.row_group.long()]

    def rows(self, picked: Tensor) -> Similarity:
        """S between some of the rows."""
        part = copy.copy(self)
        part.row_group = self.row_group[picked]
        return part

    def group_sizes(self) -> Tensor:
        """(g,) float64: rows in each group, of all processes."""
        if self._sizes is not None:
            return self._sizes
        return torch.bincount(self.row_group.long(), minlength=self.n_groups).double()

    def with_global_sizes(self, ranks: Ranks) -> Self:
        """The same groups with the sizes of all processes' rows."""
        if ranks.world == 1:
            return self
        shared = copy.copy(self)
        shared._sizes = ranks.total(self.group_sizes())
        return shared

    def between_groups(self, columns: Tensor | None = None) -> Tensor:
        """S between all groups and some of them (None: all), (g, c) float64."""
        every = torch.arange(self.n_groups, device=self.row_group.device)
        E = every[:, None] == (every if columns is None else columns)
        return self.P(self.Rt(E.double()))

    def dense(self) -> NDArray[np.float64]:
        """S itself, (n, n). For tests and tiny n only."""
        S_g = self.between_groups().cpu().numpy()
        row_group = self.row_group.cpu().numpy()
        return np.asarray(S_g[row_group][:, row_group])


def torch_csr(A: sp.csr_array) -> Tensor:
    """A SciPy CSR matrix as a torch one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(A.indptr.astype(np.int64)),
            torch.from_numpy(A.indices.astype(np.int64)),
            torch.from_numpy(A.data),
            size=A.shape,
            check_invariants=False,
        )


def product(A: Tensor, same: sp.csr_array, z: Tensor) -> Tensor:
    """A z for a CSR matrix of ones; of one vector on the CPU by SciPy, whose call costs a tenth of torch's.

    On a GPU of one vector by running sums: exact for whole numbers, and it can be recorded as a CUDA graph.
    """
    if z.ndim == 2:
        return A @ z
    if z.device.type == "cpu":
        return torch.from_numpy(same @ z.numpy())
    return sums_of_runs(z.index_select(0, A.col_indices()), A.crow_indices())


def sums_of_runs(values: Tensor, ends: Tensor) -> Tensor:
    """Sums of values ends[i] … ends[i + 1] − 1, each the difference of two running sums."""
    running = torch.nn.functional.pad(values.cumsum(0), (1, 0)).index_select(0, ends)
    return running[1:] - running[:-1]
