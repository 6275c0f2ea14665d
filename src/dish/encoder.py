"""F(x), the hash function of every kernel hasher: features k(x), then one real number per bit.

This is the only implementation. It runs on NumPy arrays and on torch tensors: ``fit`` computes its features with it,
a fitted hasher encodes with it, an installation without torch too, and ``torch.onnx`` can trace it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy.special
from numpy.typing import NDArray

from dish.cuda.tf32 import add_product, split, worth_splitting
from dish.errors import InputError, UnsupportedError
from dish.io.rows import as_tensor
from dish.lazy import Tensor, torch

Array = Any  # a NumPy array or a torch tensor
KernelFunction = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]

ROWS_IN_CACHE = 512  # rows encoded at a time on a CPU: with 1,000 anchors their features take 2 MB
SMALLEST = 1e-3  # of |F| with error diffusion
LONGEST_LINEAR = 8.0  # longer linear features are scaled down to this length, so that outliers do not dominate


# --- The few operations that NumPy and torch spell differently ---


def namespace(x: Array) -> Any:
    """The module (``numpy`` or ``torch``) whose functions take x."""
    return np if isinstance(x, np.ndarray) else torch


def add_scaled_product(c: Array, A: Array, B: Array, scale: float = 1.0, out: Array = None) -> Array:
    """c + scale · A B."""
    if isinstance(A, Tensor):
        return torch.addmm(c, A, B, alpha=scale, out=out)
    product = np.matmul(A, B, out=out)
    product *= A.dtype.type(scale)
    product += c
    return product


def softmax(z: Array) -> Array:
    """Softmax over the columns of each row."""
    return torch.softmax(z, 1) if isinstance(z, Tensor) else scipy.special.softmax(z, axis=1)


def sigmoid(z: Array) -> Array:
    """1 / (1 + exp(−z))."""
    return torch.sigmoid(z) if isinstance(z, Tensor) else scipy.special.expit(z)


def _in_place(K: Array) -> Array:
    """K itself, as the output of an operation on it; None while torch traces, since ONNX has no such outputs."""
    return None if isinstance(K, Tensor) and torch.jit.is_tracing() else K


class _Arrays:
    """A frozen dataclass of arrays that can be moved between NumPy, devices and number types."""

    def mapped(self, convert: Callable[[Array], Array]) -> Self:
        """The same with every array converted."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return replace(self, **{n: convert(v) for n, v in given.items() if isinstance(v, np.ndarray | Tensor)})  # type: ignore[type-var]

    def numpy(self) -> Self:
        """The same with NumPy arrays in row order, as a model file has them: a product depends on the order."""
        return self.mapped(lambda a: np.ascontiguousarray(a.detach().cpu().numpy() if isinstance(a, Tensor) else a))

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Self:
        """The same with torch tensors on a device."""
        return self.mapped(lambda a: torch.as_tensor(a).to(device, dtype))


# --- Features ---


