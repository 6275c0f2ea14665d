"""The contract of every hasher: rows in, packed r-bit codes out."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import reprlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import joblib
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dish import codes
from dish.checks import check_integer, check_option
from dish.encoder import Classifiers, HashFunction, from_arrays, to_arrays
from dish.errors import InputError, ModelFileError, UnsupportedError
from dish.io import modelfile
from dish.io.readers import ColumnNames, read_features
from dish.io.row_hashes import RowHashes, check_remembered, remembered, row_hashes
from dish.io.rows import (
    blocks_of,
    check_finite,
    is_blocks,
    is_path,
    is_streamed,
    narrowed,
    number_type,
    too_large,
)
from dish.labels import as_array, known_labels
from dish.metrics.profile import Profile, RowTraits, codeword_distances, shared_codes
from dish.progress import progress

# checked rows (n, d), their label scores (n, l), and which rows have known labels (n,) → F (n, r)
EncodeLabelled = Callable[[Any, sp.csr_array, NDArray[np.bool_]], NDArray[np.float32]]
EncodeRows = Callable[[Any], NDArray[Any]]  # checked rows (n, d) → F (n, r)
OF_TRAINING = ("profile_", "row_hashes_")  # attributes that describe the training rows, and decide no code
FORMER = ("fit_params_", "family_", "batches_", "n_samples_seen_", *OF_TRAINING)  # attributes of an earlier fit
DescribeRows = Callable[[Any], RowTraits]  # checked rows (n, d) → what a profile counts
F_ROWS = 2**15  # rows per block of ``transform``: F is 32 times as large as the codes
CHANGEABLE = ("device", "n_jobs", "verbose", "checkpoint", "memory_budget")  # parameters that decide no code


class Hasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Learns r-bit codes. A subclass has ``n_bits``, ``fit``, ``_decision_values`` and ``_state``.

    ``_state`` lists the fitted attributes (arrays, hash functions, numbers, strings) that make up a saved model.
    """

    n_bits: int
    _needs_y = False
    _most_bits: int | None = None
    classes_: NDArray[Any]
    family_: str | None = None  # of a model that was fitted with compatible_with
    profile_: Profile | None = None  # what is normal; it decides no code and is not part of the fingerprint
    row_hashes_: RowHashes | None = None  # of the training rows, from ``remember_rows``; nor does this
    _state: tuple[str, ...] = ()
    _former_params: tuple[str, ...] = ()  # that old model files still have

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "fit" in vars(cls):
            cls.fit = _all_or_nothing(cls.fit, FORMER)
        if "partial_fit" in vars(cls):
            cls.partial_fit = _all_or_nothing(cls.partial_fit, OF_TRAINING)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self._needs_y
        tags.transformer_tags.preserves_dtype = []  # codes are uint8 whatever the rows are
        return tags

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """F(X), float32 (n, n_bits). The sign of an entry is the bit, its magnitude the confidence."""
        parts = list(self._F_blocks(X))
        return np.concatenate(parts) if parts else np.empty((0, self.n_bits), np.float32)

    def transform(
        self, X: Any, n_bits: int | None = None, *, labels: Any = None, unknown: str = "warn"
    ) -> NDArray[np.uint8]:
        """Packed codes, uint8 (n, ceil(n_bits / 8)).

        ``n_bits``: return only the first bits, a shorter code of the same rows.
        ``labels``: labels of the rows, as y in ``fit``, for hashers that have codes of labels. A row with a known
        label gets the class bits of its label; a row without a label (None, NaN) is encoded from x alone. So is a row
        with a label that was not in ``fit``: ``unknown="warn"`` counts these rows, ``"error"`` refuses them. In a
        matrix (n, l) of labels from 0 to 1, NaN means that x decides this label.
        """
        check_option("unknown", unknown, ("warn", "error"))
        blocks = self._F_blocks(X) if labels is None else self._labelled_blocks(X, labels, unknown)
        parts = [codes.pack(F) for F in blocks]
        packed = np.concatenate(parts) if parts else np.empty((0, codes.n_bytes(self.n_bits)), np.uint8)
        return packed if n_bits is None else codes.prefix(packed, self.n_bits, check_integer("n_bits", n_bits, low=1))

    def _labelled_blocks(self, X: Any, labels: Any, unknown: str) -> Iterator[NDArray[np.float32]]:
        """F of a block of rows at a time, with the class bits of known labels."""
        self._check_fitted()
        encode = self._labelled_encoder()
        P, known = self._known_labels(labels, unknown, stacklevel=5)
        n = 0
        for first, rows in self._encoded_blocks(X):
            n = first + len(rows)
            if n <= len(known):
                yield encode(rows, P[first:n], known[first:n])
        if n != len(known):
            raise InputError(f"X has {n:,} rows, but labels has {len(known):,}; they must be equal")

    def _known_labels(self, labels: Any, unknown: str, stacklevel: int) -> tuple[sp.csr_array, NDArray[np.bool_]]:
        """Label scores (n, l) and a mask of the rows with a known label; unknown labels are counted or refused."""
        P, known, n_unknown = known_labels(labels, self.classes_, self._one_label)
        if n_unknown:
            what = f"labels: {n_unknown:,} of {len(known):,} rows have a label that was not in fit"
            if unknown == "error":
                raise InputError(f"{what}. unknown='warn' encodes these rows from x alone")
            warnings.warn(f"{what}: x alone decides their codes", stacklevel=stacklevel)
        return P, known

    def with_labels(self, packed: Any, labels: Any, *, unknown: str = "warn") -> NDArray[np.uint8]:
        """``transform(X, labels=labels)`` from the codes ``transform(X)``, for labels that are known only later."""
        raise self._no_label_codes()

    def knows_labels(self, labels: Sequence[Any]) -> NDArray[np.bool_]:
        """Which of n labels have codes, (n,): those of one-label rows in ``fit``, equal in type and value.

        It never refuses a label. None has a code if the hasher has no codes of labels, or learned label sets: one
        label does not say the whole set.
        """
        return np.zeros(len(labels), bool)

    def _no_label_codes(self) -> UnsupportedError:
        return UnsupportedError(f"labels: {type(self).__name__} has no codes of labels; DISH and DeepDISH have")

    def _labelled_encoder(self) -> EncodeLabelled:
        """The function that ``transform`` applies to every block of rows with labels."""
        raise self._no_label_codes()

    @property
    def _one_label(self) -> bool:
        """Whether every training row had exactly one label."""
        return True

    def _F_blocks(self, X: Any) -> Iterator[NDArray[np.float32]]:
        """F of a block of rows at a time. Outputs that overflow are an error: NaN would pass for a bit."""
        self._check_fitted()
        encode = self._encoder()
        for first, rows in self._encoded_blocks(X):
            with np.errstate(over="ignore", invalid="ignore"):
                F = encode(rows).astype(np.float32, copy=False)
            if not np.isfinite(F).all():
                row = int(np.flatnonzero(~np.isfinite(F).all(axis=1))[0])
                raise too_large(first + row, float(abs(rows[row]).max()), "the arithmetic of this model")
            yield F

    def _encoded_blocks(self, X: Any) -> Iterator[tuple[int, Any]]:
        """Small blocks of checked rows in the number type of the model, each with the index of its first row."""
        first, kind = 0, self._encoded_dtype
        for X_block in self._checked_blocks(X):
            n = X_block.shape[0]  # sparse rows have no len
            for i in range(0, n, F_ROWS):
                rows = X_block[i : i + F_ROWS]
                yield first + i, rows if kind is None else narrowed(rows, kind, first + i)
            first += n

    @property
    def _encoded_dtype(self) -> np.dtype[Any] | None:
        """The number type in which the model encodes; None: that of the rows."""
        return None

    def _checked_blocks(self, X: Any) -> Iterator[Any]:
        """Checked rows: X as one block, or block by block if it is a memory map, shards, a path or an iterable."""
        if not is_streamed(X):
            yield self._check_X(X, reset=False)
            return
        checker = self
        if is_path(X):
            X, checker = read_features(X, columns=ColumnNames().for_model(self))[0], self.without_names()
        start = 0
        for block in blocks_of(X):
            check_finite(block, start, X)  # names a bad row by its index in all of X
            yield checker._check_X(block, reset=False)
            start += len(block)

    def without_names(self) -> Self:
        """A copy that does not know the names of its features, for rows whose columns are in its order already."""
        same = copy.copy(self)
        same.__dict__.pop("feature_names_in_", None)
        return same

    def _encoder(self) -> EncodeRows:
        """The function that ``transform`` applies to every block, set up once per call."""
        return self._decision_values

    def _decision_values(self, X: NDArray[Any]) -> NDArray[Any]:
        """F of checked rows."""
        raise UnsupportedError(f"{type(self).__name__} defines no decision function")

    # --- what is normal ---

    def row_traits(self, X: Any) -> Iterator[RowTraits]:
        """What a profile counts of rows X (see ``evaluation.drift``), a block at a time."""
        self._check_fitted()
        describe = self._row_describer()
        for _, rows in self._encoded_blocks(X):
            yield describe(rows)

    def _row_describer(self) -> DescribeRows:
        """The function that ``row_traits`` applies to every block, set up once per call."""
        encode, codewords = self._encoder(), shared_codes(self.codes_) if hasattr(self, "codes_") else None
        return lambda rows: self._traits_of_outputs(encode(rows), codewords)

    @staticmethod
    def _traits_of_outputs(F: NDArray[Any], codewords: NDArray[np.uint8] | None) -> RowTraits:
        """Traits of rows with outputs F (n, r), for a hasher that tells nothing but F and perhaps codewords."""
        packed, values = codes.pack(F), {"margin": np.abs(F).mean(1)}
        return RowTraits(
            packed, values if codewords is None else {"distance": codeword_distances(packed, codewords), **values}
        )

    # --- which rows it was trained on ---

    def remember_rows(self, X: Any) -> Self:
        """Keep a 64-bit hash of every training row X, by which ``trained_on`` and ``dish eval`` recognise them.

        X may be read block by block, as in ``fit``. The hashes are saved with the hasher and replace those of an
        earlier call. ``fit`` and ``partial_fit`` remove them. They change neither codes nor the fingerprint.
        """
        self._check_fitted()
        self.row_hashes_ = remembered(list(map(row_hashes, self._checked_blocks(X))))
        return self

    def trained_on(self, X: Any) -> NDArray[np.bool_]:
        """Which rows of X were given to ``remember_rows``, (n,). Rows that are equal as float32 are the same row.

        With N remembered rows, another row is mistaken for one of them with a probability of N / 2⁶⁴.
        """
        self._check_fitted()
        if self.row_hashes_ is None:
            raise InputError(
                f"this {type(self).__name__} does not know its training rows: call remember_rows(X) after fit (dish "
                "fit does, without --no-row-hashes)"
            )
        hashes = [row_hashes(rows) for rows in self._checked_blocks(X)]
        return np.isin(np.concatenate([np.zeros(0, np.uint64), *hashes]), self.row_hashes_)

    @property
    def _n_features_out(self) -> int:
        self._check_fitted()
        return codes.n_bytes(self.n_bits)

    # --- checks ---

    def _check_fitted(self) -> None:
        """Refuse a hasher that is not fitted, or whose parameters are no longer those of its fit."""
        check_is_fitted(self)
        known: dict[str, Any] = getattr(self, "fit_params_", {})
        changed = [name for name, value in known.items() if not _equal(getattr(self, name), value)]
        if changed:
            before = ", ".join(" ".join(f"{name}={reprlib.repr(known[name])}".split()) for name in changed)
            raise InputError(
                f"{', '.join(changed)} changed after fit, which had {before}: call fit again, or change it back"
            )

    def _as_it_was(self, fit: Callable[..., Any], model: Any) -> Any:
        """The model that a fit must be compatible with; a copy if it is this one, which is about to change."""
        if model is not None and "compatible_with" not in inspect.signature(fit).parameters:
            name = type(self).__name__
            raise UnsupportedError(
                f"compatible_with: {name} cannot keep the codes of another model; DISH can. Fit {name} without it, "
                "and encode all rows again"
            )
        return copy.copy(self) if model is self else model

    def _remember_params(self) -> None:
        """Keep the parameters that decide the codes, to notice when they are changed."""
        params = self.get_params(deep=False)
        self.fit_params_ = {name: value for name, value in params.items() if name not in CHANGEABLE}

    def _check_X(self, X: Any, *, reset: bool) -> NDArray[Any]:
        """Rows as a finite float32 or float64 matrix (n, d); with ``reset``, in a fit, at least one."""
        try:
            rows = as_rows(X)
            checked: NDArray[Any] = validate_data(
                self, rows, reset=reset, dtype=number_type(rows), ensure_min_samples=int(reset), order="C"
            )
        except ValueError as error:
            vague = str(error).startswith(("could not convert string", "setting an array element"))
            raise InputError((vague and _why_no_numbers(X)) or str(error)) from None
        return checked

    def _check_n_bits(self) -> int:
        return check_integer("n_bits", self.n_bits, low=1, high=self._most_bits)

    def _require_y(self, y: Any, kinds: str = "give (n,) classes or (n, l) labels of 0 and 1") -> None:
        """Refuse to learn without labels."""
        if y is None:
            name = type(self).__name__
            raise InputError(f"{name} requires y to be passed, but the target y is None: {kinds}")

    # --- files ---

    @property
    def fingerprint_(self) -> str:
        """16 hexadecimal digits that identify the fitted hash function. Only codes with equal ones are comparable.

        A model that was fitted with ``compatible_with`` has two such numbers, FAMILY-OWN. Its codes are comparable
        with those of all models whose fingerprints begin with the same 16 digits.

        A fingerprint is the same on every machine, and for a copy that was saved and loaded.
        ``HammingIndex(model=…)``, ``stores.open(model=…)`` and ``io.code_provenance`` store it with the codes.
        """
        self._check_fitted()
        own = modelfile.fingerprint(type(self).__name__, self._hash_function())
        return own if self.family_ is None else f"{self.family_}-{own}"

    def _hash_function(self) -> dict[str, Any]:
        """The arrays and values that determine the code of a new row."""
        left_out = ("codes_", "objective_", "n_iter_", "classes_")
        names = [name for name in (*self._state, "n_features_in_") if name not in left_out]
        found = {name: getattr(self, name) for name in ("n_bits", "n_neighbors") if hasattr(self, name)}
        for name in names:
            value = getattr(self, name)
            if isinstance(value, Classifiers):
                found[name] = joblib.hash(value.models)
            elif isinstance(value, HashFunction):
                arrays, values = to_arrays(value)
                found |= {f"{name}.{key}": part for key, part in (arrays | values).items()}
            else:
                found[name] = value
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted hasher to one file, atomically and without pickle. ``dish.load`` reads it."""
        self._check_fitted()
        arrays: modelfile.Arrays = {}
        values: dict[str, Any] = {}
        for name in (*self._state, "n_features_in_"):
            value = getattr(self, name)
            if isinstance(value, HashFunction):
                parts, values[name] = to_arrays(value)
                arrays |= {f"{name}.{key}": part for key, part in parts.items()}
            elif name == "classes_":
                values[name] = class_values(value)
            elif isinstance(value, np.ndarray):
                arrays[name] = value
            else:
                values[name] = to_json_value("kernel", value) if name == "kernel_" else value
        if self.family_ is not None:
            values["family_"] = self.family_
        if self.profile_ is not None:
            parts, values["profile_"] = self.profile_.to_arrays()
            arrays |= {f"profile_.{key}": part for key, part in parts.items()}
        if self.row_hashes_ is not None:
            arrays["row_hashes_"] = self.row_hashes_
        if hasattr(self, "feature_names_in_"):
            values["feature_names_in_"] = list(map(str, self.feature_names_in_))
        params = {name: to_json_value(name, value) for name, value in self.get_params(deep=False).items()}
        modelfile.save(path, type(self).__name__, {"init": params, "fitted": values}, arrays)

    @classmethod
    def _restore(cls, content: dict[str, Any], arrays: modelfile.Arrays) -> Self:
        hasher = cls(**{name: value for name, value in content["init"].items() if name not in cls._former_params})
        for name, value in content["fitted"].items():
            if isinstance(value, dict):
                prefix = f"{name}."
                parts = {key.removeprefix(prefix): part for key, part in arrays.items() if key.startswith(prefix)}
                value = Profile.from_arrays(parts, value) if name == "profile_" else from_arrays(parts, value)
            elif isinstance(value, list):
                value = np.array(value, object) if name == "feature_names_in_" else as_array(value)
            setattr(hasher, name, value)
        for name, value in arrays.items():
            if "." not in name:
                setattr(hasher, name, value)
        modelfile.check_fingerprint("family_", hasher.family_)
        check_remembered(hasher.row_hashes_)
        missing = [name for name in cls._state if not hasattr(hasher, name)]
        if missing:
            raise ModelFileError(f"the model file lacks {', '.join(missing)}")
        hasher._check_restored()
        hasher._remember_params()
        return hasher

    def _check_restored(self) -> None:
        """Refuse arrays whose shapes do not match: encoding one row must give n_bits values."""
        d, widths = check_integer("n_features_in_", self.n_features_in_, low=1), set[int]()
        for name in self._state:
            widths.update(np.shape(getattr(self, name)))
        if d > 2**24 and d not in widths:  # a forged number: such a row might not fit in memory
            raise InputError(f"no array has the {d:,} features of a row")
        trial = copy.copy(self)
        if hasattr(trial, "device"):
            trial.device = "cpu"  # this machine may lack the GPU of the one that wrote the file
        shape = trial._encoder()(np.zeros((1, d), np.float32)).shape
        if shape != (1, self._check_n_bits()):
            raise InputError(f"one row gives outputs of shape {shape}, not {(1, self.n_bits)}")


def _all_or_nothing(fit: Callable[..., Any], former: tuple[str, ...] = ()) -> Callable[..., Any]:
    """``fit`` of a hasher that remembers its parameters; if it fails, the hasher is left as it was.

    ``former``: attributes of an earlier fit that it removes first.
    """

    @functools.wraps(fit)
    def complete(self: Hasher, *args: Any, **options: Any) -> Any:
        before = self.__dict__.copy()
        if "compatible_with" in options:
            options["compatible_with"] = self._as_it_was(fit, options["compatible_with"])
        for name in former:
            self.__dict__.pop(name, None)
        try:
            with progress(type(self).__name__):
                fit(self, *args, **options)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        self._remember_params()
        return self

    return complete


def _equal(a: Any, b: Any) -> bool:
    """Whether two values of a parameter are the same object, or equal numbers, strings or arrays."""
    return a is b or bool(np.array_equal(a, b))


def as_rows(X: Any) -> Any:
    """Tensors, shards, iterables of row blocks and columns of vectors as one array; anything else unchanged."""
    if hasattr(X, "detach"):
        X = X.detach().cpu()
        return (X.float() if str(X.dtype) == "torch.bfloat16" else X).numpy()  # NumPy has no such type
    if is_blocks(X):
        blocks = [np.asarray(block) for block in X]
        widths = {b.shape[1:] for b in blocks}
        if len(widths) != 1:
            raise InputError(f"X: the row blocks have different widths ({sorted(widths)}), or there are no blocks")
        return np.concatenate(blocks)
    shape = getattr(X, "shape", (0,))  # Arrow's columns have none
    if hasattr(X, "__array__") and (len(shape) == 1 or tuple(shape[1:]) == (1,)):
        vectors = np.asarray(X)
        if vectors.dtype == object and len(vectors) and np.ndim(vectors.flat[0]) == 1:
            return _stacked(vectors.ravel())
    return X


def _stacked(vectors: NDArray[Any]) -> NDArray[Any]:
    """A column of vectors (from a data frame or Arrow) as one matrix."""
    d = len(vectors[0])
    for row, vector in enumerate(vectors):
        if np.shape(vector) != (d,):
            raise InputError(
                f"X: all vectors in a column must have the same length; row 0 has {d} numbers, row {row} has shape "
                f"{np.shape(vector)}"
            )
    return np.stack(vectors.tolist())


def _why_no_numbers(X: Any) -> str:
    """Explain what X holds instead of numbers and what to do; empty if unknown."""
    if hasattr(X, "columns"):
        kinds = {name: _first(X[name]) for name in X.columns}
        vectors = [name for name, one in kinds.items() if np.ndim(one) == 1]
        texts = [name for name, one in kinds.items() if isinstance(one, str)]
        if len(vectors) == 1:
            return (
                f"X has a column of vectors, {vectors[0]!r}, among others: pass only that column, X[{vectors[0]!r}]"
            )
        if texts:
            return f"X must hold numbers, but its columns {texts} hold text: drop them, or encode them as numbers"
        return ""
    one = _first(X)
    if isinstance(one, str):
        shown = str(one if len(one) < 40 else one[:40] + "…")
        return f"X must hold vectors, but it holds text ({shown!r}): embed the texts first"
    if np.ndim(one) == 1 and (lengths := {np.shape(row) for row in X}) and len(lengths) > 1:
        return (
            f"X must hold vectors of one length; it has lengths {', '.join(str(n[0]) for n in sorted(lengths)[:5])}"
        )
    return ""


def _first(X: Any) -> Any:
    """The first entry of X (of its first row if rows are arrays); None if X is empty."""
    for row in X:
        return row.flat[0] if isinstance(row, np.ndarray) and row.dtype.kind in "UO" and row.size else row
    return None


def class_values(classes: NDArray[Any]) -> list[Any]:
    """Classes as JSON values. Raises UnsupportedError for times, bytes and other types that a file would change."""
    values = [label.item() if isinstance(label, np.generic) else label for label in classes]
    other = next((value for value in values if not isinstance(value, str | int | float)), None)
    if other is not None or classes.dtype.kind in "mM":  # times in nanoseconds would be whole numbers
        kind = classes.dtype if classes.dtype.kind != "O" else type(other).__name__
        raise UnsupportedError(
            f"y holds labels of type {kind}, which a model file cannot hold: pass strings or integers"
        )
    return values


def to_json_value(name: str, value: Any) -> Any:
    """A parameter as a JSON value; other objects are stored by their description."""
    if isinstance(value, np.generic):
        return value.item()
    if name == "checkpoint" or value is None:
        return None  # a loaded model must not write to the folder of another fit
    if isinstance(value, str | int | float | bool):
        return value
    if name == "kernel":
        raise UnsupportedError("a hasher with a custom kernel function cannot be saved: model files hold no code")
    if name == "random_state":
        return None  # the state of a generator is not stored
    if isinstance(value, np.ndarray) or sp.issparse(value):
        return f"array of shape {value.shape}"
    return repr(value)
