"""Codes of labels: ``codes_`` equals ``transform(X, labels=y)``, for every kind of labels and any number of rows."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import dish
from dish import DISH, DISHD, DeepDISH, codes
from dish.errors import InputError, UnsupportedError
from dish.label_codes import ClassBits
from helpers.deep import patches, tiny


def quietly(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few anchors, few rows, a network that has learned little
        return function(*args, **options)


def fitted(kind, X, y, n_bits=24):
    if kind is DISH:
        return quietly(DISH(n_bits, n_anchors=20).fit, X, y)
    return quietly(DeepDISH(n_bits, epochs=1, n_iter=1, batch_size=512, device="cpu").fit, X, y)


def rows_of(y, d=6):
    rng = np.random.default_rng(0)
    return (rng.standard_normal((len(y), d)) + 3 * rng.standard_normal((y.max() + 1, d))[y]).astype(np.float32)


def sets(n, l=5, seed=0):  # noqa: E741
    """Labels (n, l) of 0 and 1; some rows have none."""
    return (np.random.default_rng(seed).random((n, l)) < 0.3).astype(np.uint8)


def tags(Y):
    """The same labels as lists of names."""
    return [[f"tag {j}" for j in np.flatnonzero(y)] for y in Y]


LABELS = {  # (number of classes, rows per class)
    "1 row per class": (20, 1),
    "5 rows per class": (20, 5),
    "5,000 rows per class": (2, 5000),
    "2 classes": (2, 40),
    "1,000 classes": (1000, 1),
}


@pytest.mark.parametrize("kind", [DISH, DeepDISH])
@pytest.mark.parametrize("case", LABELS)
def test_codes_of_classes(kind, case, tmp_path):
    n_classes, per_class = LABELS[case]
    place = np.random.default_rng(1).permutation(np.repeat(np.arange(n_classes), per_class))
    y = np.array([f"class {c:04}" for c in range(n_classes)])[place]
    X = rows_of(place)
    hasher = fitted(kind, X, y)
    np.testing.assert_array_equal(hasher.classes_[place], y)
    np.testing.assert_array_equal(hasher.transform(X, labels=y), hasher.codes_)
    from_x = hasher.transform(X)
    np.testing.assert_array_equal(hasher.transform(X, labels=[None] * len(X)), from_x)
    np.testing.assert_array_equal(hasher.with_labels(from_x, y), hasher.codes_)
    assert hasher.knows_labels([y[0], "another", 0]).tolist() == [True, False, False]
    hasher.save(tmp_path / "m.dish")
    np.testing.assert_array_equal(dish.load(tmp_path / "m.dish").transform(X[:9], labels=y[:9]), hasher.codes_[:9])
    if kind is DeepDISH:  # all bits are class bits: rows of one class share a code, other classes have others
        pairs = np.unique(np.c_[place, hasher.codes_], axis=0)
        assert len(pairs) == n_classes
        assert len(np.unique(pairs[:, 1:], axis=0)) > 0.95 * n_classes


@pytest.mark.parametrize("kind", [DISH, DeepDISH])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, tags])
@pytest.mark.parametrize("n", [60, 600])
def test_codes_of_label_sets(kind, form, n):
    Y = sets(n)
    X = (Y @ np.random.default_rng(2).standard_normal((5, 6))).astype(np.float32)
    X += 0.3 * np.random.default_rng(3).standard_normal(X.shape).astype(np.float32)
    hasher = fitted(kind, X, form(Y))
    np.testing.assert_array_equal(hasher.transform(X, labels=form(Y)), hasher.codes_)
    empty = Y.sum(1) == 0
    assert empty.any()
    np.testing.assert_array_equal(hasher.codes_[empty], hasher.transform(X[empty]))
    if kind is DeepDISH:
        head = hasher.model_.head
        expected = codes.pack(Y[~empty].astype(float) ** head.power @ head.V.numpy() + head.offset.numpy())
        np.testing.assert_array_equal(hasher.codes_[~empty], expected)


def graded(n):
    """Labels between 0 and 1, a third of which are missing."""
    rng = np.random.default_rng(4)
    Y = np.where(sets(n, seed=5) > 0, 0.9, 0.05)
    X = (Y @ rng.standard_normal((5, 6))).astype(np.float32)
    return X, np.where(rng.random(Y.shape) < 1 / 3, np.nan, Y)


@pytest.mark.parametrize("n", [60, 600])
def test_codes_of_graded_and_missing_labels(n, tmp_path):
    """Known labels are p; x decides the missing ones."""
    X, Y = graded(n)
    Y[:3] = np.nan
    hasher = fitted(DeepDISH, X, Y)
    np.testing.assert_array_equal(hasher.transform(X, labels=Y), hasher.codes_)
    np.testing.assert_array_equal(hasher.codes_[:3], hasher.transform(X[:3]))
    hasher.save(tmp_path / "m.dish")
    np.testing.assert_array_equal(dish.load(tmp_path / "m.dish").transform(X, labels=Y), hasher.codes_)
    with pytest.raises(InputError, match=r"rows have labels that are partly missing \(NaN\).* use transform"):
        hasher.with_labels(hasher.codes_, Y)
    head, unknown = hasher.model_.head, np.isnan(Y).any(1)
    full = np.nan_to_num(Y[~unknown]) ** head.power @ head.V.double().numpy() + head.offset.numpy()
    np.testing.assert_array_equal(hasher.codes_[~unknown], codes.pack(full))
    nothing = np.full_like(Y, np.nan)
    nothing[:, 0] = Y[:, 0] = 1  # one label is known: the others come from x
    some = codes.unpack(hasher.transform(X, labels=nothing), 24)
    as_zero = codes.unpack(hasher.transform(X, labels=np.nan_to_num(nothing)), 24)
    assert (some != as_zero).any()


def test_dish_takes_graded_labels_of_rows_that_it_did_not_learn_from():
    Y = sets(400)
    X = (Y @ np.random.default_rng(2).standard_normal((5, 6))).astype(np.float32)
    hasher = quietly(DISH(16, n_anchors=20, geometry=0).fit, X, Y)
    function, given = hasher.hash_function_, np.where(Y > 0, 0.8, 0.1)
    expected = given**function.power @ np.float64(function.V) + function.offset
    np.testing.assert_array_equal(hasher.transform(X, labels=given), codes.pack(expected))
    p = hasher.predict_proba(X[:5])
    np.testing.assert_array_equal(
        hasher.transform(X[:5], labels=np.c_[np.ones(5), np.full((5, 4), np.nan)]),
        codes.pack(np.c_[np.ones(5), p[:, 1:]] ** function.power @ np.float64(function.V) + function.offset),
    )
    with pytest.raises(InputError, match="must hold only 0 and 1"):
        DISH(16).fit(X, given)


def test_missing_labels_are_filled_by_the_scores_of_x():
    V, offset = np.random.default_rng(0).standard_normal((3, 4)), np.array([0.1, -0.2, 0.3, 0.0])
    Y = np.array([[1.0, 0.5, np.nan], [0, 0, 0], [0, 0.5, 0]])
    p = np.array([[0.3, 0.2, 0.7], [0.1, 0.9, 0.4], [0.6, 0.6, 0.6]])
    asked = []

    def scores(rows):
        asked.append(rows.tolist())
        return p[rows] ** 2

    of_classes = ClassBits(V, offset, 2, scores, lambda rows: p[rows] ** 2 @ V + offset)
    F = of_classes(np.arange(3), sp.csr_array(Y), np.array([True, False, True]))
    filled = np.array([[1.0, 0.5, 0.7], p[1], [0, 0.5, 0]])
    np.testing.assert_allclose(F, filled**2 @ V + offset, rtol=1e-6)
    assert asked == [[0]]


@pytest.mark.parametrize("freeze", [False, True])
def test_images(freeze):
    X, y = patches(60, 0)
    hasher = quietly(tiny(freeze=freeze, weights="own" if freeze else None, epochs=1, n_iter=0).fit, X, y + 3)
    np.testing.assert_array_equal(hasher.classes_, [3, 4, 5, 6])
    np.testing.assert_array_equal(hasher.transform(X, labels=y + 3), hasher.codes_)
    head = hasher.model_.head
    np.testing.assert_array_equal(codes.pack((head.V + head.offset).numpy())[y], hasher.codes_)
    with pytest.warns(UserWarning, match="labels: 1 of 2 rows have a label that was not in fit"):
        found = hasher.transform(X[:2], labels=[8, y[1] + 3])
    np.testing.assert_array_equal(found, np.concatenate([hasher.transform(X[:1]), hasher.codes_[1:2]]))
    np.testing.assert_array_equal(hasher.transform(X, n_bits=8, labels=y + 3), hasher.codes_[:, :1])


def test_a_column_of_classes_is_read_as_in_fit(digits):
    X, y, _, _ = digits
    hasher = quietly(DeepDISH(8, epochs=1, n_iter=0, device="cpu").fit, X[:80], y[:80, None])
    np.testing.assert_array_equal(hasher.codes_, hasher.transform(X[:80], labels=y[:80]))
    np.testing.assert_array_equal(hasher.codes_, hasher.transform(X[:80], labels=y[:80, None]))


def test_models_without_codes_of_labels_say_so(digits):
    X, y, _, _ = digits
    paper = quietly(DISHD(8, net="mlp", epochs=1, n_iter=0, device="cpu").fit, X[:80], y[:80])
    with pytest.raises(UnsupportedError, match="DISHD has no codes of labels; DISH and DeepDISH have"):
        paper.transform(X[:2], labels=y[:2])
    old = quietly(DeepDISH(8, epochs=1, n_iter=0, device="cpu").fit, X[:80], y[:80])
    del old.classes_  # as in a file of an earlier version
    with pytest.raises(UnsupportedError, match="saved without the names of its labels; fit it again"):
        old.transform(X[:2], labels=y[:2])
    assert not old.knows_labels([0, 1]).any()


def test_deep_dish_refuses_labels_that_a_file_cannot_hold(digits):
    X, y, _, _ = digits
    with pytest.raises(UnsupportedError, match="which a model file cannot hold"):
        DeepDISH(8, epochs=1, device="cpu").fit(X, np.datetime64("2020-01-01") + y)
