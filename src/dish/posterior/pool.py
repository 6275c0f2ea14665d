"""The rows that the posterior is learned from, whitened, with their labels."""

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
from dish.cuda.tf32 import add_product, split, worth_splitting
from dish.kernel.anchors import local_rows
from dish.kernel.features import feature_blocks
from dish.kernel.fit_data import Problem
from dish.kernel.functions import link
from dish.lazy import Tensor, torch
from dish.parallel import Ranks
from dish.similarity import Classes, LabelCounts, LabelSets, Similarity, n_labels

Numbers = NDArray[np.intp] | Tensor  # of rows: on a GPU that has all rows, they are drawn there

POOL = 1 << 17  # rows that B is learned from where the features do not fit in memory
PARTS, LARGE = 4, 1 << 18  # of a batch, for a W of up to so many numbers
ENOUGH = 6_000_000  # products of a step for every thread beyond the first


@dataclass
class Pool:
    """Rows that B is learned from, whitened, with their labels; those of all processes have the numbers 0 … n−1."""

    U: Tensor  # (rows here, m): K T
    weight: Tensor  # (rows here,): at most 1, less for rows so far out that a step would overshoot
    S: Similarity  # of the same rows
    ranks: Ranks
    n: int
    _rooms: threading.local = field(default_factory=threading.local, repr=False)

    @property
    def one_label(self) -> bool:
        """Whether every row has exactly one label."""
        return isinstance(self.S, Classes)

    @classmethod
    def of(cls, problem: Problem, T: Tensor, rng: np.random.RandomState) -> Pool:
        """All rows, in the memory of K; a sample where K does not fit in memory."""
        K, S, ranks = problem.K, problem.S, problem.ranks
        T = T.to(K.dtype)
        if isinstance(K, Tensor):
            parts = split(T) if worth_splitting(K) else None
            for rows, block in feature_blocks(K, title="whitening"):
                K[rows] = block @ T if parts is None else add_product(torch.zeros_like(block), split(block), parts)
            U = K
        else:
            picked = np.sort(rng.choice(problem.n, min(problem.n, POOL), replace=False))
            mine = torch.from_numpy(local_rows(len(K), picked, ranks)[0])
            U, S = K[mine] @ T, S.rows(mine.to(S.row_group.device))
        norms = torch.cat([block.square().sum(1) for _, block in feature_blocks(U)])
        weight = (9 * U.shape[1] / norms.clamp(min=1e-12)).clamp(max=1)
        return cls(U, weight, S, ranks, ranks.offset_and_total(len(U))[1])

    @property
    def draws_on_device(self) -> bool:
        """Whether rows are drawn on a GPU: the host takes longer to shuffle a million than the GPU to learn."""
        return self.U.device.type == "cuda" and self.ranks.world == 1

    def shuffled(self, numbers: Numbers, count: int, rng: np.random.RandomState) -> Numbers:
        """The first of so many numbers in random order, one permutation after the other."""
        rounds = range(-(-count // len(numbers)))
        if not self.draws_on_device:
            return np.concatenate([numbers[rng.permutation(len(numbers))[:count]] for _ in rounds])[:count]
        here = torch.as_tensor(numbers, device=self.U.device)
        draw = torch.Generator(self.U.device).manual_seed(int(rng.randint(2**31 - 1)))
        orders = [torch.randperm(len(here), generator=draw, device=here.device)[:count] for _ in rounds]
        return here[torch.cat(orders)[:count]]

    def local(self, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Of some numbers those of rows here, as local numbers, and their places."""
        device = self.U.device
        if self.ranks.world == 1:
            return torch.as_tensor(numbers, device=device), torch.arange(len(numbers), device=device)
        first = self.ranks.offset_and_total(len(self.U))[0]
        places = np.flatnonzero((numbers >= first) & (numbers < first + len(self.U)))
        return torch.from_numpy(numbers[places] - first).to(device), torch.from_numpy(places).to(device)

    def batches(self, numbers: Numbers, size: int, count: int, rng: np.random.RandomState) -> Iterator[Tensor]:
        """Local numbers of the rows of ``count`` batches: permutations of the numbers, one after the other."""
        picked, places = self.local(self.shuffled(numbers, size * count, rng))
        ends = torch.searchsorted(places, torch.arange(count + 1, device=places.device) * size).tolist()
        for start, stop in pairwise(ends):
            yield picked[start:stop]

    @cached_property
    def numbers(self) -> Tensor:
        """The labels of every group by their numbers (g, most of one group), filled up with l: int16, l ≤ 4,096."""
        if not isinstance(self.S, LabelCounts | LabelSets):
            return torch.arange(self.S.n_groups, dtype=torch.int16, device=self.U.device)[:, None]
        sets = self.S.sets
        counts = np.diff(sets.indptr)
        found = np.full((sets.shape[0], max(1, counts.max(initial=0))), sets.shape[1], np.int16)
        found[np.arange(found.shape[1]) < counts[:, None]] = sets.indices
        return torch.from_numpy(found).to(self.U.device)

    @cached_property
    def labels_of_groups(self) -> tuple[Tensor | None, Tensor | None]:
        """Where the labels of every group start (g + 1,), and all of them; nothing where a group is a label."""
        if not isinstance(self.S, LabelCounts | LabelSets):
            return None, None
        first, of = (torch.from_numpy(np.asarray(a, np.int32)) for a in (self.S.sets.indptr, self.S.sets.indices))
        return first.to(self.U.device), of.to(self.U.device)

    def targets(self, picked: Tensor) -> Tensor:
        """Labels (rows, l) of 0 and 1."""
        return self._sets(self.S.row_group[picked])

    def _sets(self, group: Tensor) -> Tensor:
        Y = torch.zeros(len(group), n_labels(self.S) + 1, dtype=self.U.dtype, device=self.U.device)
        return Y.scatter_(1, self.numbers[group].long(), 1)[:, :-1]

    def gradient(self, picked: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes of the negative log-likelihood in W and b, summed over rows of all processes.

        On the CPU in ``PARTS`` parts whatever the number of threads, so that the sums are the same: each stays in
        cache, and a thread that takes some of them waits for the others once. Large products have threads of their
        own.
        """
        parts = PARTS if self.U.device.type == "cpu" and W.numel() <= LARGE else 1
        rows = picked.tensor_split(parts)
        found = threads.results(lambda i: self._slopes(rows[i], W, b), parts, len(picked) * W.numel() // ENOUGH)
        slopes = self.ranks.sum(*(reduce(torch.add, part) for part in zip(*found, strict=True)))
        return slopes[0].to(W), slopes[1].to(b)

    def _slopes(self, picked: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The same of some rows of this process."""
        U = torch.index_select(self.U, 0, picked, out=self._room(len(picked)))
        p = link(torch.addmm(b, U, W).T.contiguous(), self.one_label, 0)  # (l, rows): over few columns it is slow
        excess = self._less_labels(p, picked)
        if self.some_far_out:
            excess.mul_(self.weight[picked])
        return (excess @ U).T, excess.sum(1)

    def _less_labels(self, p: Tensor, picked: Tensor) -> Tensor:
        """(p − Y)ᵀ (l, rows), in place of pᵀ."""
        if not self.one_label:
            return p.sub_(self.targets(picked).T)
        label = self.S.row_group.index_select(0, picked).long()[None]
        return p.scatter_add_(0, label, p.new_full((), -1.0).expand(label.shape))

    @cached_property
    def some_far_out(self) -> bool:
        """Whether any row here weighs less than 1."""
        return bool((self.weight < 1).any())

    def _room(self, size: int) -> Tensor:
        """Memory for some rows, the same in every step of a thread: new memory is cleared first, and in no cache."""
        room: Tensor = getattr(self._rooms, "U", self.U[:0])
        if len(room) < size:
            room = self._rooms.U = self.U.new_empty(size, self.U.shape[1])
        return room[:size]

    def frequencies(self) -> Tensor:
        """How often each label occurs (l,), of all processes."""
        sizes = self.S.group_sizes() if self.S._sizes is None else self.S._sizes
        if isinstance(self.S, LabelCounts | LabelSets):
            sizes = torch.from_numpy(self.S.sets.T @ sizes.cpu().numpy())
        return (sizes.double() / sizes.sum() if self.one_label else sizes / self.n).to(self.U)

    def scored(self, numbers: Numbers, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """p (rows, l) and the group of labels (rows,) of some rows, gathered from all processes."""
        picked, places = self.local(numbers)
        p = torch.zeros(len(numbers), W.shape[1], dtype=W.dtype, device=W.device)
        group = torch.zeros(len(numbers), dtype=torch.float64, device=W.device)
        p[places] = link(self.U[picked] @ W + b, self.one_label)
        group[places] = self.S.row_group[picked].double()
        p, group = self.ranks.sum(p, group)
        return p.to(W), group.long()

    def labels(self, group: Tensor) -> NDArray[Any] | Tensor:
        """Classes (rows,), or label sets (rows, l), by group; on a GPU they stay there."""
        if group.device.type == "cuda":
            return group if self.one_label else self._sets(group)
        if not isinstance(self.S, LabelCounts | LabelSets):
            return group.numpy()
        return np.asarray(self.S.sets[group.numpy()].toarray(), np.uint8)
