"""Labels: different labels stay different or are refused; what counts as missing."""

import importlib
import re
from datetime import date
from decimal import Decimal

import numpy as np
import pytest
import torch

from dish.errors import InputError
from dish.labels import (
    as_array,
    distinct_sets,
    encode_classes,
    encode_together,
    is_missing,
    label_matrix,
    object_array,
    without_label,
)
from dish.similarity import from_labels

NAT = np.datetime64("NaT")


def named(values):
    """A test id that is the same in every process: without addresses."""
    return re.sub(r" at 0x\w+", "", str(values))


class NAType:
    """Like pandas' NA: comparisons are neither True nor False."""

    def __ne__(self, other):
        return self

    __hash__ = None

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, np.nan, 2.0], [False, True, False]),
        ([None, "a", np.nan, "nan", ""], [True, False, True, False, False]),
        ([np.nan, "a"], [True, False]),
        (np.array(["2020-01-01", "NaT"], "datetime64[D]"), [False, True]),
        (np.array([NAT, np.timedelta64("NaT"), 3], object), [True, True, False]),
        ([NAType(), 1, Decimal("nan")], [True, False, True]),
        (np.array([1, 2]), [False, False]),
        (np.array(["", "None"]), [False, False]),
        (torch.tensor([1.0, torch.nan]), [False, True]),
        ([], []),
    ],
)
def test_missing_labels_are_none_nan_nat_and_na(values, expected):
    assert is_missing(values).tolist() == expected


def test_missing_labels_of_pandas():
    pd = pytest.importorskip("pandas")
    assert is_missing(pd.Series([1, None, 3], dtype="Int64")).tolist() == [False, True, False]
    assert is_missing([pd.NA, "a", pd.NaT]).tolist() == [True, False, True]
    assert is_missing(pd.Categorical(["a", None])).tolist() == [False, True]


@pytest.mark.parametrize(
    "values",
    [
        [1, "1"],
        ["a\0", "a"],
        [True, 1],
        [2**63 + 1, -1],
        [2**63, -1, 0, 1],
        [1, 2.5],
        [b"a\0", b"a"],
        [None, np.inf, "x"],
    ],
)
def test_as_array_keeps_the_values_of_a_list(values):
    for given in (values, [[value] for value in values], [(value,) for value in values]):
        kept = as_array(given)
        assert kept.shape == np.shape(np.array(given, object))
        assert [(type(v), v) for v in kept.ravel().tolist()] == [(type(v), v) for v in values]


@pytest.mark.parametrize(
    "y",
    [
        ["a\0", "a", "a\0"],
        np.array(["a\0", "a", "a"], object),
        [2**53, 2**53 + 1, 2**53],
        [2**63 + 1, -5, 2**70],
        [2**63, -5, 0, 1],
        ["001", "1", "01"],
        [True, False, True],
        [np.uint64(2**64 - 1), np.uint64(2**64 - 2)],
        np.array([2**53, 2**53 + 1], object),
        [date(2020, 1, 1), date(2021, 1, 1)],
        np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"),
        [Decimal("1.5"), Decimal("2.5")],
    ],
    ids=named,
)
def test_classes_are_the_given_labels(y):
    codes, classes = encode_classes(y)
    given = as_array(y)
    assert [classes[c] == v for c, v in zip(codes, given, strict=True)] == [True] * len(given)
    assert len(classes) == len(set(given.tolist()))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, "1", 1], "row 0 is a number .*row 1 is a string"),
        ([True, 1, 0], "row 0 is a truth value .*row 1 is a number"),
        ([[1], [True], [2]], "row 0 is a number .*row 1 is a truth value"),
        (np.array([1.0, True], object), "mixes types"),
        (["a", b"a"], "mixes types"),
        ([date(2020, 1, 1), "2020-01-01"], "mixes types"),
        (np.array([2.0**53, 1.0]), r"float64.*2\*\*53.*integers or strings"),
        (np.array([2.0**24, 1.0], np.float32), r"float32.*2\*\*24"),
        (np.array([2**53 + 1.0, 1], object), r"2\*\*53"),
        ([0.0, np.inf], "infinity in row 1"),
        ([0.5, 1.0], "continuous"),
        ([{1}, {2}, {0}], "type set.*integers or strings"),
        (np.array([object(), object()]), "type object"),
    ],
    ids=named,
)
def test_labels_that_could_merge_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        encode_classes(y)


