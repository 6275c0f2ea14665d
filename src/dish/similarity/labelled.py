"""Similarities made from labels: classes, shared labels, and label sets."""

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
    plain_labels,
    tag_names,
)
from dish.lazy import Tensor, torch
from dish.parallel import ALONE, Ranks
from dish.similarity.base import Similarity, csr_product, torch_csr

SetTable = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]


class Classes(Similarity):
    """One class per row: S = w·YYᵀ − 1, that is w − 1 within a class and −1 across classes.

    P = [wY, 1] and R = [Y, −1] are never built: Yᵀb is a sum per class, and P z is a look-up per class.
    ``y`` (n,) holds class indices 0 … c−1, and ``classes`` (c,) the sorted class values; None means 0 … max(y).
    """

    def __init__(
        self, y: NDArray[np.integer[Any]], similar_weight: float = 2.0, classes: NDArray[Any] | None = None
    ) -> None:
        self.row_group = torch.from_numpy(np.ascontiguousarray(y, dtype=np.int32))
        self.labels = np.arange(int(self.row_group.max()) + 1) if classes is None else classes
        self.n_groups = len(self.labels)
        self.w = float(similar_weight)
        self.diag = torch.full((self.n_groups,), self.w - 1, dtype=torch.float64)

    def weighted(self, w: float) -> Classes:
        """The same classes with weight ``w``."""
        other = copy.copy(self)
        other.w, other.diag = w, torch.full_like(self.diag, w - 1)
        return other

    def with_labels(self, classes: NDArray[Any]) -> Classes:
        """The same rows with more classes, some of which have no rows. ``classes``: all of them, sorted."""
        assert self.labels is not None
        place = _places(self.labels, classes).to(self.row_group)
        other = copy.copy(self)
        other.labels, other.n_groups, other.row_group = classes, len(classes), place[self.row_group.long()]
        other.diag = torch.full((len(classes),), self.w - 1).to(self.diag)
        if self._sizes is not None:
            other._sizes = self._sizes.new_zeros(len(classes)).index_add_(0, place.long(), self._sizes)
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
        """(w−1)² for every pair in one class, plus 1 for every other pair."""
        sizes = self.group_sizes()
        pairs = float((sizes**2).sum())
        return pairs * (self.w - 1) ** 2 + (float(sizes.sum()) ** 2 - pairs)


class LabelCounts(Similarity):
    """Multi-label rows in the paper's form: S = w·YYᵀ − 1, that is w times the number of shared labels, minus 1.

    ``labels`` (l,) names the columns of Y; None means 0 … l−1.
    """

    def __init__(
        self,
        Y: sp.csr_array,
        similar_weight: float = 2.0,
        ranks: Ranks = ALONE,
        labels: NDArray[Any] | None = None,
    ) -> None:
        Y_g, self.row_group = _distinct_rows(Y, ranks)
        self.labels = np.arange(Y.shape[1]) if labels is None else labels
        self.n_groups = Y_g.shape[0]
        self.w = float(similar_weight)
        self.sets, self.sets_t = Y_g, sp.csr_array(Y_g.T)  # always on the CPU
        self.Y_g, self.Y_gt = torch_csr(self.sets), torch_csr(self.sets_t)
        self.diag = torch.from_numpy(self.w * Y_g.sum(axis=1) - 1.0)

    def with_labels(self, labels: NDArray[Any]) -> LabelCounts:
        """The same rows with more labels, which no row has. ``labels``: all of them, sorted."""
        assert self.labels is not None
        place, old = _places(self.labels, labels).numpy(), self.sets
        other = copy.copy(self)
        other.labels = labels
        other.sets = sp.csr_array((old.data, place[old.indices], old.indptr), (old.shape[0], len(labels)))
        other.sets.sort_indices()
        other.sets_t = sp.csr_array(other.sets.T)
        other.Y_g, other.Y_gt = (torch_csr(A).to(self.Y_g.device) for A in (other.sets, other.sets_t))
        return other

    def P(self, z: Tensor) -> Tensor:
        """wY z₁ + 1 z₂."""
        return self.w * csr_product(self.Y_g, self.sets, z[:-1]) + z[-1]

    def Pt(self, sums: Tensor) -> Tensor:
        """[wYᵀ; 1ᵀ] b."""
        return torch.cat([self.w * csr_product(self.Y_gt, self.sets_t, sums), sums.sum(0, keepdim=True)])

    def Rt(self, sums: Tensor) -> Tensor:
        """[Yᵀ; −1ᵀ] b."""
        return torch.cat([csr_product(self.Y_gt, self.sets_t, sums), -sums.sum(0, keepdim=True)])

    def squared_norm(self) -> float:
        """‖wYYᵀ − 1‖² = w²‖YᵀY‖² − 2w‖Yᵀ1‖² + n²."""
        size = self.group_sizes().cpu().numpy()
        YtY = self.sets_t @ (sp.diags_array(size) @ self.sets)  # (l, l), sparse
        Yt1 = self.sets_t @ size
        return float(self.w**2 * (YtY.data**2).sum() - 2 * self.w * (Yt1**2).sum() + size.sum() ** 2)

    def product_size(self) -> int:
        """Number of labels in all distinct sets."""
        return int(self.sets.nnz)


