"""Similarity matrices S = P Rᵀ that are never built.

DISH needs three things of S: products with P, products with Rᵀ, and the diagonal. Rows with the same label (or the
same set of labels) have equal rows in P and in R, so these are stored once per *group*. With the one-hot matrix E
(n, g), E_ij = 1 if row i is in group j,

    P = E P_g ,   R = E R_g ,   S = E P_g R_gᵀ Eᵀ .

``Rt`` takes group sums Eᵀb, ``P`` returns one value per group, and ``P(z)[row_group]`` has one per row.
In a ``LowRank(P, R)`` every row is a group of its own.
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
    """A symmetric S = P Rᵀ (n, n), given by products with its factors."""

    row_group: Tensor  # (n,) int32: the group of each row
    n_groups: int
    diag: Tensor  # (g,) float64: S_ii = P_i · R_i, per group
    labels: NDArray[Any] | None = None  # (l,) sorted classes, or names of the label columns; None without labels
    _sizes: Tensor | None = None  # (g,) float64: group sizes over all processes, if there are several

    @property
    def n(self) -> int:
        """Number of rows of S."""
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
        """How many numbers a product with P or R reads: a measure of its cost."""
        return self.n_groups

    def project(self, blocks: Iterable[tuple[slice, Tensor]], ranks: Ranks = ALONE) -> tuple[Tensor, Tensor]:
        """(PᵀK, RᵀK), both (l, m) float64, from row blocks of K (n, m)."""
        A = self.group_totals(blocks, ranks)
        return self.Pt(A), self.Rt(A)

    def group_totals(self, blocks: Iterable[tuple[slice, Tensor]], ranks: Ranks = ALONE) -> Tensor:
        """EᵀK (g, m) float64, from row blocks of K (n, m)."""
        A: Any = 0.0
        part, held = None, 0  # a float32 sum of very many rows loses digits: move it to float64 now and then
        for rows, K in blocks:
            if part is None or held > 1 << 18:
                A = A if part is None else A + part.double()
                part, held = K.new_zeros(self.n_groups, K.shape[1]), 0
            self._add_by_group(part, self.row_group[rows].to(K.device), K)
            held += len(K)
        assert part is not None
        return ranks.total(A + part.double())

    def _add_by_group(self, sums: Tensor, row_group: Tensor, K: Tensor) -> None:
        """sums[group_i] += K_i, always in the same order. On a GPU this is a product, or a sum sorted by group."""
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
        """A copy with its tensors on ``device``."""
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
        """The similarity of the picked rows with each other."""
        part = copy.copy(self)
        part.row_group = self.row_group[picked]
        return part

    def group_sizes(self) -> Tensor:
        """Number of rows in each group, over all processes, (g,) float64."""
        if self._sizes is not None:
            return self._sizes
        return torch.bincount(self.row_group.long(), minlength=self.n_groups).double()

    def with_global_sizes(self, ranks: Ranks) -> Self:
        """A copy whose ``group_sizes`` count the rows of all processes."""
        if ranks.world == 1:
            return self
        shared = copy.copy(self)
        shared._sizes = ranks.total(self.group_sizes())
        return shared

    def between_groups(self, columns: Tensor | None = None) -> Tensor:
        """S between all groups and the groups in ``columns`` (None: all), (g, c) float64."""
        groups = torch.arange(self.n_groups, device=self.row_group.device)
        E = groups[:, None] == (groups if columns is None else columns)
        return self.P(self.Rt(E.double()))

    def dense(self) -> NDArray[np.float64]:
        """S as a matrix (n, n), for tests and tiny n."""
        S_g = self.between_groups().cpu().numpy()
        row_group = self.row_group.cpu().numpy()
        return np.asarray(S_g[row_group][:, row_group])


def torch_csr(A: sp.csr_array) -> Tensor:
    """A SciPy CSR matrix as a torch CSR tensor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(A.indptr.astype(np.int64)),
            torch.from_numpy(A.indices.astype(np.int64)),
            torch.from_numpy(A.data),
            size=A.shape,
            check_invariants=False,
        )


def csr_product(A: Tensor, same: sp.csr_array, z: Tensor) -> Tensor:
    """A z for a CSR matrix of ones, given as a torch tensor and as a SciPy array.

    For one vector on the CPU, SciPy's call has a tenth of torch's overhead. For one vector on a GPU, running sums are
    exact for integers and can be recorded in a CUDA graph.
    """
    if z.ndim == 2:
        return A @ z
    if z.device.type == "cpu":
        return torch.from_numpy(same @ z.numpy())
    return segment_sums(z.index_select(0, A.col_indices()), A.crow_indices())


def segment_sums(values: Tensor, ends: Tensor) -> Tensor:
    """Sums of values[ends[i] : ends[i + 1]], each the difference of two running sums."""
    running = torch.nn.functional.pad(values.cumsum(0), (1, 0)).index_select(0, ends)
    return running[1:] - running[:-1]
