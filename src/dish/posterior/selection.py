"""All choices that DISH makes on held-out rows: features, prior, sharpness, power of p and projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.encoder import raised
from dish.io.rows import RowSource, local_rows
from dish.kernel.features import feature_blocks
from dish.kernel.fit_data import FitData, prepare
from dish.kernel.typical_rows import targets
from dish.lazy import Tensor, torch
from dish.posterior.geometry import COST, Geometry, candidates, centred_rows
from dish.posterior.multilabel import best_power, held_out_map, map_of_outputs, n_queries, refined
from dish.posterior.projection import BATCH, REFINEMENT, centred, refine, refine_new_rows
from dish.posterior.regression import FEW, Indices, Scored, Weights, WhitenedRows, Whiteners, regress
from dish.similarity import Classes, LabelCounts, LabelSets, Similarity, n_labels

Recompute = Callable[[float, str], FitData]  # γ and the kernel → data with these features
ChoiceFor = Callable[[int], "Choice"]  # number of class bits → a choice
Whitened = Callable[[float], WhitenedRows]  # ρ → whitened rows
OutputsFor = Callable[[Tensor, int], Tensor]  # scores of rows and a number of class bits → F

FEW_ROWS = 1 << 15  # with more rows, x itself has helped wherever it was tried
PER_LABEL = 100  # rows per label that are needed to decide on held-out rows
NARROWER = 2.0  # factor on γ
RIDGES, STRONG_RIDGES = (10.0, 60.0), (0.1, 1.0)  # times 1/n of the mean diagonal, and times it
HELD_OUT, MOST_HELD_OUT = 0.15, 16384
MOST_LOGITS = 1 << 26  # of held-out rows: 256 MB
SHARP = 1.3  # usual factor on the logits
RHOS, PRIORS = (0.1, 1.0, 10.0, 0.01), (0.25, 4.0)  # ρ of the whitening and factors on the prior to choose from
RHOS_OF_MANY = (0.1, 0.01, 0.001)  # with more rows than FEW of one label each, only ρ is chosen
SAFE_RHO = 1.0  # if no rows can be held out
CROSS, FOLDS, FEWEST = 1 << 12, 5, 40  # with at most CROSS rows every row is held out once; at least FEWEST must be
TRIAL, TRIAL_BATCH = 0.2, 512  # share of the steps of a trial regression, and batch of a trial projection
TEMPERATURES = tuple(float(a) for a in np.geomspace(0.3, 12, 33))
COOLER = (1.0, 0.7, 0.45)  # factors on the temperature: codes rank better with flatter p

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
        for ridge in (*(ridge / n for ridge in RIDGES), *STRONG_RIDGES):
            A = G[:width, :width].clone()
            A.diagonal().add_(ridge * float(A.diagonal().mean()))
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
    rho: float | None = None  # of the whitening
    start: Weights | None = None  # W and b without the held-out rows
    is_old: Tensor | None = None  # (l,): rows of V that must not change, nor must the offset

    def refined(self, held: Scored, seen: Scored, rng: np.random.RandomState, batch: int = BATCH) -> Choice:
        """The same with a projection that ranks held-out rows of one label."""
        if self.is_old is None:
            V, offset = centred(refine(self.V, held, seen, rng, batch))
            return replace(self, V=V, offset=offset)
        U = refine_new_rows(self.V + self.offset, self.is_old, held, seen, rng, batch)
        return replace(self, V=torch.where(self.is_old[:, None], self.V, U - self.offset))

    def outputs(self, p: Tensor) -> Tensor:
        """F of probabilities."""
        found: Tensor = raised(p, self.power) @ self.V + self.offset
        return found


@dataclass(frozen=True)
class Judged:
    """Logits of rows by regressions that did not learn from them, in two halves for queries and database.

    With many rows the second half was learned from, as the rows of a database may be.
    """

    first: Scored
    second: Scored
    indices: tuple[Indices, Indices]  # of both halves
    start: Weights | None = None  # the regression, if there was only one
    one_label: bool = True

    def scored(self, sharp: float = 1.0) -> tuple[Scored, Scored]:
        """p of both halves, with logits multiplied by ``sharp``."""
        link = partial(torch.softmax, dim=1) if self.one_label else torch.sigmoid
        (z, y), (z2, y2) = self.first, self.second
        return (link(sharp * z), y), (link(sharp * z2), y2)

    def temperature(self) -> float:
        """The factor on the logits that makes the labels of the first half most likely."""
        return min(TEMPERATURES, key=self.loss)

    def loss(self, factor: float) -> float:
        """The mean negative log-likelihood of the labels of the first half with logits multiplied by ``factor``."""
        z, y = self.first
        return float(torch.nn.functional.cross_entropy(factor * z, y))


def judge(
    rows: WhitenedRows, rng: np.random.RandomState, prior: float, share: float, folds: int = FOLDS
) -> Judged | None:
    """Learn without some rows and score them; None if too few can be judged.

    Up to ``CROSS`` rows, ``folds`` of ``FOLDS`` folds are held out in turn. ``share``: of the steps of a regression.
    """
    order = rows.shuffled(np.arange(rows.n), rows.n, rng)
    if rows.n > CROSS:
        n_held = min(int(HELD_OUT * rows.n), MOST_HELD_OUT, MOST_LOGITS // n_labels(rows.S))
        held, seen = rows.held_out(order, n_held)
        n_held = len(held)
        if n_held < FEWEST:
            return None
        W, b = regress(rows, seen, rng, share=share, prior=prior)
        halves = held, seen[:n_held]
        first, second = (rows.logits(half, W, b) for half in halves)
        return Judged(first, second, halves, (W, b), rows.one_label)
    order = order.cpu().numpy() if isinstance(order, Tensor) else order
    parts = []
    for i in range(folds):
        held, seen = order[i::FOLDS], np.concatenate([order[j::FOLDS] for j in range(FOLDS) if j != i])
        if rows.one_label:  # a class of one row cannot be judged
            held = held[torch.isin(rows.groups(held), rows.groups(seen)).cpu().numpy()]
        parts.append((held, seen))
    if sum(len(held) for held, _ in parts) < FEWEST:  # before the work
        return None
    found = [rows.logits(held, *regress(rows, seen, rng, share=share, prior=prior)) for held, seen in parts]
    z, y = (torch.cat(each) for each in zip(*found, strict=True))
    half, order = len(z) // 2, np.concatenate([held for held, _ in parts])
    halves = order[:half], order[half:]
    return Judged((z[:half], y[:half]), (z[half:], y[half:]), halves, None, rows.one_label)


def work(data: FitData) -> float:
    """About how many regressions with all steps a fit takes as long as: for its progress bar."""
    n, classes = data.n, isinstance(data.S, Classes)
    trials = len(RHOS) + len(PRIORS) * (not classes or can_decide(n, data.S))
    trials = len(RHOS_OF_MANY) if classes and n > FEW else trials * (2 if n <= CROSS else 1)
    refinements = 1 + len(COOLER) * (2 if n <= FEW else 1) if classes else 3
    regressions = (FOLDS if n <= CROSS else 1) + 1
    return TRIAL * trials + share_of_steps(n) * regressions + REFINEMENT * refinements


def share_of_steps(n: int) -> float:
    """The share of the usual number of steps for n rows: with many, half of them are enough."""
    return 1.0 if n <= CROSS else 0.5


def choose_for_classes(
    data: FitData,
    T: Whiteners,
    plain: ChoiceFor,
    n_bits: int,
    geometry: Geometry | None,
    g: int | None,
    rng: np.random.RandomState,
    budget: int | None,
) -> tuple[Choice, WhitenedRows, Judged | None]:
    """ρ, the prior and the sharpness whose codes rank held-out rows best, and a projection refined for them.

    ``plain`` gives the choice before any row was asked, for a number of class bits. g is the number of geometry bits;
    None: the most that cost little.
    """
    seed = rng.randint(2**31 - 1)
    whitened = _whitened_by(data, T, seed, budget)
    choice, rows = (_best_regression if data.n <= FEW else _likeliest_rho)(plain(n_bits), whitened, seed)
    judged = judge(rows, rng, choice.prior, share_of_steps(data.n))
    if g is None and judged is not None and geometry is not None:
        scored = judged.scored(COOLER[1] * judged.temperature())
        g = _most_geometry(judged, scored, rows, lambda p, r: p @ plain(r).V + plain(r).offset, n_bits, geometry)
    g = min(candidates(n_bits)) if g is None else g
    fewer = plain(n_bits - g)
    choice = replace(choice, V=fewer.V, offset=fewer.offset)
    if judged is None:
        return choice, rows, None
    return refined_choice(replace(choice, start=judged.start), rows, judged, rng), rows, judged


def _whitened_by(data: FitData, T: Whiteners, seed: int, budget: int | None) -> Whitened:
    """ρ → whitened rows: the same rows for every ρ, also if they are a sample.

    With many rows there is only one such matrix, which the next ρ rescales.
    """
    rows, at = None, 0.0

    def whitened(rho: float) -> WhitenedRows:
        nonlocal rows, at
        if rows is None or (rho != at and not T.rescales):
            rows = WhitenedRows.of(data, T(rho), np.random.RandomState(seed), budget)
        elif rho != at:
            rows = rows.rescaled(T.ratio(at, rho))
        at = rho
        return rows

    return whitened


def _most_geometry(
    judged: Judged, scored: tuple[Scored, Scored], rows: WhitenedRows, F: OutputsFor, n_bits: int, geometry: Geometry
) -> int:
    """The number of geometry bits; F gives the class bits of scores for a number of bits."""
    held, seen = scored
    n = n_queries(len(held[0]))
    G, groups = (torch.cat([a[: 2 * n], b[:n]]) for a, b in zip(held, seen, strict=True))
    picked = [rows.of_data(each) for each in (judged.indices[0][: 2 * n], judged.indices[1][:n])]
    indices = np.concatenate(picked)
    return most_geometry_bits(lambda r: F(G, r), rows.labels(groups), n, n_bits, geometry, indices)


def most_geometry_bits(
    class_bits: Callable[[int], Tensor],
    Y: NDArray[Any] | Tensor,
    n: int,
    n_bits: int,
    geometry: Geometry,
    indices: NDArray[np.intp],
) -> int:
    """The largest number of geometry bits that costs little MAP of the first n rows against the others.

    ``class_bits`` gives F of all rows for a number of bits, Y their labels, ``indices`` their places in the data.
    """
    least = (1 - COST) * map_of_outputs(class_bits(n_bits), Y, n)
    X = centred_rows(geometry.data, indices)
    for g in candidates(n_bits):
        if g == 0 or map_of_outputs(torch.cat([class_bits(n_bits - g), geometry.bits(g)(X)], 1), Y, n) >= least:
            return g
    return min(candidates(n_bits))


def _best_regression(plain: Choice, whitened: Whitened, seed: int) -> tuple[Choice, WhitenedRows]:
    """ρ and the prior whose unrefined codes rank held-out rows best, by short regressions."""

    def score(rows: WhitenedRows, prior: float) -> float:
        judged = judge(rows, np.random.RandomState(seed), prior, TRIAL, 2)
        if judged is None:
            return 0.0
        scored = judged.scored(COOLER[1] * judged.temperature())
        return held_out_map(rows.labels, plain.V, plain.offset, *scored)

    rho, best_map = RHOS[0], score(whitened(RHOS[0]), 1.0)
    if best_map == 0:  # nothing can be judged: a strong ridge is safe
        return replace(plain, rho=SAFE_RHO), whitened(SAFE_RHO)
    for other in RHOS[1:]:
        if (found := score(whitened(other), 1.0)) > best_map:
            rho, best_map = other, found
    best, rows = replace(plain, rho=rho), whitened(rho)
    for prior in PRIORS if can_decide(rows.n, rows.S) else ():
        if (found := score(rows, prior)) > best_map:
            best, best_map = replace(best, prior=prior), found
    return best, rows


def _likeliest_rho(plain: Choice, whitened: Whitened, seed: int) -> tuple[Choice, WhitenedRows]:
    """The largest ρ below which held-out labels become less likely, by short regressions.

    MAP would not do: most rows of a database have been trained on here, and it would favour a weak ridge.
    """
    losses: dict[float, float] = {}
    for rho in RHOS_OF_MANY:
        losses[rho] = _held_out_loss(whitened(rho), seed, 1.0)
        if losses[rho] > min(losses.values()):
            break
    rho = min(losses, key=lambda rho: losses[rho])
    return replace(plain, rho=rho), whitened(rho)


def refined_choice(plain: Choice, rows: WhitenedRows, judged: Judged, rng: np.random.RandomState) -> Choice:
    """The sharpness and the projection, refined or not, that rank held-out rows best."""
    temperature = judged.temperature()
    maps = {factor: _trial_maps(plain, rows, judged, factor * temperature) for factor in COOLER}
    factor = max(maps, key=lambda factor: max(maps[factor]))
    sharp, (as_it_is, when_refined) = factor * temperature, maps[factor]
    if as_it_is > when_refined:
        return replace(plain, sharp=sharp)
    return replace(plain, sharp=sharp).refined(*judged.scored(sharp), rng)


def _trial_maps(plain: Choice, rows: WhitenedRows, judged: Judged, sharp: float) -> tuple[float, float]:
    """MAP of held-out rows with the plain projection, and with one that was refined with other held-out rows.

    One half refines and the other judges; unless there are many rows, they also swap.
    """
    (a, b), (c, d) = (_halves(each) for each in judged.scored(sharp))
    found = []
    for (held, other), (p, y), more in [((a, c), b, d), ((b, d), a, c)][: 2 if rows.n <= FEW else 1]:
        refined = plain.refined(held, other, np.random.RandomState(0), TRIAL_BATCH)
        if judged.start is None:  # all rows are held out
            p, y = torch.cat([p, more[0]]), torch.cat([y, more[1]])
        labels, n = rows.labels(y), n_queries(len(p))
        found.append([map_of_outputs(choice.outputs(p), labels, n) for choice in (plain, refined)])
    first, second = np.mean(found, 0)
    return float(first), float(second)


def _halves(scored: Scored) -> tuple[Scored, Scored]:
    p, y = scored
    return (p[::2], y[::2]), (p[1::2], y[1::2])


# --- Label sets ---


def choose_for_label_sets(
    data: FitData,
    T: Whiteners,
    plain: ChoiceFor,
    n_bits: int,
    geometry: Geometry | None,
    g: int | None,
    rng: np.random.RandomState,
    budget: int | None,
) -> tuple[Choice, WhitenedRows, Judged | None]:
    """ρ and the prior that make the labels of held-out rows most likely, the power of p and a refined projection."""
    seed = rng.randint(2**31 - 1)
    whitened = _whitened_by(data, T, seed, budget)
    choice, rows = _likeliest_regression(plain(n_bits), whitened, seed)
    judged = judge(rows, rng, choice.prior, share_of_steps(data.n))
    if judged is None:
        fewer = plain(n_bits - (min(candidates(n_bits)) if g is None else g))
        return replace(choice, V=fewer.V, offset=fewer.offset), rows, None
    held, seen = judged.scored()
    power, (V, offset) = (
        best_power(rows.labels, (choice.V, choice.offset), held, seen)
        if choice.is_old is None
        else (choice.power, (choice.V, choice.offset))
    )
    if g is None and geometry is not None:
        scored = (raised(held[0], power), held[1]), (raised(seen[0], power), seen[1])
        g = _most_geometry(judged, scored, rows, lambda G, r: G @ V[:, :r] + offset[:r], n_bits, geometry)
    fewer = plain(n_bits - (g or 0))
    V, offset = refined(rows.labels, power, (fewer.V, fewer.offset), held, seen, rng, choice.is_old)
    return replace(choice, V=V, offset=offset, power=power, start=judged.start), rows, judged


def _likeliest_regression(plain: Choice, whitened: Whitened, seed: int) -> tuple[Choice, WhitenedRows]:
    """ρ and the prior under which held-out labels are most likely, by short regressions."""
    losses = {rho: _held_out_loss(whitened(rho), seed, 1.0) for rho in RHOS}
    rho = min(losses, key=lambda rho: losses[rho])
    rows, best, least = whitened(rho), replace(plain, rho=rho), losses[rho]
    for prior in PRIORS:
        if (found := _held_out_loss(rows, seed, prior)) < least:
            best, least = replace(best, prior=prior), found
    return best, rows


def _held_out_loss(rows: WhitenedRows, seed: int, prior: float) -> float:
    """The mean negative log-likelihood of the labels of held-out rows."""
    judged = judge(rows, np.random.RandomState(seed), prior, TRIAL, 2)
    if judged is None:
        return float("inf")
    if rows.one_label:
        return judged.loss(judged.temperature())
    z, group = judged.first
    Y = torch.as_tensor(rows.labels(group)).to(z)
    return float(torch.nn.functional.binary_cross_entropy_with_logits(z, Y))