@dataclass(frozen=True)
class FeatureMap(_Arrays):
    """k(x) = φ(x) − mean.

    ``kernel`` is "rbf" with φ(x)_j = exp(−γ‖x − a_j‖²), "linear" with φ(x) = x, "rbf+linear" with both (the linear
    part is √γ (x − centre)), or a function (X, A) → (rows, m). Features of x and a are multiplied by ``scale`` first.
    """

    kernel: str | KernelFunction
    anchors: Array  # (m, d); (0, d) for the linear kernel
    gamma: float
    centre: Array  # (d,): subtracted from rows and anchors, which keeps float32 distances exact
    mean: Array | None = None  # (m,), of the training rows
    scale: Array | None = None  # (d,), a factor for every feature of x; None: 1

    @property
    def m(self) -> int:
        """Number of features."""
        m, d = self.anchors.shape
        return int(d if self.kernel == "linear" else m + d if self.kernel == "rbf+linear" else m)

    @cached_property
    def _centred_anchors(self) -> tuple[Array, ...]:
        """−γ‖a − c‖² (m,), and (A − c)ᵀ (d, m), on a GPU in two parts for TF32 products."""
        A = self._scaled(self.anchors - self.centre)
        parts = split(A) if isinstance(A, Tensor) and worth_splitting(A) else (A,)
        return -self.gamma * (A * A).sum(1), *(part.T for part in parts)

    def __call__(self, X: Array) -> Array:
        """Centred features: (rows, d) → (rows, m)."""
        assert self.mean is not None
        K = self.raw(X)
        if K is X:
            return K - self.mean
        K -= self.mean
        return K

    def raw(self, X: Array, out: Array = None) -> Array:
        """Features before centring, (rows, d) → (rows, m): in ``out`` if that saves a copy, X itself if linear."""
        if callable(self.kernel):
            return self._custom(X)
        if self.kernel == "linear":
            return self._scaled(X)
        X = self.centred(X)
        if self.kernel == "rbf":
            return self._rbf(X, out)
        xp, m = namespace(X), len(self.anchors)
        linear = X * self.gamma**0.5
        length = xp.sqrt((linear * linear).sum(1))[:, None]
        linear *= LONGEST_LINEAR / xp.clip(length, LONGEST_LINEAR, None)
        if out is None:
            return xp.concatenate([self._rbf(X), linear], 1)
        out[:, m:] = linear
        self._rbf(X, out[:, :m])
        return out

    def centred(self, X: Array) -> Array:
        """(x − centre) · scale: the vectors whose geometry the features describe."""
        return self._scaled(X - self.centre)

    def _scaled(self, X: Array) -> Array:
        return X if self.scale is None else X * self.scale

    def _rbf(self, X: Array, out: Array = None) -> Array:
        """exp(−γ‖x − a‖²) of centred rows, by −γ‖x − a‖² = 2γ x·a − γ‖a‖² − γ‖x‖²."""
        xp = namespace(X)
        a, *At = self._centred_anchors
        if len(At) == 1:
            K = add_scaled_product(a, X, At[0], 2 * self.gamma, out)
            K -= self.gamma * (X * X).sum(1)[:, None]
        else:
            K = torch.empty(len(X), len(a), dtype=X.dtype, device=X.device) if out is None else out
            torch.add(a, torch.linalg.vector_norm(X, dim=1, keepdim=True).square(), alpha=-self.gamma, out=K)
            add_product(K, split(X), (At[0], At[1]), alpha=2 * self.gamma)
        K = xp.clip(K, None, 0.0, out=_in_place(K))
        return xp.exp(K, out=_in_place(K))

    def _custom(self, X: Array) -> Array:
        """Features by the user's own kernel function, checked."""
        assert callable(self.kernel)
        scaled = self._scaled(X), self._scaled(self.anchors)
        rows, anchors = (a.cpu().numpy() if isinstance(a, Tensor) else a for a in scaled)
        K = np.array(self.kernel(rows, anchors))  # a copy: the function may have returned its input
        if K.shape != (len(rows), len(anchors)):
            raise InputError(
                f"kernel must return an array of shape {(len(rows), len(anchors))} "
                f"for {len(rows)} rows and {len(anchors)} anchors, got {K.shape}"
            )
        if not np.isfinite(K).all():
            raise InputError("kernel returned NaN or infinity")
        return torch.from_numpy(K).to(X) if isinstance(X, Tensor) else K.astype(X.dtype)


# --- Hash functions ---


class HashFunction(_Arrays):
    """K (rows, m) → F (rows, r). Subclasses are frozen dataclasses whose arrays and values a model file can hold."""

    KINDS: ClassVar[dict[str, type[HashFunction]]] = {}  # class name → class, for reading model files

    def __init_subclass__(cls) -> None:
        HashFunction.KINDS[cls.__name__] = cls

    @abstractmethod
    def __call__(self, K: Array) -> Array:
        """F (rows, r) of centred features."""

    @property
    @abstractmethod
    def n_bits(self) -> int:
        """r."""


@dataclass(frozen=True)
class Linear(HashFunction):
    """F = K W + intercept."""

    W: Array  # (m, r)
    intercept: Array  # (r,)

    @classmethod
    def of(cls, W: Array, intercept: Any = 0.0) -> Self:
        """From W (m, r), and an intercept per bit or one for all."""
        given = np.broadcast_to(np.asarray(intercept, np.float32), W.shape[1:]).copy()
        return cls(W, torch.from_numpy(given).to(W) if isinstance(W, Tensor) else given)

    def __call__(self, K: Array) -> Array:
        """K W + intercept."""
        return K @ self.W + self.intercept

    @property
    def n_bits(self) -> int:
        """Columns of W."""
        return int(self.W.shape[1])


