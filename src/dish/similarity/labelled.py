"""S from labels: classes, shared labels, sets of labels."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.errors import InputError
from dish.labels import (
    as_array,
    check_unlabelled,
    class_keys,
    distinct_sets,
    encode_classes,
    is_tags,
    label_matrix,
    tag_matrix,
)
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks
from dish.similarity.base import Similarity, product, torch_csr

SetTable = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


class Classes(Similarity):
    """One label per row: S = w·YYᵀ − 1, that is w − 1 within a class and −1 across classes.

    P = [wY, 1] and R = [Y, −1] are never built: Yᵀb is a sum by class, P z a look-up by class.
    """

    def __init__(
        self, y: NDArray[np.integer[Any]], similar_weight: float = 2.0, n_classes: int | None = None
    ) -> None:
        self.row_group = torch.from_numpy(np.ascontiguousarray(y, dtype=np.int32))
        self.n_groups = int(self.row_group.max()) + 1 if n_classes is None else n_classes
        self.w = float(similar_weight)
        self.diag = torch.full((self.n_groups,), self.w - 1, dtype=torch.float64)

    def weighted(self, w: float) -> Classes:
        """The same classes with another weight."""
        other = copy.copy(self)
        other.w, other.diag = w, torch.full_like(self.diag, w - 1)
        return other

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
    """Several labels per row, the paper's form: S = w·YYᵀ − 1, which counts the shared labels."""

    def __init__(self, Y: sp.csr_array, similar_weight: float = 2.0, ranks: Ranks = ALONE) -> None:
        Y_g, self.row_group = _distinct_rows(Y, ranks)
        self.n_groups = Y_g.shape[0]
        self.w = float(similar_weight)
        self.sets, self.sets_t = Y_g, sp.csr_array(Y_g.T)  # stay on the CPU
        self.Y_g, self.Y_gt = torch_csr(self.sets), torch_csr(self.sets_t)
        self.diag = torch.from_numpy(self.w * Y_g.sum(axis=1) - 1.0)

    def P(self, z: Tensor) -> Tensor:
        """wY z₁ + 1 z₂."""
        return self.w * product(self.Y_g, self.sets, z[:-1]) + z[-1]

    def Pt(self, sums: Tensor) -> Tensor:
        """[wYᵀ; 1ᵀ] b."""
        return torch.cat([self.w * product(self.Y_gt, self.sets_t, sums), sums.sum(0, keepdim=True)])

    def Rt(self, sums: Tensor) -> Tensor:
        """[Yᵀ; −1ᵀ] b."""
        return torch.cat([product(self.Y_gt, self.sets_t, sums), -sums.sum(0, keepdim=True)])

    def squared_norm(self) -> float:
        """‖wYYᵀ − 1‖² = w²‖YᵀY‖² − 2w‖Yᵀ1‖² + n²."""
        size = self.group_sizes().cpu().numpy()
        YtY = self.sets_t @ (sp.diags_array(size) @ self.sets)  # (l, l), as sparse as labels meet
        Yt1 = self.sets_t @ size
        return float(self.w**2 * (YtY.data**2).sum() - 2 * self.w * (Yt1**2).sum() + size.sum() ** 2)

    def product_size(self) -> int:
        """Labels of all sets."""
        return int(self.sets.nnz)


