"""The contract of every hasher: rows in, packed r-bit codes out."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dish import codes
from dish.checks import check_integer
from dish.errors import InputError, ModelFileError, UnsupportedError
from dish.io import modelfile
from dish.io.readers import read_features
from dish.io.rows import blocks_of, check_finite, is_blocks, is_path, is_streamed
from dish.machine import threads_in_use

Encoder = Callable[[Any], NDArray[Any]]


class Hasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Learns r-bit codes. A subclass has ``n_bits``, ``fit``, ``_decision_values`` and names its arrays.

    ``_state`` lists the fitted attributes (arrays, numbers, strings) that make up a saved model.
    """

    n_bits: int
    _needs_y = False
    _most_bits: int | None = None
    _state: tuple[str, ...] = ()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self._needs_y
        tags.transformer_tags.preserves_dtype = []  # codes are uint8 whatever the rows are
        return tags

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """F(X), float32 (n, n_bits): the sign of an entry is the bit, its size how sure it is."""
        check_is_fitted(self)
        encode = self._encoder()
        if is_streamed(X):
            parts = [_float32(encode(self._check_X(block, reset=False))) for block in self._blocks(X)]
            return _joined(parts, self.n_bits, np.float32)
        X = self._check_X(X, reset=False)
        return _float32(encode(X)) if X.shape[0] else np.empty((0, self.n_bits), np.float32)

    def transform(self, X: Any, n_bits: int | None = None) -> NDArray[np.uint8]:
        """Packed codes, uint8 (n, ceil(n_bits / 8)) = ``np.packbits(decision_function(X) >= 0, axis=1)``.

        ``n_bits``: only the first so many bits, which are a shorter code of the same rows.
        """
        check_is_fitted(self)
        packed = self._packed(X)
        return packed if n_bits is None else codes.prefix(packed, self.n_bits, check_integer("n_bits", n_bits, low=1))

    def _packed(self, X: Any) -> NDArray[np.uint8]:
        """Packed codes of rows wherever they are."""
        encode = self._encoder()
        if is_streamed(X):  # a memory-map, shards, a path, blocks: never all of them at once
            parts = [self._pack(block, encode) for block in self._blocks(X)]
            return _joined(parts, codes.n_bytes(self.n_bits), np.uint8)
        return self._pack(X, encode)

    def _pack(self, X: Any, encode: Encoder) -> NDArray[np.uint8]:
        """Codes of rows in memory."""
        X = self._check_X(X, reset=False)
        n = X.shape[0]  # a hasher may accept sparse rows, which have no len
        packed = np.empty((n, codes.n_bytes(self.n_bits)), np.uint8)
        for i in range(0, n, 2**15):  # F is 32 times as large as the codes: never all of it at once
            rows = slice(i, i + 2**15)
            packed[rows] = codes.pack(_float32(encode(X[rows])))
        return packed

    @staticmethod
    def _blocks(X: Any) -> Iterator[NDArray[Any]]:
        """Row blocks of what is streamed; a bad row is named by its number among all."""
        X = read_features(X)[0] if is_path(X) else X
        start = 0
        for block in blocks_of(X):
            check_finite(block, start, X)
            yield block
            start += len(block)

    def _encoder(self) -> Encoder:
        """What ``transform`` applies to every block: checked rows → F. Set up once per call."""
        return self._decision_values

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        """F of checked rows."""
        raise UnsupportedError(f"{type(self).__name__} defines no decision function")

    @property
    def _n_features_out(self) -> int:
        return codes.n_bytes(self.n_bits)

    # --- checks ---

    def _check_X(self, X: Any, *, reset: bool) -> NDArray[Any]:
        """Rows as a finite float32 or float64 matrix (n, d); ``reset`` while fitting, which needs at least one."""
        floats = [np.float32, np.float64]
        try:
            checked: NDArray[Any] = validate_data(
                self, as_rows(X), reset=reset, dtype=floats, ensure_min_samples=int(reset), order="C"
            )
        except ValueError as error:
            if not str(error).startswith(("could not convert string", "setting an array element")):
                raise
            raise InputError(_why_no_numbers(X) or str(error)) from None
        return checked

    def _check_n_bits(self) -> int:
        threads_in_use()  # every fit comes by
        return check_integer("n_bits", self.n_bits, low=1, high=self._most_bits)

    def _require_y(self, y: Any, kinds: str = "give (n,) classes or (n, l) labels of 0 and 1") -> None:
        """Refuse to learn without labels what is learned from labels."""
        if y is None:
            name = type(self).__name__
            raise InputError(f"{name} requires y to be passed, but the target y is None: {kinds}")

    # --- files ---

    @property
    def fingerprint_(self) -> str:
        """16 hexadecimal digits for the fitted hash function: codes can be compared only if theirs are the same.

        The same on every machine, and for a copy that was saved and loaded. ``HammingIndex(model=…)``,
        ``PostgresStore(model=…)`` and ``io.codesfile`` keep it beside codes.
        """
        check_is_fitted(self)
        return modelfile.fingerprint(type(self).__name__, self._hash_function())

    def _hash_function(self) -> dict[str, Any]:
        """The arrays and values that decide the code of a new row."""
        fitted = [
            name
            for name in (*self._fitted_names(), "n_features_in_")
            if name not in ("codes_", "objective_", "n_iter_")
        ]
        params = [name for name in ("n_bits", "kernel", "n_neighbors") if hasattr(self, name)]
        return {name: getattr(self, name) for name in (*fitted, *params)}

    def _fitted_names(self) -> tuple[str, ...]:
        """The fitted attributes that make up a saved model: ``_state``, and what this one has beside it."""
        return self._state

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, atomically and without pickle. ``dish.load`` reads it."""
        check_is_fitted(self)
        arrays, values = {}, {}
        for name in (*self._fitted_names(), "n_features_in_"):
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                arrays[name] = value
            else:
                values[name] = value
        if hasattr(self, "feature_names_in_"):
            values["feature_names_in_"] = list(map(str, self.feature_names_in_))
        params = {name: to_json_value(name, value) for name, value in self.get_params(deep=False).items()}
        modelfile.save(path, type(self).__name__, {"init": params, "fitted": values}, arrays)

    @classmethod
    def _restore(cls, content: dict[str, Any], arrays: modelfile.Arrays) -> Self:
        hasher = cls(**content["init"])
        for name, value in {**content["fitted"], **arrays}.items():
            setattr(hasher, name, np.array(value, object) if name == "feature_names_in_" else value)
        missing = [name for name in cls._state if not hasattr(hasher, name)]
        if missing:
            raise ModelFileError(f"the model file lacks {', '.join(missing)}")
        hasher._check_restored()
        return hasher

    def _check_restored(self) -> None:
        """Refuse arrays that do not fit each other: one row must get a code of n_bits."""
        d, widths = check_integer("n_features_in_", self.n_features_in_, low=1), set[int]()
        for name in self._fitted_names():
            widths.update(np.shape(getattr(self, name)))
        if d > 2**24 and d not in widths:  # a number made up: a row of that many might not fit in memory
            raise InputError(f"no array has the {d:,} features of a row")
        trial = copy.copy(self)
        if hasattr(trial, "device"):
            trial.device = "cpu"  # the GPU of the machine that wrote the file may not be here
        shape = trial._encoder()(np.zeros((1, d), np.float32)).shape
        if shape != (1, self._check_n_bits()):
            raise InputError(f"a row gets outputs of shape {shape}, not {(1, self.n_bits)}")


def _float32(F: NDArray[Any]) -> NDArray[np.float32]:
    return F.astype(np.float32, copy=False)


def as_rows(X: Any) -> Any:
    """Tensors, shards, iterables of row blocks and columns of vectors as one array; anything else as it is."""
    if hasattr(X, "detach"):
        X = X.detach().cpu()
        return (X.float() if str(X.dtype) == "torch.bfloat16" else X).numpy()  # NumPy has no such type
    if is_blocks(X):
        blocks = [np.asarray(block) for block in X]
        widths = {b.shape[1:] for b in blocks}
        if len(widths) != 1:
            raise InputError(f"X: the row blocks differ in shape ({sorted(widths)}), or there are none")
        return np.concatenate(blocks)
    shape = getattr(X, "shape", (0,))  # Arrow's columns have none
    if hasattr(X, "__array__") and (len(shape) == 1 or tuple(shape[1:]) == (1,)):
        vectors = np.asarray(X)
        if vectors.dtype == object and len(vectors) and np.ndim(vectors.flat[0]) == 1:
            return _stacked(vectors.ravel())
    return X


def _stacked(vectors: NDArray[Any]) -> NDArray[Any]:
    """A column of vectors, as data frames and Arrow hold them, as one matrix."""
    d = len(vectors[0])
    for row, vector in enumerate(vectors):
        if np.shape(vector) != (d,):
            raise InputError(
                f"X: a column of vectors must hold vectors of one length; row 0 has {d} numbers, but row {row} is of "
                f"shape {np.shape(vector)}"
            )
    return np.stack(vectors.tolist())


def _why_no_numbers(X: Any) -> str:
    """What is in X where numbers should be, and what to do about it; empty if that cannot be told."""
    if hasattr(X, "columns"):
        kinds = {name: _first(X[name]) for name in X.columns}
        vectors = [name for name, one in kinds.items() if np.ndim(one) == 1]
        texts = [name for name, one in kinds.items() if isinstance(one, str)]
        if len(vectors) == 1:
            return f"X has a column of vectors, {vectors[0]!r}, beside others: pass it alone, X[{vectors[0]!r}]"
        if texts:
            return (
                f"X must hold numbers, but its columns {texts} hold text: leave them out, or encode them as numbers"
            )
        return ""
    one = _first(X)
    if isinstance(one, str):
        shown = str(one if len(one) < 40 else one[:40] + "…")
        return f"X must hold vectors, but it holds text ({shown!r}): turn texts into vectors first, by an encoder"
    if np.ndim(one) == 1 and (lengths := {np.shape(row) for row in X}) and len(lengths) > 1:
        return (
            f"X must hold vectors of one length; it holds some of {', '.join(str(n[0]) for n in sorted(lengths)[:5])}"
        )
    return ""


def _first(X: Any) -> Any:
    """The first entry, of the first row where rows are arrays; None if there is none."""
    for row in X:
        return row.flat[0] if isinstance(row, np.ndarray) and row.dtype.kind in "UO" and row.size else row
    return None


def _joined(parts: list[NDArray[Any]], width: int, dtype: Any) -> NDArray[Any]:
    """What was made of the blocks of X; of no rows, no rows."""
    return np.concatenate(parts) if parts else np.empty((0, width), dtype)


def to_json_value(name: str, value: Any) -> Any:
    """A parameter as a JSON value; objects that JSON cannot hold are kept by their description."""
    if isinstance(value, np.generic):
        return value.item()
    if name == "checkpoint" or value is None:
        return None  # the folder of one fit is not another's
    if isinstance(value, str | int | float | bool):
        return value
    if name == "kernel":
        raise UnsupportedError("a hasher with a kernel function of your own cannot be saved: files hold no code")
    if name == "random_state":
        return None  # a generator's state is not kept
    if isinstance(value, np.ndarray) or sp.issparse(value):
        return f"array of shape {value.shape}"
    return repr(value)
