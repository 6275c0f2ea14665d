"""All choices that DISH makes on held-out rows: features, prior, sharpness, power of p and projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.io.rows import RowSource, local_rows
from dish.kernel.features import feature_blocks
from dish.kernel.fit_data import FitData, prepare
from dish.kernel.typical_rows import targets
from dish.lazy import Tensor, torch
from dish.posterior.multilabel import best_projection, held_out_map
from dish.posterior.projection import centred, refine, signed_projection
from dish.posterior.regression import Indices, Weights, WhitenedRows, regress
from dish.similarity import LabelCounts, LabelSets, Similarity, n_labels

Recompute = Callable[[float, str], FitData]  # γ and the kernel → data with these features
Parts = tuple[Indices, Indices]  # held-out rows, and as many rows that were trained on

FEW_ROWS = 1 << 15  # with more rows, x itself has helped wherever it was tried
PER_LABEL = 100  # rows per label that are needed to decide on held-out rows
NARROWER = 2.0  # factor on γ
RIDGES = (10.0, 60.0)  # times 1/n of the mean diagonal
HELD_OUT, MOST_HELD_OUT = 0.15, 16384
SHARP = 1.3  # factor on the logits: more rows of a class share one code, and MAP hardly falls
SHARPER = (1.0, 1.5, 2.25)  # further factors: a strong prior makes p under-confident if there are few classes
FEW, PRIORS = 1 << 14, (1.0, 0.25, 4.0)  # with at most FEW rows, held-out rows choose the prior by these factors


# --- Features ---


def prepare_features(
    rows: RowSource,
    S: Similarity,
    *,
    kernel: Any,
    gamma: Any,
    anchors: Any,
    n_anchors: int,
    scale: Any = None,
    **options: Any,
) -> FitData:
    """``fit_data.prepare`` for a ``kernel`` that may be "auto"."""
    make = partial(prepare, rows, S, n_anchors=n_anchors, **options)
    chosen = first_kernel(kernel, rows.shape[1], n_anchors)
    data = make(kernel=chosen, gamma=gamma, scale=scale, anchors=anchors)
    if chosen != "rbf+linear" or chosen == kernel:
        return data
    again = partial(make, scale=data.features.scale, anchors=data.features.anchors.cpu().numpy())
    return best_features(data, lambda g, k: again(gamma=g, kernel=k), isinstance(gamma, str))


def first_kernel(kernel: Any, d: int, n_anchors: int) -> Any:
    """The kernel to start with; "auto" adds x itself if it has no more features than there are anchors."""
    if not isinstance(kernel, str) or kernel != "auto":
        return kernel
    return "rbf+linear" if d <= n_anchors else "rbf"


def best_features(data: FitData, recompute: Recompute, any_gamma: bool) -> FitData:
    """The data with the features that predict held-out rows best: with or without x, and for ``any_gamma`` also 2γ.

    x itself helps with many rows; small training sets overfit it. Texture descriptors need a narrower kernel than
    embeddings. Least squares has a closed form, so it predicts the labels of held-out rows from each choice, with a
    strong and a weak ridge, and the smallest error decides. With too few rows per label nothing is chosen.
    """
    if data.n > FEW_ROWS or not can_decide(data.n, data.S):
        return data
    gamma, m = data.features.gamma, len(data.features.anchors)
    choices = [data, *([recompute(NARROWER * gamma, "rbf+linear")] if any_gamma else [])]
    with data.stage("choice of features"):
        errors = {(i, width): error for i, each in enumerate(choices) for width, error in held_out_errors(each, m)}
        i, width = min(errors, key=lambda choice: errors[choice])
    if width > m:
        return choices[i]
    if isinstance(data.K, Tensor):
        return without_linear_part(choices[i], m)
    return recompute(choices[i].features.gamma, "rbf")


def can_decide(n: int, S: Similarity) -> bool:
    """Whether there are enough rows per label to decide on held-out rows; a row counts once per label."""
    labels_per_row = S.sets.nnz / S.sets.shape[0] if isinstance(S, LabelCounts | LabelSets) else 1.0
    return n * labels_per_row >= PER_LABEL * n_labels(S)


def without_linear_part(data: FitData, m: int) -> FitData:
    """The same with the first m features only."""
    assert isinstance(data.K, Tensor)
    assert data.features.mean is not None
    features = replace(data.features, kernel="rbf", mean=data.features.mean[:m].clone())
    return replace(data, K=data.K[:, :m].contiguous(), features=features)


def held_out_errors(data: FitData, m: int) -> list[tuple[int, float]]:
    """(number of features, squared error on held-out rows) for all features and for the first m."""
    K, ranks, n = data.K, data.ranks, data.n
    picked = np.sort(np.random.RandomState(0).permutation(n)[: int(HELD_OUT * n)])
    held = torch.from_numpy(local_rows(len(K), picked, ranks)[0]).to(K.device)
    T = targets(data.S, data.S.row_group.to(K.device), K.dtype)
    T = T - ranks.total(T.sum(0, dtype=torch.float64)).to(T) / n
    K_held, T_held = K[held], T[held]
    KtT = torch.zeros(K.shape[1], T.shape[1], dtype=torch.float64, device=K.device)
    for rows, block in feature_blocks(K):
        KtT += block.T @ T[rows]
    G, KtT = data.white.gram(), ranks.total(KtT)
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


# --- Prior, sharpness and projection ---


@dataclass(frozen=True)
class Choice:
    """What held-out rows decide."""

    V: Tensor  # (l, r)
    offset: Tensor  # (r,)
    sharp: float  # factor on the logits
    power: int = 1  # of p
    prior: float = 1.0  # factor on the weight decay
    start: Weights | None = None  # W and b without the held-out rows


def sharpness(r: int) -> float:
    """Factor on the logits for codes of r bits; larger for long codes, where a ball of radius 2 is small."""
    return SHARP * max(1.0, r / 64) ** 0.25


def regressions(rows: WhitenedRows, seen: Indices, rng: np.random.RandomState) -> dict[float, Weights]:
    """Prior factor → regression on the rows that are not held out; several priors if there are few rows."""
    usual = regress(rows, seen, rng, share=0.6)
    others = PRIORS[1:] if rows.n <= FEW and can_decide(rows.n, rows.S) else ()
    return {1.0: usual} | {prior: regress(rows, seen, rng, usual, 0.3, prior) for prior in others}


def choose_for_classes(
    rows: WhitenedRows, parts: Parts, starts: dict[float, Weights], plain: Choice, rng: np.random.RandomState
) -> Choice:
    """The prior and the sharpness whose codes rank held-out rows best, and a projection refined for them."""
    best, best_map = plain, -1.0
    sharper = SHARPER if can_decide(rows.n, rows.S) else SHARPER[:1]
    for prior, (W, b) in starts.items():
        for sharp in (plain.sharp * a for a in sharper):
            held, seen = (rows.scored(part, sharp * W, sharp * b) for part in parts)
            found = held_out_map(rows.labels, plain.V, plain.offset, held, seen)
            if found > best_map:
                best_map, scored = found, (held, seen)
                best = replace(plain, sharp=sharp, prior=prior, start=(W, b))
    V, offset = centred(refine(plain.V, scored[0], scored[1], rng))
    return replace(best, V=V, offset=offset)


def choose_for_label_sets(
    rows: WhitenedRows,
    parts: Parts,
    starts: dict[float, Weights],
    plain: Choice,
    C: NDArray[Any],
    rng: np.random.RandomState,
) -> Choice:
    """The prior, the power of p and the projection whose codes rank held-out rows best.

    Projections have random signs or those of the codewords C, or are the plain one, or principal ones of the scores.
    """
    random, zero = np.where(rng.random_sample(C.shape) < 0.5, -1.0, 1.0), torch.zeros_like(plain.offset)
    given = [(signed_projection(signs, rng, rows.U.device), zero) for signs in (random, C)]
    given.append((plain.V, plain.offset))
    best, best_map = plain, -1.0
    for prior, (W, b) in starts.items():
        held, seen = (rows.scored(part, W, b) for part in parts)
        power, V, offset, found = best_projection(rows.labels, given, held, seen, rng)
        if found > best_map:
            best, best_map = Choice(V, offset, plain.sharp, power, prior, (W, b)), found
    return best
