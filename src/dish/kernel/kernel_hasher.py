"""KernelHasher: base of every hasher whose hash function works on kernel features. Subclasses add the learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dish import codes
from dish.checks import check_integer, check_number, check_option, check_random_state
from dish.encoder import Encoder, FeatureMap, HashFunction, Linear
from dish.errors import InputError, UnsupportedError
from dish.hasher import EncodeRows, Hasher
from dish.io.rows import RowSource
from dish.kernel.fit_data import FitData, prepare
from dish.kernel.recentring import feature_moments, recentring
from dish.lazy import has_torch
from dish.machine import resolve_device
from dish.parallel import ALONE, Ranks
from dish.progress import Stopwatch
from dish.similarity import Similarity, from_labels

PROBE_BITS = 1024  # of the fingerprint; more tell similar models apart, fewer meet less bits that are close to 0


class KernelHasher(Stopwatch, Hasher):
    """Kernel features and a hash function on them.

    A subclass has the parameters ``n_bits``, ``n_anchors``, ``gamma``, ``device`` and ``random_state``, and any of
    ``kernel``, ``scale``, ``anchors``, ``ridge``, ``similar_weight`` and ``multilabel`` that users may choose. Its
    ``fit`` starts with ``_fit_data`` and ends with ``_keep``.

    Attributes
    ----------
    kernel_, gamma_, anchors_, centre_, mean_, scale_
        The features k(x): see ``encoder.FeatureMap``.
    hash_function_ : encoder.Linear, encoder.Posterior or encoder.Classifiers
        F on these features.
    moments_ : ndarray (2, d)
        Mean and standard deviation of every feature of the training rows, estimated on a sample.
    recentred_ : ndarray (2, d) or None
        Those of the rows that ``recentre`` was given.
    """

    n_anchors: int
    gamma: float | str
    kernel: Any = "rbf"
    scale: Any = None
    anchors: Any = "random"
    ridge: float = 1e-6
    similar_weight: float | str = 2.0
    multilabel: str = "count"
    device: str
    random_state: Any
    hash_function_: HashFunction
    geometry_: Linear | None = None
    moments_: NDArray[np.float64] | None = None
    recentred_: NDArray[np.float64] | None = None
    _needs_y = True
    _most_bits = 1 << 14  # matrices of r² numbers are built
    _kernels: tuple[str, ...] = ("rbf", "linear", "rbf+linear")
    _features_by: Callable[..., FitData] = staticmethod(prepare)
    _state: tuple[str, ...] = ("kernel_", "gamma_", "anchors_", "centre_", "mean_", "scale_", "hash_function_")
    _state += ("moments_", "recentred_")

    # --- fit ---

    def _fit_data(self, X: Any, y: Any, multilabel: str | None = None) -> FitData:
        """Check the parameters, X and y, and compute the features, all in memory."""
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
        fixed: dict[str, Any] | None = None,
    ) -> FitData:
        """The features of checked rows, with their similarity. ``fixed``: options that replace parameters."""
        names = ("kernel", "gamma", "scale", "anchors", "n_anchors", "ridge")
        options = {name: getattr(self, name) for name in names} | (fixed or {})
        data = self._features_by(
            rows,
            S,
            rng=rng,
            device=resolve_device(self.device),
            ranks=ranks,
            budget=budget,
            stage=self._stage,
            **options,
        )
        data.not_auto = tuple(name for name in ("gamma", "scale") if not isinstance(getattr(self, name), str))
        return data

    def _keep(self, data: FitData, function: HashFunction) -> None:
        """Store the features and the hash function."""
        features = data.features.numpy()
        self.kernel_, self.gamma_ = features.kernel, features.gamma
        self.anchors_, self.centre_, self.mean_ = features.anchors, features.centre, features.mean
        self.scale_ = features.scale
        self.hash_function_ = function.numpy()
        self.moments_, self.recentred_ = data.moments, None

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
        if isinstance(self.scale, str):
            check_option("scale", self.scale, ("auto",), ", None or (d,) factors")
        if isinstance(self.anchors, str):
            check_option("anchors", self.anchors, ("random", "kmeans"), " or an array (m, d)")

    def _check_restored(self) -> None:
        super()._check_restored()
        for name in ("moments_", "recentred_"):
            found = getattr(self, name)
            if found is not None and np.shape(found) != (2, self.n_features_in_):
                raise InputError(f"{name} has the shape {np.shape(found)}, not {(2, self.n_features_in_)}")

    # --- a shifted database ---

    def recentre(self, X: Any) -> Self:
        """Adapt the fitted hasher to a shifted database, without labels; returns self.

        Rows are encoded after every feature has been given the mean and the standard deviation that it had in
        training. So if all features were shifted or scaled, the bits are balanced on X as they were on the training
        rows, and rows keep their neighbours. X must be a fair sample of the database: if its classes have other
        shares than in training, their difference counts as a shift. The codes of labels stay the same.

        Codes from before and after are not comparable, and ``fingerprint_`` changes: encode the database again. To
        keep the old hasher, recentre a copy (``copy.deepcopy``) or load the model again. ``codes_`` stay those of the
        training rows as they were. X replaces the rows of an earlier call; ``fit`` forgets them.
        """
        self._check_fitted()
        if self.moments_ is None:
            raise UnsupportedError(
                f"recentre: this {type(self).__name__} was saved without the means of its training rows; fit it again"
            )
        self.recentred_ = feature_moments(rows for _, rows in self._encoded_blocks(X))
        self.__dict__.pop("family_", None)  # no other model has codes like the new ones
        return self

    # --- the hash function ---

    @property
    def encoder_(self) -> Encoder:
        """F(x) as one object, in NumPy."""
        self._check_fitted()
        features = FeatureMap(self.kernel_, self.anchors_, self.gamma_, self.centre_, self.mean_, self.scale_)
        moved = None
        if self.recentred_ is not None and self.moments_ is not None:
            moved = recentring(self.recentred_, self.moments_, self.anchors_.dtype)
        return Encoder(features, self.hash_function_, self.geometry_, moved)

    def _hash_function(self) -> dict[str, Any]:
        """What identifies the hash function: the codes of a few rows.

        The arrays themselves differ in their last digits with the number of threads and processes of the fit.
        """
        F = self.encoder_.mapped(_float64)(self._probe_rows(-(-PROBE_BITS // self.n_bits)))
        found = {"n_bits": self.n_bits, "n_features_in_": self.n_features_in_, "probe": codes.pack(F)}
        return found if self.recentred_ is None else {**found, "recentred_": self.recentred_}

    def _probe_rows(self, n: int) -> NDArray[np.float64]:
        """Rows like the training rows: anchors and points between them, or random rows of many lengths."""
        rng, A = np.random.default_rng(0), _float64(self.anchors_[:n])
        if len(A) == 0:
            return rng.standard_normal((n, self.n_features_in_)) * 10.0 ** rng.uniform(-3, 6, (n, 1))
        left, right = rng.integers(0, len(A), (2, n - len(A)))
        between = A[left] + rng.random((n - len(A), 1)) * (A[right] - A[left])
        return np.concatenate([A, between])

    def _encoder_on_device(self) -> Encoder:
        """F(x) by torch on ``device``; by NumPy if torch is not installed."""
        return self.encoder_.to(resolve_device(self.device)) if has_torch() else self.encoder_

    @property
    def _encoded_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.anchors_.dtype)

    def _encoder(self) -> EncodeRows:
        return self._encoder_on_device().decision_values


def _float64(a: Any) -> NDArray[np.float64]:
    return np.asarray(a, np.float64)
