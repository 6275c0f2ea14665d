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
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from dish.labels import as_array, encode_classes, label_matrix, unique_rows
from dish.parallel import ALONE, Ranks

SetTable = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


class Similarity(ABC):
    """S = P Rᵀ (n, n), symmetric, through products with its factors only."""

    row_group: Tensor  # (n,) int32: row i of P and R is row row_group[i] of P_g and R_g
    n_groups: int
    diag: Tensor  # (g,) float64: S_ii = P_i · R_i by group
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
        """sums[group_i] += K_i; on a GPU as a product, which adds in the same order every time."""
        if K.device.type == "cpu" or self.n_groups > 4096:
            sums.index_add_(0, row_group, K)
            return
        for g, block in zip(row_group.split(1 << 14), K.split(1 << 14), strict=True):
            E = torch.zeros(len(block), self.n_groups, dtype=K.dtype, device=K.device)
            E[torch.arange(len(block), device=K.device), g.long()] = 1
            sums.addmm_(E.T, block)

    def to(self, device: torch.device) -> Similarity:
        """The same similarity with its tensors on ``device``."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self

    def times(self, Z: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """S Z (n, k) for a dense Z (n, k)."""
        index = self.row_group.long()
        sums = torch.zeros(self.n_groups, Z.shape[1], dtype=Z.dtype, device=Z.device).index_add_(0, index, Z)
        return self.P(self.Rt(ranks.total(sums.double()))).to(Z.dtype)[index]

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

    def with_global_sizes(self, ranks: Ranks) -> Similarity:
        """The same groups on all processes: sizes are those of all rows."""
        if ranks.world > 1:
            self._sizes = ranks.total(self.group_sizes())
        return self

    def dense(self) -> NDArray[np.float64]:
        """S itself, (n, n). For tests and tiny n only."""
        eye = torch.eye(self.n_groups, dtype=torch.float64, device=self.row_group.device)
        S_g = self.P(self.Rt(eye)).cpu().numpy()
        row_group = self.row_group.cpu().numpy()
        return np.asarray(S_g[row_group][:, row_group])


class Classes(Similarity):
    """One label a row: S = w·YYᵀ − 1, that is w − 1 within a class and −1 across classes.

    P = [wY, 1] and R = [Y, −1] are never built: Yᵀb is a sum by class, P z a look-up by class.
    """

    def __init__(
        self, y: NDArray[np.integer[Any]], similar_weight: float = 2.0, n_classes: int | None = None
    ) -> None:
        self.row_group = torch.from_numpy(np.ascontiguousarray(y, dtype=np.int32))
        self.n_groups = int(self.row_group.max()) + 1 if n_classes is None else n_classes
        self.w = float(similar_weight)
        self.diag = torch.full((self.n_groups,), self.w - 1, dtype=torch.float64)

    def P(self, z: Tensor) -> Tensor:
        """wY z₁ + 1 z₂."""
        return self.w * z[:-1] + z[-1]

    def Pt(self, sums: Tensor) -> Tensor:
        """[wYᵀ; 1ᵀ] b."""
        return torch.cat([self.w * sums, sums.sum(0, keepdim=True)])

    def Rt(self, sums: Tensor) -> Tensor:
        """[Yᵀ; −1ᵀ] b."""
        return torch.cat([sums, -sums.sum(0, keepdim=True)])

    def squared_norm(self) -> float:
        """(w−1)² for every similar pair, 1 for every other."""
        sizes = self.group_sizes()
        pairs = float((sizes**2).sum())
        return pairs * (self.w - 1) ** 2 + (float(sizes.sum()) ** 2 - pairs)


class LabelCounts(Similarity):
    """Several labels a row, the paper's form: S = w·YYᵀ − 1, which counts the shared labels."""

    def __init__(self, Y: sp.csr_array, similar_weight: float = 2.0, ranks: Ranks = ALONE) -> None:
        Y_g, self.row_group = _distinct_rows(Y, ranks)
        self.n_groups = Y_g.shape[0]
        self.w = float(similar_weight)
        self.Y_g, self.Y_gt = _torch_csr(Y_g), _torch_csr(sp.csr_array(Y_g.T))
        self.diag = torch.from_numpy(self.w * Y_g.sum(axis=1) - 1.0)

    def P(self, z: Tensor) -> Tensor:
        """wY z₁ + 1 z₂."""
        return self.w * (self.Y_g @ z[:-1]) + z[-1]

    def Pt(self, sums: Tensor) -> Tensor:
        """[wYᵀ; 1ᵀ] b."""
        return torch.cat([self.w * (self.Y_gt @ sums), sums.sum(0, keepdim=True)])

    def Rt(self, sums: Tensor) -> Tensor:
        """[Yᵀ; −1ᵀ] b."""
        return torch.cat([self.Y_gt @ sums, -sums.sum(0, keepdim=True)])

    def squared_norm(self) -> float:
        """‖wYYᵀ − 1‖² = w²‖YᵀY‖² − 2w‖Yᵀ1‖² + n²."""
        size = self.group_sizes()
        YtY = self.Y_gt @ (size[:, None] * self.Y_g.to_dense())  # (l, l)
        Yt1 = self.Y_gt @ size
        return float(self.w**2 * (YtY**2).sum() - 2 * self.w * (Yt1**2).sum() + size.sum() ** 2)


