"""DISH: discrete supervised hashing with a kernel hash function (DISH-K)."""

from __future__ import annotations

import os
import sys
from typing import Any, Self

import joblib
import numpy as np
from numpy.typing import NDArray

from dish import cbcd, codes, machine, parallel
from dish.checks import check_integer, check_number, check_option
from dish.errors import InputError, UnsupportedError
from dish.io.checkpoint import Checkpoint, State
from dish.io.rows import RowSource, is_path
from dish.kernel import inputs
from dish.kernel.defaults import FULL, ROUGH, Effort, check_resumable, chosen_kernel, linear_loss, takes_posterior
from dish.kernel.fingerprint import fingerprint
from dish.kernel.fit_data import Problem, shared_random_state
from dish.kernel.fstep import LOSSES, ClassifierStep, LinearStep
from dish.kernel.functions import Classifiers, HashFunction, Posterior
from dish.kernel.kernel_hasher import KernelHasher
from dish.kernel.polish import polish
from dish.kernel.spectral import first_codes, spectral_start
from dish.lazy import torch
from dish.machine import resolve_device
from dish.parallel import Ranks
from dish.posterior.regression import codes_of_labels, fit_posterior
from dish.similarity import Classes, Similarity, check_labels, from_labels

FStep = LinearStep | ClassifierStep


