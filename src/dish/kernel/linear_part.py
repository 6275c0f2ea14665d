"""Whether x itself belongs among the features: it helps many rows, and few rows learn its noise by heart.

Least squares, which has a closed form, predicts the labels of held-out rows from all features and from those of the
RBF kernel alone; the smaller error decides. A ridge of a few rows' worth suits few rows, a smaller one many: both.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from dish.kernel.anchors import local_rows
from dish.kernel.features import feature_blocks
from dish.kernel.problem import Problem
from dish.lazy import Tensor, torch
from dish.similarity import LabelCounts, LabelSets

FEW_ROWS = 1 << 15  # with more, x has helped wherever it was tried
RIDGES = (10.0, 60.0)  # times 1/n of the mean diagonal
HELD_OUT = 0.15
TARGETS = 64  # random sums of labels stand for more labels than that: errors keep their expected size


def without_useless_linear_part(problem: Problem) -> None:
    """Take the linear features out of K and its map if held-out rows are predicted better without them."""
    K, m = problem.K, len(problem.features.anchors)
    if problem.n > FEW_ROWS or not isinstance(K, Tensor):
        return
    with problem.stage("linear part"):
        if not better_without(problem, m):
            return
        assert problem.features.mean is not None
        problem.K = K[:, :m].contiguous()
        problem.features = replace(problem.features, kernel="rbf", mean=problem.features.mean[:m].clone())
        problem.__dict__.pop("white", None)  # the factor of all features


def better_without(problem: Problem, m: int) -> bool:
    """Whether the first m features alone leave held-out rows a smaller squared error than all of them."""
    K, ranks, n = problem.K, problem.ranks, problem.n
    assert isinstance(K, Tensor)
    n_held = int(HELD_OUT * n)
    if n_held < 2:
        return False
    picked = np.sort(np.random.RandomState(0).permutation(n)[:n_held])
    held = torch.from_numpy(local_rows(len(K), picked, ranks)[0]).to(K.device)
    T = targets(problem)
    T = T - ranks.total(T.sum(0, dtype=torch.float64)).to(T) / n
    K_held, T_held = K[held], T[held]
    KtT = torch.zeros(K.shape[1], T.shape[1], dtype=torch.float64, device=K.device)
    for rows, block in feature_blocks(K):
        KtT += block.T @ T[rows]
    G, KtT = problem.white.gram(), ranks.total(KtT)
    G -= ranks.total((K_held.T @ K_held).double())
    KtT -= ranks.total((K_held.T @ T_held).double())

    def error(width: int) -> float:
        found = []
        for ridge in RIDGES:
            A = G[:width, :width].clone()
            A.diagonal().add_(ridge / n * float(A.diagonal().mean()))
            W = torch.cholesky_solve(KtT[:width], torch.linalg.cholesky(A)).to(K)
            found.append((K_held[:, :width] @ W - T_held).double().square().sum())
        return float(ranks.total(torch.stack(found)).min())

    return error(m) < error(K.shape[1])


def targets(problem: Problem) -> Tensor:
    """Labels (rows here, l) of 0 and 1, or random sums of them where they are many."""
    S, K = problem.S, problem.K
    sets = S.sets if isinstance(S, LabelCounts | LabelSets) else sp.eye_array(S.n_groups, format="csr")
    if sets.shape[1] > TARGETS:
        sets = sets @ np.random.RandomState(0).choice([-1.0, 1.0], (sets.shape[1], TARGETS))
    table = sets.toarray() if sp.issparse(sets) else sets
    return torch.from_numpy(np.asarray(table)).to(K.device, K.dtype)[S.row_group.long()]