class LabelSets(Similarity):
    """Several labels a row, any similarity of label *sets*: S = E M Eᵀ, M (L, L) over the distinct sets.

    ``table`` is ``"share_one"`` (w − 1 if two rows share at least one label, else −1), ``"jaccard"``
    (w·|A∩B|/|A∪B| − 1), or a function of (|A∩B| (L, L), |A| (L, 1), |B| (1, L)) that returns M itself.
    Exact; a product costs O(n + L²).
    """

    MAX_SETS = 20_000  # M in float64 is then 3.2 GB

    def __init__(
        self,
        Y: sp.csr_array,
        table: str | SetTable = "share_one",
        similar_weight: float = 2.0,
        ranks: Ranks = ALONE,
    ) -> None:
        Y_g, self.row_group = _distinct_rows(Y, ranks)
        self.n_groups = Y_g.shape[0]
        if self.n_groups > self.MAX_SETS:
            raise ValueError(
                f"y has {self.n_groups:,} distinct label sets; a table over sets is kept for at most "
                f"{self.MAX_SETS:,}. Use multilabel='count' (the paper's form), which has no such limit"
            )
        shared = (Y_g @ Y_g.T).toarray()  # (L, L) labels in common
        size = np.asarray(Y_g.sum(axis=1), np.float64)
        if callable(table):
            M = np.asarray(table(shared, size[:, None], size[None, :]), np.float64)
            if M.shape != shared.shape or not np.allclose(M, M.T):
                raise ValueError("table must return a symmetric (L, L) matrix over the distinct label sets")
        elif table == "share_one":
            M = similar_weight * (shared > 0) - 1.0
        elif table == "jaccard":
            union = size[:, None] + size[None, :] - shared
            M = similar_weight * shared / np.maximum(union, 1) - 1.0
        else:
            raise ValueError(f"table must be 'share_one', 'jaccard' or a function, got {table!r}")
        self.M = torch.from_numpy(M)
        self.diag = self.M.diagonal().clone()

    def P(self, z: Tensor) -> Tensor:
        """M z."""
        return self.M @ z

    def Pt(self, sums: Tensor) -> Tensor:
        """M b, M being symmetric."""
        return self.M @ sums

    def Rt(self, sums: Tensor) -> Tensor:
        """R = E: the group sums themselves."""
        return sums

    def squared_norm(self) -> float:
        """Σ size_a size_b M_ab²."""
        size = self.group_sizes()
        return float(size @ ((self.M**2) @ size))


class LowRank(Similarity):
    """Any similarity S ≈ P Rᵀ from the user's own P and R, (n, l), dense or CSR.

    If P Rᵀ is not symmetric its symmetric part is used: the objective ‖rS − HHᵀ‖² depends on nothing else.
    """

    def __init__(self, P: Any, R: Any) -> None:
        P, R = _factor(P, "P"), _factor(R, "R")
        if P.shape != R.shape:
            raise ValueError(f"P and R must have the same shape (n, l), got {P.shape} and {R.shape}")
        if P.shape[0] == 0 or P.shape[1] == 0:
            raise ValueError(f"P and R must have at least one row and one column, got {P.shape}")
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
            self._P, self._R = _torch_csr(P), _torch_csr(R)
            self._Pt, self._Rt = _torch_csr(sp.csr_array(P.T)), _torch_csr(sp.csr_array(R.T))
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