@dataclass(frozen=True)
class Posterior(HashFunction):
    """F = pᵃ V + offset with p = link(K B + b), the probabilities of the labels; perhaps with error diffusion."""

    B: Array  # (m, l)
    b: Array  # (l,)
    V: Array  # (l, r): the projection of probabilities onto bits
    offset: Array  # (r,)
    link: str  # "softmax" if every row has one label, else "sigmoid"
    power: int = 1  # a: 2 gives uncertain labels less weight
    diffused: float = 0.0  # share of the rounding error of a bit that is passed on to later bits

    def probabilities(self, K: Array) -> Array:
        """p (rows, l)."""
        z = add_scaled_product(self.b, K, self.B)
        return softmax(z) if self.link == "softmax" else sigmoid(z)

    def scores(self, K: Array) -> Array:
        """pᵃ (rows, l)."""
        return raised(self.probabilities(K), self.power)

    def __call__(self, K: Array) -> Array:
        """pᵃ V + offset."""
        return projected(self.scores(K), self.V, self.offset, self.diffused)

    @property
    def n_bits(self) -> int:
        """Columns of V."""
        return int(self.V.shape[1])


def raised(p: Array, power: float) -> Array:
    """pᵃ."""
    return p if power == 1 else p * p if power == 2 else p**power


def projected(p: Array, V: Array, offset: Array, diffused: float = 0.0) -> Array:
    """F (n, r) = p V + offset; with error diffusion, F has the signs h of ``diffused_signs``.

    F is then pV + offset where that has the sign h, and nearly zero elsewhere: a query that is not rounded
    (asymmetric search) is not ranked by rounding errors.
    """
    F = add_scaled_product(offset, p, V)
    if diffused == 0:
        return F
    h = diffused_signs(p, V, F, diffused)
    return h * namespace(F).clip(h * F, SMALLEST, None)


def diffused_signs(p: Array, V: Array, F: Array, share: float) -> Array:
    """h (n, r) of ±1: the signs of F (n, r), where each bit passes a share of its rounding error on to later bits.

        h_j = sgn( F_j − share · Σ_l p_l e_l V_lj ) ,   e_l = Σ_{i<j} (h_i − F_i) V_li

    V (l, r) holds ±1, one codeword per class. A row with p = 1 for a class has its codeword.
    """
    xp, P = namespace(p), p.T
    P = np.ascontiguousarray(P) if isinstance(P, np.ndarray) else P.contiguous()
    q, one, found = xp.zeros_like(P), xp.ones_like(F[:, 0]), []  # q (l, n) = p_l e_l
    for f, v in zip(F.T, V.T, strict=True):
        h = xp.where(f - share * (v @ q) >= 0, one, -one)
        q = q + v[:, None] * (P * (h - f))
        found.append(h)
    return xp.stack(found, 1)


@dataclass(frozen=True)
class Classifiers(HashFunction):
    """One fitted scikit-learn classifier per bit, with classes −1 and +1. No model file can hold it."""

    models: list[Any]

    def __call__(self, K: Array) -> Array:
        """The decision values of every classifier, (rows, r)."""
        rows = K.cpu().numpy() if isinstance(K, Tensor) else K
        F = np.stack([decision_values(model, rows) for model in self.models], 1)
        return torch.from_numpy(F) if isinstance(K, Tensor) else F

    @property
    def n_bits(self) -> int:
        """Number of classifiers."""
        return len(self.models)


def decision_values(model: Any, K: NDArray[Any]) -> NDArray[np.float32]:
    """f (n,) of a binary classifier with classes −1 and +1: its decision function, or 2p − 1."""
    if hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(K), np.float32)
    return np.asarray(2 * model.predict_proba(K)[:, 1] - 1, np.float32)


# --- Two kinds of bits ---


