"""Labels of any type as class indices, or as a 0/1 matrix of label sets. Does not load torch.

``as_array`` is the only function that turns labels into an array: fits, metrics, index, stores and files all use it.

A missing label is ``None``, NaN, NaT or pandas' NA (``is_missing``). An index or a store keeps rows without a label.
Learning and scoring need a label for every row: ``encode_classes`` refuses missing ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.errors import InputError

_LISTS = (list, tuple, set, frozenset, np.ndarray)  # a row of tags may be any of these
UNLABELLED = -1  # scikit-learn's mark for a row without a label
MAX_WORDS = 4  # up to 64 · MAX_WORDS labels, label sets are compared as words of 64 bits; beyond, as lists of labels


def as_array(values: Any) -> NDArray[Any]:
    """``values`` as an array that keeps different values different: 1 and "1", True and 1, "a\\0" and "a".

    ``np.asarray`` turns a list of strings and numbers into strings, and drops zero characters at the end of strings.
    """
    if hasattr(values, "detach"):  # a tensor, on any device
        values = values.detach().cpu()
        values = values.float() if "bfloat16" in str(values.dtype) else values  # NumPy has no such type
    elif not isinstance(getattr(values, "dtype", None), np.dtype) and _has_gaps(values):
        values = values.to_pylist() if hasattr(values, "to_pylist") else list(values)
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return object_array(values)
    if not isinstance(values, list | tuple) or array.ndim not in (1, 2):
        return array
    if array.ndim == 2:
        return as_array([next(iter(row)) for row in values])[:, None] if array.shape[1] == 1 else array
    whole = len(values) > 0 and isinstance(values[0], int | np.integer)
    changed = whole and array.dtype.kind not in "biu"  # 2⁶³ and −1 have no integer type in common
    if not changed and len({type(v) for v in values}) <= 1 and array.tolist() == list(values):
        return array
    return object_array(values)


def _has_gaps(column: Any) -> bool:
    """Whether a column of Arrow, polars or pandas has gaps, which NumPy reads as NaN and integers then as floats."""
    if len(getattr(column, "shape", (0,))) != 1:  # a table
        return False
    if hasattr(column, "isna"):
        return bool(column.isna().any())
    gaps = getattr(column, "null_count", 0)
    return bool(gaps() if callable(gaps) else gaps)


def object_array(values: Sequence[Any]) -> NDArray[Any]:
    """An array (n,) of dtype object, whatever the values are."""
    return np.fromiter(values, object, len(values))


def is_missing(values: Any) -> NDArray[np.bool_]:
    """A mask of the missing labels, of the shape of ``values``: ``None``, NaN, NaT and pandas' NA."""
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
    except (TypeError, ValueError):  # pandas' NA has no truth value
        return type(value).__name__ == "NAType"


def without_label(y: Any) -> NDArray[np.bool_]:
    """A mask (n,) of the rows without a label: missing, an empty string, or −1 as scikit-learn's mark."""
    y = as_array(y)
    if y.ndim != 1:
        return np.zeros(len(y), bool)
    missing = is_missing(y)
    if y.dtype.kind in "UO":
        missing |= np.array([isinstance(value, str) and value == "" for value in y.tolist()], bool)
    known = y[~missing]
    if known.dtype.kind == "O" and {_kind(value) for value in known} == {"a number"}:
        known = np.array(known.tolist())
    if known.dtype.kind in "if" and _marks_unlabelled(np.unique(known)):
        missing[~missing] = known == UNLABELLED
    return missing