def from_labels(
    y: Any,
    *,
    similar_weight: float = 2.0,
    multilabel: str = "count",
    n_rows: int | None = None,
    ranks: Ranks = ALONE,
) -> Similarity:
    """Labels of any kind → the similarity that fits them.

    ``y``: (n,) classes of any type, (n, l) 0/1 labels (dense or CSR), or a ``Similarity``, which is returned
    as it is. ``multilabel``: ``"count"`` (the paper's w·YYᵀ − 1), ``"share_one"`` or ``"jaccard"``. With several
    processes each has the labels of its own rows, and classes or label sets get the same numbers on all.
    """
    if not np.isfinite(similar_weight) or not similar_weight > 1:
        raise ValueError(
            f"similar_weight must be a number above 1 (2 is the paper's S, 10 its balance for many classes), "
            f"got {similar_weight!r}"
        )
    if multilabel not in ("count", "share_one", "jaccard"):
        raise ValueError(f"multilabel must be 'count', 'share_one' or 'jaccard', got {multilabel!r}")
    if isinstance(y, Similarity):
        _check_length(y.n, n_rows)
        if ranks.world > 1:
            raise ValueError("y: a similarity of your own is for one process; several learn from classes or labels")
        return y
    y = y if sp.issparse(y) else as_array(y)
    if sp.issparse(y) or (y.ndim == 2 and y.shape[1] > 1):
        Y = label_matrix(y)
        _check_length(Y.shape[0], n_rows)
        counted = multilabel == "count"
        S = LabelCounts(Y, similar_weight, ranks) if counted else LabelSets(Y, multilabel, similar_weight, ranks)
        if S.n_groups < 2:
            raise ValueError("y gives every row the same labels; at least two different label sets are needed")
        return S.with_global_sizes(ranks)
    codes, classes = encode_classes(y)
    _check_length(len(codes), n_rows)
    if ranks.world > 1:
        here = classes.astype(str) if classes.dtype.kind == "O" else classes
        classes = np.unique(np.concatenate(ranks.gather_arrays(here)))
        codes = np.searchsorted(classes, here)[codes].astype(np.int32)
    if len(classes) < 2:
        raise ValueError(f"y has 1 class ({classes.tolist()[0]!r}); learning needs at least two classes")
    return Classes(codes, similar_weight, len(classes)).with_global_sizes(ranks)


def check_labels(y: Any) -> None:
    """Refuse labels that ``from_labels`` would refuse, without a message to other processes."""
    if isinstance(y, Similarity):
        return
    y = y if sp.issparse(y) else as_array(y)
    if sp.issparse(y) or (y.ndim == 2 and y.shape[1] > 1):
        label_matrix(y)
    else:
        encode_classes(y)


def nystroem(
    X: Any,
    n_landmarks: int = 300,
    gamma: float | None = None,
    similar_weight: float = 2.0,
    random_state: int | None = 0,
) -> LowRank:
    """Similarity for unlabelled rows: S = w·K̃ − 1, K̃ ≈ exp(−γ‖x−y‖²) by Nyström landmarks.

    ``gamma=None`` takes one over the mean squared distance between rows, so that K̃ spans its range.
    """
    from sklearn.kernel_approximation import Nystroem

    X = np.asarray(X, np.float64)
    if gamma is None:
        gamma = 1.0 / max(2 * X.var(axis=0).sum(), 1e-12)  # E‖x−y‖² = 2·tr cov
    maker = Nystroem(gamma=gamma, n_components=min(n_landmarks, len(X)), random_state=random_state)
    Phi = maker.fit_transform(X)  # (n, landmarks), K̃ = Phi Phiᵀ
    one = np.ones((len(X), 1))
    return LowRank(np.hstack([similar_weight * Phi, one]), np.hstack([Phi, -one]))


def anchor_graph(
    X: Any,
    n_anchors: int = 300,
    n_neighbors: int = 3,
    similar_weight: float | None = None,
    random_state: int | None = 0,
) -> LowRank:
    """Similarity for unlabelled rows: S = w·A/mean(diag A) − 1, with the anchor graph A = Z Λ⁻¹ Zᵀ.

    Few pairs share an anchor; the default weight w = n·mean(diag A) makes S = nA − 1, whose rows sum to zero.

    Each row of Z spreads a weight of one over its ``n_neighbors`` nearest k-means anchors (Gaussian weights,
    width the mean distance to the last of them); Λ = diag(Zᵀ1). Z is sparse: O(n · n_neighbors).
    """
    from sklearn.cluster import MiniBatchKMeans

    X = np.asarray(X, np.float64)
    anchors = MiniBatchKMeans(min(n_anchors, len(X)), n_init=1, random_state=random_state).fit(X).cluster_centers_
    Z, _ = anchor_weights(X, anchors, n_neighbors)
    mass = np.asarray(Z.sum(axis=0)).ravel()
    Z_scaled = sp.csr_array(Z @ sp.diags_array(1.0 / np.maximum(mass, 1e-12)))  # Z Λ⁻¹
    scale = len(X) if similar_weight is None else similar_weight / float((Z_scaled * Z).sum(axis=1).mean())
    one = sp.csr_array(np.ones((len(X), 1)))
    return LowRank(sp.hstack([scale * Z_scaled, one]), sp.hstack([Z, -one]))