class LabelSets(Similarity):
    """Multi-label rows with any similarity of label *sets*: S = E M Eᵀ, M (L, L) over the distinct sets.

    ``table`` is ``"share_one"`` (w − 1 if two rows share at least one label, else −1), ``"jaccard"``
    (w·|A∩B|/|A∪B| − 1), or a function of (|A∩B| (L, L), |A| (L, 1), |B| (1, L)) that returns M.
    ``labels`` (l,) names the columns of Y; None means 0 … l−1. Exact; a product costs O(n + L²).
    """

    MAX_SETS = 20_000  # M in float64 is then 3.2 GB

    def __init__(
        self,
        Y: sp.csr_array,
        table: str | SetTable = "share_one",
        similar_weight: float = 2.0,
        ranks: Ranks = ALONE,
        labels: NDArray[Any] | None = None,
    ) -> None:
        Y_g, self.row_group = _distinct_rows(Y, ranks)
        self.labels = np.arange(Y.shape[1]) if labels is None else labels
        self.sets, self.n_groups = Y_g, Y_g.shape[0]
        if self.n_groups > self.MAX_SETS:
            raise InputError(
                f"y has {self.n_groups:,} distinct label sets; a table over sets allows at most {self.MAX_SETS:,}. "
                "Use multilabel='count' (the paper's form), which has no limit"
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
        """M b (M is symmetric)."""
        return self.M @ sums

    def Rt(self, sums: Tensor) -> Tensor:
        """The group sums themselves, because R = E."""
        return sums

    def product_size(self) -> int:
        """L²."""
        return self.M.numel()

    def squared_norm(self) -> float:
        """Σ size_a size_b M_ab²."""
        size = self.group_sizes()
        return float(size @ ((self.M**2) @ size))


def _places(labels: NDArray[Any], among: NDArray[Any]) -> Tensor:
    """The place of each label among others that contain it, (l,)."""
    place = {value: j for j, value in enumerate(among.tolist())}
    return torch.tensor([place[value] for value in labels.tolist()], dtype=torch.int32)


def with_labels(S: Similarity, labels: NDArray[Any]) -> Similarity:
    """The similarity of the same rows with more labels, which no row has. ``labels``: all of them, sorted."""
    if isinstance(S, Classes | LabelCounts):
        return S.with_labels(labels)
    raise InputError(f"y: a {type(S).__name__} similarity cannot get more labels; pass classes or labels of 0 and 1")


def n_labels(S: Similarity) -> int:
    """Number of classes or label columns; number of groups if S was not made from labels."""
    return S.n_groups if S.labels is None else len(S.labels)


def from_labels(
    y: Any,
    *,
    similar_weight: float | str = 2.0,
    multilabel: str = "count",
    n_rows: int | None = None,
    ranks: Ranks = ALONE,
) -> Similarity:
    """Make the similarity that fits the labels: S = w − 1 within a class and −1 across classes.

    ``y``: (n,) classes of any type, (n, l) 0/1 labels (dense or CSR), (n,) lists of tags, or a ``Similarity``,
    which is returned unchanged. ``multilabel``: ``"count"`` (the paper's w·YYᵀ − 1), ``"share_one"``, ``"jaccard"``.
    ``similar_weight``: w, or ``"auto"``: 2 for up to 36 classes and for multi-label data, 10 from 900 classes on,
    √c/3 in between. With several processes, each passes the labels of its own rows; all get the same classes and
    label sets, in the same order.
    """
    w = _weight(similar_weight)
    if multilabel not in ("count", "share_one", "jaccard"):
        raise InputError(f"multilabel must be 'count', 'share_one' or 'jaccard', got {multilabel!r}")
    if isinstance(y, Similarity):
        _check_length(y.n, n_rows)
        if ranks.world > 1:
            raise InputError("y is a Similarity, which works in one process only; several processes need labels")
        return y
    names = None
    if is_tags(y):
        if ranks.world > 1:
            raise InputError("y holds tags; several processes need the same columns: pass (n, l) labels of 0 and 1")
        names = as_array(tag_names(y))
    (y,) = plain_labels(y)
    if sp.issparse(y) or (y.ndim == 2 and y.shape[1] > 1):
        Y = label_matrix(y)
        _check_length(Y.shape[0], n_rows)
        counted = multilabel == "count"
        S = LabelCounts(Y, w, ranks, names) if counted else LabelSets(Y, multilabel, w, ranks, names)
        if S.n_groups < 2:
            raise InputError("y has the same labels in every row; at least two different label sets are needed")
        return S.with_global_sizes(ranks)
    codes, classes = encode_classes(y)
    _check_length(len(codes), n_rows)
    if ranks.world > 1:
        codes, classes = _classes_of_all(codes, classes, ranks)
    if len(classes) < 2:
        raise InputError(f"y has 1 class ({classes.tolist()[0]!r}); learning needs at least two classes")
    by_class = Classes(codes, w, classes).with_global_sizes(ranks)
    if isinstance(similar_weight, str):
        by_class = by_class.weighted(balanced_weight(by_class.group_sizes()))
    return by_class


def _weight(similar_weight: Any) -> float:
    """The validated weight; 2 for "auto" (``from_labels`` replaces it once the class sizes are known)."""
    if isinstance(similar_weight, str) and similar_weight == "auto":
        return 2.0
    if isinstance(similar_weight, str) or not 1 < similar_weight <= 1e12:
        raise InputError(
            f"similar_weight must be 'auto' or a number above 1 and at most 1e12 (the paper uses 2, and 10 for 1,000 "
            f"classes), got {similar_weight!r}"
        )
    return float(similar_weight)


def balanced_weight(sizes: Tensor) -> float:
    """The "auto" weight w for classes of these sizes: √c/3, but at least 2 and at most 10.

    c = n²/Σ size² is the effective number of classes, which is the number of classes if all have the same size.
    w is 2 for up to 36 classes and 10 from 900 on, the paper's values for 10 and for 1,000 classes.
    """
    classes = float(sizes.sum() ** 2 / (sizes**2).sum())
    return min(10.0, max(2.0, classes**0.5 / 3))


def check_labels(y: Any, n_rows: int | None = None) -> None:
    """Raise an error for labels that ``from_labels`` would reject, without sending anything to other processes."""
    if isinstance(y, Similarity):
        return
    _check_length(y.shape[0] if hasattr(y, "shape") else len(y), n_rows)
    if is_tags(y):
        return
    (y,) = plain_labels(y)
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
    """Class indices of this process's rows, and the sorted classes of all processes.

    Classes that are neither numbers, truth values nor strings come back as strings.
    """
    kind, own = class_keys(classes)
    message = json.dumps([kind, classes.dtype.str, own]).encode()
    received = [json.loads(bytes(part)) for part in ranks.gather_arrays(np.frombuffer(message, np.uint8))]
    kinds = [part[0] for part in received]
    if len(set(kinds)) > 1:
        other = next(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
        raise InputError(
            f"y: process 0 has labels that are {kinds[0]}, process {other} {kinds[other]}; give all of them one kind"
        )
    every = sorted({key for _, _, keys in received for key in keys})
    index = {key: i for i, key in enumerate(every)}
    shared = np.empty(len(every), object)
    shared[:] = every
    check_unlabelled(shared)
    if kind in ("numbers", "truth values", "strings"):
        typed = shared.astype(np.result_type(*(np.dtype(part[1]) for part in received)))
        shared = typed if bool((typed == shared).all()) else shared
    return np.array([index[key] for key in own], np.int32)[codes], shared


def _distinct_rows(Y: sp.csr_array, ranks: Ranks = ALONE) -> tuple[sp.csr_array, Tensor]:
    """Distinct label sets (L, l) of all processes, and the index of each row's set (n,). Nothing is made dense."""
    sets, own = distinct_sets(Y)
    if ranks.world > 1:
        if len(set(ranks.gather(torch.tensor([Y.shape[1]])).flatten().tolist())) > 1:
            raise InputError("y must have the same number of label columns in all processes")
        indptr, indices = ranks.gather_arrays(sets.indptr), ranks.gather_arrays(sets.indices)
        parts = [
            sp.csr_array((np.ones(len(columns)), columns, ends), shape=(len(ends) - 1, Y.shape[1]))
            for ends, columns in zip(indptr, indices, strict=True)
        ]
        sets, index = distinct_sets(sp.csr_array(sp.vstack(parts)))
        first = sum(part.shape[0] for part in parts[: ranks.rank])
        own = index[first + own]
    return sets, torch.from_numpy(own)