@pytest.mark.parametrize(
    "y",
    [
        ["a", "b", None, None],
        ["a", "b", np.nan, None],
        [1.0, 2.0, np.nan, np.nan],
        np.array(["2020-01-01", "2021-01-01", "NaT", "NaT"], "datetime64[D]"),
        [1, 2, NAType(), None],
        torch.tensor([1.0, 2.0, torch.nan, torch.nan]),
    ],
    ids=named,
)
def test_missing_labels_are_refused(y):
    for learn in (encode_classes, from_labels):
        with pytest.raises(ValueError, match=r"no label .* in 2 rows, the first is row 2; .*is_missing\(y\)"):
            learn(y)


@pytest.mark.parametrize(
    "y", [[0, 1, -1, 2], [3.0, 1.0, -1.0, 4.0], [0, 0, -1], np.array([5, 6, -1], object)], ids=named
)
def test_minus_one_as_the_mark_of_unlabelled_rows_is_refused(y):
    with pytest.raises(ValueError, match=r"y holds -1 \(first in row 2\).*!= -1.*If -1 is a class"):
        encode_classes(y)


@pytest.mark.parametrize("y", [[-1, 1, 1], [-2, -1, 0], [-1, -1], ["-1", "0", "1"], [-1.0, 1.0]], ids=named)
def test_minus_one_with_negative_or_binary_labels_is_a_class(y):
    codes, classes = encode_classes(y)
    assert classes[codes].tolist() == list(y)


def test_class_indices_are_dense_and_sorted():
    for y in (
        np.array([7, 3, 7, 1000]),
        np.array([7, 3, 7, 10**12]),
        np.array([7, 3, 7, 9], np.uint8),
        [7, 3.0, 7, 9],
    ):
        codes, classes = encode_classes(y)
        assert codes.tolist() == [1, 0, 1, 2]
        assert codes.dtype == np.int32
        assert classes.tolist() == sorted(classes.tolist())


def test_lists_of_tags_become_a_label_matrix(blobs):
    from dish import DISH, metrics
    from dish.labels import is_tags, tag_matrix

    X, y = blobs
    tags = [["a"] if c == 0 else ["b", "c"] if c == 1 else ["c"] for c in y]
    (Y,) = tag_matrix(tags)
    assert Y.toarray()[[0, 40, 80]].tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]
    by_tags, by_matrix = (DISH(8, n_anchors=20).fit(X, given) for given in (tags, Y))
    np.testing.assert_array_equal(by_tags.codes_, by_matrix.codes_)
    assert not is_tags([[0, 1], [1, 0]])
    assert not is_tags(["a", "b"])
    codes = by_tags.transform(X)
    some = [["c"], ["b"]]  # their own numbers would be other columns than the database's
    expected = metrics.mean_average_precision(codes[:2], np.array([[0, 0, 1], [0, 1, 0]]), codes, Y.toarray())
    assert metrics.mean_average_precision(codes[:2], some, codes, tags) == expected


def test_the_empty_string_is_not_a_label():
    with pytest.raises(ValueError, match=r'y holds the empty string "" .first in row 1., which is not a label'):
        encode_classes(["a", "", "b"])
    assert without_label(["a", "", None]).tolist() == [False, True, True]
    assert without_label(np.array(["a", ""])).tolist() == [False, True]


@pytest.mark.parametrize("n_labels", [1, 7, 8, 40, 64, 65, 256, 300])
def test_distinct_sets_are_the_sorted_distinct_rows(n_labels):
    rng = np.random.default_rng(n_labels)
    Y = (rng.random((400, n_labels)) < 2 / n_labels).astype(float)
    Y[5], Y[6] = 0, 1
    sets, index = distinct_sets(label_matrix(Y))
    expected, inverse = np.unique(Y, axis=0, return_inverse=True)
    np.testing.assert_array_equal(sets.toarray(), expected)
    np.testing.assert_array_equal(index, inverse.ravel())


def containers(values):
    """The same labels as a list, a tuple, an array, and columns of pandas, Arrow and polars if they are installed."""
    yield values
    yield tuple(values)
    yield object_array(values)
    for package, column in (("pandas", "Series"), ("pyarrow", "array"), ("polars", "Series")):
        try:
            yield getattr(importlib.import_module(package), column)(values)
        except (ImportError, TypeError, ValueError, OSError):  # pyarrow and polars refuse mixed types themselves
            continue
        except Exception as error:
            if not type(error).__module__.startswith("pyarrow"):
                raise


CODES = np.arange(6, dtype=np.uint8)[:, None]


def fit(y):
    from dish import DISH

    return DISH(8, n_anchors=5).fit(np.random.default_rng(0).normal(size=(6, 3)), y)


def score(y):
    from dish import metrics

    return metrics.mean_average_precision(CODES, y, CODES, y)


