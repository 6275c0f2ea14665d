"""Labels of any type → class numbers, or a 0/1 matrix of label sets. No torch: scoring and search load it too.

A missing label is ``None``, NaN, NaT or pandas' NA, everywhere (``is_missing``). An index or a store keeps such rows
without a label. Learning and scoring need a label for every row: ``encode_classes`` refuses them, naming the first.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.errors import InputError

UNLABELLED = -1  # scikit-learn's mark for a row without a label
MOST_WORDS = 4  # of 64 labels, that sets of labels are compared by; with more labels, by the labels themselves


def as_array(values: Any) -> NDArray[Any]:
    """``values`` as an array that keeps apart what was given: 1 and "1", True and 1, "a\\0" and "a".

    ``np.asarray`` turns a list that mixes strings and numbers into strings, and drops zero characters at their end.
    """
    if hasattr(values, "detach"):  # a tensor, on whatever device
        values = values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(
            "labels are lists of several lengths, and their items are no strings: give tags as strings "
            '(["red", "round"]), or (n, l) labels of 0 and 1'
        ) from None
    if not isinstance(values, list | tuple) or array.ndim != 1:
        return array
    if len({type(v) for v in values}) <= 1 and array.tolist() == list(values):
        return array
    kept = np.empty(len(values), object)
    kept[:] = values
    return kept


def is_missing(values: Any) -> NDArray[np.bool_]:
    """Which values stand for no label: ``None``, NaN, NaT or pandas' NA. A mask of the shape of ``values``."""
    values = as_array(values)
    if values.dtype.kind in "fc":
        return np.asarray(np.isnan(values))
    if values.dtype.kind in "mM":
        return np.asarray(np.isnat(values))
    if values.dtype.kind != "O":
        return np.zeros(values.shape, bool)
    return np.array([_is_none(v) for v in values.ravel()], bool).reshape(values.shape)


def _is_none(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)  # NaN and NaT differ from themselves
    except (TypeError, ValueError):  # pandas' NA answers neither yes nor no
        return type(value).__name__ == "NAType"


def without_label(y: Any) -> NDArray[np.bool_]:
    """(n,): the rows without a label: missing ones, empty texts, and −1 where it is scikit-learn's mark for that."""
    y = as_array(y)
    if y.ndim != 1:
        return np.zeros(len(y), bool)
    missing = is_missing(y)
    if y.dtype.kind in "UO":
        missing |= y == ""
    if y.dtype.kind in "if" and (y[~missing] >= UNLABELLED).all():
        missing |= y == UNLABELLED
    return missing


