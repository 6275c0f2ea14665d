"""``DISH.fit(compatible_with=)``: label codes stay bit by bit, new classes are far from all, families, refusals."""

import numpy as np
import pytest

import dish
from dish import DISH, DISHK, DeepDISH, HammingIndex, codes, metrics
from dish.cbcd.codewords import more_codewords
from dish.encoder import geometry_positions
from dish.errors import InputError, ModelMismatchError, UnsupportedError
from dish.io.modelfile import family
from dish.posterior.projection import extended_projection

OPTIONS = {"n_bits": 32, "n_anchors": 30}


def clusters(n, l, seed=0):  # noqa: E741
    """n rows around l centres that overlap a little."""
    rng = np.random.default_rng(seed)
    centres = 2.2 * np.random.default_rng(99).standard_normal((l, 8))
    y = rng.permutation(np.arange(n) % l)
    return (centres[y] + rng.standard_normal((n, 8))).astype(np.float32), y


@pytest.fixture(scope="module")
def data():
    return clusters(360, 9)


@pytest.fixture(scope="module")
def old(data):
    X, y = data
    return DISH(**OPTIONS).fit(X[:200][y[:200] < 7], y[:200][y[:200] < 7])


@pytest.fixture(scope="module")
def new(data, old):
    X, y = data
    return DISH(**OPTIONS, random_state=1).fit(X[:280], y[:280], compatible_with=old)


def label_codes(hasher, labels, X):
    """Codes of labels with the geometry bits of the first rows of X."""
    return hasher.transform(X[: len(labels)], labels=labels)


def test_no_label_code_of_an_old_class_changes(data, old, new):
    X, y = data
    known = y < 7
    np.testing.assert_array_equal(old.transform(X[known], labels=y[known]), new.transform(X[known], labels=y[known]))


def test_geometry_bits_of_new_rows_stay(data, old, new):
    at = geometry_positions(32, old.geometry_.n_bits)
    assert len(at) > 0
    before, after = (codes.unpack(h.transform(data[0]), 32)[:, at] for h in (old, new))
    np.testing.assert_array_equal(before, after)


def test_new_classes_have_codes_of_their_own_far_from_all_others(old, new, data):
    np.testing.assert_array_equal(new.classes_, np.arange(9))
    words = codes.unpack(label_codes(new, np.arange(9), np.repeat(data[0][:1], 9, axis=0)), 32).astype(int)
    class_bits = np.setdiff1d(np.arange(32), geometry_positions(32, old.geometry_.n_bits))
    words = words[:, class_bits]
    distances = (len(class_bits) - words @ words.T) // 2 + 99 * np.eye(9, dtype=int)
    assert distances[7:].min() >= len(class_bits) // 3


def test_the_function_is_learned_anew_and_finds_the_new_classes(data, old, new):
    X, y = data
    q, base = slice(280, 360), slice(0, 280)
    free = DISH(**OPTIONS, random_state=1).fit(X[base], y[base])

    def score(h):
        return metrics.mean_average_precision(h.transform(X[q]), y[q], h.transform(X[base]), y[base])

    assert score(new) >= 0.95 * score(free)
    assert score(new) > score(old) + 0.05  # which knows two classes less
    on = y < 7
    Xq, yq, Xb, yb = X[q][on[q]], y[q][on[q]], X[base][on[base]], y[base][on[base]]
    b = old.transform(Xb)
    assert metrics.mean_average_precision(new.transform(Xq), yq, b, yb) >= 0.99 * metrics.mean_average_precision(
        old.transform(Xq), yq, b, yb
    )


def test_old_classes_without_rows_keep_their_codes(data, old):
    X, y = data
    part = (y > 2) & (np.arange(len(y)) < 280)
    new = DISH(**OPTIONS).fit(X[part], y[part], compatible_with=old)
    np.testing.assert_array_equal(new.classes_, np.arange(9))
    for h in (old, new):
        np.testing.assert_array_equal(label_codes(h, np.arange(7), X), label_codes(old, np.arange(7), X))


def test_families_are_transitive_and_survive_files(data, old, new, tmp_path):
    X, y = data
    third = DISH(**OPTIONS, random_state=2).fit(X, y, compatible_with=new)
    assert len(old.fingerprint_) == 16
    assert {family(h.fingerprint_) for h in (old, new, third)} == {old.fingerprint_}
    assert len({h.fingerprint_ for h in (old, new, third)}) == 3
    third.save(tmp_path / "m.dish")
    assert dish.load(tmp_path / "m.dish").fingerprint_ == third.fingerprint_
    assert "-" not in third.fit(X, y).fingerprint_  # a fit of its own founds a family


def test_a_damaged_family_is_refused(new, tmp_path):
    from dish.io import modelfile

    new.save(tmp_path / "m.dish")
    kind, content, arrays = modelfile.read(tmp_path / "m.dish")
    content["fitted"]["family_"] = "no family"
    modelfile.save(tmp_path / "m.dish", kind, content, arrays)
    with pytest.raises(dish.errors.ModelFileError, match="family_"):
        dish.load(tmp_path / "m.dish")


def test_an_index_takes_codes_of_the_family_and_refuses_others(old, new):
    index = HammingIndex(32, model=old.fingerprint_)
    index.check_model(new.fingerprint_)
    with pytest.raises(ModelMismatchError, match="compatible_with"):
        index.check_model(new.fingerprint_[17:])


def test_a_path_and_the_model_itself_are_allowed(data, old, tmp_path):
    X, y = data
    old.save(tmp_path / "old.dish")
    by_path = DISH(**OPTIONS).fit(X, y, compatible_with=tmp_path / "old.dish")
    itself = dish.load(tmp_path / "old.dish")
    itself.fit(X, y, compatible_with=itself)
    assert by_path.fingerprint_ == itself.fingerprint_
    assert family(itself.fingerprint_) == old.fingerprint_


