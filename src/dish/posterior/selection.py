"""Which features few rows get: x itself beside the RBF kernel or not, and a kernel as wide as usual or narrower.

x helps many rows, and few learn its noise by heart; descriptors of textures want a narrower kernel than embeddings.
Least squares, which has a closed form, predicts the labels of held-out rows from each choice; the smallest error
decides. A ridge of a few rows' worth suits few rows, a smaller one many: both are tried. With too few rows per label
held-out ones say little, and least squares prefers what the regression does not: nothing is chosen then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from dish.kernel.anchors import local_rows
from dish.kernel.features import feature_blocks
from dish.kernel.fit_data import Problem
from dish.lazy import Tensor, torch
from dish.similarity import LabelCounts, LabelSets, Similarity, n_labels

Recompute = Callable[[float, str], Problem]  # γ and the kernel

FEW_ROWS = 1 << 15  # with more, x has helped wherever it was tried
PER_LABEL = 100  # rows, at least, for held-out ones to decide anything
NARROWER = 2.0  # times the usual γ
RIDGES = (10.0, 60.0)  # times 1/n of the mean diagonal
HELD_OUT = 0.15
TARGETS = 64  # random sums of labels stand for more labels than that: errors keep their expected size


def best_features(problem: Problem, recompute: Recompute, any_gamma: bool) -> Problem:
    """The problem with the features that predict held-out rows best; with ``any_gamma``, γ may be another."""
    if problem.n > FEW_ROWS or not can_decide(problem.n, problem.S):
        return problem
    gamma, m = problem.features.gamma, len(problem.features.anchors)
    problems = [problem, *([recompute(NARROWER * gamma, "rbf+linear")] if any_gamma else [])]
    with problem.stage("choice of features"):
        errors = {(i, width): error for i, each in enumerate(problems) for width, error in held_out_errors(each, m)}
        i, width = min(errors, key=lambda choice: errors[choice])
    if width > m:
        return problems[i]
    if isinstance(problem.K, Tensor):
        return without_linear_part(problems[i], m)
    return recompute(problems[i].features.gamma, "rbf")


def can_decide(n: int, S: Similarity) -> bool:
    """Whether n rows are enough to decide by some that are held out; a row counts for every label it has."""
    labels = (
        S.sets.nnz / S.sets.shape[0] if isinstance(S, LabelCounts | LabelSets) else 1.0
    )  # the mean over label sets
    return n * labels >= PER_LABEL * n_labels(S)


def without_linear_part(problem: Problem, m: int) -> Problem:
    """The same with the first m features alone."""
    assert isinstance(problem.K, Tensor)
    assert problem.features.mean is not None
    features = replace(problem.features, kernel="rbf", mean=problem.features.mean[:m].clone())
    return replace(problem, K=problem.K[:, :m].contiguous(), features=features)


def held_out_errors(problem: Problem, m: int) -> list[tuple[int, float]]:
    """All features and the first m alone: how many they are, and the squared error that they leave held-out rows."""
    K, ranks, n = problem.K, problem.ranks, problem.n
    picked = np.sort(np.random.RandomState(0).permutation(n)[: int(HELD_OUT * n)])
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
            W = torch.cholesky_solve(KtT[:width], torch.linalg.cholesky(A)).to(K_held)
            found.append((K_held[:, :width] @ W - T_held).double().square().sum())
        return float(ranks.total(torch.stack(found)).min())

    return [(width, error(width)) for width in (K.shape[1], m)]


def targets(problem: Problem) -> Tensor:
    """Labels (rows here, l) of 0 and 1, or random sums of them where they are many."""
    S, K = problem.S, problem.K
    sets = S.sets if isinstance(S, LabelCounts | LabelSets) else sp.eye_array(S.n_groups, format="csr")
    if sets.shape[1] > TARGETS:
        sets = sets @ np.random.RandomState(0).choice([-1.0, 1.0], (sets.shape[1], TARGETS))
    table = sets.toarray() if sp.issparse(sets) else sets
    return torch.from_numpy(np.asarray(table)).to(K.device, K.dtype)[S.row_group.long()]