def encode_classes(y: Any, name: str = "y") -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Labels (n,) of one kind → class numbers 0 … c−1 (n,) and the sorted classes (c,).

    Refused, since two classes could silently become one or a class be made up: missing labels, −1 beside labels ≥ 0
    (scikit-learn's "unlabelled"; −1 and 1 alone are two classes), labels of several kinds, and floats that are
    fractions or too large to tell neighbours apart.
    """
    y = _one_column(as_array(y), name)
    missing = is_missing(y)
    if missing.any():
        raise InputError(
            f"{name} has no label (None, NaN or NaT) in row {int(missing.argmax())} and {int(missing.sum())} rows in "
            f"all; learning and scoring need one for every row. Drop them: keep = ~dish.labels.is_missing({name}); "
            f"X[keep], {name}[keep] (dish fit --drop-unlabelled)"
        )
    y = _one_kind(y, name)
    if y.dtype.kind == "f":
        _check_whole(y, name)
    codes, classes = _number(y, name)
    check_unlabelled(classes, name, codes)
    return codes, classes


def _one_column(y: NDArray[Any], name: str) -> NDArray[Any]:
    """(n,) or (n, 1) labels as (n,), not empty."""
    if y.ndim == 2 and y.shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning

        warnings.warn(
            f"A column-vector {name} was passed when a 1d array was expected; it is read as (n,) classes",
            DataConversionWarning,
            stacklevel=4,
        )
        y = y.ravel()
    if y.ndim != 1:
        raise InputError(f"{name} must be (n,) classes or (n, l) labels of 0 and 1; got shape {y.shape}")
    if len(y) == 0:
        raise InputError(f"{name} is empty; at least one labelled row is needed")
    if y.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} must hold classes")
    return y


def _one_kind(y: NDArray[Any], name: str) -> NDArray[Any]:
    """Objects of one kind, as an array of that kind where it has one that keeps them exactly."""
    if y.dtype.kind != "O":
        return y
    first: dict[str, int] = {}
    for row, value in enumerate(y):
        first.setdefault(_kind(value), row)
    if len(first) > 1:
        (a, i), (b, j) = list(first.items())[:2]
        raise InputError(
            f"{name} mixes kinds of labels: row {i} is {a} ({y[i]!r}), row {j} is {b} ({y[j]!r}); give every row a "
            f"label of one kind, for instance all as strings"
        )
    if first.keys() <= {"a number", "a truth value"}:
        plain = np.array(y.tolist())
        if plain.dtype.kind in "biuf" and bool((plain == y).all()):
            return plain
    return y


def _kind(value: Any) -> str:
    """The kind of a label: values of different kinds can be equal, or look equal, without being the same label."""
    if isinstance(value, str):
        return "a string"
    if isinstance(value, bool | np.bool_):
        return "a truth value"
    if isinstance(value, int | float | np.integer | np.floating):
        return "a number"
    return f"a {type(value).__name__}"


def _check_whole(y: NDArray[Any], name: str) -> None:
    """Refuse floats that are no whole numbers, or so large that two whole numbers share one float."""
    if not np.isfinite(y).all():
        raise InputError(f"{name} contains infinity in row {int((~np.isfinite(y)).argmax())}; classes must be finite")
    if not (y == np.round(y)).all():
        raise InputError(
            f"Unknown label type: continuous. {name} holds fractions; classes must be integers or strings"
        )
    digits = np.finfo(y.dtype).nmant + 1
    large = np.abs(y) >= 2.0**digits
    if large.any():
        row = int(large.argmax())
        raise InputError(
            f"{name} holds {y[row]!r} in row {row} as {y.dtype}, which cannot tell whole numbers from 2**{digits} on "
            f"apart; give such labels as integers or strings"
        )


def _number(y: NDArray[Any], name: str) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Class numbers and sorted classes; whole numbers of a small range without a sort."""
    if y.dtype.kind in "iu" and int(y.max()) - int(y.min()) < 4 * len(y):
        low = y.min()
        shifted = (y - low).astype(np.int64) if y.dtype.kind == "u" else y.astype(np.int64) - int(low)
        present = np.bincount(shifted) > 0
        codes = (np.cumsum(present) - 1).astype(np.int32)[shifted]
        return codes, np.flatnonzero(present).astype(y.dtype) + low
    try:
        if y.dtype.kind == "O":
            hash(y[0])  # sets do have an order, by inclusion, but not one to sort by
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError:
        raise InputError(
            f"{name} holds labels of type {type(y[0]).__name__}, which cannot be sorted; give integers or strings"
        ) from None
    return codes.astype(np.int32).ravel(), classes


def check_unlabelled(classes: NDArray[Any], name: str = "y", codes: NDArray[np.int32] | None = None) -> None:
    """Refuse −1 as the only negative one of sorted classes, and "": they would silently be learned as classes."""
    where = "" if codes is None else f" (first in row {int((codes == 0).argmax())})"
    if isinstance(classes[0], str) and classes[0] == "" and len(classes) > 1:
        raise InputError(
            f'{name} holds the empty text ""{where}, which is no label. Drop those rows: keep = {name} != ""; '
            f"X[keep], {name}[keep] (dish fit --drop-unlabelled). If it is a class of its own, give it a name"
        )
    if isinstance(classes[0], str | bytes | bool | np.bool_) or classes.dtype.kind in "mM":
        return
    if classes[0] == UNLABELLED and len(classes) > 1 and classes[1] >= 0 and classes[1:].tolist() != [1]:
        raise InputError(
            f"{name} holds -1{where}, scikit-learn's mark for rows without a label, beside labels from "
            f"{classes[1]} on. Drop those rows: keep = {name} != -1; X[keep], {name}[keep]. If -1 is a class of "
            f"its own, give it another number or all labels as strings"
        )


def class_keys(classes: NDArray[Any]) -> tuple[str, list[Any]]:
    """The kind of some classes, and each as a string or a whole number: what processes tell each other."""
    values = classes.tolist()
    kind = _kind(values[0])
    if kind == "a number":
        return "numbers", [int(v) for v in values]
    if kind == "a truth value":
        return "truth values", [int(v) for v in values]
    if kind == "a string":
        return "strings", values
    return f"of type {kind.removeprefix('a ')}", [str(v) for v in classes]


def is_tags(y: Any) -> bool:
    """Whether the rows of y are collections of tags, such as ["red", "round"], of any length."""
    if not isinstance(y, list | tuple) and not _holds_objects(y):
        return False
    if getattr(y, "ndim", 1) != 1:
        return False
    rows = (row for row in _as_rows(y) if isinstance(row, list | tuple | set | frozenset | np.ndarray))
    return isinstance(next((tag for row in rows for tag in row), None), str)


def _holds_objects(y: Any) -> bool:
    """Whether a column is one of objects, or of lists as polars and Arrow have them, by the name of its type."""
    kind = str(getattr(y, "dtype", getattr(y, "type", ""))).lower()
    return kind == "object" or kind.startswith(("list", "large_list"))


def _as_rows(y: Any) -> Any:
    """The rows of a column as Python's or NumPy's values, not Arrow's."""
    return y if isinstance(y, list | tuple) else np.asarray(y)


def tag_names(*tags: Any) -> list[str]:
    """The distinct tags in sorted order: the columns of ``tag_matrix``."""
    return sorted({tag for one in tags for row in _as_rows(one) if row is not None for tag in row})


def tag_matrix(*tags: Any) -> list[sp.csr_array]:
    """Rows of tags → (n, l) of 0 and 1 each, one column per tag; several sets of rows share their columns."""
    rows = [[() if row is None else row for row in _as_rows(one)] for one in tags]
    names = tag_names(*rows)
    column = {name: j for j, name in enumerate(names)}
    found = []
    for one in rows:
        lists = [sorted({column[tag] for tag in row}) for row in one]
        ends = np.cumsum([0, *map(len, lists)])
        indices = np.array([j for row in lists for j in row], np.int64)
        found.append(sp.csr_array((np.ones(len(indices), np.int8), indices, ends), (len(lists), len(names))))
    return found


def label_matrix(y: Any) -> sp.csr_array:
    """(n, l) labels of 0 and 1, dense or sparse → CSR float64, each row's labels in ascending order, no zeros."""
    if not sp.issparse(y) and np.asarray(y).dtype.kind not in "biuf":
        raise InputError(
            f"a 2-D y must hold only 0 and 1, one column per label; it holds {np.asarray(y).dtype}. Give tags as one "
            'list per row (["red", "round"]), or a matrix made by sklearn.preprocessing.MultiLabelBinarizer'
        )
    Y = sp.csr_array(y).astype(np.float64)  # a copy
    if Y.shape[0] == 0:
        raise InputError("y is empty; at least one labelled row is needed")
    Y.sum_duplicates()
    if not ((Y.data == 0) | (Y.data == 1)).all():
        raise InputError("a 2-D y must hold only 0 and 1 (one column per label); other values were found")
    Y.eliminate_zeros()
    return Y


def distinct_sets(Y: sp.csr_array) -> tuple[sp.csr_array, NDArray[np.int32]]:
    """Distinct rows of a ``label_matrix``, ascending as binary numbers, and which of them each row is."""
    return _distinct_words(Y) if Y.shape[1] <= 64 * MOST_WORDS else _distinct_texts(Y)


def _distinct_words(Y: sp.csr_array) -> tuple[sp.csr_array, NDArray[np.int32]]:
    """A row of few columns as words of 64 bits, the first column first: they sort as the rows do."""
    n = Y.shape[0]
    labelled = np.diff(Y.indptr) > 0
    bits = np.uint64(1) << (63 - Y.indices % 64).astype(np.uint64)
    words = np.zeros((-(-Y.shape[1] // 64), n), np.uint64)
    for w, word in enumerate(words):
        word[labelled] = np.add.reduceat(np.where(Y.indices // 64 == w, bits, np.uint64(0)), Y.indptr[:-1][labelled])
    order = np.lexsort(words[::-1])
    ordered = words[:, order]
    new = np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(0))
    place = np.empty(n, np.int32)
    place[order] = np.cumsum(new) - 1
    return sp.csr_array(Y[order[new]]), place


def _distinct_texts(Y: sp.csr_array) -> tuple[sp.csr_array, NDArray[np.int32]]:
    """O(labels present): a row as the bytes of its labels, counted from the last column: they sort as the rows do."""
    n_labels = Y.shape[1]
    number: dict[bytes, int] = {}
    found = np.empty(Y.shape[0], np.int32)
    for start in range(0, Y.shape[0], 1 << 16):
        ends = Y.indptr[start : start + (1 << 16) + 1].astype(np.int64)
        text = (n_labels - Y.indices[ends[0] : ends[-1]]).astype(">u4").tobytes()
        ends = 4 * (ends - ends[0])
        keys = [text[a:b] for a, b in pairwise(ends.tolist())]
        found[start : start + len(keys)] = [number.setdefault(key, len(number)) for key in keys]
    ordered = sorted(number)
    place = np.empty(len(ordered), np.int32)
    place[[number[key] for key in ordered]] = np.arange(len(ordered))
    labels = n_labels - np.frombuffer(b"".join(ordered), ">u4").astype(np.int64)
    indptr = np.cumsum([0] + [len(key) // 4 for key in ordered])
    return sp.csr_array((np.ones(len(labels)), labels, indptr), shape=(len(ordered), n_labels)), place[found]


def unique_rows(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """Distinct rows of bytes in ascending order, and which of them each row is."""
    keys = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return packed[first], place.ravel()