def encode_classes(y: Any, name: str = "y") -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Labels (n,) of one type → class indices 0 … c−1 (n,) and the sorted classes (c,).

    Labels that could silently merge two classes or add one are refused: missing labels, −1 together with labels ≥ 0
    (scikit-learn's "unlabelled"; −1 and 1 alone are two classes), labels of several types, and floats that are not
    whole or too large to be exact.
    """
    y = _labels_of_all(y, name)
    if y.dtype.kind == "f":
        _check_whole(y, name)
    codes, classes = _number(y, name)
    check_unlabelled(classes, name, codes)
    return codes, classes


def _labels_of_all(y: Any, name: str) -> NDArray[Any]:
    """Labels (n,) of one type. Raises InputError if a row has none."""
    y = _one_column(as_array(y), name)
    missing = is_missing(y)
    if missing.any():
        raise InputError(
            f"{name} has no label (None, NaN or NaT) in {int(missing.sum()):,} rows, the first is row "
            f"{int(missing.argmax())}; learning and scoring need a label for every row. Drop these rows: "
            f"keep = ~dish.labels.is_missing({name}); X[keep], {name}[keep] (dish fit --drop-missing)"
        )
    return _one_kind(y, name)


def _one_column(y: NDArray[Any], name: str) -> NDArray[Any]:
    """Labels (n,) or (n, 1) as (n,), with n > 0."""
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
        raise InputError(f"{name} is empty: at least one label is needed")
    if y.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} must hold classes")
    return y


def _one_kind(y: NDArray[Any], name: str) -> NDArray[Any]:
    """Labels of one type; an array of objects becomes one of numbers where that is exact."""
    if y.dtype.kind != "O":
        return y
    first: dict[str, int] = {}
    for row, value in enumerate(y):
        first.setdefault(_kind(value), row)
    if len(first) > 1:
        (a, i), (b, j) = list(first.items())[:2]
        raise InputError(
            f"{name} mixes types of labels: row {i} is {a} ({y[i]!r}), row {j} is {b} ({y[j]!r}); use one type for "
            f"all labels, for example strings"
        )
    if isinstance(y[0], (*_LISTS, dict)):
        raise InputError(
            f"{name} holds labels of type {type(y[0]).__name__} ({y[0]!r}); pass integers or strings. For several "
            'labels per row pass lists of strings (["red", "round"]), or (n, l) labels of 0 and 1'
        )
    if first.keys() <= {"a number", "a truth value"}:
        plain = np.array(y.tolist())
        has_floats = any(isinstance(value, float | np.floating) for value in y)
        if plain.dtype.kind in ("biuf" if has_floats else "biu") and bool((plain == y).all()):
            return plain
    return y


def _kind(value: Any) -> str:
    """The type of a label, in words. 1, True and "1" are three labels."""
    if isinstance(value, str):
        return "a string"
    if isinstance(value, bool | np.bool_):
        return "a truth value"
    if isinstance(value, int | float | np.integer | np.floating):
        return "a number"
    return f"a {type(value).__name__}"


def _check_whole(y: NDArray[Any], name: str) -> None:
    """Raise InputError for floats that are not whole, or so large that they stand for several whole numbers."""
    if not np.isfinite(y).all():
        raise InputError(f"{name} contains infinity in row {int((~np.isfinite(y)).argmax())}; labels must be finite")
    if not (y == np.round(y)).all():
        raise InputError(
            f"Unknown label type: continuous. {name} holds fractions; labels must be integers or strings"
        )
    digits = np.finfo(y.dtype).nmant + 1
    large = np.abs(y) >= 2.0**digits
    if large.any():
        row = int(large.argmax())
        raise InputError(
            f"{name} holds {y[row]!r} in row {row}, but {y.dtype} is not exact from 2**{digits} on; pass such labels "
            f"as integers or strings"
        )


def _number(y: NDArray[Any], name: str) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Class indices and sorted classes. Integers in a small range are counted instead of sorted."""
    if y.dtype.kind in "iu" and int(y.max()) - int(y.min()) < 4 * len(y):
        low = y.min()
        shifted = (y - low).astype(np.int64) if y.dtype.kind == "u" else y.astype(np.int64) - int(low)
        present = np.bincount(shifted) > 0
        codes = (np.cumsum(present) - 1).astype(np.int32)[shifted]
        return codes, np.flatnonzero(present).astype(y.dtype) + low
    try:
        if y.dtype.kind == "O":
            hash(y[0])  # sets can be compared, by inclusion, but not sorted
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError:
        raise InputError(
            f"{name} holds labels of type {type(y[0]).__name__}, which cannot be sorted; pass integers or strings"
        ) from None
    return codes.astype(np.int32).ravel(), classes


def check_unlabelled(classes: NDArray[Any], name: str = "y", codes: NDArray[np.int32] | None = None) -> None:
    """Raise InputError if "" or −1 (as the only negative class) would be learned as a class. Classes are sorted."""
    where = "" if codes is None else f" (first in row {int((codes == 0).argmax())})"
    if isinstance(classes[0], str) and classes[0] == "" and len(classes) > 1:
        raise InputError(
            f'{name} holds the empty string ""{where}, which is not a label. Drop these rows: keep = {name} != ""; '
            f"X[keep], {name}[keep] (dish fit --drop-missing). If it is a class, give it a name"
        )
    if _kind(classes[0]) == "a number" and _marks_unlabelled(classes):
        raise InputError(
            f"{name} holds -1{where}, scikit-learn's mark for rows without a label, together with labels from "
            f"{classes[1]} on. Drop these rows: keep = {name} != -1; X[keep], {name}[keep]. If -1 is a class, use "
            f"another number for it, or pass all labels as strings"
        )


def _marks_unlabelled(classes: NDArray[Any]) -> bool:
    """Whether −1 among sorted numbers means "no label": the others are ≥ 0, and not just 1."""
    first, *others = classes.tolist() or [0]
    return first == UNLABELLED and bool(others) and others[0] >= 0 and others != [1]


def encode_together(**labels: Any) -> list[NDArray[np.int32]]:
    """Class indices of several arrays of labels, by name, numbered alike. Labels of different kinds are refused."""
    arrays = {name: _labels_of_all(y, name) for name, y in labels.items()}
    kinds = [_kind(y[0]) for y in arrays.values()]
    if len(set(kinds)) > 1:  # True, 1 and "1" are different labels
        raise InputError(f"{' and '.join(arrays)} differ in kind: labels are {' and '.join(kinds)}")
    codes = encode_classes(np.concatenate(list(arrays.values())), "labels")[0]
    return np.split(codes, np.cumsum([len(y) for y in arrays.values()])[:-1])


def class_keys(classes: NDArray[Any]) -> tuple[str, list[Any]]:
    """The type of classes in words, and each class as a string or an integer, to be sent between processes."""
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
    """Whether the rows of y are lists of tags, such as ["red", "round"], of any length. One string is enough."""
    if not isinstance(y, list | tuple) and not _holds_object_array(y):
        return False
    if getattr(y, "ndim", 1) != 1:
        return False
    rows = (row for row in _as_rows(y) if isinstance(row, _LISTS))
    return any(isinstance(tag, str) for row in rows for tag in row)


def _holds_object_array(y: Any) -> bool:
    """Whether the type of a column is object, or a list type of polars or Arrow."""
    kind = str(getattr(y, "dtype", getattr(y, "type", ""))).lower()
    return kind == "object" or kind.startswith(("list", "large_list"))


def _as_rows(y: Any) -> Any:
    """The rows of a column as Python or NumPy values, not Arrow values."""
    return y if isinstance(y, list | tuple) else np.asarray(y)


def tag_names(*tags: Any) -> list[str]:
    """The distinct tags in sorted order: the columns of ``tag_matrix``."""
    return sorted({tag for one in tags for row in _tag_rows(one) for tag in row})


def tag_matrix(*tags: Any) -> list[sp.csr_array]:
    """Lists of tags → 0/1 matrices (n, l) with one column per tag. Several arguments share their columns."""
    rows = [_tag_rows(one) for one in tags]
    names = sorted({tag for one in rows for row in one for tag in row})
    column = {name: j for j, name in enumerate(names)}
    found = []
    for one in rows:
        lists = [sorted({column[tag] for tag in row}) for row in one]
        ends = np.cumsum([0, *map(len, lists)])
        indices = np.array([j for row in lists for j in row], np.int64)
        found.append(sp.csr_array((np.ones(len(indices), np.int8), indices, ends), (len(lists), len(names))))
    return found


def _tag_rows(tags: Any) -> list[Any]:
    """The rows of tags. Raises InputError unless every row is a list of strings; an empty one has no tags."""
    rows = list(_as_rows(tags))
    for i, row in enumerate(rows):
        if not isinstance(row, _LISTS):
            raise InputError(
                f"labels are lists of tags, but row {i} is {row!r}: give a list of strings for every row, [] if it "
                "has no tags"
            )
        for tag in row:
            if not isinstance(tag, str):
                raise InputError(f"tags must be strings, but row {i} holds {tag!r}, {_kind(tag)}")
    return rows


def plain_labels(*labels: Any) -> list[Any]:
    """Labels as arrays (n,) or (n, l); lists of tags become 0/1 matrices, and several share their columns."""
    if any(map(is_tags, labels)):
        return list(tag_matrix(*labels))
    return [y if sp.issparse(y) else as_array(y) for y in labels]


def label_matrix(y: Any) -> sp.csr_array:
    """0/1 labels (n, l), dense or sparse → CSR float64 with sorted indices and without explicit zeros."""
    if not sp.issparse(y) and np.asarray(y).dtype.kind not in "biuf":
        raise InputError(
            f"a 2-D y must hold only 0 and 1, one column per label; it holds {np.asarray(y).dtype}. Pass tags as one "
            'list per row (["red", "round"]), or use sklearn.preprocessing.MultiLabelBinarizer'
        )
    Y = sp.csr_array(y).astype(np.float64)  # a copy
    if Y.shape[0] == 0:
        raise InputError("y is empty: at least one label is needed")
    Y.sum_duplicates()
    if not ((Y.data == 0) | (Y.data == 1)).all():
        raise InputError("a 2-D y must hold only 0 and 1, one column per label; it holds other values")
    Y.eliminate_zeros()
    return Y


def distinct_sets(Y: sp.csr_array) -> tuple[sp.csr_array, NDArray[np.int32]]:
    """The distinct rows of a ``label_matrix``, sorted as binary numbers, and the index of each row among them."""
    return _distinct_words(Y) if Y.shape[1] <= 64 * MAX_WORDS else _distinct_texts(Y)


def _distinct_words(Y: sp.csr_array) -> tuple[sp.csr_array, NDArray[np.int32]]:
    """``distinct_sets`` for few labels: rows are sorted as words of 64 bits, the first column first."""
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
    """``distinct_sets`` for many labels: rows are sorted as byte strings of their labels, counted from the last."""
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
    """The distinct rows of a byte matrix, sorted, and the index of each row among them."""
    keys = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return packed[first], place.ravel()


# --- Labels of new rows ---


def known_labels(labels: Any, classes: NDArray[Any], one_label: bool) -> tuple[sp.csr_array, NDArray[np.bool_], int]:
    """Labels of n rows as a matrix (n, l) over known classes, a mask of the rows with a known label, and how many
    rows have a label that is not known.

    ``labels``: (n,) classes, or for models of label sets (``one_label`` is False) lists of tags or (n, l) numbers
    from 0 to 1. A row without a label, or with an empty set of labels, is not known, and is not counted. A missing
    label of a row that has others stays NaN.
    """
    if one_label:
        return _match_classes(labels, classes)
    if is_tags(labels) or _is_column(labels):
        return _match_tags(labels, classes)
    return _match_matrix(labels, len(classes))


def are_classes(labels: Sequence[Any], classes: NDArray[Any]) -> NDArray[np.bool_]:
    """Which labels are classes, equal in type and value, (n,). Labels may be of any types, also mixed."""
    known = {(_kind(value), value) for value in classes.tolist()}
    return np.fromiter(((_kind(value), value) in known for value in labels), bool, len(labels))


def merged_classes(known: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """The sorted classes of both arrays. Raises InputError if they are of different types."""
    if _kind(known[0]) != _kind(new[0]):
        raise InputError(
            f"y holds labels of another type than the known classes: {_kind(new[0])} ({new[0]!r}) instead of "
            f"{_kind(known[0])} ({known[0]!r})"
        )
    return np.unique(np.concatenate([known, new]))


def _is_column(labels: Any) -> bool:
    return not sp.issparse(labels) and as_array(labels).ndim == 1


def _match_classes(labels: Any, classes: NDArray[Any]) -> tuple[sp.csr_array, NDArray[np.bool_], int]:
    y = as_array(labels)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        raise InputError(f"labels must be (n,) classes, as y was in fit; got shape {y.shape}")
    column = {value: j for j, value in enumerate(classes.tolist())}
    missing = without_label(y)
    missing[missing] = [value not in column for value in y[missing].tolist()]  # −1 may be a class
    given = np.flatnonzero(~missing)
    values = _one_kind(y[given], "labels") if len(given) else y[:0]
    if len(values) and _kind(values[0]) != _kind(classes[0]):
        raise InputError(
            f"labels are of another type than y was in fit: {_kind(values[0])} ({values[0]!r}) instead of "
            f"{_kind(classes[0])} ({classes[0]!r})"
        )
    place = np.array([column.get(value, -1) for value in values.tolist()], np.int64)
    known = np.zeros(len(y), bool)
    known[given[place >= 0]] = True
    ends = np.append(0, np.cumsum(known))
    place = place[place >= 0]
    matrix = sp.csr_array((np.ones(len(place)), place, ends), (len(y), len(classes)))
    return matrix, known, len(given) - len(place)


def _match_tags(labels: Any, classes: NDArray[Any]) -> tuple[sp.csr_array, NDArray[np.bool_], int]:
    """Tags by name; None is a row without tags."""
    rows = _tag_rows([[] if not isinstance(row, _LISTS) and _is_none(row) else row for row in _as_rows(labels)])
    column = {value: j for j, value in enumerate(classes.tolist())}
    lists = [sorted({column[tag] for tag in row if tag in column}) for row in rows]
    unknown = sum(any(tag not in column for tag in row) for row in rows)
    indices = np.array([j for row in lists for j in row], np.int64)
    ends = np.cumsum([0, *map(len, lists)])
    matrix = sp.csr_array((np.ones(len(indices)), indices, ends), (len(lists), len(classes)))
    return matrix, np.diff(ends) > 0, unknown


def _match_matrix(labels: Any, l: int) -> tuple[sp.csr_array, NDArray[np.bool_], int]:  # noqa: E741
    """(n, l) labels from 0 to 1; NaN: not known."""
    Y = labels if sp.issparse(labels) else as_array(labels)
    if Y.ndim != 2 or Y.shape[1] != l or Y.dtype.kind not in "biuf":
        raise InputError(
            f"labels must be (n, {l}) numbers from 0 to 1, one column per label of the fit; got shape {Y.shape} of "
            f"{Y.dtype}"
        )
    Y = sp.csr_array(Y).astype(np.float64)  # a copy
    Y.eliminate_zeros()
    given = Y.data[~np.isnan(Y.data)]
    if len(given) and not (given.min() >= 0 and given.max() <= 1):
        raise InputError(f"labels must be from 0 to 1; they go from {given.min():g} to {given.max():g}")
    positive = sp.csr_array((Y.data > 0, Y.indices, Y.indptr), Y.shape)
    return Y, positive.sum(axis=1) > 0, 0