class LabelSets(Similarity):
    """Several labels per row, any similarity of label *sets*: S = E M Eᵀ, M (L, L) over the distinct sets.

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
        self.sets, self.n_groups = Y_g, Y_g.shape[0]
        if self.n_groups > self.MAX_SETS:
            raise InputError(
                f"y has {self.n_groups:,} distinct label sets; a table over sets is kept for at most "
                f"{self.MAX_SETS:,}. Use multilabel='count' (the paper's form), which has no such limit"
            )
        shared = (Y_g @ Y_g.T).toarray()  # (L, L) labels in common
        size = np.asarray(Y_g.sum(axis=1), np.float64)
        if callable(table):
            M = np.asarray(table(shared, size[:, None], size[None, :]), np.float64)
            if M.shape != shared.shape or not np.allclose(M, M.T):
                raise InputError("table must return a symmetric (L, L) matrix over the distinct label sets")
        elif table == "share_one":
            M = similar_weight * (shared > 0) - 1.0
        elif table == "jaccard":
            union = size[:, None] + size[None, :] - shared
            M = similar_weight * shared / np.maximum(union, 1) - 1.0
        else:
            raise InputError(f"table must be 'share_one', 'jaccard' or a function, got {table!r}")
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

    def product_size(self) -> int:
        """L²."""
        return self.M.numel()

    def squared_norm(self) -> float:
        """Σ size_a size_b M_ab²."""
        size = self.group_sizes()
        return float(size @ ((self.M**2) @ size))


def n_labels(S: Similarity) -> int:
    """Classes, or columns of the label matrix."""
    return S.sets.shape[1] if isinstance(S, LabelCounts | LabelSets) else S.n_groups


def from_labels(
    y: Any,
    *,
    similar_weight: float | str = 2.0,
    multilabel: str = "count",
    n_rows: int | None = None,
    ranks: Ranks = ALONE,
) -> Similarity:
    """Labels of any kind → the similarity that fits them.

    ``y``: (n,) classes of any type, (n, l) 0/1 labels (dense or CSR), (n,) lists of tags, or a ``Similarity``,
    which is returned as it is. ``multilabel``: ``"count"`` (the paper's w·YYᵀ − 1), ``"share_one"`` or ``"jaccard"``.
    With several processes each has the labels of its own rows, and classes or label sets get the same numbers on all.
    """
    w = _weight(similar_weight)
    if multilabel not in ("count", "share_one", "jaccard"):
        raise InputError(f"multilabel must be 'count', 'share_one' or 'jaccard', got {multilabel!r}")
    if isinstance(y, Similarity):
        _check_length(y.n, n_rows)
        if ranks.world > 1:
            raise InputError("y: a similarity of your own is for one process; several learn from classes or labels")
        return y
    if is_tags(y):
        if ranks.world > 1:
            raise InputError("y: several processes need the same columns: give (n, l) labels of 0 and 1, not tags")
        (y,) = tag_matrix(y)
    y = y if sp.issparse(y) else as_array(y)
    if sp.issparse(y) or (y.ndim == 2 and y.shape[1] > 1):
        Y = label_matrix(y)
        _check_length(Y.shape[0], n_rows)
        counted = multilabel == "count"
        S = LabelCounts(Y, w, ranks) if counted else LabelSets(Y, multilabel, w, ranks)
        if S.n_groups < 2:
            raise InputError("y gives every row the same labels; at least two different label sets are needed")
        return S.with_global_sizes(ranks)
    codes, classes = encode_classes(y)
    _check_length(len(codes), n_rows)
    if ranks.world > 1:
        codes, classes = _classes_of_all(codes, classes, ranks)
    if len(classes) < 2:
        raise InputError(f"y has 1 class ({classes.tolist()[0]!r}); learning needs at least two classes")
    by_class = Classes(codes, w, len(classes))
    if isinstance(similar_weight, str):
        by_class = by_class.weighted(balanced_weight(by_class.with_global_sizes(ranks).group_sizes()))
    return by_class.with_global_sizes(ranks)


def _weight(similar_weight: Any) -> float:
    """A checked weight; 2 for "auto", until the classes are known."""
    if isinstance(similar_weight, str) and similar_weight == "auto":
        return 2.0
    if isinstance(similar_weight, str) or not 1 < similar_weight <= 1e12:
        raise InputError(
            f"similar_weight must be 'auto' or a number above 1, at most 1e12 (2 is the paper's S, 10 its balance "
            f"for many classes), got {similar_weight!r}"
        )
    return float(similar_weight)


def balanced_weight(sizes: Tensor) -> float:
    """w for classes of these sizes: √c/3 for c classes of equal size (c = n²/Σ size² otherwise), from 2 to 10.

    2 for up to 36 classes, 10 for 900 and more, as the paper has them for 10 and for 1,000.
    """
    classes = float(sizes.sum() ** 2 / (sizes**2).sum())
    return min(10.0, max(2.0, classes**0.5 / 3))


def check_labels(y: Any, n_rows: int | None = None) -> None:
    """Refuse labels that ``from_labels`` would refuse, without a message to other processes."""
    if isinstance(y, Similarity):
        return
    _check_length(y.shape[0] if hasattr(y, "shape") else len(y), n_rows)
    if is_tags(y):
        return
    y = y if sp.issparse(y) else as_array(y)
    if sp.issparse(y) or (y.ndim == 2 and y.shape[1] > 1):
        label_matrix(y)
    else:
        encode_classes(y)


def _check_length(n_labels: int, n_rows: int | None) -> None:
    if n_rows is not None and n_labels != n_rows:
        raise InputError(f"X has {n_rows} rows but y has {n_labels}; they must be equal")


def _classes_of_all(
    codes: NDArray[np.int32], classes: NDArray[Any], ranks: Ranks
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Class numbers and sorted classes over the labels of all processes."""
    kind, mine = class_keys(classes)
    told = [json.loads(bytes(part)) for part in ranks.gather_arrays(np.frombuffer(_json([kind, mine]), np.uint8))]
    kinds = [kind for kind, _ in told]
    if len(set(kinds)) > 1:
        other = next(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
        raise InputError(
            f"y: process 0 has labels that are {kinds[0]}, process {other} {kinds[other]}; give all of them one kind"
        )
    every = sorted({key for _, keys in told for key in keys})
    number = {key: i for i, key in enumerate(every)}
    shared = np.empty(len(every), object)
    shared[:] = every
    check_unlabelled(shared)
    return np.array([number[key] for key in mine], np.int32)[codes], shared


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _distinct_rows(Y: sp.csr_array, ranks: Ranks = ALONE) -> tuple[sp.csr_array, Tensor]:
    """Distinct label sets (L, l), of all processes, and each row's set (n,). Never dense."""
    sets, own = distinct_sets(Y)
    if ranks.world > 1:
        if len(set(ranks.gather(torch.tensor([Y.shape[1]])).flatten().tolist())) > 1:
            raise InputError("y: the processes have labels of different widths")
        indptr, indices = ranks.gather_arrays(sets.indptr), ranks.gather_arrays(sets.indices)
        parts = [
            sp.csr_array((np.ones(len(columns)), columns, ends), shape=(len(ends) - 1, Y.shape[1]))
            for ends, columns in zip(indptr, indices, strict=True)
        ]
        sets, place = distinct_sets(sp.csr_array(sp.vstack(parts)))
        first = sum(part.shape[0] for part in parts[: ranks.rank])
        own = place[first + own]
    return sets, torch.from_numpy(own)
