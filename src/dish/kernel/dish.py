"""DISH: discrete supervised hashing with a kernel hash function (DISH-K)."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Self

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from dish import codes, machine, parallel
from dish.checks import check_integer, check_number, check_option
from dish.io import shards
from dish.io.checkpoint import Checkpoint, State, checksum
from dish.io.features import read_features
from dish.io.rows import Rows
from dish.io.tables import read_labels
from dish.kernel.features import KernelMatrix
from dish.kernel.fstep import LOSSES, ClassifierStep, LinearStep, decide
from dish.kernel.hasher import KernelHasher
from dish.kernel.polish import polish
from dish.kernel.spectral import spectral_start
from dish.kernel.whitening import Whitening
from dish.machine import resolve_device
from dish.parallel import Ranks
from dish.similarity.labelled import Similarity, check_labels, from_labels
from dish.solver import cbcd

FStep = LinearStep | ClassifierStep


class DISH(KernelHasher):
    """Learn binary codes from features and labels in time and memory linear in the rows.

    Alternates the H-step (Fast C-BCD: codes that reproduce the similarity of the labels) and the F-step
    (one classifier a bit that predicts the codes from the features).

    Parameters
    ----------
    n_bits : int
        Code length r; need not be a multiple of 8.
    n_anchors : int
        Anchors m of the kernel map. More anchors give better codes: the cost grows with n·m. With fewer rows
        than that all rows become anchors (with a warning).
    gamma : "auto" or float
        Of the RBF kernel exp(−γ‖x−a‖²). "auto": one over the mean squared distance of rows to anchors.
    loss : "ridge", "hinge", "logistic" or a scikit-learn classifier
        Of the F-step. A classifier is cloned and trained once a bit on the kernel features.
    nu : float
        Weight ν of the loss in the H-step.
    n_iter : int
        Most H-steps; fewer if the codes stop changing. 0 keeps the start.
    similar_weight : float
        w of S = w·YYᵀ − 1: 2 is the paper's S; 10 balances many classes.
    multilabel : "count", "share_one" or "jaccard"
        For (n, l) labels: the paper's w·YYᵀ − 1, the exact "share at least one label", or the Jaccard index.
    init : "spectral", "random", or packed codes (n, ceil(n_bits/8))
        Where H starts.
    kernel : "rbf", "linear" or a function (X, A) → (n, m)
        The feature map. "linear" is x − mean, without anchors.
    anchors : "random", "kmeans" or an array (m, d)
        How anchors are chosen.
    ridge : float
        ρ of the F-step as a share of the mean diagonal of KᵀK; the paper has 0, a little keeps it solvable.
    lam : float
        λ of Fast C-BCD: larger values move fewer rows a step.
    polish : int
        Gradient steps at the end that fit F to S directly, past the paper. Codes of new rows get better, the more so
        the more rows there are for an anchor: 60 steps for 60 rows an anchor, 10 for 5, are a good measure. 0: none.
    memory_budget : None, int or str
        Bytes ("2GB") that a fit on the CPU may hold. Kernel features that have no room in it go to a scratch file (in
        the folder of temporary files), or are made anew in every pass if that is faster. None: half of what is free.
    checkpoint : path or None
        A folder that gets the state after every iteration. A fit that finds its own state there goes on from it. With
        several processes, one that all of them can write to.
    device : "auto", "cpu", "cuda", …
        Where the linear algebra runs; "auto" takes a GPU if there is one.
    random_state : int, RandomState or None
        Same seed, same machine: same codes.
    verbose : int
        1 reports every iteration on standard error.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        The learned H of the training rows. They know the labels: ``transform`` gives what F makes of a row.
    objective_ : float64 (n_iter_,)
        The objective after every H-step; it never rises.
    n_iter_ : int
        H-steps that were kept.
    gamma_, anchors_, mean_, W_, intercept_
        The hash function F(x) = Wᵀ k(x) + intercept.
    timings_ : dict
        Seconds spent in each stage of ``fit``.
    """

    classifiers_: list[Any] | None = None
    _goes_on = True  # from a checkpoint that is there
    _state = (*KernelHasher._state, "codes_", "objective_", "n_iter_")

    def __init__(
        self,
        n_bits: int = 64,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        loss: Any = "ridge",
        nu: float = 1e-4,
        n_iter: int = 5,
        similar_weight: float = 2.0,
        multilabel: str = "count",
        init: Any = "spectral",
        kernel: Any = "rbf",
        anchors: Any = "random",
        ridge: float = 1e-6,
        lam: float = 0.0,
        polish: int = 0,
        memory_budget: Any = None,
        checkpoint: Any = None,
        device: str = "auto",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.gamma = gamma
        self.loss = loss
        self.nu = nu
        self.n_iter = n_iter
        self.similar_weight = similar_weight
        self.multilabel = multilabel
        self.init = init
        self.kernel = kernel
        self.anchors = anchors
        self.ridge = ridge
        self.lam = lam
        self.polish = polish
        self.memory_budget = memory_budget
        self.checkpoint = checkpoint
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # --- fit ---

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, (n, l) of 0/1, or a ``Similarity``.

        X is an array, a tensor on any device, a memory-map, an iterable of row blocks, or the path of a .npy file
        or of a folder of shards; all but the first two are read a block at a time. Inside an initialised
        ``torch.distributed`` process group all processes learn together: each gives its own rows, or all give the
        same path.
        """
        self._check_params()
        ranks = parallel.current()
        self.timings_: dict[str, float] = {}
        with ranks.raise_together():
            rows, y = self._open(X, y, ranks)
            if ranks.world > 1:
                check_labels(y)  # each its own: an error in the middle of a message would leave the others waiting
        device = resolve_device(self.device)
        with self._stage("labels"):
            S = self._similarity(y, len(rows), ranks, self.similar_weight).to(device)
        random_state = shared_random_state(self.random_state, ranks)
        saved = self._checkpoint(rows, S, ranks)
        state = None
        if saved:
            saved.prepare()
            with ranks.raise_together():
                state = saved.load(len(rows), codes.n_bytes(self.n_bits)) if self._goes_on else None

        with self._stage("features"):
            K = self._kernel_features(rows, random_state, ranks, self._room_for_K(rows))
        white = self._whitening(K, self.ridge, ranks)
        step = self._f_step(K, white, ranks)
        if state is None:
            with self._stage("start"):
                packed = self._start(K, white, S, step, random_state, ranks)
        else:
            packed = self._take_up(state, step, random_state)
        del X, rows
        self._alternate(S, step, packed, ranks, state, saved, random_state)

        if self.polish:
            self._polish(step, y, random_state, ranks)
        self._keep_hash_function(step)
        return self

    def _open(self, X: Any, y: Any, ranks: Ranks) -> tuple[Rows, Any]:
        """Rows and labels of this process."""
        if shards.is_path(X):
            data, own_labels = read_features(X)
            n = data.shape[0]
            part = ranks.my_rows(n)
            if part.start == part.stop:
                raise ValueError(f"{X} has {n} rows, too few for {ranks.world} processes")
            y = read_labels(Path(y)) if shards.is_path(y) else own_labels if y is None else y
            if y is not None and not isinstance(y, Similarity):
                if np.shape(y)[:1] != (n,):
                    raise ValueError(
                        f"X has {n} rows but y has {len(y) if np.ndim(y) else 'none'}; they must be equal"
                    )
                y = y[part]
            rows = Rows(data, part)
        elif isinstance(X, Rows):
            rows = X
        elif isinstance(X, Tensor) and (X.device.type == "cuda" or _is_large(X)):
            rows = Rows(X.detach())
        elif isinstance(X, np.ndarray) and not isinstance(X, np.memmap) and _is_large(X):
            rows = Rows(X)  # checked on the way: no pass over it for that alone
        elif shards.is_streamed(X):
            rows = Rows.of(X)
        else:
            rows = Rows(self._check_X(X, reset=True), checked=True)
        self._require_y(
            y,
            "give (n,) classes, (n, l) labels of 0 and 1, or a similarity "
            "(dish.similarity.nystroem and anchor_graph make one from X alone)",
        )
        if not rows.checked:
            self.n_features_in_ = rows.shape[1]
            if hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        return rows, y

    def _similarity(self, y: Any, n: int, ranks: Ranks, weight: float) -> Similarity:
        return from_labels(y, similar_weight=weight, multilabel=self.multilabel, n_rows=n, ranks=ranks)

    def _room_for_K(self, rows: Rows) -> int:
        """What the budget leaves for K beside F and the codes."""
        beside = len(rows) * (self.n_bits * (torch.finfo(rows.dtype).bits // 8) + self.n_bits // 2 + 32)
        return max(1, machine.memory_budget(self.memory_budget) - beside)

    def _polish(self, step: FStep, y: Any, random_state: np.random.RandomState, ranks: Ranks) -> None:
        """Fit F to S itself, similar pairs counting half as much again (``codes_`` stay)."""
        assert isinstance(step, LinearStep)
        K = step.K
        S = self._similarity(y, len(K), ranks, 1.5 * self.similar_weight).to(K.device)
        with self._stage("polish"):
            G = step.white.gram()
            step.W = polish(K, G, S, step.W, self.polish, random_state, ranks)

    def _alternate(
        self,
        S: Similarity,
        step: FStep,
        packed: Tensor,
        ranks: Ranks,
        state: State | None,
        saved: Checkpoint | None,
        random_state: np.random.RandomState,
    ) -> None:
        """H-step and F-step in turn. A sweep that does not lower the objective ends it and is not kept."""
        r, n = self.n_bits, ranks.offset_and_total(S.n)[1]
        H = columns(packed, r)
        if state is None and not (isinstance(self.init, str) and self.init == "spectral"):
            step.fit(H)  # the other starts give H, and F follows
        squared_norm = S.squared_norm()
        objective = [] if state is None else state.objective.tolist()
        self.codes_ = packed.cpu().numpy()
        for t in range(len(objective), self.n_iter):
            with self._stage("linear term"):
                q, constant = step.linear_terms(n * self.nu)
            with self._stage("H-step"):
                done = cbcd.sweep(H, S, q, lam=self.lam, ranks=ranks)
            value = cbcd.objective(done, squared_norm, r, constant)
            if objective and (done.flips == 0 or value > objective[-1]):
                break  # nothing left to gain (or only rounding): the last state stands
            objective.append(value)
            self.codes_ = H.packed()
            with self._stage("F-step"):
                step.fit(H)
            self._report(t, value, done)
            if saved and isinstance(step, LinearStep):
                with self._stage("checkpoint"):
                    W, so_far = step.W.cpu().numpy(), np.array(objective)
                    saved.save(
                        State(self.codes_, W, so_far, self.anchors_, self.mean_, tuple(random_state.get_state()))
                    )
        self.objective_ = np.array(objective, np.float64)
        self.n_iter_ = len(objective)

    def _start(
        self,
        K: KernelMatrix,
        white: Whitening,
        S: Similarity,
        step: FStep,
        random_state: np.random.RandomState,
        ranks: Ranks,
    ) -> Tensor:
        """The first H, packed, and for the spectral start the first F in ``step``."""
        r = self.n_bits
        if isinstance(self.init, str) and self.init == "spectral":
            W, packed_start = spectral_start(K, white, S, r, random_state, ranks)
            step.start(W)
            return packed_start
        if isinstance(self.init, str):  # "random": every bit +1 on half of the rows
            first, n = ranks.offset_and_total(len(K))
            half, mine = np.arange(n) < (n + 1) // 2, slice(first, first + len(K))
            packed = np.packbits(np.stack([random_state.permutation(half)[mine] for _ in range(r)], 1), axis=1)
        else:
            packed = codes.pack(codes.unpack(codes.check_codes(self.init, r, name="init"), r))  # unused bits zero
            if len(packed) != len(K):
                raise ValueError(f"init has {len(packed)} codes, but X has {len(K)} rows")
        return torch.from_numpy(packed).to(K.device)

    # --- checkpoints ---

    def _checkpoint(self, rows: Rows, S: Similarity, ranks: Ranks) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        first, n = span = ranks.offset_and_total(len(rows))
        left_out = ("checkpoint", "verbose", "device", "memory_budget", "n_iter", "init", "anchors")
        params = {k: repr(v) for k, v in self.get_params().items() if k not in left_out}
        for k in ("init", "anchors"):
            value = getattr(self, k)
            params[k] = value if isinstance(value, str) else _digest(np.asarray(value))
        labels = checksum(S.row_group.cpu().numpy(), first, ranks)
        probe = torch.cos(torch.arange(len(S.Rt(S.diag)), dtype=torch.float64, device=S.diag.device))
        known = {**params, "labels": labels, "S": _digest(S.P(probe).cpu().numpy()), "n": n}
        known |= {"d": rows.shape[1], "dtype": str(rows.dtype)}
        fingerprint = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
        return Checkpoint(self.checkpoint, fingerprint, span, ranks)

    def _take_up(self, state: State, step: FStep, random_state: np.random.RandomState) -> Tensor:
        """Go on from a state: F into ``step``, the codes back."""
        same = state.anchors.shape == self.anchors_.shape and np.array_equal(state.anchors, self.anchors_)
        if not same or not np.allclose(state.mean, self.mean_, rtol=1e-3):
            raise ValueError(
                f"checkpoint {self.checkpoint} is of other rows X or another random_state: remove it, or name another"
            )
        if len(state.objective) > self.n_iter:
            raise ValueError(
                f"checkpoint {self.checkpoint} has {len(state.objective)} iterations, more than n_iter={self.n_iter}"
            )
        random_state.set_state(state.random)
        step.start(torch.from_numpy(state.W).to(step.K.device))
        if self.verbose:
            print(f"DISH goes on after {len(state.objective)} iterations", file=sys.stderr)
        return torch.from_numpy(state.codes).to(step.K.device)

    def _f_step(self, K: KernelMatrix, white: Whitening, ranks: Ranks) -> FStep:
        if isinstance(self.loss, str):
            return LinearStep(K, white, LOSSES[self.loss], self.n_bits, ranks)
        if not isinstance(K, Tensor) or ranks.world > 1:
            raise ValueError(
                "loss: a classifier learns from all kernel features at once, in the memory of one process: raise "
                "memory_budget, or use 'ridge', 'hinge' or 'logistic'"
            )
        return ClassifierStep(K, self.loss, self.n_bits)

    def _keep_hash_function(self, step: FStep) -> None:
        """F as W and an intercept where it is linear in k(x), as classifiers where it is not."""
        r = self.n_bits
        self.classifiers_ = None
        if isinstance(step, LinearStep):
            self.W_, self.intercept_ = step.W.cpu().numpy(), np.zeros(r, np.float32)
            return
        if not step.models:  # n_iter=0 from the spectral start: the classifiers have not been trained yet
            step.fit(columns(torch.from_numpy(self.codes_).to(step.K.device), r))
        if all(np.shape(getattr(model, "coef_", ())) == (1, step.K.shape[1]) for model in step.models):
            self.W_ = np.concatenate([m.coef_ for m in step.models]).T.astype(np.float32)
            self.intercept_ = np.array([np.ravel(m.intercept_)[0] for m in step.models], np.float32)
        else:
            self.W_, self.intercept_ = np.zeros((0, r), np.float32), np.zeros(r, np.float32)
            self.classifiers_ = step.models

    def _check_params(self) -> None:
        self._check_kernel_params()
        check_integer("n_iter", self.n_iter, low=0)
        check_number("nu", self.nu, low=0)
        check_number("ridge", self.ridge, low=0)
        check_number("lam", self.lam, low=0)
        if check_integer("polish", self.polish, low=0) and not isinstance(self.loss, str):
            raise ValueError("polish needs one of the built-in losses: it changes W, which classifiers do not have")
        if isinstance(self.loss, str) or not hasattr(self.loss, "fit"):
            check_option("loss", self.loss, tuple(LOSSES), " or a scikit-learn classifier")
        if isinstance(self.init, str):
            check_option("init", self.init, ("spectral", "random"), " or packed codes")
        machine.memory_budget(self.memory_budget)

    def _report(self, t: int, value: float, done: cbcd.Sweep) -> None:
        if self.verbose:
            print(
                f"DISH {t + 1}/{self.n_iter}: objective {value:.6e}, {done.flips:,} bits moved, "
                f"{sum(self.timings_.values()):.1f} s",
                file=sys.stderr,
            )

    # --- the hash function ---

    def _decide(self, X: NDArray[Any]) -> NDArray[Any]:
        if self.classifiers_ is None:
            return super()._decide(X)
        F = np.empty((len(X), self.n_bits), np.float32)
        for rows, K in self._features_of(X):
            F[rows] = np.stack([decide(model, K.cpu().numpy()) for model in self.classifiers_], 1)
        return F

    def _hash_function(self) -> dict[str, Any]:
        if self.classifiers_ is None:
            return super()._hash_function()
        return {**super()._hash_function(), "classifiers_": joblib.hash(self.classifiers_)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, atomically and without pickle. ``dish.load`` reads it."""
        if self.classifiers_ is not None:
            raise TypeError(
                f"a hasher made of {type(self.loss).__name__} classifiers cannot be saved without pickle; "
                "linear classifiers and the built-in losses can"
            )
        super().save(path)


def _is_large(X: Any) -> bool:
    """A matrix of floats of more than a quarter of a gigabyte."""
    return X.ndim == 2 and str(X.dtype).endswith(("float32", "float64")) and X.nbytes > 1 << 28


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def columns(packed: Tensor, r: int) -> cbcd.Columns:
    """Codes in the form that suits their device."""
    if packed.device.type == "cpu":
        return cbcd.PackedColumns(packed.numpy(), r)
    return cbcd.DeviceColumns(packed, r)


def shared_random_state(seed: Any, ranks: Ranks) -> np.random.RandomState:
    """The generator of a seed; of what is no number, one that all processes have from the first of them."""
    if ranks.world == 1 or isinstance(seed, int | np.integer):
        return check_random_state(seed)
    drawn = check_random_state(seed).randint(2**31 - 1)
    return np.random.RandomState(int(ranks.gather(torch.tensor([float(drawn)]))[0]))
