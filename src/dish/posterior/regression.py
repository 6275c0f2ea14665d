"""Logistic regression on whitened kernel features: the probabilities p(x) of the labels.

p(x) = softmax(Bᵀk(x) + b), or a sigmoid per label for multi-label data. B = T W with W learned in coordinates in
which KᵀK + ρI is n times the identity, by stochastic gradient steps with momentum, under a Gaussian prior.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import threads
from dish.cuda.compile import can_compile
from dish.cuda.graph import CudaGraph
from dish.cuda.tf32 import add_product, split, worth_splitting
from dish.io.rows import local_rows
from dish.kernel.features import feature_blocks
from dish.kernel.fit_data import FitData
from dish.kernel.whitening import Whitening
from dish.lazy import Tensor, torch
from dish.parallel import Ranks
from dish.posterior.cuda_regression import FusedSteps
from dish.posterior.projection import steps_threads
from dish.posterior.sampled_regression import gaussian_classifier, sampled_steps
from dish.progress import progress
from dish.similarity import Classes, LabelCounts, LabelSets, Similarity, n_labels

Indices = NDArray[np.intp] | Tensor  # row indices; a single process on a GPU draws them there

SAMPLE = 1 << 17  # rows that B is learned from if whitened features of all rows do not fit in memory
PARTS, LARGE = 4, 1 << 18  # a batch is split into PARTS if W has at most LARGE entries
ENOUGH = 6_000_000  # multiplications per step that pay for one more thread
Weights = tuple[Tensor, Tensor]  # W (m, l) and b (l,)
Scored = tuple[Tensor, Tensor]  # p or logits (rows, l), and the group of equal labels of each row (rows,)

ALL_CLASSES = 4096  # with more, a step computes the logits of some classes only
PER_CLASS = 4  # rows of a class that are held out if there are more classes
VISITS, CERTAIN = 50, 5.0  # row visits per class, and factor on the weight decay, if there are more classes
BATCH, UPDATES = 1024, 1000  # about a million row visits, for any number of rows
RATE, MOMENTUM = 0.3, 0.9
NOISE, MOST_NOISE = 20.0, 0.01  # of ``whitening``
FEW, KEPT, LEAST = 1 << 14, 0.01, 1e-4  # of ``Whiteners``: KEPT with at most FEW rows, LEAST with more
PRIOR, SCARCE, MOST, MOST_EVER = 110.0, 2e5, 0.6, 0.06  # of weight_decay


@dataclass
class WhitenedRows:
    """Whitened features and labels of the rows that B is learned from; rows of all processes are indexed 0 … n−1."""

    U: Tensor  # (rows here, m): K T
    weight: Tensor  # (rows here,): below 1 for outliers, on which a step would overshoot
    S: Similarity  # of the same rows
    ranks: Ranks
    n: int
    of_all: NDArray[np.intp] | None = None  # indices of these rows if they are a sample of all rows
    _buffers: threading.local = field(default_factory=threading.local, repr=False)

    @property
    def one_label(self) -> bool:
        """Whether every row has exactly one label."""
        return isinstance(self.S, Classes)

    @classmethod
    def of(cls, data: FitData, T: Tensor, rng: np.random.RandomState, budget: int | None = None) -> WhitenedRows:
        """K T of all rows, or of a random sample if K T does not fit in ``budget`` bytes or K is not in memory."""
        K, S, ranks = data.K, data.S, data.ranks
        T = T.to(K.dtype)
        if isinstance(K, Tensor) and _fits(K, budget, ranks):
            U, picked = K.new_empty(len(K), T.shape[1]), None
            parts = split(T) if worth_splitting(K) else None
            for rows, block in feature_blocks(K, title="whitening"):
                if parts is None:
                    torch.mm(block, T, out=U[rows])
                else:
                    U[rows] = add_product(torch.zeros_like(U[rows]), split(block), parts)
        else:
            picked = np.sort(rng.choice(data.n, min(data.n, SAMPLE), replace=False))
            mine = torch.from_numpy(local_rows(len(K), picked, ranks)[0])
            U, S = K[mine.to(K.device)] @ T, S.rows(mine.to(S.row_group.device))
        return cls(U, _weight(U), S, ranks, ranks.offset_and_total(len(U))[1], picked)

    def rescaled(self, factors: Tensor) -> WhitenedRows:
        """The same rows with every column multiplied by its factor, in the same memory."""
        U = self.U.mul_(factors.to(self.U))
        return WhitenedRows(U, _weight(U), self.S, self.ranks, self.n, self.of_all)

    def of_data(self, indices: Indices) -> NDArray[np.intp]:
        """The indices of some of these rows among all rows."""
        given = indices.cpu().numpy() if isinstance(indices, Tensor) else indices
        return given if self.of_all is None else self.of_all[given]

    @property
    def draws_on_device(self) -> bool:
        """Whether row indices are drawn on the GPU: the host shuffles a million more slowly than the GPU learns.

        All processes draw the same indices, each on its GPU.
        """
        return self.U.device.type == "cuda"

    def shuffled(self, indices: Indices, count: int, rng: np.random.RandomState) -> Indices:
        """``count`` indices: as many random permutations of ``indices`` as needed, concatenated and cut."""
        rounds = range(-(-count // len(indices)))
        if not self.draws_on_device:
            return np.concatenate([indices[rng.permutation(len(indices))[:count]] for _ in rounds])[:count]
        here = torch.as_tensor(indices, device=self.U.device)
        draw = torch.Generator(self.U.device).manual_seed(int(rng.randint(2**31 - 1)))
        orders = [torch.randperm(len(here), generator=draw, device=here.device)[:count] for _ in rounds]
        return here[torch.cat(orders)[:count]]

    def local(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The given rows that this process has, as local indices, and their positions in ``indices``."""
        given = torch.as_tensor(indices, device=self.U.device)
        if self.ranks.world == 1:
            return given, torch.arange(len(given), device=given.device)
        first = self.ranks.offset_and_total(len(self.U))[0]
        positions = ((given >= first) & (given < first + len(self.U))).nonzero().ravel()
        return given[positions] - first, positions

    def batches(self, indices: Indices, size: int, count: int, rng: np.random.RandomState) -> Iterator[Tensor]:
        """Local row indices of ``count`` batches, drawn by permutations of ``indices``."""
        yield from self.in_batches(self.shuffled(indices, size * count, rng), size, count)

    def in_batches(self, order: Indices, size: int, count: int) -> Iterator[Tensor]:
        """Local row indices of ``count`` batches of the rows ``order``, one after the other."""
        picked, positions = self.local(order)
        ends = torch.searchsorted(positions, torch.arange(count + 1, device=positions.device) * size).tolist()
        for start, stop in pairwise(ends):
            yield picked[start:stop]

    def held_out(self, order: Indices, count: int) -> tuple[Indices, Indices]:
        """At most ``count`` held-out rows and the other rows, of rows in random order.

        With many classes, a random sample hardly has two rows of one class, and nothing could be ranked. Then both
        are of the same classes, row by row, for as many rows as are held out.
        """
        if n_labels(self.S) <= ALL_CLASSES:
            return order[:count], order[count:]
        held, mates = rows_of_some_classes(self.groups(order).cpu().numpy(), count)
        others = np.setdiff1d(np.arange(len(order)), np.concatenate([held, mates]))
        return order[held], order[np.concatenate([mates, others])]

    @cached_property
    def group_labels(self) -> Tensor:
        """Label indices of every group, (g, most labels of a group), padded with l."""
        kind = np.int16 if n_labels(self.S) < 1 << 15 else np.int32
        if not isinstance(self.S, LabelCounts | LabelSets):
            return torch.from_numpy(np.arange(self.S.n_groups, dtype=kind)).to(self.U.device)[:, None]
        sets = self.S.sets
        counts = np.diff(sets.indptr)
        found = np.full((sets.shape[0], max(1, counts.max(initial=0))), sets.shape[1], kind)
        found[np.arange(found.shape[1]) < counts[:, None]] = sets.indices
        return torch.from_numpy(found).to(self.U.device)

    @cached_property
    def group_labels_csr(self) -> tuple[Tensor | None, Tensor | None]:
        """The same as CSR arrays: the start of every group (g + 1,) and label indices; None with classes."""
        if not isinstance(self.S, LabelCounts | LabelSets):
            return None, None
        first, of = (torch.from_numpy(np.asarray(a, np.int32)) for a in (self.S.sets.indptr, self.S.sets.indices))
        return first.to(self.U.device), of.to(self.U.device)

    def targets(self, picked: Tensor) -> Tensor:
        """Labels (rows, l) of 0 and 1."""
        return self._sets(self.S.row_group[picked])

    def _sets(self, group: Tensor) -> Tensor:
        Y = torch.zeros(len(group), n_labels(self.S) + 1, dtype=self.U.dtype, device=self.U.device)
        return Y.scatter_(1, self.group_labels[group].long(), 1)[:, :-1]

    def gradient(self, picked: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the negative log-likelihood in W and b, summed over rows of all processes.

        On the CPU a batch is always split into ``PARTS``, so that sums do not depend on the number of threads. Each
        part stays in cache, and threads synchronise once. Large products are threaded by themselves.
        """
        parts = PARTS if self.U.device.type == "cpu" and W.numel() <= LARGE else 1
        rows = picked.tensor_split(parts)
        found = threads.results(lambda i: self._gradient(rows[i], W, b), parts, len(picked) * W.numel() // ENOUGH)
        gradients = self.ranks.sum(*(reduce(torch.add, part) for part in zip(*found, strict=True)))
        return gradients[0].to(W), gradients[1].to(b)

    def _gradient(self, picked: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The same for some rows of this process."""
        U = torch.index_select(self.U, 0, picked, out=self._buffer(len(picked)))
        z = torch.addmm(b, U, W).T.contiguous()  # (l, rows): softmax over a few columns is slow
        excess = self._minus_labels(torch.softmax(z, 0) if self.one_label else torch.sigmoid(z), picked)
        if self.has_outliers:
            excess.mul_(self.weight[picked])
        return (excess @ U).T, excess.sum(1)

    def _minus_labels(self, p: Tensor, picked: Tensor) -> Tensor:
        """(p − Y)ᵀ (l, rows); overwrites pᵀ."""
        if not self.one_label:
            return p.sub_(self.targets(picked).T)
        label = self.S.row_group.index_select(0, picked).long()[None]
        return p.scatter_add_(0, label, p.new_full((), -1.0).expand(label.shape))

    @cached_property
    def has_outliers(self) -> bool:
        """Whether any row of this process has a weight below 1."""
        return bool((self.weight < 1).any())

    @cached_property
    def mean_square(self) -> float:
        """Mean of ‖u‖² over the rows of all processes; outliers count as much as they weigh."""
        sums = [(self.weight[rows] * U.square().sum(1)).double().sum() for rows, U in feature_blocks(self.U)]
        return max(1e-12, float(self.ranks.total(torch.stack(sums).sum())) / self.n)

    def _buffer(self, size: int) -> Tensor:
        """Memory for some rows, reused by all steps of a thread: new memory would be cleared, and not in cache."""
        buffer: Tensor = getattr(self._buffers, "U", self.U[:0])
        if len(buffer) < size:
            buffer = self._buffers.U = self.U.new_empty(size, self.U.shape[1])
        return buffer[:size]

    def frequencies(self) -> Tensor:
        """Relative frequency of each label (l,) over all processes."""
        sizes = self.S.group_sizes() if self.S._sizes is None else self.S._sizes
        if isinstance(self.S, LabelCounts | LabelSets):
            sizes = torch.from_numpy(self.S.sets.T @ sizes.cpu().numpy())
        return (sizes.double() / sizes.sum() if self.one_label else sizes / self.n).to(self.U)

    def scored(self, indices: Indices, W: Tensor, b: Tensor) -> Scored:
        """p and the label groups of some rows, gathered from all processes."""
        z, group = self.logits(indices, W, b)
        return torch.softmax(z, 1) if self.one_label else torch.sigmoid(z), group

    def logits(self, indices: Indices, W: Tensor, b: Tensor) -> Scored:
        """z = U W + b and the label groups of some rows, gathered from all processes."""
        picked, positions = self.local(indices)
        z = torch.zeros(len(indices), W.shape[1], dtype=W.dtype, device=W.device)
        z[positions] = self.U[picked] @ W + b
        return self.ranks.sum(z)[0].to(W), self.groups(indices)

    def groups(self, indices: Indices) -> Tensor:
        """The label groups of some rows, gathered from all processes."""
        picked, positions = self.local(indices)
        group = torch.zeros(len(indices), dtype=torch.float64, device=self.U.device)
        group[positions] = self.S.row_group[picked].double()
        return self.ranks.sum(group)[0].long()

    def labels(self, group: Tensor) -> NDArray[Any] | Tensor:
        """Classes (rows,) or label sets (rows, l) of some groups; a tensor if the groups are on a GPU."""
        if group.device.type == "cuda":
            return group if self.one_label else self._sets(group)
        if not isinstance(self.S, LabelCounts | LabelSets):
            return group.numpy()
        return np.asarray(self.S.sets[group.numpy()].toarray(), np.uint8)


def rows_of_some_classes(group: NDArray[np.integer[Any]], count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of at most ``count`` rows of some classes, and of as many others of the same classes, row by row.

    At most half of the rows of a class, and ``PER_CLASS``, come into each. Even and odd places have different
    classes, so that either half can be judged by itself, and the rows of a class are far apart.
    """
    _, first, place, sizes = np.unique(group, return_index=True, return_inverse=True, return_counts=True)
    turn = np.argsort(np.argsort(first))[place]  # classes in the order of their first rows
    order = np.argsort(turn, kind="stable")  # rows by class
    sizes = sizes[np.argsort(first)]
    rank = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    quota = np.minimum(sizes // 2, PER_CLASS)
    quota = np.where(np.cumsum(quota) <= count, quota, 0)[turn[order]]
    some = np.flatnonzero(rank < quota)
    some = some[np.argsort(rank[some], kind="stable")]  # first rows of all classes, then second ones, …
    halves = [some[turn[order[some]] % 2 == i] for i in (0, 1)]
    some = np.stack([half[: min(map(len, halves))] for half in halves], 1).ravel()
    return order[some], order[some + quota[some]]


def _weight(U: Tensor) -> Tensor:
    norms = torch.cat([block.square().sum(1) for _, block in feature_blocks(U)])
    return (9 * U.shape[1] / norms.clamp(min=1e-12)).clamp(max=1)


def _fits(K: Tensor, budget: int | None, ranks: Ranks) -> bool:
    """Whether a second matrix like K fits in memory on every process."""
    room = budget if K.device.type == "cpu" else torch.cuda.mem_get_info(K.device)[0]
    fits = room is None or K.numel() * K.element_size() <= room
    return bool(ranks.gather(torch.tensor([float(fits)])).min() == 1)


def whitening(data: FitData) -> Tensor:
    """T (m, m) for a ρ that depends on the number of rows: NOISE / n, what n rows cannot tell from noise."""
    ridge = max(data.ridge, min(NOISE / data.n, MOST_NOISE))
    return Whitening.of(data.white.gram(), ridge).inverse_factor().T * data.n**0.5


class Whiteners:
    """ρ → T (m, k): K T has second moments λ/(λ + ρ), λ being the eigenvalues of KᵀK/n.

    ρ is relative to the mean λ. Directions with the smallest moments are dropped: they add work, and with few rows
    noise. One eigendecomposition serves every ρ. With more than FEW rows all ρ have the same directions, so that
    K T for one ρ can be rescaled to another (``rescales``).
    """

    def __init__(self, data: FitData) -> None:
        lam, self.Q = torch.linalg.eigh(data.white.gram() / data.n)
        self.lam, self.mean, self.rescales = lam.clamp(min=0), lam.clamp(min=0).mean(), data.n > FEW

    def __call__(self, rho: float) -> Tensor:
        """T for this ρ."""
        kept = self._kept(rho)
        return self.Q[:, kept] * (self.lam[kept] + rho * self.mean) ** -0.5

    def _kept(self, rho: float) -> Tensor:
        """Which directions T has."""
        if self.rescales:
            return self.lam > LEAST * self.mean
        return self.lam > KEPT * (self.lam + rho * self.mean)

    def ratio(self, rho: float, other: float) -> Tensor:
        """The factor on each column of K T(ρ) that gives K T(other). Only if ``rescales``."""
        lam = self.lam[self._kept(rho)]
        return ((lam + rho * self.mean) / (lam + other * self.mean)).sqrt()


def weight_decay(n: int, l: int, one_label: bool = True) -> float:  # noqa: E741
    """Weight decay per row for n rows and l labels.

    PRIOR / n is a Gaussian prior that does not depend on n. Few rows of few classes need a stronger one. With many
    classes, a strong prior would suppress the rare ones.
    """
    if not one_label:
        return min(PRIOR / n, 0.01)
    return min(PRIOR / n * (1 + SCARCE / (n * l)), MOST / l, MOST_EVER)


def regress(
    rows: WhitenedRows,
    indices: Indices,
    rng: np.random.RandomState,
    start: Weights | None = None,
    share: float = 1.0,
    prior: float = 1.0,
) -> Weights:
    """W (m, l) and b (l,) of a logistic regression on whitened rows, by momentum steps whose rate falls to 0.

    With more than ``ALL_CLASSES`` classes, steps start from a closed form instead of ``start``, and each has a sample
    of the classes. ``share`` scales the number of steps, ``prior`` the weight decay.
    """
    one_label = rows.one_label
    if one_label and (l := n_labels(rows.S)) > ALL_CLASSES:  # noqa: E741
        order, decay = rows.shuffled(indices, round(share * VISITS * l), rng), weight_decay(len(indices), l)
        start = gaussian_classifier(rows, indices)
        with progress("regression", 1, counts=share):
            return sampled_steps(rows, *start, order, rng, prior * CERTAIN * decay)
    if start is None:
        q = rows.frequencies().clamp(1e-6, 1 - 1e-6)
        W, b = torch.zeros(rows.U.shape[1], len(q)).to(rows.U), torch.log(q if one_label else q / (1 - q))
    else:
        W, b = start[0].clone(), start[1].clone()
    n = len(indices)
    size, updates = min(BATCH, n), round(share * min(UPDATES, max(150, n // 10)))
    decay = prior * weight_decay(n, W.shape[1], one_label)
    rate = RATE if one_label else 2 * RATE  # the curvature of a sigmoid is half that of a softmax
    alone_on_gpu = rows.draws_on_device and rows.ranks.world == 1
    if alone_on_gpu and can_compile(W.device) and W.dtype == torch.float32:
        order = rows.local(rows.shuffled(indices, size * updates, rng))[0].view(updates, size)
        return FusedSteps(rows, W, b, order, rate=rate, decay=decay, momentum=MOMENTUM).take()
    steps = MomentumSteps(rows, W, b, size, decay)
    with steps_threads(size * W.numel()), progress("regression", updates, counts=share) as step:
        for t, picked in enumerate(rows.batches(indices, size, updates, rng)):
            steps.take(picked, rate * (1 - t / updates))
            step(1)
    return steps.W, steps.b


class MomentumSteps:
    """Momentum steps on W and b, which are updated in place, so that a GPU can replay a step as a CUDA graph."""

    def __init__(self, rows: WhitenedRows, W: Tensor, b: Tensor, size: int, decay: float) -> None:
        self.rows, self.W, self.b, self.size, self.decay = rows, W, b, size, decay
        self.move_W, self.move_b = torch.zeros_like(W), torch.zeros_like(b)
        self.picked = torch.zeros(size, dtype=torch.int64, device=W.device)
        self.rate = torch.zeros((), dtype=W.dtype, device=W.device)
        alone = rows.ranks.world == 1
        self.graph = CudaGraph(W.device if alone else torch.device("cpu"))  # messages cannot be recorded

    def take(self, picked: Tensor, rate: float) -> None:
        """One step on this process's rows ``picked``."""
        self.rate.fill_(rate)
        if len(picked) == self.size:
            picked = self.picked.copy_(picked)
        self.graph(lambda: self._step(picked))

    def _step(self, picked: Tensor) -> None:
        grad_W, grad_b = self.rows.gradient(picked, self.W, self.b)
        grad_W = grad_W.div_(self.size).add_(self.decay * self.W)
        self.move_W.mul_(MOMENTUM).sub_(grad_W.mul_(self.rate))
        self.move_b.mul_(MOMENTUM).sub_(grad_b.div_(self.size).mul_(self.rate))
        self.W.add_(self.move_W)
        self.b.add_(self.move_b)
