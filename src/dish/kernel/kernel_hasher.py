"""KernelHasher: what every hasher with F(x) = Wᵀ k(x) + intercept shares, so that only the learning differs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dish.checks import check_integer, check_number, check_option
from dish.errors import InputError, UnsupportedError
from dish.hasher import Encoder, Hasher
from dish.io.rows import RowSource, as_tensor
from dish.kernel.defaults import chosen_kernel
from dish.kernel.features import FeatureMap, row_blocks, rows_at_a_time
from dish.kernel.fit_data import Problem, prepare
from dish.kernel.functions import HashFunction, Linear, Posterior
from dish.lazy import Tensor, torch
from dish.machine import resolve_device
from dish.parallel import ALONE, Ranks
from dish.posterior.selection import best_features
from dish.progress import Stopwatch
from dish.similarity import Similarity, from_labels


class KernelHasher(Stopwatch, Hasher):
    """Anchors, kernel features, and a hash function on them.

    A subclass has the parameters ``n_bits``, ``n_anchors``, ``gamma``, ``device`` and ``random_state`` (and
    ``kernel``, ``anchors``, ``ridge``, ``similar_weight`` or ``multilabel`` if it lets the user choose them). Its
    ``fit`` begins with ``_problem`` and ends with ``_keep``.
    """

    n_anchors: int
    gamma: float | str
    kernel: Any = "rbf"
    anchors: Any = "random"
    ridge: float = 1e-6
    similar_weight: float = 2.0
    multilabel: str = "count"
    device: str
    random_state: Any
    _needs_y = True
    _most_bits = 1 << 14  # matrices of r² numbers are built
    _kernels: tuple[str, ...] = ("rbf", "linear", "rbf+linear")
    _state: tuple[str, ...] = ("gamma_", "anchors_", "mean_", *Linear.NAMES)

    # --- fit ---

    def _problem(self, X: Any, y: Any, multilabel: str | None = None) -> Problem:
        """The prologue of a fit in memory: rows, labels and parameters checked, features computed."""
        self._check_kernel_params()
        self._require_y(y)
        X = self._check_X(X, reset=True)
        S = from_labels(
            y, similar_weight=self.similar_weight, multilabel=multilabel or self.multilabel, n_rows=len(X)
        )
        self.timings_ = {}
        rng = check_random_state(self.random_state)
        return self._prepare(RowSource(X, checked=True), S.to(resolve_device(self.device)), rng)

    def _prepare(
        self,
        rows: RowSource,
        S: Similarity,
        rng: np.random.RandomState,
        ranks: Ranks = ALONE,
        budget: int | None = None,
        kernel: Any = None,
    ) -> Problem:
        """Rows and their similarity as the problem to solve; ``kernel``: what "auto" stands for."""
        kernel = self.kernel if kernel is None else kernel
        problem = partial(
            prepare,
            rows,
            S,
            n_anchors=self.n_anchors,
            ridge=self.ridge,
            rng=rng,
            device=resolve_device(self.device),
            ranks=ranks,
            budget=budget,
            stage=self._stage,
        )
        usual = problem(kernel=kernel, gamma=self.gamma, anchors=self.anchors)
        if kernel != "rbf+linear" or kernel == self.kernel:
            return usual
        others = partial(problem, anchors=usual.features.anchors.cpu().numpy())
        return best_features(usual, lambda g, k: others(gamma=g, kernel=k), isinstance(self.gamma, str))

    def _keep(self, problem: Problem, function: HashFunction) -> None:
        """The features and the hash function on them become this hasher's own."""
        features = problem.features
        assert features.mean is not None
        self.gamma_, self.anchors_ = features.gamma, features.anchors.cpu().numpy()
        self.mean_ = features.mean.cpu().numpy()
        for name in filter(partial(hasattr, self), Posterior.NAMES):  # of an earlier fit
            delattr(self, name)
        for name, array in function.arrays().items():
            setattr(self, name, array)

    def _check_kernel_params(self) -> None:
        self._check_n_bits()
        check_integer("n_anchors", self.n_anchors, low=1)
        check_number("ridge", self.ridge, low=0)
        if self.gamma != "auto":
            if isinstance(self.gamma, str):
                raise InputError(f"gamma must be 'auto' or a number above 0, got {self.gamma!r}")
            check_number("gamma", self.gamma, low=0, strict=True)
        if not callable(self.kernel):
            check_option("kernel", self.kernel, self._kernels, " or a function (X, A) → (n, m)")
        if isinstance(self.anchors, str):
            check_option("anchors", self.anchors, ("random", "kmeans"), " or an array (m, d)")

    # --- the hash function ---

    def _function(self) -> HashFunction:
        """F on features."""
        return Linear.of(self.W_, self.intercept_)

    def _fitted_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._state, *self._function().NAMES)))

    def _features(self) -> FeatureMap:
        """k(x), with its arrays on the device."""
        device = resolve_device(self.device)
        anchors, mean = torch.from_numpy(self.anchors_).to(device), torch.from_numpy(self.mean_).to(device)
        return FeatureMap(self._kernel_of(mean), anchors, self.gamma_, mean)

    def _kernel_of(self, mean: Tensor) -> Any:
        """The kernel, given the mean of its features: "auto" stood for both parts if they outnumber the anchors."""
        return chosen_kernel(self.kernel, len(mean) > len(self.anchors_), 0, 1)

    def _encoder(self) -> Encoder:
        """Rows → F, with everything on the device."""
        features = self._features()
        return self._by_blocks(features, self._function().to(features.anchors), self.n_bits)

    def _by_blocks(self, features: FeatureMap, function: Any, width: int) -> Encoder:
        """Rows → function(k(x)), (n, width), a block at a time."""
        anchors = features.anchors

        def encode(X: NDArray[Any]) -> NDArray[Any]:
            F = np.empty((len(X), width), np.float32)
            for rows in row_blocks(len(X), rows_at_a_time(anchors.device, *anchors.shape)):
                F[rows] = function(features(as_tensor(X[rows]).to(anchors)))
            return F

        return encode

    def label_probabilities(self, X: Any) -> NDArray[np.float32]:
        """p(x) of every label, (n, l), labels in sorted order: for hashers that learn a posterior.

        With one label per row they add up to 1, and p(x)·p(x′) stands for the chance that two rows share their label.
        They are those the codes are made of: a little surer of themselves than calibrated ones (docs/method.md).
        """
        check_is_fitted(self)
        function = self._function()
        if not isinstance(function, Posterior):
            raise UnsupportedError(
                f"this {type(self).__name__} has a {type(function).__name__.lower()} hash function, which knows no "
                "probabilities of labels; fit DISH(loss='posterior')"
            )
        features = self._features()
        function = function.to(features.anchors)
        probabilities = self._by_blocks(features, lambda K: function.probabilities(K).cpu().numpy(), len(function.b))
        return probabilities(self._check_X(X, reset=False))