def geometry_positions(r: int, g: int) -> NDArray[np.intp]:
    """The positions of g geometry bits among r bits: every prefix of a code has the same share of them."""
    j = np.arange(r)
    return np.flatnonzero((j + 1) * g // r > j * g // r)


def interleaved(F: Array, G: Array) -> Array:
    """Class bits F (n, r − g) and geometry bits G (n, g) in the order of a code, (n, r)."""
    r, g = F.shape[1] + G.shape[1], G.shape[1]
    order = np.empty(r, np.intp)
    at = geometry_positions(r, g)
    order[at] = np.arange(r - g, r)
    order[np.setdiff1d(np.arange(r), at)] = np.arange(r - g)
    if isinstance(F, Tensor):
        return torch.cat([F, G], 1)[:, torch.from_numpy(order).to(F.device)]
    return np.concatenate([F, G], axis=1)[:, order]


# --- Model files ---


def to_arrays(function: HashFunction) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """A hash function as named arrays and as values for JSON, its kind among them."""
    if isinstance(function, Classifiers):
        raise UnsupportedError(
            f"a hasher made of {type(function.models[0]).__name__} classifiers cannot be saved without pickle; "
            "linear classifiers and the built-in losses can"
        )
    given = {f.name: getattr(function.numpy(), f.name) for f in fields(function)}  # type: ignore[arg-type]
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    values = {name: value for name, value in given.items() if name not in arrays}
    if values.get("diffused") == 0:
        del values[
            "diffused"
        ]  # as in files, and in the fingerprints, of models from before there was error diffusion
    return arrays, {"kind": type(function).__name__, **values}


def from_arrays(arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> HashFunction:
    """The inverse of ``to_arrays``."""
    values = dict(values)
    return HashFunction.KINDS[values.pop("kind")](**arrays, **values)


# --- Rows → F ---


@dataclass(frozen=True)
class Recentring(_Arrays):
    """x → (x − mean) · factor + target, feature by feature: it gives shifted rows the means of the training rows."""

    mean: Array  # (d,), of the shifted rows
    factor: Array  # (d,)
    target: Array  # (d,), of the training rows

    def __call__(self, X: Array) -> Array:
        """Rows (n, d) as the hash functions expect them."""
        return (X - self.mean) * self.factor + self.target


@dataclass(frozen=True)
class Encoder:
    """Features, a hash function on them, and perhaps one on x itself: rows X (n, d) → F (n, r)."""

    features: FeatureMap
    function: HashFunction
    geometry: Linear | None = None  # on (x − centre) · scale; its bits tell rows of one class apart
    recentring: Recentring | None = None  # of x, before all else

    def __call__(self, X: Array) -> Array:
        """F of a block of rows."""
        X = self._recentred(X)
        F = self.function(self.features(X))
        return F if self.geometry is None else interleaved(F, self.geometry(self.features.centred(X)))

    def _recentred(self, X: Array) -> Array:
        return X if self.recentring is None else self.recentring(X)

    def to(self, device: torch.device) -> Encoder:
        """The same with torch tensors on a device, all of the anchors' number type."""
        features = self.features.to(device)
        dtype = features.anchors.dtype
        geometry = None if self.geometry is None else self.geometry.to(device, dtype)
        recentring = None if self.recentring is None else self.recentring.to(device, dtype)
        return Encoder(features, self.function.to(device, dtype), geometry, recentring)

    def mapped(self, change: Callable[[Array], Array]) -> Encoder:
        """The same with every array changed."""
        geometry = None if self.geometry is None else self.geometry.mapped(change)
        recentring = None if self.recentring is None else self.recentring.mapped(change)
        return Encoder(self.features.mapped(change), self.function.mapped(change), geometry, recentring)

    @property
    def n_bits(self) -> int:
        """r."""
        return self.function.n_bits + (0 if self.geometry is None else self.geometry.n_bits)

    def decision_values(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """F (n, r) of rows in NumPy, computed a block at a time with the arrays that the encoder has."""
        return self._by_blocks(X, self, self.n_bits)

    def class_values(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """The part of F that depends on the kernel features, (n, r − g), likewise."""
        return self._by_blocks(X, lambda x: self.function(self.features(self._recentred(x))), self.function.n_bits)

    def geometry_values(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """The part of F that depends on x itself, (n, g), likewise."""
        geometry = self.geometry
        if geometry is None:
            return np.empty((len(X), 0), np.float32)
        return self._by_blocks(X, lambda x: geometry(self.features.centred(self._recentred(x))), geometry.n_bits)

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """p (n, l) of the labels, likewise."""
        function = self.function
        assert isinstance(function, Posterior)
        return self._by_blocks(
            X, lambda x: function.probabilities(self.features(self._recentred(x))), len(function.b)
        )

    def _by_blocks(self, X: NDArray[Any], apply: Callable[[Array], Array], width: int) -> NDArray[np.float32]:
        anchors = self.features.anchors
        device = anchors.device if isinstance(anchors, Tensor) else None  # NumPy's device is a string
        out = np.empty((len(X), width), np.float32)
        labels = len(self.function.b) if isinstance(self.function, Posterior) else 0
        for rows in row_blocks(len(X), rows_at_a_time(device, *anchors.shape, labels)):
            if isinstance(anchors, Tensor):
                out[rows] = apply(as_tensor(X[rows]).to(anchors)).cpu().numpy()
            else:
                out[rows] = apply(X[rows].astype(anchors.dtype, copy=False))
        return out


def rows_at_a_time(device: torch.device | None, *widths: int) -> int:
    """Rows per block: as many as fit in cache on a CPU, a quarter of a gigabyte on a GPU."""
    on_cpu = device is None or device.type == "cpu"
    return ROWS_IN_CACHE if on_cpu else max(ROWS_IN_CACHE, (1 << 26) // max(widths))


def row_blocks(n: int, size: int = ROWS_IN_CACHE) -> Iterator[slice]:
    """Slices that cover 0 … n−1."""
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))
