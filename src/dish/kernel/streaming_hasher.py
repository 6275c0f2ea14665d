"""StreamingHasher: base of DISHK and DISH. Streams rows and learns with several processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import machine, parallel
from dish.checks import check_integer
from dish.errors import InputError, UnsupportedError
from dish.io.readers import feature_names, read_features, read_labels
from dish.io.rows import RowSource, is_path, is_streamed, take_everywhere
from dish.kernel.fit_data import FitData, shared_random_state
from dish.kernel.kernel_hasher import KernelHasher
from dish.labels import encode_classes, merged_classes
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


@dataclass
class RowBatch:
    """Validated input of a ``partial_fit``."""

    X: NDArray[Any]  # (n, d)
    group: NDArray[np.integer[Any]]  # (n,): the index of each row's class
    classes: NDArray[Any]  # of all batches, sorted


class StreamingHasher(KernelHasher):
    """Reads rows block by block, for one or several processes.

    A subclass's ``fit`` starts with ``_open``, its ``partial_fit`` with ``_open_batch``; this stores in ``batches_``
    what the next call needs, ``classes_``, and the number of rows so far, ``n_samples_seen_``.
    """

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

    def _open_batch(self, X: Any, y: Any, classes: Any) -> RowBatch:
        """Validate parameters and a batch."""
        first, name = not hasattr(self, "batches_"), type(self).__name__
        if not first:
            self._check_fitted()
        elif hasattr(self, "hash_function_"):
            raise UnsupportedError(
                f"partial_fit cannot continue: this {name} comes from a file, or from a fit with too many rows or "
                f"other labels than (n,) classes, and does not have what it learned from. Begin with a new {name}, "
                "or pass all rows to fit"
            )
        if self.recentred_ is not None:
            raise UnsupportedError(
                f"partial_fit: this {name} was recentred, and learning from more rows would undo that. Use a copy "
                "from before recentre, or pass all rows to fit"
            )
        if parallel.current().world > 1:
            raise UnsupportedError(f"{name}.partial_fit runs in one process; fit runs in several")
        self._check_params()
        if is_path(X):
            raise InputError("X: partial_fit takes the rows of one batch, not a path; fit reads files")
        X = self._check_X(X, reset=first)
        self._require_y(y, "give (n,) classes")
        self.timings_ = {}
        own, present = encode_classes(y)
        if len(own) != len(X):
            raise InputError(f"X has {len(X)} rows but y has {len(own)}; they must be equal")
        known = present if first else merged_classes(self.classes_, present)
        if classes is not None:
            known = _with_named(known, classes, first)
        if len(known) < 2:
            raise InputError(f"y has 1 class ({known.tolist()[0]!r}); begin with a batch of at least two classes")
        place = {value: j for j, value in enumerate(known.tolist())}
        return RowBatch(X, np.array([place[value] for value in present.tolist()])[own], known)

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


def _with_named(known: NDArray[Any], classes: Any, first: bool) -> NDArray[Any]:
    """The known classes and those that the argument ``classes`` names. The first batch must not have others."""
    named = encode_classes(classes, "classes")[1]
    every = merged_classes(known, named)
    if first and len(every) > len(named):
        other = np.setdiff1d(known, named).tolist()[0]
        raise InputError(f"y has the class {other!r}, which classes does not name: name all, or pass classes=None")
    return every


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
