"""A kernel hasher from its file, in NumPy alone: codes of new rows without torch, and no way to learn more.

What an installation without torch loads (``registry.load``). The arithmetic is that of ``features`` and
``functions``; a bit may differ where its F is zero but for rounding.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dish.errors import ModelFileError, UnsupportedError
from dish.hasher import Encoder, Hasher
from dish.io import modelfile
from dish.kernel.outliers import FARTHEST, SPREAD, outliers

NEEDED = {"anchors_", "mean_", "W_", "intercept_"}
POSTERIOR = {"posterior_B_", "posterior_b_", "frame_", "offset_"}
BESIDE = {"codes_", "objective_"}  # of the training rows: no part of the hash function
ROWS = 512  # at a time: their features stay in cache


class FrozenHasher(Hasher):
    """F(x) of a fitted ``DISH``, or of a rival with a linear function of kernel features, by its arrays."""

    _file: tuple[str, dict[str, Any], modelfile.Arrays]  # class that learned it, content and arrays of its file

    @classmethod
    def of(cls, kind: str, content: dict[str, Any], arrays: modelfile.Arrays) -> Self:
        """The hasher of a model file, ready to encode; refuses files of other hash functions."""
        if not arrays.keys() >= NEEDED or not arrays.keys() <= NEEDED | POSTERIOR | BESIDE:
            raise ModelFileError(
                f"codes of a {kind} are computed by torch, which is not installed: pip install torch"
            )
        hasher = cls()
        hasher._file = kind, content, arrays
        hasher.n_bits = content["init"]["n_bits"]
        hasher.kernel = content["init"].get("kernel", "rbf")
        for name, value in {**content["fitted"], **arrays}.items():
            setattr(hasher, name, np.array(value, object) if name == "feature_names_in_" else value)
        hasher._check_restored()
        return hasher

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learning needs torch."""
        raise UnsupportedError("this hasher was loaded without torch and can only encode: pip install torch to learn")

    def save(self, path: Any) -> None:
        """Write the same file again."""
        modelfile.save(path, *self._file)

    @property
    def fingerprint_(self) -> str:
        """That of the hasher which wrote the file."""
        return modelfile.fingerprint(self._file[0], self._hash_function())

    def _fitted_names(self) -> tuple[str, ...]:
        _, content, arrays = self._file
        known = (*content["fitted"], *arrays)
        return tuple(name for name in known if name not in ("feature_names_in_", "n_features_in_"))

    def _encoder(self) -> Encoder:
        features, function = self._features(), self._function()

        def encode(X: NDArray[Any]) -> NDArray[Any]:
            X = X.astype(self.anchors_.dtype, copy=False)
            blocks = [function(features(X[i : i + ROWS])) for i in range(0, len(X), ROWS)]
            return np.concatenate(blocks) if blocks else np.empty((0, self.n_bits), np.float32)

        return encode

    # --- k(x) and F ---

    def _features(self) -> Encoder:
        """Rows (n, d) → centred features (n, m)."""
        A, gamma, mean = self.anchors_, self.gamma_, self.mean_
        if self.kernel == "linear":
            return lambda X: X - mean
        centre = centre_of(A)
        both = len(mean) > len(A)  # "rbf+linear", by name or as what "auto" stood for
        At, a = (A - centre).T, -gamma * np.square(A - centre).sum(1)

        def features(X: NDArray[Any]) -> NDArray[Any]:
            X = X - centre
            # −γ‖x − a‖² = 2γ x·a − γ‖a‖² − γ‖x‖²
            K = 2 * gamma * (X @ At) + a - gamma * np.square(X).sum(1, keepdims=True)
            K = np.exp(np.minimum(K, 0, out=K), out=K)
            if both:
                linear = gamma**0.5 * X
                length = np.linalg.norm(linear, axis=1, keepdims=True)
                K = np.concatenate([K, linear * (FARTHEST / np.maximum(length, FARTHEST))], 1)
            return np.asarray(K - mean, X.dtype)

        return features

    def _function(self) -> Encoder:
        """Features → F."""
        if not hasattr(self, "frame_"):
            return lambda K: K @ self.W_ + self.intercept_
        B, b, V, offset = self.posterior_B_, self.posterior_b_, self.frame_, self.offset_
        if self.link_ == "softmax":
            return lambda K: softmax(K @ B + b, axis=1) @ V + offset
        power = 1 if self.link_ == "sigmoid_1" else 2
        return lambda K: expit(K @ B + b) ** power @ V + offset


def centre_of(A: NDArray[Any]) -> NDArray[Any]:
    """The mean of the anchors; a far one does not draw it away from the others."""
    squares = np.square(A - A.mean(0)).sum(1)
    if squares.max() <= SPREAD * _lower_median(squares):
        return np.asarray(A.mean(0))
    wide = A.astype(np.float64)
    near = ~outliers(np.square(wide - _lower_median(wide)).sum(1))
    return np.asarray(A[near].mean(0))


def _lower_median(values: NDArray[Any]) -> Any:
    """The median over the first axis; of an even number the lower of the middle two, as torch has it."""
    middle = (len(values) - 1) // 2
    return np.partition(values, middle, axis=0)[middle]