def anchor_weights(
    X: NDArray[Any], anchors: NDArray[Any], n_neighbors: int, width: float | None = None
) -> tuple[sp.csr_array, float]:
    """Z (n, m) of the anchor graph, and the width it was made with.

    Z_ij ∝ exp(−‖x_i − a_j‖² / width) for the ``n_neighbors`` nearest anchors of row i, 0 for the others; rows sum
    to one. ``width=None`` takes the mean squared distance to the last of these anchors.
    """
    from sklearn.neighbors import NearestNeighbors

    s = min(n_neighbors, len(anchors))
    index = np.empty((len(X), s), np.int64)
    squared = np.empty((len(X), s))
    near = NearestNeighbors(n_neighbors=s).fit(np.asarray(anchors, np.float64))
    for i in range(0, len(X), 2**13):  # in float64, but never all of X
        rows = slice(i, i + 2**13)
        squared[rows], index[rows] = near.kneighbors(np.asarray(X[rows], np.float64))
    squared **= 2
    if width is None:
        width = max(float(squared[:, -1].mean()), 1e-12)
    weight = np.exp(-(squared - squared[:, :1]) / width)
    weight /= weight.sum(axis=1, keepdims=True)
    indptr = np.arange(0, index.size + 1, s)
    return sp.csr_array((weight.ravel(), index.ravel(), indptr), shape=(len(X), len(anchors))), width


def _check_length(n_labels: int, n_rows: int | None) -> None:
    if n_rows is not None and n_labels != n_rows:
        raise ValueError(f"X has {n_rows} rows but y has {n_labels}; they must be equal")


def _distinct_rows(Y: sp.csr_array, ranks: Ranks = ALONE) -> tuple[sp.csr_array, Tensor]:
    """Distinct label sets (L, l), of all processes, and each row's set (n,)."""
    block = max(1, 2**24 // max(Y.shape[1], 1))  # rows made dense at a time
    packed = np.vstack([np.packbits(Y[i : i + block].toarray() > 0, axis=1) for i in range(0, Y.shape[0], block)])
    sets, own = unique_rows(packed)
    if ranks.world > 1:
        parts = ranks.gather_arrays(sets)
        if len({part.shape[1] for part in parts}) > 1:
            raise ValueError("y: the processes have labels of different widths")
        sets, place = unique_rows(np.concatenate(parts))
        first = sum(len(part) for part in parts[: ranks.rank])
        own = place[first : first + len(parts[ranks.rank])][own]
    Y_g = np.unpackbits(sets, axis=1, count=Y.shape[1]).astype(np.float64)
    return sp.csr_array(Y_g), torch.from_numpy(own.astype(np.int32))


def _factor(A: Any, name: str) -> Any:
    """P or R as float64, dense or CSR, finite."""
    if isinstance(A, Tensor):
        A = A.detach().cpu().numpy()
    A = sp.csr_array(A).astype(np.float64) if sp.issparse(A) else np.array(A, np.float64)
    if A.ndim != 2:
        raise ValueError(f"{name} must be a matrix (n, l), got {A.ndim} dimension(s)")
    if not np.isfinite(A.data if sp.issparse(A) else A).all():
        raise ValueError(f"{name} contains NaN or infinity")
    return A


def _dense(A: Any) -> NDArray[np.float64]:
    return A.toarray() if sp.issparse(A) else np.asarray(A)


def _torch_csr(A: sp.csr_array) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(A.indptr.astype(np.int64)),
            torch.from_numpy(A.indices.astype(np.int64)),
            torch.from_numpy(A.data),
            size=A.shape,
            check_invariants=False,
        )


def _rows(A: Tensor, rows: slice) -> Tensor:
    """Rows of a dense or CSR tensor, dense (a block is small)."""
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