def test_a_fit_that_fails_leaves_the_model_as_it_was(data, new):
    before = new.fingerprint_
    with pytest.raises(InputError):
        new.fit(data[0], np.full(len(data[0]), "text"), compatible_with=new)
    assert new.fingerprint_ == before


@pytest.mark.long
def test_names_of_classes_may_be_strings_of_any_length(data):
    X, y = data
    names = np.array(["b", "d", "the longest of all", "a", "c", "e", "zz", "aa", "f"])[y]
    some = np.isin(names, ["a", "b", "c", "d"])
    old = DISH(**OPTIONS).fit(X[some], names[some])
    new = DISH(**OPTIONS).fit(X, names, compatible_with=old)
    assert new.classes_.tolist() == sorted(set(names.tolist()))
    np.testing.assert_array_equal(label_codes(old, old.classes_, X), label_codes(new, old.classes_, X))


@pytest.mark.parametrize("kind", ["matrix", pytest.param("tags", marks=pytest.mark.long)])
def test_labels_of_multilabel_rows_keep_their_codes(kind, data):
    X, y = data
    Y = np.eye(9, dtype=np.uint8)[y] | np.eye(9, dtype=np.uint8)[(y * 2 + 1) % 9]

    def labels(Y):  # names in another order than the columns
        return Y if kind == "matrix" else [[f"{'hgfedcbai'[j]}" for j in np.flatnonzero(row)] for row in Y]

    part = Y[:, 7:].sum(1) == 0
    old = DISH(**OPTIONS).fit(X[part], labels(Y[part][:, :7] if kind == "matrix" else Y[part]))
    new = DISH(**OPTIONS).fit(X, labels(Y), compatible_with=old)
    before = old.transform(X[part], labels=labels(Y[part][:, :7] if kind == "matrix" else Y[part]))
    np.testing.assert_array_equal(before, new.transform(X[part], labels=labels(Y[part])))
    assert new.hash_function_.power == old.hash_function_.power


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_bits": 40}, "n_bits = 32"),
        ({"geometry": 3}, "geometry bits"),
        ({"scale": np.full(8, 2.0)}, "scale"),
    ],
)
def test_what_cannot_be_compatible_is_refused(change, message, data, old):
    with pytest.raises(InputError, match=message):
        DISH(**OPTIONS | change).fit(*data, compatible_with=old)


def test_other_rows_labels_and_models_are_refused(data, old, tmp_path):
    X, y = data
    with pytest.raises(InputError, match="n_features_in_ = 8"):
        DISH(**OPTIONS).fit(X[:, :5], y, compatible_with=old)
    with pytest.raises(InputError, match="one label per row"):
        DISH(**OPTIONS).fit(X, np.eye(9, dtype=int)[y] | np.eye(9, dtype=int)[0], compatible_with=old)
    with pytest.raises(InputError, match="another type"):
        DISH(**OPTIONS).fit(X, y.astype(str), compatible_with=old)
    with pytest.raises(InputError, match="got int"):
        DISH(**OPTIONS).fit(X, y, compatible_with=3)
    other = DISHK(n_bits=32, n_anchors=20).fit(X, y)
    other.save(tmp_path / "k.dish")
    for model in (other, tmp_path / "k.dish"):
        with pytest.raises(InputError, match="DISHK"):
            DISH(**OPTIONS).fit(X, y, compatible_with=model)


@pytest.mark.parametrize("kind", [DISHK, DeepDISH])
def test_other_hashers_say_that_they_cannot(kind, data, old):
    with pytest.raises(UnsupportedError, match="DISH can"):
        kind(32).fit(*data, compatible_with=old)


# --- codewords and projection of new classes ---


@pytest.mark.parametrize(("l", "count", "r"), [(0, 3, 8), (4, 6, 12), (40, 10, 24), (14, 2, 4)])
def test_more_codewords_are_distinct(l, count, r):  # noqa: E741
    rng = np.random.RandomState(0)
    every = np.array(list(np.ndindex(*(2,) * r)) if r <= 4 else rng.randint(2, size=(4 * l + 1, r)))
    known = np.unique(every, axis=0)[:l] * 2.0 - 1
    before = known.copy()
    found = more_codewords(known, count, rng)
    np.testing.assert_array_equal(known, before)
    assert len(np.unique(np.concatenate([known, found]), axis=0)) == l + count


def test_more_codewords_are_farther_than_random_ones():
    rng = np.random.RandomState(0)
    known = np.where(rng.random_sample((60, 32)) < 0.5, 1.0, -1.0)

    def nearest(C):
        return min((32 - C[i] @ np.delete(np.concatenate([C, known]), i, 0).T).min() / 2 for i in range(len(C)))

    found = nearest(more_codewords(known, 10, rng))
    assert found > max(nearest(np.where(rng.random_sample((10, 32)) < 0.5, 1.0, -1.0)) for _ in range(20))


def test_extended_projection_has_the_signs_and_is_more_orthogonal_than_random_rows():
    rng = np.random.RandomState(0)
    U = rng.standard_normal((20, 8))
    C = np.where(rng.random_sample((15, 8)) < 0.5, 1.0, -1.0)
    found = extended_projection(U, C, np.random.RandomState(1))
    np.testing.assert_array_equal(np.sign(found), C)

    def condition(rows):
        return np.linalg.cond(np.concatenate([U, rows]))

    assert condition(found) < condition(C * np.abs(np.random.RandomState(1).standard_normal(C.shape)))
