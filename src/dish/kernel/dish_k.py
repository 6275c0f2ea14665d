"""DISHK: the paper's Algorithm 2 with kernel hash functions (DISH-K)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish import cbcd, codes
from dish.checks import check_flag, check_number, check_option, check_random_state
from dish.encoder import FeatureMap, HashFunction, Linear
from dish.errors import InputError, UnsupportedError
from dish.io.checkpoint import Checkpoint
from dish.io.rows import RowSource
from dish.kernel.class_sums import ClassSums
from dish.kernel.fit_data import FitData
from dish.kernel.fit_state import KernelState, fingerprint, load_state, save_state
from dish.kernel.fstep import LOSSES, ClassifierStep, LinearStep
from dish.kernel.held_out_check import FEWEST, MOST, left_out_F, warn_of_useless_codes
from dish.kernel.spectral import first_codes, spectral_start
from dish.kernel.streaming_hasher import PROFILED, FitInput, RowBatch, StreamingHasher
from dish.lazy import torch
from dish.machine import resolve_device
from dish.metrics.profile import Profile, shared_codes
from dish.progress import progress
from dish.similarity import Classes
from dish.similarity.labelled import balanced_weight

Packed = NDArray[np.uint8]
LEFT_OUT = 64  # rows at a time, for the profile
AfterSweep = Callable[[Packed, HashFunction, list[float], cbcd.Sweep], None]  # H, F, objectives, sweep


def alternate(
    data: FitData,
    n_bits: int,
    *,
    loss: Any = "ridge",
    nu: float = 1e-4,
    n_iter: int = 5,
    lam: float = 0.0,
    take_back: bool = True,
    init: Any = "spectral",
    state: KernelState | None = None,
    after_sweep: AfterSweep | None = None,
) -> tuple[Packed, HashFunction, NDArray[np.float64]]:
    """Algorithm 2: alternate the H-step and the F-step. Returns the codes H, the hash function F, and the objective.

    The objective has one value per sweep and never rises: a sweep that does not lower it ends the alternation and is
    discarded. With ``take_back=False`` it may rise, and only a sweep in which no bit changes ends the alternation.
    ``state`` resumes a former run; ``after_sweep(H, F, objective, sweep)`` is called after each sweep.
    """
    step = f_step(data, loss, n_bits)
    if state is None:
        H, objective = _start(data, step, init, n_bits, n_iter), []
    else:
        step.start(torch.from_numpy(state.W).to(data.device))
        H = cbcd.columns_for(torch.from_numpy(state.codes).to(data.device), n_bits)
        objective = state.objective.tolist()
    squared_norm, packed = data.S.squared_norm(), H.packed()
    with progress("sweeps", n_iter - len(objective)):
        for _ in range(len(objective), n_iter):
            with data.stage("linear term"):
                q, constant = step.linear_terms(data.n * nu)
            with data.stage("H-step"), progress("H-step", 1, counts=1):
                sweep = cbcd.sweep(H, data.S, q, lam=lam, take_back=take_back, ranks=data.ranks)
            value = cbcd.objective(sweep, squared_norm, n_bits, constant)
            if objective and (sweep.flips == 0 or (take_back and value > objective[-1])):
                break  # converged, or a rise by rounding: the last state stands
            objective.append(value)
            packed = H.packed()
            with data.stage("F-step"):
                step.fit(H)
            if after_sweep is not None:
                after_sweep(packed, step.function(), objective, sweep)
    return packed, step.function(), np.array(objective, np.float64)


def f_step(data: FitData, loss: Any, n_bits: int) -> LinearStep | ClassifierStep:
    """The F-step for a loss by name, or for a scikit-learn classifier."""
    if isinstance(loss, str):
        return LinearStep(data, LOSSES[loss], n_bits)
    return ClassifierStep(data, loss, n_bits)


def _start(data: FitData, step: LinearStep | ClassifierStep, init: Any, n_bits: int, n_iter: int) -> cbcd.Columns:
    """The initial H, with the initial F set in ``step``."""
    if isinstance(init, str) and init != "random":
        with data.stage("start"):
            W, packed = spectral_start(data, n_bits, literal=init == "spectral-literal")
        step.start(W)
        H = cbcd.columns_for(packed, n_bits)
        if isinstance(step, ClassifierStep) and n_iter == 0:  # no later F-step would train the classifiers
            step.fit(H)
        return H
    with data.ranks.raise_together():
        packed = torch.from_numpy(first_codes(data, init, n_bits)).to(data.device)
    H = cbcd.columns_for(packed, n_bits)
    step.fit(H)
    return H


class DISHK(StreamingHasher):
    """DISH-K, the paper's kernel method: learns codes and a hash function in turn.

    Alternates the H-step (Fast C-BCD: codes that reproduce the similarity S) and the F-step (a hash function that
    predicts these codes from kernel features), in time and memory linear in the rows. ``DISH`` usually ranks better
    where there are labels; ``DISHK`` also learns from any similarity S = PRᵀ. Commands call it ``dish_k``.

    Parameters
    ----------
    n_bits : int, default=64
        Code length r. It need not be a multiple of 8.
    n_anchors : int, default=1000
        Number m of anchors of the kernel features. More anchors give better codes; time grows with n·m. If X has
        fewer rows, all rows become anchors (with a warning).
    gamma : "auto" or float, default="auto"
        RBF kernel coefficient γ in exp(−γ‖x−a‖²). "auto": one over the mean squared distance between rows and
        anchors, not counting outliers, which a warning names.
    loss : "ridge", "hinge", "logistic" or a scikit-learn classifier, default="ridge"
        Loss of the F-step. The first three learn a linear function of the features. A classifier is cloned and
        trained once per bit.
    nu : float, default=1e-4
        Weight ν of the loss in the H-step.
    n_iter : int, default=5
        Maximum number of H-steps; the fit ends earlier if the codes stop changing. 0 keeps the initial codes.
    similar_weight : "auto" or float, default="auto"
        w in S = w·YYᵀ − 1. "auto": 2 for up to 36 classes and for multi-label data, 10 from 900 classes on (the
        paper's two settings), √c/3 for c classes in between.
    multilabel : "count", "share_one" or "jaccard", default="count"
        Similarity of (n, l) labels: the paper's w·YYᵀ − 1, "share at least one label", or the Jaccard index.
    init : "spectral", "spectral-literal", "random", or packed codes (n, ceil(n_bits/8)), default="spectral"
        Initial codes H. "spectral-literal" is the start as the paper prints it: S without the factor r, and with
        classes, too, a code for every row. It takes a pass over the features per bit.
    kernel : "rbf", "linear", "rbf+linear" or a function (X, A) → (n, m), default="rbf"
        Feature map. "linear" is x − mean, without anchors; "rbf+linear" has both.
    scale : "auto", None or (d,) factors, default="auto"
        Factors by which the features of x are multiplied first. "auto": one over the median deviation of each
        feature, if these differ by more than a factor of 100 and held-out rows are predicted better (from 200 rows
        on); a warning says so. None: no scaling.
    anchors : "random", "kmeans" or an array (m, d), default="random"
        How the anchors are chosen.
    ridge : float, default=1e-6
        Regularisation ρ of the F-step, relative to the mean diagonal of KᵀK. Raised if KᵀK is numerically singular.
        0, as in the paper, is never raised: a singular KᵀK is then an error.
    lam : float, default=0
        λ of Fast C-BCD. Larger values move fewer rows per step.
    take_back : bool, default=True
        Take back a step of Fast C-BCD that raises the objective, and end the bit. False: every step stands, as in
        the paper, and a bit ends after at most 20 steps; the objective may then rise.
    memory_budget : None, int or str, default=None
        Memory in bytes ("2GB") that a fit on the CPU may use. Features that do not fit are written to a scratch file
        in the folder for temporary files, or recomputed in every pass if that is faster. None: half of the free
        memory.
    checkpoint : path or None, default=None
        Folder for the state after every iteration. A fit that finds its own state there resumes from it. Several
        processes need a shared folder. Not available with a scikit-learn classifier or ``random_state=None``.
    device : "auto", "cpu", "cuda", …, default="auto"
        Where the linear algebra runs. "auto" uses a GPU if there is one.
    random_state : int, RandomState or None, default=0
        The same seed on the same machine gives the same codes.
    verbose : int, default=0
        1 reports every iteration on standard error.

    Attributes
    ----------
    codes_ : uint8 (n, ceil(n_bits/8))
        The learned H of the training rows. ``transform`` gives new rows the signs of F.
    objective_ : float64 (n_iter_,)
        The objective Q after every H-step. It never rises, unless ``take_back=False``.
    n_iter_ : int
        Number of H-steps.
    kernel_, gamma_, anchors_, centre_, mean_, scale_
        The features k(x).
    hash_function_ : dish.encoder.Linear or dish.encoder.Classifiers
        F on these features. ``Linear`` is F(x) = Wᵀ k(x) + intercept.
    timings_ : dict
        Seconds spent in each stage of ``fit``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from dish import DISHK
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = DISHK(n_bits=32, n_anchors=100).fit(X[:500], y[:500])
    >>> hasher.transform(X[500:]).shape  # 4 bytes per row
    (1297, 4)
    """

    batches_: ClassSums

    _y_help = (
        "give (n,) classes, (n, l) labels of 0 and 1, or a similarity "
        "(dish.similarity.nystroem and anchor_graph make one from X alone)"
    )

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        gamma: float | str = "auto",
        loss: Any = "ridge",
        nu: float = 1e-4,
        n_iter: int = 5,
        similar_weight: float | str = "auto",
        multilabel: str = "count",
        init: Any = "spectral",
        kernel: Any = "rbf",
        scale: Any = "auto",
        anchors: Any = "random",
        ridge: float = 1e-6,
        lam: float = 0.0,
        take_back: bool = True,
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
        self.scale = scale
        self.anchors = anchors
        self.ridge = ridge
        self.lam = lam
        self.take_back = take_back
        self.memory_budget = memory_budget
        self.checkpoint = checkpoint
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, *, resume: bool = True) -> Self:
        """Learn from rows X (n, d) and y: (n,) classes, (n, l) labels of 0 and 1, or a ``Similarity``.

        X is an array, a tensor on any device, a memory map, an iterable of row blocks, or the path of a file or of a
        folder of shards; all but the first two are read a block at a time. In an initialised ``torch.distributed``
        process group, all processes learn together: each passes its own rows, or all pass the same path.
        ``resume=False`` ignores an existing checkpoint and replaces it.
        """
        given = self._open(X, y)
        saved = self._open_checkpoint(given)
        state = self._load(saved, len(given.rows), resume)
        data = self._prepare(given.rows, given.S, given.rng, given.ranks, self._room_for_K(given.rows))
        del X, y, given  # the features replace the rows
        if state is not None:
            self._check_same_features(state, data)
        H, function, objective = alternate(
            data,
            self.n_bits,
            loss=self.loss,
            nu=self.nu,
            n_iter=self.n_iter,
            lam=self.lam,
            take_back=self.take_back,
            init=self.init,
            state=state,
            after_sweep=self._after_sweep(saved, data),
        )
        self._keep(data, function)
        self._keep_codes(H, objective)
        if self._learns_from_sums and isinstance(data.S, Classes):
            self._keep_sums(ClassSums.of(data))
        self._check(data, H)
        with self._stage("profile"):
            self.profile_ = self._profile(data, H)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Learn from a batch of rows X (n, d) with classes y (n,), and from all batches before it.

        Only sums are kept: KᵀK, the feature sums of every class and the class sizes. Memory therefore does not depend
        on the number of rows. The result is exact: any batches of the same rows, in any order, give the same hash
        function up to rounding, if the anchors, ``gamma`` and ``scale`` are the same. Where they are not given, they
        come from the first batch and then stay. Every call solves for W, which takes O(m³) time for m anchors.

        How this compares with ``fit`` on all rows: the sums, the spectral start and the F-step are the same, so that
        the hash function with ``n_iter=0`` is equal up to rounding. The H-steps of ``fit`` are over rows; here every
        class has rows that are all equal, in proportion to its size (at most about 4,096 in all), and the loss of the
        F-step does not order them (ν = 0). W is therefore equal where both H-steps find the same code for all rows of
        a class, and about as good elsewhere.

        Needs ``loss="ridge"``, ``init="spectral"`` and one class per row. ``classes`` may name the classes of all
        batches in the first call; a later batch may bring others all the same. ``codes_`` are the codewords of the
        classes of this batch's rows. After ``fit`` with one class per row, it goes on from the rows of the fit. Model
        files do not hold the sums: a loaded hasher refuses to continue.
        """
        if not self._learns_from_sums or self.checkpoint is not None:
            raise UnsupportedError(
                "DISHK.partial_fit needs loss='ridge', init='spectral' and checkpoint=None: only then do sums over "
                "rows determine the hash function. Use fit for others"
            )
        batch = self._open_batch(X, y, classes)
        if not hasattr(self, "batches_"):
            self.batches_ = ClassSums.none(self._first_features(batch), batch.classes)
        with self._stage("sums"):
            sums = self.batches_.over(batch.classes).plus(batch.X, batch.group, resolve_device(self.device))
        with self._stage("solve"):
            how = {"lam": self.lam, "take_back": self.take_back}
            found = sums.solve(self._weight(sums.sizes), self.ridge, self.n_bits, self.n_iter, **how)
        self._keep_sums(sums)
        self._keep(found.data, found.function)
        self._keep_codes(found.codewords[batch.group], found.objective)
        return self

    @property
    def _learns_from_sums(self) -> bool:
        """Whether sums over rows determine the hash function."""
        return all(isinstance(a, str) for a in (self.loss, self.init)) and (self.loss, self.init) == (
            "ridge",
            "spectral",
        )

    def _keep_sums(self, sums: ClassSums) -> None:
        self.batches_, self.classes_, self.n_samples_seen_ = sums, sums.classes, sums.n

    def _first_features(self, batch: RowBatch) -> FeatureMap:
        """The features of all batches, with the mean of the first one."""
        S = Classes(batch.group, 2.0, batch.classes).to(resolve_device(self.device))
        data = self._prepare(RowSource(batch.X, checked=True), S, check_random_state(self.random_state))
        return data.features.numpy()

    def _weight(self, sizes: NDArray[np.int64]) -> float:
        """w for classes of these sizes."""
        auto = isinstance(self.similar_weight, str)
        return balanced_weight(torch.from_numpy(sizes).double()) if auto else float(self.similar_weight)

    def _profile(self, data: FitData, H: Packed) -> Profile:
        """What is normal, from rows that ridge regression leaves out; for other losses from training rows."""
        if self.loss != "ridge" or data.signs is None or data.n < FEWEST:
            return self._profile_of_training_rows(data)
        rows = data.signs.indices[:: -(-len(data.signs.indices) // PROFILED)]
        assert isinstance(self.hash_function_, Linear)
        W = torch.as_tensor(self.hash_function_.W).to(data.device)
        parts = np.array_split(rows, -(-len(rows) // min(LEFT_OUT, data.n // 8)))
        F = torch.cat([left_out_F(data.K, data.white, W, H, part, data.ranks) for part in parts])
        traits = self._traits_of_outputs(F.float().cpu().numpy(), shared_codes(self.codes_))
        return Profile.of(traits, self.n_bits, "held-out rows")

    def _check(self, data: FitData, H: Packed) -> None:
        """Warn if a hash function that did not learn from held-out rows cannot tell their labels."""
        if not isinstance(self.hash_function_, Linear) or data.signs is None:
            return
        with data.stage("check"):
            rows = data.signs.indices[:: max(4, len(data.signs.indices) // MOST)]
            W = torch.as_tensor(self.hash_function_.W).to(data.device)
            F = left_out_F(data.K, data.white, W, H, rows, data.ranks)
            warn_of_useless_codes(data.signs, rows, F, data.not_auto)

    def _check_params(self) -> None:
        super()._check_params()
        if self.checkpoint is not None and self.random_state is None:
            raise InputError("checkpoint needs a random_state that a later fit can repeat: pass a number, not None")
        check_number("nu", self.nu, low=0)
        check_number("lam", self.lam, low=0)
        check_flag("take_back", self.take_back)
        if isinstance(self.loss, str) or not hasattr(self.loss, "fit"):
            check_option("loss", self.loss, tuple(LOSSES), " or a scikit-learn classifier")
        elif self.checkpoint is not None:
            raise InputError(
                f"checkpoint needs loss {', '.join(map(repr, LOSSES))}: {type(self.loss).__name__} classifiers "
                "cannot be stored without pickle; pass checkpoint=None"
            )
        if isinstance(self.init, str):
            check_option("init", self.init, ("spectral", "spectral-literal", "random"), " or packed codes")

    # --- checkpoints ---

    def _open_checkpoint(self, given: FitInput) -> Checkpoint | None:
        """The checkpoint of this fit, if one was asked for."""
        if self.checkpoint is None:
            return None
        auto, ranks = isinstance(self.similar_weight, str), given.ranks
        weight = getattr(given.S, "w", 2.0) if auto else self.similar_weight
        params = self.get_params() | {"similar_weight": weight}
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

        def done(H: Packed, function: HashFunction, objective: list[float], sweep: cbcd.Sweep) -> None:
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