@pytest.mark.parametrize("use", [fit, score], ids=["fit", "metrics"])
@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["a", None, "b", "a", "b", "b"], "no label .* in 1 rows, the first is row 1"),
        (["a", float("nan"), "b", "a", "b", "b"], "no label .* in 1 rows, the first is row 1"),
        ([1, None, 2, 2, 1, 1], "no label .* in 1 rows, the first is row 1"),
        ([1, "1", 1, "1", 1, 1], "row 0 is a number .*row 1 is a string"),
        ([True, 1, 2, 2, 1, 1], "row 0 is a truth value .*row 1 is a number"),
    ],
    ids=named,
)
def test_labels_are_refused_alike_in_every_container(use, y, message):
    for given in containers(y):
        with pytest.raises(InputError, match=message):
            use(given)


@pytest.mark.parametrize("use", [fit, score], ids=["fit", "metrics"])
@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([("a", 1), ("b", 2)] * 3, "tags must be strings, but row 0 holds 1"),
        ([(1, 2), (3, 4)] * 3, "must hold only 0 and 1"),
        (object_array([(1, 2), (3, 4)] * 3), r"labels of type tuple \(\(1, 2\)\); pass integers or strings"),
        ([["a"], [1], ["b"]] * 2, "tags must be strings, but row 1 holds 1, a number"),
        ([[1], ["a"], ["b"]] * 2, "tags must be strings, but row 0 holds 1, a number"),
        ([["a"], "bc", ["b"]] * 2, "lists of tags, but row 1 is 'bc'"),
        ([["a"], None, ["b"]] * 2, r"lists of tags, but row 1 is None: .*\[\] if it has no tags"),
        ([["a"], [float("nan")], ["b"]] * 2, "tags must be strings, but row 1 holds nan"),
        ([[1], [1, 2], [2]] * 2, "labels of type list .*pass integers or strings"),
        ([{"a": 1}] * 6, "labels of type dict"),
    ],
    ids=named,
)
def test_tuples_and_mixed_tags_are_refused_with_a_reason(use, y, message):
    with pytest.raises(InputError, match=message):
        use(y)


@pytest.mark.parametrize("y", [["a", "b", "b", "a", "a", "b"], [1, 2, 2, 1, 1, 2], [True, False] * 3], ids=named)
def test_every_container_gives_the_same_classes(y):
    for given in containers(y):
        assert encode_classes(given)[1].tolist() == sorted(set(y))
        assert score(given) == score(y)


def test_the_index_keeps_labels_as_they_are():
    from dish import HammingIndex

    pd = pytest.importorskip("pandas")
    y = [1, None, 2, 2**60 + 1, 1, 1]
    for given in (*containers(y), pd.Series(y, dtype="Int64")):
        if isinstance(given, pd.Series) and given.dtype == float:
            continue  # pandas made them floats
        ix = HammingIndex(8)
        ix.add(CODES, labels=given)
        assert [(type(value), value) for value in ix.labels_of(range(6))] == [(type(value), value) for value in y]
    mixed = [1, "1", True, None, 1.0, "a\0"]
    ix = HammingIndex(8)
    ix.add(CODES, labels=mixed)
    assert list(map(repr, ix.labels_of(range(6)).tolist())) == list(map(repr, mixed))
    for wrong in (
        [("a", 1), ("b", 2)] * 3,
        object_array([(1, 2)] * 6),
        np.array(["2020-01-01"] * 6, "datetime64[ns]"),
    ):
        with pytest.raises(InputError, match="labels must"):
            HammingIndex(8).add(CODES, labels=wrong)


def test_queries_and_rows_must_have_labels_of_one_kind():
    from dish import metrics

    rows = [1, 2, 1, 2, 1, 2]
    for wrong in (["1"], [True], np.array([True], object), [b"1"]):
        with pytest.raises(InputError, match="q_labels and db_labels differ in kind"):
            metrics.mean_average_precision(CODES[:1], wrong, CODES, rows)
    with pytest.raises(InputError, match="db_labels has no label"):
        metrics.mean_average_precision(CODES[:1], ["a"], CODES, ["a", None, "b", "b", "a", "a"])
    assert encode_together(a=[3, 1], b=np.array([1.0, 3.0]))[1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("y", "without"),
    [
        ([-1, 0, 2], [True, False, False]),
        ([-1, 1, 1], [False, False, False]),  # two classes
        ([-2, -1, 0], [False, False, False]),
        ([-1, None, 2, 0], [True, True, False, False]),  # whole numbers with gaps
        ([-1.0, np.nan, 2.0, 0.0], [True, True, False, False]),
        (["-1", "", "a"], [False, True, False]),
        ([None, None], [True, True]),
    ],
    ids=named,
)
def test_rows_without_a_label_are_those_that_a_fit_refuses(y, without):
    assert without_label(y).tolist() == without
    keep = ~np.array(without)
    if keep.any():
        encode_classes(as_array(y)[keep])