class DISH(KernelHasher):
    """Learn binary codes from features and labels in time and memory linear in the rows.

    Alternates the H-step (Fast C-BCD: codes that reproduce the similarity of the labels) and the F-step (a hash
    function that predicts them from the features). The defaults are what won on real data;
    ``DISH(loss="ridge", similar_weight=2.0)`` is the paper's own algorithm.

    Parameters
    ----------
    n_bits : int, default=64
        Code length r; need not be a multiple of 8.
    n_anchors : int, default=1000
        Anchors m of the kernel map. More anchors give better codes: the cost grows with n·m. With fewer rows
        than that all rows become anchors (with a warning).
    gamma : "auto" or float, default="auto"
        Of the RBF kernel exp(−γ‖x−a‖²). "auto": one over the mean squared distance of rows to anchors, or twice that
        if ``kernel`` is "auto" too and held-out rows choose it as they choose x. A few rows that lie far outside all
        others are left out of that mean, with a warning that names them.
    loss : "auto", "posterior", "ridge", "hinge", "logistic" or a scikit-learn classifier, default="auto"
        Which hash function is learned, and how. "posterior": F(x) = p(x) V + offset, p the probabilities of the
        labels and V a frame of one vector per label, learned once the codes are. "ridge", "hinge", "logistic": F
        linear in the kernel features, learned in turn with the codes. A classifier is cloned and trained once per
        bit. "auto": "posterior" where y holds labels, at most 4,096 different ones, and ``polish`` is 0; or "ridge".
    nu : float, default=1e-4
        Weight ν of the loss in the H-step.
    n_iter : int, default=5
        Most H-steps; fewer if the codes stop changing, or for the posterior of several labels change little. 0 keeps
        the start.
    similar_weight : "auto" or float, default="auto"
        w of S = w·YYᵀ − 1. 2 is the paper's S, 10 its balance for 1,000 classes. "auto": √c/3, but from 2 to 10, for
        c classes of equal size; 2 for several labels per row.
    multilabel : "count", "share_one" or "jaccard", default="count"
        For (n, l) labels: the paper's w·YYᵀ − 1, the exact "share at least one label", or the Jaccard index.
    init : "spectral", "random", or packed codes (n, ceil(n_bits/8)), default="spectral"
        Where H starts.
    kernel : "auto", "rbf", "linear", "rbf+linear" or a function (X, A) → (n, m), default="auto"
        The feature map. "linear" is x − mean, without anchors; "rbf+linear" has both. "auto": "rbf+linear" for the
        posterior if x has no more than ``n_anchors`` features, but "rbf" if there are at most 32,768 rows and
        held-out ones are predicted better without x; else "rbf".
    anchors : "random", "kmeans" or an array (m, d), default="random"
        How anchors are chosen.
    ridge : float, default=1e-6
        ρ of the F-step as a share of the mean diagonal of KᵀK; the paper has 0. Raised if rounding demands it.
    lam : float, default=0
        λ of Fast C-BCD: larger values move fewer rows per step.
    polish : int, default=0
        Gradient steps at the end that fit F to S directly, past the paper; similar pairs weigh half as much again
        there. Codes of new rows get better, the more so the more rows there are per anchor: 60 steps for 60 rows per
        anchor, 10 for 5, are a good measure. 0: none.
    memory_budget : None, int or str, default=None
        Bytes ("2GB") that a fit on the CPU may hold. Kernel features that do not fit in memory are spilled to a
        scratch file (in the folder of temporary files), or recomputed on every pass if that is faster. None: half of
        what is free.
    checkpoint : path or None, default=None
        A folder that gets the state after every iteration. A fit that finds its own state there resumes from it. With
        several processes, one that all of them can write to. For the built-in losses, and a ``random_state`` that can
        be repeated.
    device : "auto", "cpu", "cuda", …, default="auto"
        Where the linear algebra runs; "auto" takes a GPU if there is one.
    random_state : int, RandomState or None, default=0
        Same seed, same machine: same codes.
    verbose : int, default=0
        1 reports every iteration on standard error.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        The learned H of the training rows. They know the labels; new rows get the signs of F, by ``transform``.
        For the posterior of several labels per row: the codes of the labels themselves.
    objective_ : float64 (n_iter_,)
        The objective after every H-step; it never rises.
    n_iter_ : int
        H-steps that were kept.
    gamma_, anchors_, mean_
        The features k(x).
    W_, intercept_
        A linear hash function, F(x) = Wᵀ k(x) + intercept.
    posterior_B_ (m, l), posterior_b_ (l,), frame_ (l, r), offset_ (r,), link_
        The posterior hash function, F(x) = p(x)ᵃ frame + offset with p(x) = link(k(x) B + b).
    timings_ : dict
        Seconds spent in each stage of ``fit``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from dish import DISH
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = DISH(n_bits=32, n_anchors=100).fit(X[:500], y[:500])
    >>> hasher.transform(X[500:]).shape  # 4 bytes per row
    (1297, 4)
    """

    codes_: NDArray[np.uint8]
    classifiers_: list[Any] | None = None
    _state = (*KernelHasher._state, "codes_", "objective_", "n_iter_")
    _kernels = ("auto", *KernelHasher._kernels)

    def __init__(
        self,
        n_bits: int = 64,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        loss: Any = "auto",
        nu: float = 1e-4,
        n_iter: int = 5,
        similar_weight: Any = "auto",
        multilabel: str = "count",
        init: Any = "spectral",
        kernel: Any = "auto",
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

    def fit(self, X: Any, y: Any = None, *, resume: bool = True) -> Self:
        """Learn from rows X (n, d) and labels y: (n,) classes, (n, l) of 0/1, or a ``Similarity``.

        X is an array, a tensor on any device, a memory-map, an iterable of row blocks, or the path of a .npy file
        or of a folder of shards; all but the first two are read a block at a time. Inside an initialised
        ``torch.distributed`` process group all processes learn together: each gives its own rows, or all give the
        same path. ``resume=False`` starts over even if ``checkpoint`` holds a state, which stands until there is
        a new one.
        """
        self.timings_: dict[str, float] = {}
        ranks = parallel.current()
        with ranks.raise_together():
            self._check_params()
            rows, y = self._open(X, y, ranks)
        S = self._similarity(y, len(rows), ranks)
        rng = shared_random_state(self.random_state, ranks)
        posterior = takes_posterior(self.loss, self.polish, S)
        kernel = chosen_kernel(self.kernel, posterior, rows.shape[1], self.n_anchors)
        saved = self._checkpoint(kernel, rows, S, rng, ranks)
        state = saved.load(len(rows), codes.n_bytes(self.n_bits)) if saved and resume else None

        problem = self._prepare(rows, S, rng, ranks, self._room_for_K(rows), kernel)
        del X, y, rows  # what is needed of them is in the problem
        step = self._f_step(problem)
        H = self._start(problem, step) if state is None else self._resume_from(state, problem, step)
        effort = ROUGH if posterior and not isinstance(S, Classes) else FULL
        self._alternate(problem, step, H, state.objective.tolist() if state else [], saved, effort)
        if self.polish:
            assert isinstance(step, LinearStep)
            with self._stage("polish"):
                step.W = polish(problem, step.W, self.polish)
        self._keep(problem, self._posterior(problem) if posterior else step.function())
        return self

    def _posterior(self, problem: Problem) -> HashFunction:
        """The posterior hash function. With several labels per row its codes of the labels are the learned ones."""
        H = cbcd.columns_for(torch.from_numpy(self.codes_).to(problem.device), self.n_bits)
        function = fit_posterior(problem, H)
        if function.link != "softmax":
            self.codes_ = codes_of_labels(problem, function)
        return function

    def _open(self, X: Any, y: Any, ranks: Ranks) -> tuple[RowSource, Any]:
        """Rows and labels of this process, refused here if they are no good."""
        if is_path(X):
            rows, y = inputs.open_path(X, y, ranks)
        else:
            rows = inputs.open_unchecked(X) or RowSource(self._check_X(X, reset=True), checked=True)
        self._require_y(
            y,
            "give (n,) classes, (n, l) labels of 0 and 1, or a similarity "
            "(dish.similarity.nystroem and anchor_graph make one from X alone)",
        )
        if not rows.checked:
            self.n_features_in_ = rows.shape[1]
            if hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        if ranks.world > 1:
            check_labels(y, len(rows))  # each its own: an error between messages would leave the others waiting
        return rows, y

    def _similarity(self, y: Any, n: int, ranks: Ranks) -> Similarity:
        with self._stage("labels"):
            S = from_labels(y, similar_weight=self.similar_weight, multilabel=self.multilabel, n_rows=n, ranks=ranks)
            return S.to(resolve_device(self.device))

    def _room_for_K(self, rows: RowSource) -> int:
        """What the budget leaves for K beside F and the codes."""
        beside = len(rows) * (self.n_bits * (torch.finfo(rows.dtype).bits // 8) + self.n_bits // 2 + 32)
        return max(1, machine.memory_budget(self.memory_budget) - beside)

    def _f_step(self, problem: Problem) -> FStep:
        loss = linear_loss(self.loss)
        if isinstance(loss, str):
            return LinearStep(problem, LOSSES[loss], self.n_bits)
        return ClassifierStep(problem, self.loss, self.n_bits)

    def _start(self, problem: Problem, step: FStep) -> cbcd.Columns:
        """The first H, and the first F in ``step``."""
        if isinstance(self.init, str) and self.init == "spectral":
            with self._stage("start"):
                W, packed = spectral_start(problem, self.n_bits)
            step.start(W)
            if isinstance(step, ClassifierStep) and self.n_iter == 0:  # there is no later F-step to train them in
                step.fit(cbcd.columns_for(packed, self.n_bits))
            return cbcd.columns_for(packed, self.n_bits)
        with problem.ranks.raise_together():
            packed = torch.from_numpy(first_codes(problem, self.init, self.n_bits)).to(problem.device)
        H = cbcd.columns_for(packed, self.n_bits)
        step.fit(H)
        return H

    def _alternate(
        self,
        problem: Problem,
        step: FStep,
        H: cbcd.Columns,
        objective: list[float],
        saved: Checkpoint | None,
        effort: Effort,
    ) -> None:
        """H-step and F-step in turn. A sweep that does not lower the objective ends it and is not kept."""
        S, r = problem.S, self.n_bits
        squared_norm = S.squared_norm()
        self.codes_ = H.packed()
        for t in range(len(objective), self.n_iter):
            if effort.is_spent(objective):
                break
            with self._stage("linear term"):
                q, constant = step.linear_terms(problem.n * self.nu)
            with self._stage("H-step"):
                done = cbcd.sweep(H, S, q, lam=self.lam, max_steps=effort.steps, ranks=problem.ranks)
            value = cbcd.objective(done, squared_norm, r, constant)
            if objective and (done.flips == 0 or value > objective[-1]):
                break  # nothing left to gain (or only rounding): the last state stands
            objective.append(value)
            self.codes_ = H.packed()
            with self._stage("F-step"):
                step.fit(H)
            self._report(t, value, done)
            if saved:
                with self._stage("checkpoint"):
                    saved.save(self._state_after(objective, problem, step))
        self.objective_ = np.array(objective, np.float64)
        self.n_iter_ = len(objective)

    # --- checkpoints ---

    def _checkpoint(
        self, kernel: Any, rows: RowSource, S: Similarity, rng: np.random.RandomState, ranks: Ranks
    ) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        chosen = {"loss": linear_loss(self.loss), "kernel": kernel}
        if isinstance(self.similar_weight, str):
            chosen["similar_weight"] = getattr(S, "w", 2.0)
        number = fingerprint(self.get_params() | chosen, rows, S, rng, ranks)
        saved = Checkpoint(self.checkpoint, number, ranks.offset_and_total(len(rows)), ranks)
        saved.prepare()
        return saved

    def _state_after(self, objective: list[float], problem: Problem, step: FStep) -> State:
        assert isinstance(step, LinearStep)
        assert problem.features.mean is not None
        anchors, mean = (tensor.cpu().numpy() for tensor in (problem.features.anchors, problem.features.mean))
        random = tuple(problem.rng.get_state())
        return State(self.codes_, step.W.cpu().numpy(), np.array(objective), anchors, mean, random)

    def _resume_from(self, state: State, problem: Problem, step: FStep) -> cbcd.Columns:
        """F into ``step``, the generator set to where it was, the codes back."""
        assert problem.features.mean is not None
        anchors, mean = (tensor.cpu().numpy() for tensor in (problem.features.anchors, problem.features.mean))
        if not np.array_equal(state.anchors, anchors) or not np.allclose(state.mean, mean, rtol=1e-3):
            raise InputError(
                f"checkpoint {self.checkpoint} was written for other rows X or another random_state; delete it "
                "or choose another path"
            )
        if len(state.objective) > self.n_iter:
            raise InputError(
                f"checkpoint {self.checkpoint} has {len(state.objective)} iterations, more than n_iter={self.n_iter}"
            )
        problem.rng.set_state(state.random)
        step.start(torch.from_numpy(state.W).to(problem.device))
        if self.verbose:
            print(f"DISH resumes after {len(state.objective)} iterations", file=sys.stderr)
        return cbcd.columns_for(torch.from_numpy(state.codes).to(problem.device), self.n_bits)

    # --- checks and reports ---

    def _check_params(self) -> None:
        self._check_kernel_params()
        check_integer("n_iter", self.n_iter, low=0)
        check_number("nu", self.nu, low=0)
        check_number("lam", self.lam, low=0)
        built_in = isinstance(self.loss, str) and self.loss != "posterior"
        if check_integer("polish", self.polish, low=0) and not built_in:
            raise InputError("polish needs loss 'ridge', 'hinge' or 'logistic': it changes the W of a linear F")
        if self.checkpoint is not None:
            check_resumable(self.loss, self.random_state)
        if isinstance(self.loss, str) or not hasattr(self.loss, "fit"):
            check_option("loss", self.loss, ("auto", "posterior", *LOSSES), " or a scikit-learn classifier")
        if isinstance(self.init, str):
            check_option("init", self.init, ("spectral", "random"), " or packed codes")
        machine.memory_budget(self.memory_budget)
        resolve_device(self.device)

    def _report(self, t: int, value: float, done: cbcd.Sweep) -> None:
        if self.verbose:
            print(
                f"DISH {t + 1}/{self.n_iter}: objective {value:.6e}, {done.flips:,} bits moved, "
                f"{sum(self.timings_.values()):.1f} s",
                file=sys.stderr,
            )

    # --- the hash function ---

    def _keep(self, problem: Problem, function: HashFunction) -> None:
        super()._keep(problem, function)
        self.classifiers_ = function.models if isinstance(function, Classifiers) else None

    def _function(self) -> HashFunction:
        if hasattr(self, "frame_"):
            return Posterior.kept_by(self)
        return super()._function() if self.classifiers_ is None else Classifiers(self.classifiers_)

    def _hash_function(self) -> dict[str, Any]:
        if self.classifiers_ is None:
            return super()._hash_function()
        return {**super()._hash_function(), "classifiers_": joblib.hash(self.classifiers_)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, atomically and without pickle. ``dish.load`` reads it."""
        if self.classifiers_ is not None:
            raise UnsupportedError(
                f"a hasher made of {type(self.loss).__name__} classifiers cannot be saved without pickle; "
                "linear classifiers and the built-in losses can"
            )
        super().save(path)
