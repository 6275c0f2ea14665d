"""StreamingHasher: base of DISHK and DISH. Streams rows, learns with several processes, writes checkpoints."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish import codes, machine, parallel
from dish.cbcd import Sweep
from dish.checks import check_integer
from dish.encoder import HashFunction, Linear
from dish.errors import InputError
from dish.io.checkpoint import Checkpoint
from dish.io.readers import feature_names, read_features, read_labels
from dish.io.rows import RowSource, is_path, is_streamed
from dish.kernel.fit_data import FitData, shared_random_state
from dish.kernel.fit_state import KernelState, fingerprint, load_state, save_state
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.machine import resolve_device
from dish.parallel import Ranks
from dish.similarity import Similarity, check_labels, from_labels

LARGE = 1 << 28  # bytes; larger arrays are checked block by block instead of in a pass of their own


AfterSweep = Callable[[NDArray[np.uint8], HashFunction, list[float], Sweep], None]  # H, F, objectives, sweep


@dataclass
class FitInput:
    """Validated input of a fit: this process's rows, the similarity of their labels, and what processes share."""

    rows: RowSource
    S: Similarity
    rng: np.random.RandomState
    ranks: Ranks


class StreamingHasher(KernelHasher):
    """Reads rows block by block, learns with several processes, and writes checkpoints."""

    n_iter: int
    memory_budget: Any
    checkpoint: Any
    verbose: int
    codes_: NDArray[np.uint8]
    objective_: NDArray[np.float64]
    _state = (*KernelHasher._state, "codes_", "objective_", "n_iter_")

    _y_help = "give (n,) classes or (n, l) labels of 0 and 1"

    def fit(self, X: Any, y: Any = None, *, resume: bool = True) -> Self:
        """Learn from rows X (n, d) and y: (n,) classes, (n, l) labels of 0 and 1, or for DISHK a ``Similarity``.

        X is an array, a tensor on any device, a memory map, an iterable of row blocks, or the path of a file or of a
        folder of shards; all but the first two are read a block at a time. In an initialised ``torch.distributed``
        process group, all processes learn together: each passes its own rows, or all pass the same path.
        ``resume=False`` ignores an existing checkpoint and replaces it.
        """
        given = self._open(X, y)
        saved = self._open_checkpoint(given)
        state = self._load(saved, len(given.rows), resume)
        budget = self._room_for_K(given.rows)
        data = self._prepare(given.rows, given.S, given.rng, given.ranks, budget)
        del X, y, given  # the features replace the rows
        if state is not None:
            self._check_same_features(state, data)
        self._learn(data, state, self._after_sweep(saved, data), budget)
        return self

    @abstractmethod
    def _learn(self, data: FitData, state: KernelState | None, after_sweep: AfterSweep, budget: int) -> None:
        """Learn from the features, resuming from a state if there is one; ``budget``: bytes for features."""

    def _resolved(self, given: FitInput) -> dict[str, Any]:
        """Parameters with "auto" replaced by what it stands for, where that decides the codes."""
        return {}

    # --- input ---

    def _open(self, X: Any, y: Any) -> FitInput:
        """Validate parameters, X and y. All processes fail together."""
        self.timings_: dict[str, float] = {}
        ranks = parallel.current()
        with ranks.raise_together():
            self._check_params()
            rows, y = self._open_rows(X, y, ranks)
        with self._stage("labels"):
            S = from_labels(
                y, similar_weight=self.similar_weight, multilabel=self.multilabel, n_rows=len(rows), ranks=ranks
            )
        rng = shared_random_state(self.random_state, ranks)
        return FitInput(rows, S.to(resolve_device(self.device)), rng, ranks)

    def _open_rows(self, X: Any, y: Any, ranks: Ranks) -> tuple[RowSource, Any]:
        if is_path(X):
            rows, y = open_path(X, y, ranks)
        else:
            rows = open_unchecked(X) or RowSource(self._check_X(X, reset=True), checked=True)
        self._require_y(y, self._y_help)
        if not rows.checked:
            self.n_features_in_ = rows.shape[1]
            self.__dict__.pop("feature_names_in_", None)
        if is_path(X) and (names := feature_names(X)):
            self.feature_names_in_ = np.array(names, object)
        if ranks.world > 1:
            check_labels(y, len(rows))  # before any message: a later error would leave the other processes waiting
        return rows, y

    def _room_for_K(self, rows: RowSource) -> int:
        """Bytes that the budget leaves for K, after F and the codes."""
        others = len(rows) * (self.n_bits * (torch.finfo(rows.dtype).bits // 8) + self.n_bits // 2 + 32)
        return max(1, machine.memory_budget(self.memory_budget) - others)

    def _check_params(self) -> None:
        self._check_kernel_params()
        check_integer("n_iter", self.n_iter, low=0)
        if self.checkpoint is not None and self.random_state is None:
            raise InputError("checkpoint needs a random_state that a later fit can repeat: pass a number, not None")
        machine.memory_budget(self.memory_budget)
        resolve_device(self.device)

    # --- checkpoints ---

    def _open_checkpoint(self, given: FitInput) -> Checkpoint | None:
        """The checkpoint of this fit, if one was asked for."""
        if self.checkpoint is None:
            return None
        params, ranks = self.get_params() | self._resolved(given), given.ranks
        number = fingerprint(type(self).__name__, params, given.rows, given.S, given.rng, ranks)
        saved = Checkpoint(self.checkpoint, number, ranks, ranks.offset_and_total(len(given.rows)))
        saved.prepare()
        return saved

    def _load(self, saved: Checkpoint | None, n: int, resume: bool) -> KernelState | None:
        """The state to resume from, if there is one."""
        if saved is None or not resume:
            return None
        state = load_state(saved, n, codes.n_bytes(self.n_bits))
        if state is not None and len(state.objective) > self.n_iter:
            raise InputError(
                f"checkpoint {self.checkpoint} has {len(state.objective)} iterations, more than n_iter={self.n_iter}"
            )
        return state

    def _check_same_features(self, state: KernelState, data: FitData) -> None:
        """Refuse a checkpoint of other features, and set the random generator to where it was."""
        features = data.features.numpy()
        assert features.mean is not None
        same = np.array_equal(state.anchors, features.anchors) and np.allclose(state.mean, features.mean, rtol=1e-3)
        if not same:
            raise InputError(
                f"checkpoint {self.checkpoint} was written for other kernel features, such as the k-means anchors of "
                "another machine: remove it, or use another folder"
            )
        data.rng.set_state(state.random)
        if self.verbose:
            name = type(self).__name__
            print(f"{name} resumes after {len(state.objective)} iterations", file=sys.stderr)

    def _after_sweep(self, saved: Checkpoint | None, data: FitData) -> AfterSweep:
        """A function that reports a sweep and writes the checkpoint; ``alternate`` calls it."""

        def done(H: NDArray[np.uint8], function: HashFunction, objective: list[float], sweep: Sweep) -> None:
            if self.verbose:
                print(
                    f"{type(self).__name__} {len(objective)}/{self.n_iter}: objective {objective[-1]:.6e}, "
                    f"{sweep.flips:,} bits changed, {sum(self.timings_.values()):.1f} s",
                    file=sys.stderr,
                )
            if saved:
                assert isinstance(function, Linear)
                features, W = data.features.numpy(), function.numpy().W
                assert features.mean is not None
                random = tuple(data.rng.get_state())
                with self._stage("checkpoint"):
                    state = KernelState(H, W, np.array(objective), features.anchors, features.mean, random)
                    save_state(saved, state)

        return done

    def _keep_codes(self, H: NDArray[np.uint8], objective: NDArray[np.float64]) -> None:
        self.codes_, self.objective_, self.n_iter_ = H, objective, len(objective)


def open_path(X: Any, y: Any, ranks: Ranks) -> tuple[RowSource, Any]:
    """This process's share of the rows in a file or folder, and of their labels: y, a file, or the folder's own."""
    data, own_labels = read_features(X)
    n = data.shape[0]
    part = ranks.my_rows(n)
    if part.start == part.stop:
        raise InputError(f"{X} has {n} rows, too few for {ranks.world} processes")
    y = read_labels(Path(y)) if is_path(y) else own_labels if y is None else y
    if y is not None and not isinstance(y, Similarity):
        n_labels = y.shape[0] if hasattr(y, "shape") else len(y)
        if n_labels != n:
            raise InputError(f"X has {n} rows but y has {n_labels}; they must be equal")
        y = y[part]
    return RowSource(data, part), y


def open_unchecked(X: Any) -> RowSource | None:
    """Rows whose values are checked while they are read; None if X must be checked first."""
    if isinstance(X, RowSource):
        return X
    if isinstance(X, Tensor) and (X.device.type == "cuda" or _is_large(X)):
        return RowSource(X.detach())
    if isinstance(X, np.ndarray) and not isinstance(X, np.memmap) and _is_large(X):
        return RowSource(X)
    return RowSource.of(X) if is_streamed(X) else None


def _is_large(X: Any) -> bool:
    """A float matrix of more than a quarter of a gigabyte."""
    return X.ndim == 2 and str(X.dtype).endswith(("float32", "float64")) and X.nbytes > LARGE
