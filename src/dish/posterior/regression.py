"""The posterior hash function: which labels a row has first, then all bits together.

    F(x) = p(x)ᵃ V + offset ,    p(x) = softmax(Bᵀk(x) + b), or sigmoid where rows have several labels

A linear F fits every bit on its own, and a bit is a random half of the classes: with many classes that is hard. p(x)
is one multinomial (or one logistic per label) regression on the same features. What codes should keep is p(x)·p(x′),
the chance that two rows share a class, and the signs of a frame V (l, r) with orthogonal rows or columns keep the
angle between p(x) and p(x′). V has the signs of the codewords that the H-step found for the labels. The codewords of
±1 themselves would lose that angle: sgn(α c₁ + β c₂) is c₁ wherever α > β.

Where rows have several labels, the best code of a set of labels need not be a sum of those codewords: frames with
random signs, along the principal directions of p, and the V for which YV is nearest to H, are tried beside it; what
ranks held-out rows best is kept.

B is found in the coordinates in which KᵀK + ρI is n times the identity, by stochastic gradient steps with momentum,
under a Gaussian prior on it. Where rows have one label, p is made sharper than that, and V is turned so that the
codes of rows that B did not see rank rows of their class first; then B is fitted to all rows. How sharp, and with few
rows how strong the prior, is what ranks held-out rows best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish import codes
from dish.cbcd import Columns
from dish.cuda.compile import can_compile
from dish.cuda.graph import CudaGraph
from dish.kernel.features import row_blocks
from dish.kernel.fit_data import Problem
from dish.kernel.functions import Posterior
from dish.kernel.whitening import Whitening
from dish.lazy import Tensor, torch
from dish.posterior.cuda_regression import FusedSteps
from dish.posterior.multilabel import best_of_several, held_out_map
from dish.posterior.pool import Numbers, Pool
from dish.posterior.projection import centred_frame, frame, steps_threads, turn_frame
from dish.posterior.selection import can_decide
from dish.progress import progress
from dish.similarity import Classes, LabelCounts, LabelSets, Similarity, n_labels

Weights = tuple[Tensor, Tensor]  # W (m, l) and b (l,)
Parts = tuple[Numbers, Numbers]  # rows that were held out, and as many that were not

MAX_LABELS = 4096  # with more, B is larger than all else and a step too slow: "auto" takes a linear F
BATCH, UPDATES = 1024, 1000  # about a million row visits, however many rows there are
RATE, MOMENTUM = 0.3, 0.9
NOISE, MOST_NOISE = 20.0, 0.01  # ρ is NOISE / n of the mean diagonal: what n rows cannot tell from noise
PRIOR, SCARCE, MOST, MOST_EVER = 110.0, 2e5, 0.6, 0.06  # of weight_decay
SHARP = 1.3  # logits are multiplied by it: more rows of a class share one code, and MAP falls little
SHARPER = (1.0, 1.5, 2.25)  # times that: a strong prior leaves p less sure than it is right, if classes are few
FEW, PRIORS = 1 << 14, (1.0, 0.25, 4.0)  # with so few rows, held-out ones choose among priors, times the usual one
HELD_OUT, MOST_HELD_OUT = 0.15, 16384


def can_learn_posterior(S: Similarity) -> bool:
    """Whether S comes from labels, and from few enough of them."""
    return isinstance(S, Classes | LabelCounts | LabelSets) and 2 <= n_labels(S) <= MAX_LABELS


def fit_posterior(problem: Problem, H: Columns) -> Posterior:
    """The posterior hash function for codes H. ``problem.K`` may be overwritten: nothing needs it afterwards."""
    rng = np.random.RandomState(problem.rng.randint(2**31 - 1))
    with problem.stage("whitening"):
        T = whitening(problem)
        pool = Pool.of(problem, T, rng)
    C = codewords(problem, H)
    V, offset = centred_frame(frame(C, rng, pool.U.device)) if pool.one_label else votes(problem, H)
    choice = Choice(V.to(pool.U), offset.to(pool.U), *plain_link(pool, C.shape[1]))
    if pool.n >= 500:  # of fewer rows too few could be held out
        order = pool.shuffled(np.arange(pool.n), pool.n, rng)
        n_held = min(int(HELD_OUT * pool.n), MOST_HELD_OUT)
        held, seen = order[:n_held], order[n_held:]
        with problem.stage("posterior"):
            starts = regressions(pool, seen, rng)
        with problem.stage("frame"):
            parts = (held, seen[:n_held])
            find = best_of_one_label if pool.one_label else best_of_many_labels
            choice = find(pool, parts, starts, choice, C, rng)
    with problem.stage("posterior"):
        share = 0.8 if choice.start else 1.0
        W, b = regress(pool, np.arange(pool.n), rng, choice.start, share, choice.prior)
    B = (T @ (choice.sharp * W).double()).to(problem.K.dtype)
    return Posterior(B, (choice.sharp * b).to(B), choice.V.to(B), choice.offset.to(B), choice.link)


@dataclass(frozen=True)
class Choice:
    """What held-out rows decide."""

    V: Tensor  # (l, r)
    offset: Tensor  # (r,)
    link: str  # of ``functions.Posterior``
    sharp: float  # what the logits are multiplied by
    prior: float = 1.0  # times the usual one
    start: Weights | None = None  # W and b without the held-out rows


def plain_link(pool: Pool, r: int) -> tuple[str, float]:
    """The link and the sharpness that are taken if no rows decide."""
    return ("softmax", sharpness(r)) if pool.one_label else ("sigmoid", 1.0)


def whitening(problem: Problem) -> Tensor:
    """T (m, m): K T has unit second moments, and less where n rows cannot tell a feature from noise."""
    ridge = max(problem.ridge, min(NOISE / problem.n, MOST_NOISE))
    return Whitening.of(problem.white.gram(), ridge).inverse_factor().T * problem.n**0.5


def weight_decay(n: int, l: int, one_label: bool = True) -> float:  # noqa: E741
    """Weight decay per row for n rows and l labels.

    PRIOR / n is a Gaussian prior that does not depend on n. Few rows of few classes need more of it; too much of it
    buries rare classes, of which there are some where there are many.
    """
    if not one_label:
        return min(PRIOR / n, 0.01)
    return min(PRIOR / n * (1 + SCARCE / (n * l)), MOST / l, MOST_EVER)


def sharpness(r: int) -> float:
    """What the logits are multiplied by for codes of r bits: a ball of radius 2 is narrow among long ones."""
    return SHARP * max(1.0, r / 64) ** 0.25


def regressions(pool: Pool, seen: Numbers, rng: np.random.RandomState) -> dict[float, Weights]:
    """The regression on the rows that are not held out; where they are few, with weaker and stronger priors too."""
    usual = regress(pool, seen, rng, share=0.6)
    others = PRIORS[1:] if pool.n <= FEW and can_decide(pool.n, pool.S) else ()
    return {1.0: usual} | {prior: regress(pool, seen, rng, usual, 0.3, prior) for prior in others}


def regress(
    pool: Pool,
    numbers: Numbers,
    rng: np.random.RandomState,
    start: Weights | None = None,
    share: float = 1.0,
    prior: float = 1.0,
) -> Weights:
    """W (m, l) and b (l,) of the logistic regression on whitened rows: momentum steps, their rate falling to 0."""
    one_label = pool.one_label
    if start is None:
        q = pool.frequencies().clamp(1e-6, 1 - 1e-6)
        W, b = torch.zeros(pool.U.shape[1], len(q)).to(pool.U), torch.log(q if one_label else q / (1 - q))
    else:
        W, b = start[0].clone(), start[1].clone()
    n = len(numbers)
    size, updates = min(BATCH, n), round(share * min(UPDATES, max(150, n // 10)))
    decay = prior * weight_decay(n, W.shape[1], one_label)
    rate = RATE if one_label else 2 * RATE  # a sigmoid is half as steep
    if pool.draws_on_device and can_compile(W.device) and W.dtype == torch.float32:
        order = pool.local(pool.shuffled(numbers, size * updates, rng))[0].view(updates, size)
        return FusedSteps(pool, W, b, order, rate=rate, decay=decay, momentum=MOMENTUM).take()
    steps = Steps(pool, W, b, size, decay)
    with steps_threads(size * W.numel()), progress("posterior", updates, worth=updates * W.numel() > 1 << 28) as step:
        for t, picked in enumerate(pool.batches(numbers, size, updates, rng)):
            steps.take(picked, rate * (1 - t / updates))
            step(1)
    return steps.W, steps.b


class Steps:
    """Momentum steps on W and b, which stay where they are: on a GPU a step is recorded once.

    Where ``FusedSteps`` cannot take them.
    """

    def __init__(self, pool: Pool, W: Tensor, b: Tensor, size: int, decay: float) -> None:
        self.pool, self.W, self.b, self.size, self.decay = pool, W, b, size, decay
        self.move_W, self.move_b = torch.zeros_like(W), torch.zeros_like(b)
        self.picked = torch.zeros(size, dtype=torch.int64, device=W.device)
        self.rate = torch.zeros((), dtype=W.dtype, device=W.device)
        alone = pool.ranks.world == 1
        self.recorded = CudaGraph(W.device if alone else torch.device("cpu"))  # messages cannot be

    def take(self, picked: Tensor, rate: float) -> None:
        """One step on the rows ``picked`` of this process."""
        self.rate.fill_(rate)
        if len(picked) == self.size:
            picked = self.picked.copy_(picked)
        self.recorded(lambda: self._step(picked))

    def _step(self, picked: Tensor) -> None:
        slope_W, slope_b = self.pool.gradient(picked, self.W, self.b)
        slope_W = slope_W.div_(self.size).add_(self.decay * self.W)
        self.move_W.mul_(MOMENTUM).sub_(slope_W.mul_(self.rate))
        self.move_b.mul_(MOMENTUM).sub_(slope_b.div_(self.size).mul_(self.rate))
        self.W.add_(self.move_W)
        self.b.add_(self.move_b)


def codewords(problem: Problem, H: Columns) -> NDArray[np.float64]:
    """C (l, r): the codes of the rows of a label, by majority, as ±1."""
    S, sums = problem.S, group_sums(problem, H)
    if isinstance(S, LabelCounts | LabelSets):
        sums = S.sets.T @ sums
    return np.where(sums >= 0, 1.0, -1.0)


def group_sums(problem: Problem, H: Columns) -> NDArray[np.float64]:
    """EᵀH (g, r): codes summed by group of labels, over all processes."""
    like = torch.zeros((), device=problem.device)
    signs = ((rows, H.signs(rows, like)) for rows in row_blocks(problem.S.n, 1 << 14))
    sums: NDArray[np.float64] = problem.S.group_totals(signs, problem.ranks).cpu().numpy()
    return sums


def votes(problem: Problem, H: Columns) -> tuple[Tensor, Tensor]:
    """V (l, r) and the offset (r,) for which YV + offset is nearest to the codes H of the training rows."""
    S = problem.S
    assert isinstance(S, LabelCounts | LabelSets)
    size, sums = S.group_sizes().cpu().numpy(), group_sums(problem, H)
    Y = sp.csr_array(sp.hstack([S.sets, np.ones((S.n_groups, 1))]))
    gram = (Y.T @ (sp.diags_array(size) @ Y)).toarray()
    gram[np.diag_indices(len(gram))] += 1e-3 * np.trace(gram) / len(gram)
    solved = np.linalg.solve(gram, Y.T @ sums)
    return torch.from_numpy(solved[:-1]), torch.from_numpy(solved[-1])


def best_of_one_label(
    pool: Pool, parts: Parts, starts: dict[float, Weights], plain: Choice, C: NDArray[Any], rng: np.random.RandomState
) -> Choice:
    """The prior and the sharpness whose codes rank held-out rows best, and the frame turned for them."""
    best, best_map = plain, -1.0
    sharper = SHARPER if can_decide(pool.n, pool.S) else SHARPER[:1]
    for prior, (W, b) in starts.items():
        for sharp in (plain.sharp * a for a in sharper):
            held, seen = (pool.scored(part, sharp * W, sharp * b) for part in parts)
            found = held_out_map(pool.labels, plain.V, plain.offset, held, seen)
            if found > best_map:
                best_map, scored = found, (held, seen)
                best = replace(plain, sharp=sharp, prior=prior, start=(W, b))
    V, offset = centred_frame(turn_frame(plain.V, scored[0], scored[1], rng))
    return replace(best, V=V, offset=offset)


def best_of_many_labels(
    pool: Pool, parts: Parts, starts: dict[float, Weights], plain: Choice, C: NDArray[Any], rng: np.random.RandomState
) -> Choice:
    """The prior, the power of p and the frame whose codes rank held-out rows best.

    Frames have random signs or those of C, or are the plain one, or principal ones of the scores.
    """
    random, zero = np.where(rng.random_sample(C.shape) < 0.5, -1.0, 1.0), torch.zeros_like(plain.offset)
    device = pool.U.device
    given = [(frame(signs, rng, device), zero) for signs in (random, C)] + [(plain.V, plain.offset)]
    best, best_map = plain, -1.0
    for prior, (W, b) in starts.items():
        held, seen = (pool.scored(part, W, b) for part in parts)
        link_name, V, offset, found = best_of_several(pool.labels, given, held, seen, rng)
        if found > best_map:
            best, best_map = Choice(V, offset, link_name, plain.sharp, prior, (W, b)), found
    return best


def codes_of_labels(problem: Problem, function: Posterior) -> NDArray[np.uint8]:
    """The codes that rows with several labels would get if their labels were certain, packed."""
    S = problem.S
    assert isinstance(S, LabelCounts | LabelSets)
    V, offset = (each.double().cpu().numpy() for each in (function.V, function.offset))
    return np.asarray(codes.pack(S.sets @ V + offset)[S.row_group.cpu().numpy()])
