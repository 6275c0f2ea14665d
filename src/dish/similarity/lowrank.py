"""LowRank: a similarity from your own factors P and R."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.errors import InputError
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks
from dish.similarity.base import Similarity, torch_csr


class LowRank(Similarity):
    """S = P Rᵀ from your own P and R, (n, l), dense or CSR.

    If P Rᵀ is not symmetric, its symmetric part is used: the objective ‖rS − HHᵀ‖² depends on nothing else.
    """

    def __init__(self, P: Any, R: Any) -> None:
        P, R = _factor(P, "P"), _factor(R, "R")
        if P.shape != R.shape:
            raise InputError(f"P and R must have the same shape (n, l), got {P.shape} and {R.shape}")
        if P.shape[0] == 0 or P.shape[1] == 0:
            raise InputError(f"P and R must have at least one row and one column, got {P.shape}")
        # ‖PRᵀ‖² = ⟨PᵀP, RᵀR⟩
        self._squared_norm = float((_dense(P.T @ P) * _dense(R.T @ R)).sum())
        probe = np.random.default_rng(0).standard_normal(P.shape[0])
        Sz, Stz = P @ (R.T @ probe), R @ (P.T @ probe)
        if not np.allclose(Sz, Stz, rtol=1e-6, atol=1e-6 * float(np.abs(Sz).max() + 1e-300)):
            stack = sp.hstack if sp.issparse(P) or sp.issparse(R) else np.hstack
            P, R = stack([0.5 * P, 0.5 * R]), stack([R, P])
        self.row_group = torch.arange(P.shape[0], dtype=torch.int32)
        self.n_groups = P.shape[0]
        if sp.issparse(P) or sp.issparse(R):
            P, R = sp.csr_array(P), sp.csr_array(R)
            self.diag = torch.from_numpy(np.asarray((P * R).sum(axis=1), np.float64))
            self._P, self._R = torch_csr(P), torch_csr(R)
            self._Pt, self._Rt = torch_csr(sp.csr_array(P.T)), torch_csr(sp.csr_array(R.T))
        else:
            self.diag = torch.from_numpy((P * R).sum(axis=1))
            self._P, self._R = torch.from_numpy(P), torch.from_numpy(R)
            self._Pt, self._Rt = self._P.T, self._R.T

    def P(self, z: Tensor) -> Tensor:
        """P z."""
        return self._P @ z

    def Pt(self, sums: Tensor) -> Tensor:
        """Pᵀ b."""
        return self._Pt @ sums

    def Rt(self, sums: Tensor) -> Tensor:
        """Rᵀ b."""
        return self._Rt @ sums

    def product_size(self) -> int:
        """How many numbers P stores."""
        return int(self._P.values().numel()) if self._P.layout == torch.sparse_csr else self._P.numel()

    def squared_norm(self) -> float:
        """‖P Rᵀ‖²."""
        return self._squared_norm

    def project(self, blocks: Iterable[tuple[slice, Tensor]], ranks: Ranks = ALONE) -> tuple[Tensor, Tensor]:
        """(PᵀK, RᵀK), both (l, m) float64, from row blocks of K (n, m)."""
        PtK: Any = 0.0
        RtK: Any = 0.0
        for rows, K in blocks:
            block = K.double()
            PtK = PtK + _rows(self._P, rows).T @ block
            RtK = RtK + _rows(self._R, rows).T @ block
        return PtK, RtK


def _factor(A: Any, name: str) -> Any:
    """P or R as a finite float64 matrix, dense or CSR."""
    if isinstance(A, Tensor):
        A = A.detach().cpu().numpy()
    A = sp.csr_array(A).astype(np.float64) if sp.issparse(A) else np.array(A, np.float64)
    if A.ndim != 2:
        raise InputError(f"{name} must be a matrix (n, l), got an array of shape {A.shape}")
    if not np.isfinite(A.data if sp.issparse(A) else A).all():
        raise InputError(f"{name} contains NaN or infinity")
    return A


def _dense(A: Any) -> NDArray[np.float64]:
    return A.toarray() if sp.issparse(A) else np.asarray(A)


def _rows(A: Tensor, rows: slice) -> Tensor:
    """Rows of a dense or CSR tensor, as a dense block."""
    if A.layout != torch.sparse_csr:
        return A[rows]
    start, stop, _ = rows.indices(A.shape[0])
    crow = A.crow_indices()[start : stop + 1]
    span = slice(int(crow[0]), int(crow[-1]))
    block = torch.sparse_csr_tensor(
        crow - crow[0],
        A.col_indices()[span],
        A.values()[span],
        size=(stop - start, A.shape[1]),
        check_invariants=False,
    )
    return block.to_dense()
