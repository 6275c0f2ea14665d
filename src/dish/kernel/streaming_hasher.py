"""StreamingHasher: base of DISHK and DISH. Streams rows and learns with several processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import machine, parallel
from dish.checks import check_integer
from dish.errors import InputError
from dish.io.readers import feature_names, read_features, read_labels
from dish.io.rows import RowSource, is_path, is_streamed, take_everywhere
from dish.kernel.fit_data import FitData, shared_random_state
from dish.kernel.kernel_hasher import KernelHasher
from dish.lazy import Tensor, torch
from dish.machine import resolve_device
from dish.metrics.profile import Profile
from dish.parallel import Ranks
from dish.similarity import Similarity, check_labels, from_labels

PROFILED = 1 << 11  # training rows of a profile, at most
LARGE = 1 << 28  # bytes; larger arrays are checked block by block instead of in a pass of their own


@dataclass
class FitInput:
    """Validated input of a fit: this process's rows, the similarity of their labels, and what processes share."""

    rows: RowSource
    S: Similarity
    rng: np.random.RandomState
    ranks: Ranks


class StreamingHasher(KernelHasher):
    """Reads rows block by block, for one or several processes. A subclass's ``fit`` starts with ``_open``."""

    n_iter: int
    memory_budget: Any
    codes_: NDArray[np.uint8]
    objective_: NDArray[np.float64]
    _state = (*KernelHasher._state, "codes_", "objective_", "n_iter_")

    _y_help = "give (n,) classes or (n, l) labels of 0 and 1"

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
        machine.memory_budget(self.memory_budget)
        resolve_device(self.device)

    def _keep_codes(self, H: NDArray[np.uint8], objective: NDArray[np.float64]) -> None:
        self.codes_, self.objective_, self.n_iter_ = H, objective, len(objective)

    def _profile_of_training_rows(self, data: FitData) -> Profile:
        """What is normal, from training rows: the model is surer of them than of new rows."""
        assert data.rows is not None
        picked = np.arange(0, data.n, -(-data.n // PROFILED))
        rows = take_everywhere(data.rows, picked, torch.device("cpu"), data.ranks).numpy()
        return Profile.of(self._row_describer()(rows), self.n_bits, "training rows")


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
