"""DISH: class probabilities and codes, what it refuses, its solvers as pure functions, and codes of labels."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import dish
from dish import DISH, DISHK, HammingIndex, codes, metrics
from dish.cbcd.codewords import class_codewords
from dish.encoder import Posterior, geometry_positions
from dish.errors import InputError, UnsupportedError
from dish.io.rows import RowSource
from dish.kernel.fit_data import FitData
from dish.posterior import dish as module
from dish.posterior import regression
from dish.posterior.dish import fit_to_labels
from dish.similarity import from_labels, nystroem


def clusters(n, l, d=6, seed=0, spread=1.0):  # noqa: E741
    """n rows around l centres that overlap a little."""
    rng = np.random.default_rng(seed)
    centres = 2.5 * np.random.default_rng(99).standard_normal((l, d))
    y = rng.integers(l, size=n)
    return (centres[y] + spread * rng.standard_normal((n, d))).astype(np.float32), y


def score(hasher, X, y, Xq, yq, base=None):
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X) if base is None else base, y)


def fit_data(X, y):
    K = torch.from_numpy(X.astype(np.float64) - X.mean(0))
    return FitData.of(from_labels(y), K)


# --- The solvers ---


@pytest.mark.parametrize("n", [300, 700])
@pytest.mark.parametrize("kind", ["classes", "sets"])
def test_solvers_change_none_of_their_inputs_and_repeat(kind, n):
    X, y = clusters(n, 4)
    labels = y if kind == "classes" else np.eye(4, dtype=int)[y] | np.eye(4, dtype=int)[(y + 1) % 4]
    C = codes.pack(np.random.default_rng(0).standard_normal((4, 12)))
    found = []
    for _ in range(2):
        data = fit_data(X, labels)
        K, before = data.K.clone(), C.copy()
        function, *_ = fit_to_labels(data, C, 12)
        assert data.K.numpy().tobytes() == K.numpy().tobytes()
        np.testing.assert_array_equal(C, before)
        found.append(function)
    first, second = found
    assert (first.link, first.power) == (second.link, second.power)
    for name in ("B", "b", "V", "offset"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


def test_a_solver_returns_the_shapes_of_the_problem():
    X, y = clusters(200, 5)
    C = codes.pack(np.random.default_rng(0).standard_normal((5, 9)))
    function, geometry, _ = fit_to_labels(fit_data(X, y), C, 9)
    assert geometry is None
    assert isinstance(function, Posterior)
    assert (function.B.shape, function.b.shape) == ((6, 5), (5,))
    assert (function.V.shape, function.offset.shape) == ((5, 9), (9,))
    assert (function.link, function.power, function.n_bits) == ("softmax", 1, 9)
    assert function.B.dtype == torch.float64


def test_whitened_rows_that_do_not_fit_are_sampled(monkeypatch, all_steps):
    monkeypatch.setattr(regression, "SAMPLE", 400)
    X, y = clusters(1200, 4)
    seen = []
    of = regression.WhitenedRows.of.__func__
    monkeypatch.setattr(
        regression.WhitenedRows,
        "of",
        classmethod(lambda cls, *args: seen.append(of(cls, *args)) or seen[-1]),
    )
    C = codes.pack(np.random.default_rng(0).standard_normal((4, 12)))
    needed = 1200 * 6 * 8
    accuracies = []
    for budget, n in ((None, 1200), (needed, 1200), (needed - 1, 400)):
        data = fit_data(X, y)
        K = data.K.clone()
        function, *_ = fit_to_labels(data, C, 12, budget=budget)
        assert torch.equal(data.K, K)
        assert seen[-1].n == len(seen[-1].U) == n
        accuracies.append(float((function.probabilities(data.K).argmax(1).numpy() == y).mean()))
    assert min(accuracies) > max(accuracies) - 0.03


@pytest.mark.long  # test_whitened_rows_that_do_not_fit_are_sampled is quick
def test_a_small_memory_budget_costs_little_quality(all_steps):
    X, y = clusters(3000, 5)
    Xq, yq = clusters(300, 5, seed=1)
    scores = [score(DISH(16, n_anchors=60, memory_budget=b).fit(X, y), X, y, Xq, yq) for b in ("1GB", "300KB")]
    assert scores[1] == pytest.approx(scores[0], abs=0.02)


# --- The estimator ---


def test_queries_find_learned_codes(digits, all_steps):
    X, y, Xq, yq = digits
    X, y = X[:800], y[:800]
    for labels, asked in ((y, yq), (np.eye(10)[y], np.eye(10)[yq])):
        hasher = DISH(32, n_anchors=100).fit(X, labels)
        assert metrics.mean_average_precision(hasher.transform(Xq), asked, hasher.codes_, labels) > 0.9


def test_many_classes_rank_better_than_with_DISHK(all_steps):
    X, y = clusters(2000, 40, d=12, spread=2.0)
    Xq, yq = clusters(300, 40, d=12, seed=1, spread=2.0)
    ours, paper = (score(kind(32, n_anchors=150).fit(X, y), X, y, Xq, yq) for kind in (DISH, DISHK))
    assert ours > paper + 0.03


def test_label_sets_rank_better_than_the_rows_themselves(digits, all_steps):
    X, y, Xq, yq = digits
    X, y = X[:800], y[:800]
    Y, Yq = (np.eye(10)[c] + np.eye(10)[(c + 3) % 10] for c in (y, yq))  # a digit, and one three further on
    hasher = DISH(32, n_anchors=100).fit(X, Y)
    found = metrics.mean_average_precision(hasher.transform(Xq), Yq, hasher.transform(X), Y)
    assert found > metrics.l2_mean_average_precision(Xq, Yq, X, Y) + 0.2


def test_rows_of_two_classes_are_still_ordered():
    X, y = clusters(600, 2, d=3, spread=3.0)
    packed = DISH(32, n_anchors=30).fit(X, y).transform(X)
    assert len(np.unique(packed, axis=0)) > 4  # certain and uncertain rows of a class have different codes


@pytest.mark.parametrize("kind", ["classes", "sets"])
def test_the_objective_is_that_of_the_codewords(digits, kind):
    """It depends on the number of labels, not on the rows."""
    X, y, _, _ = digits
    labels = y if kind == "classes" else np.eye(10)[y] + np.eye(10)[(y + 3) % 10]
    hasher = DISH(16, n_anchors=50).fit(X[:400], labels[:400])
    assert hasher.objective_.tobytes() == DISH(16, n_anchors=50).fit(X[400:800], labels[400:800]).objective_.tobytes()
    assert hasher.n_iter_ == len(hasher.objective_) >= 1
    assert (np.diff(hasher.objective_) <= 0).all()


def test_equal_label_sets_have_equal_codes():
    rng = np.random.default_rng(0)
    Y = (rng.random((300, 3)) < 0.4).astype(int)
    X = Y @ rng.standard_normal((3, 5)) + 0.3 * rng.standard_normal((300, 5))
    packed = DISH(16, n_anchors=30, geometry=0).fit(X, sp.csr_array(Y)).codes_
    Y, packed = Y[Y.any(1)], packed[Y.any(1)]  # rows without a label are encoded from x
    assert len(np.unique(np.column_stack([Y, packed]), axis=0)) == len(np.unique(Y, axis=0))
    assert len(np.unique(packed, axis=0)) > 2


def test_an_outlier_does_not_make_steps_overshoot(all_steps):
    X, y = clusters(600, 4)
    X[7] *= 300
    hasher = DISH(16, n_anchors=40, gamma=0.05, kernel="rbf+linear").fit(X, y)
    assert np.isfinite(hasher.hash_function_.B).all()
    packed = hasher.transform(X)
    assert metrics.mean_average_precision(packed[:200], y[:200], packed[200:], y[200:]) > 0.8


# --- Probabilities ---


@pytest.fixture(scope="module")
def words():
    X, y = clusters(600, 4)
    return DISH(13, n_anchors=40).fit(X, np.array(["dog", "cat", "eel", "ant"])[y]), X, y


def test_classes_are_sorted_and_are_the_columns_of_the_probabilities(words):
    hasher, X, y = words
    assert hasher.classes_.tolist() == ["ant", "cat", "dog", "eel"]
    p = hasher.predict_proba(X)
    assert p.shape == (600, 4)
    assert p.dtype == np.float32
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    assert (hasher.classes_[p.argmax(1)] == np.array(["dog", "cat", "eel", "ant"])[y]).mean() > 0.95


def test_probabilities_and_the_projection_make_F(words):
    hasher, X, _ = words
    f, p = hasher.hash_function_, hasher.predict_proba(X)
    assert type(f) is Posterior
    class_bits = np.delete(hasher.decision_function(X), geometry_positions(13, hasher.geometry_.n_bits), axis=1)
    np.testing.assert_allclose(class_bits, p @ f.V + f.offset, atol=1e-4)
    np.testing.assert_allclose(f.offset, -(15 / 16) / 4 * f.V.sum(0), atol=1e-4 * np.abs(f.V).max())


def test_probabilities_of_label_sets_need_not_add_up_to_one():
    X, y = clusters(600, 4)
    Y = np.eye(4)[y]
    Y[:, 3] = X[:, 0] > 0
    hasher = DISH(12, n_anchors=40).fit(X, Y)
    assert hasher.classes_.tolist() == [0, 1, 2, 3]
    p = hasher.predict_proba(X)
    assert ((p >= 0) & (p <= 1)).all()
    assert p.sum(1).max() > 1.5
    assert ((p > 0.5) == Y).mean() > 0.9
    assert hasher.hash_function_.link == "sigmoid"


def test_tags_name_the_classes():
    X, y = clusters(200, 2)
    hasher = DISH(8, n_anchors=20).fit(X, [["red", "round"] if v else ["blue", "round"] for v in y])
    assert hasher.classes_.tolist() == ["blue", "red", "round"]


# --- What it refuses, and its parameters ---


def test_a_similarity_is_refused_and_DISHK_named(blobs):
    X, _ = blobs
    with pytest.raises(InputError, match="DISH learns from labels; use DISHK to learn from a similarity"):
        DISH(8, n_anchors=20).fit(X, nystroem(X, 10))
    assert type(DISHK(8, n_anchors=20).fit(X, nystroem(X, 10)).hash_function_).__name__ == "Linear"


def test_too_many_classes_are_refused_and_DISHK_named():
    n = module.MAX_CLASSES + 1
    X, y = np.random.default_rng(0).random((n, 2)), np.arange(n)
    with pytest.raises(InputError, match="y has 65,537 labels; DISH learns at most 65,536: use DISHK"):
        DISH(8, n_anchors=20).fit(X, y)


def test_too_many_labels_of_multilabel_rows_are_refused_and_DISHK_named():
    n = module.MAX_LABELS + 1
    X, Y = np.random.default_rng(0).random((n, 2)), sp.eye_array(n, format="csr")
    hint = "at most 4,096 if a row may have several, and 65,536 classes: use DISHK"
    with pytest.raises(InputError, match=f"y has 4,097 labels; DISH learns {hint}"):
        DISH(8, n_anchors=20).fit(X, Y)


def test_one_label_alone_is_refused(blobs):
    X, y = blobs
    with pytest.raises(InputError, match="y has only one label; give at least two"):
        DISH(8, n_anchors=20).fit(X, [["red"] if label else [] for label in y])


def test_missing_labels_are_refused(blobs):
    with pytest.raises(InputError, match=r"y is None: give \(n,\) classes or \(n, l\) labels of 0 and 1$"):
        DISH(8, n_anchors=20).fit(blobs[0])


def test_parameters_of_DISHK_are_not_parameters_of_DISH():
    params = DISH().get_params()
    assert len(params) <= 12
    for name in (
        "checkpoint",
        "verbose",
        "loss",
        "nu",
        "lam",
        "ridge",
        "init",
        "similar_weight",
        "polish",
        "multilabel",
    ):
        assert name not in params
        with pytest.raises(TypeError, match=name):
            DISH(8, **{name: 1})
    with pytest.raises(TypeError, match="positional"):
        DISH(8, 100)


def test_grid_search_finds_enough_anchors(digits):
    X, y, _, _ = digits

    def own_map(hasher, X, y):
        packed = hasher.transform(X)
        return metrics.mean_average_precision(packed, y, packed, y)

    grid = GridSearchCV(DISH(n_bits=16), {"n_anchors": [3, 60]}, scoring=own_map, cv=2).fit(X[:300], y[:300])
    assert grid.best_params_ == {"n_anchors": 60}


@pytest.mark.parametrize("labels", ["classes", "sets"])
def test_a_saved_model_gives_the_same_codes(tmp_path, blobs, labels):
    X, y = blobs
    hasher = DISH(20, n_anchors=20).fit(X, y if labels == "classes" else np.eye(3)[y])
    hasher.save(tmp_path / "m.dish")
    same = dish.load(tmp_path / "m.dish")
    np.testing.assert_array_equal(same.transform(X), hasher.transform(X))
    np.testing.assert_array_equal(same.predict_proba(X), hasher.predict_proba(X))
    assert same.classes_.tolist() == hasher.classes_.tolist()
    assert same.fingerprint_ == hasher.fingerprint_
    assert hasher.fingerprint_ != DISH(20, n_anchors=20, random_state=1).fit(X, y).fingerprint_


def test_the_same_seed_gives_the_same_codes(blobs):
    X, y = blobs
    hasher = DISH(20, n_anchors=20)
    np.testing.assert_array_equal(clone(hasher).fit(X, y).transform(X), hasher.fit(X, y).transform(X))


def test_stages_are_timed(words):
    stages = {"labels", "features", "gram", "H-step", "whitening", "geometry", "selection", "posterior", "codes"}
    assert stages <= set(words[0].timings_)


def test_codewords_and_a_solver_are_what_fit_does(words):
    """The estimator only checks, calls the two functions, and stores their results."""
    hasher, X, y = words
    data = module.selection.prepare_features(
        RowSource(X, checked=True),
        from_labels(np.array(["dog", "cat", "eel", "ant"])[y], similar_weight="auto"),
        kernel="auto",
        gamma="auto",
        anchors="random",
        n_anchors=40,
        rng=np.random.RandomState(0),
        device=torch.device("cpu"),
    )
    C, objective = class_codewords(4, 13, data.rng)
    function, geometry = (each.numpy() for each in fit_to_labels(data, C, 13, "auto")[:2])
    np.testing.assert_array_equal(objective, hasher.objective_)
    np.testing.assert_array_equal(function.V, hasher.hash_function_.V)
    np.testing.assert_array_equal(function.B, hasher.hash_function_.B)
    np.testing.assert_array_equal(geometry.W, hasher.geometry_.W)


# --- Codes of labels ---


def quietly(call, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **options)


@pytest.mark.parametrize("per_class", [1, 2, 8, 300])
def test_codes_are_those_of_the_labels_and_classes_have_their_own(per_class):
    """F with p = 1 for the label; classes never share a code, however few rows they have."""
    rng = np.random.default_rng(per_class)
    classes = 40 if per_class < 10 else 4
    y = np.repeat(np.arange(classes), per_class)
    X = rng.standard_normal((len(y), 10)) + 2 * rng.standard_normal((classes, 10))[y]
    hasher = quietly(DISH(16, n_anchors=50, geometry=0).fit, X, y)
    function = hasher.hash_function_
    expected = np.packbits(np.eye(classes)[y] @ function.V + function.offset >= 0, axis=1)
    np.testing.assert_array_equal(hasher.codes_, expected)
    assert len(np.unique(hasher.codes_, axis=0)) == classes


@pytest.mark.parametrize(
    ("kind", "geometry"),
    [("classes", 0), ("words", 5), ("sets", 0), ("tags", "auto"), ("one row each", "auto")],
)
def test_codes_are_what_transform_gives_with_labels(kind, geometry):
    X, y = clusters(400, 5, seed=3)
    labels = {
        "classes": y,
        "words": np.array(list("abcde"))[y],
        "sets": np.eye(5, dtype=int)[y] * (np.arange(400) % 9 > 0)[:, None],  # some rows have no label
        "tags": [["xyzuv"[c], "w"] if i % 7 else [] for i, c in enumerate(y)],
        "one row each": np.arange(400),
    }[kind]
    hasher = quietly(DISH(20, n_anchors=40, geometry=geometry).fit, X, labels)
    np.testing.assert_array_equal(hasher.transform(X, labels=labels), hasher.codes_)
    np.testing.assert_array_equal(hasher.with_labels(hasher.transform(X), labels), hasher.codes_)


def test_minus_one_is_a_label_if_it_was_one_in_fit():
    X, y = clusters(300, 3, spread=2.0)
    labels = np.array([-3, -1, 5])[y]
    hasher = quietly(DISH(16, n_anchors=40).fit, X, labels)
    some = labels != -3  # −1 and numbers ≥ 0: elsewhere, −1 means that there is no label
    assert (hasher.codes_[some] != hasher.transform(X[some])).any()
    np.testing.assert_array_equal(hasher.transform(X[some], labels=labels[some]), hasher.codes_[some])


def test_a_known_label_decides_the_class_bits_and_x_the_geometry_bits(words):
    hasher, X, y = words
    names = np.array(["dog", "cat", "eel", "ant"])[y]
    wrong = np.roll(names, 1)
    F, packed = hasher.hash_function_, hasher.transform(X, labels=wrong)
    g = hasher.geometry_.n_bits
    bits, from_x = (codes.unpack(each, 13) for each in (packed, hasher.transform(X)))
    at = geometry_positions(13, g)
    np.testing.assert_array_equal(bits[:, at], from_x[:, at])
    place = np.searchsorted(hasher.classes_, wrong)
    expected = np.where(F.V + F.offset >= 0, 1, -1)[place]
    np.testing.assert_array_equal(np.delete(bits, at, axis=1), expected)


def test_missing_labels_mean_x_and_unknown_ones_too_with_a_warning(words):
    hasher, X, _ = words
    from_x = hasher.transform(X[:4])
    for missing in ([None] * 4, ["", None, float("nan"), ""]):
        np.testing.assert_array_equal(hasher.transform(X[:4], labels=missing), from_x)
    with pytest.warns(UserWarning, match="labels: 2 of 4 rows have a label that was not in fit: x alone decides"):
        found = hasher.transform(X[:4], labels=["cow", None, "cow", "dog"])
    np.testing.assert_array_equal(found[:3], from_x[:3])
    with pytest.raises(InputError, match=r"2 of 4 rows .* not in fit\. unknown='warn' encodes"):
        hasher.transform(X[:4], labels=["cow", None, "cow", "dog"], unknown="error")


def test_labels_of_codes_that_exist(words):
    hasher, X, _ = words
    labels, from_x = ["cow", None, "eel", "dog"], hasher.transform(X[:4])
    with pytest.warns(UserWarning, match="labels: 1 of 4 rows"):
        found = hasher.with_labels(from_x, labels)
    np.testing.assert_array_equal(found, quietly(hasher.transform, X[:4], labels=labels))
    np.testing.assert_array_equal(from_x, hasher.transform(X[:4]))  # the input is not changed
    with pytest.raises(InputError, match="1 of 4 rows"):
        hasher.with_labels(from_x, labels, unknown="error")
    with pytest.raises(InputError, match="packed has 3 codes, but labels has 4"):
        hasher.with_labels(from_x[:3], labels, unknown="warn")
    with pytest.raises(InputError, match="1 bytes per row, but codes of 13 bits have 2"):
        hasher.with_labels(from_x[:, :1], labels)


def test_known_labels_are_equal_in_type_and_value(words):
    mixed = ["dog", "cow", "", None, 1, True, "Dog", float("nan")]
    assert words[0].knows_labels(mixed).tolist() == [True] + 7 * [False]
    X, y = clusters(300, 3)
    numbers = DISH(8, n_anchors=20).fit(X, y)
    assert numbers.knows_labels([0, 2, 3, "0", True, 1.0, None]).tolist() == [
        True,
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    sets = DISH(8, n_anchors=20).fit(X, [["x", "abc"[c]] for c in y])
    assert not sets.knows_labels(["x", "a"]).any()
    assert not DISHK(8, n_anchors=20).fit(X, y).knows_labels([0, 1]).any()


@pytest.mark.parametrize("n_bits", [None, 5, 16, 23])
@pytest.mark.parametrize("geometry", [0, 6, 12])
def test_codes_of_labels_and_of_rows_and_the_outputs_have_one_order_of_bits(geometry, n_bits):
    X, y = clusters(600, 12, d=16, spread=0.7)  # hardly any row is taken for one of another class
    hasher, r = DISH(24, n_anchors=60, geometry=geometry).fit(X, y), n_bits or 24
    F = hasher.decision_function(X)[:, :r]
    of_labels, of_rows = (codes.unpack(hasher.transform(X, n_bits, labels=given), r) for given in (y, None))
    np.testing.assert_array_equal(of_rows, np.where(F >= 0, 1, -1))
    at = geometry_positions(24, geometry)
    at = at[at < r]
    np.testing.assert_array_equal(of_labels[:, at], of_rows[:, at])
    np.testing.assert_array_equal(of_labels, codes.unpack(hasher.transform(X, labels=y), 24)[:, :r])
    agreement = (of_labels.T @ of_rows.astype(float)) / len(X)  # (r, r): of every bit with every other
    equal = np.array([np.array_equal(a, b) for a in of_labels.T for b in of_labels.T]).reshape(r, r)
    assert np.diag(agreement).min() > 0.9
    assert agreement[~equal].max() < 0.9  # so another order would be noticed


def test_asymmetric_search_in_a_database_of_which_half_is_labelled():
    X, y = clusters(900, 12, seed=1, spread=1.6)
    Xq, yq = clusters(100, 12, seed=2, spread=1.6)
    hasher = quietly(DISH(32, n_anchors=60, geometry=8).fit, X[:500], y[:500])
    known = np.arange(900) % 2 == 0
    labels = [label if is_known else None for label, is_known in zip(y.tolist(), known, strict=True)]
    for r in (32, 20):
        database, F = hasher.transform(X, r, labels=labels), hasher.decision_function(Xq)[:, :r]
        scores = F @ codes.unpack(database, r).T.astype(np.float32)  # (queries, rows)
        index = HammingIndex(r)
        index.add(database)
        for options in ({"method": "asymmetric"}, {"rescore": "asymmetric", "shortlist": 900}):
            D, found = index.search(F, k=50, **options)
            np.testing.assert_allclose(D, -np.sort(-scores, axis=1)[:, :50], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(np.take_along_axis(scores, found, 1), D, rtol=1e-4, atol=1e-4)
        by_label, from_x = (
            metrics.asymmetric_mean_average_precision(F, yq, rows, y) for rows in (database, hasher.transform(X, r))
        )
        assert by_label > from_x + 0.03
    at = geometry_positions(32, 8)
    of_class, of_x = (np.sqrt(np.square(part).mean()) for part in (np.delete(F, at[at < r], 1), F[:, at[at < r]]))
    assert 0.3 * of_class < of_x < 0.8 * of_class  # neither kind of bits decides alone


def test_queries_that_are_not_rounded_find_more_of_their_class():
    gains = []
    for seed in range(4):
        X, y = clusters(700, 12, seed=2 * seed, spread=1.6)
        Xq, yq = clusters(100, 12, seed=2 * seed + 1, spread=1.6)
        hasher = quietly(DISH(32, n_anchors=60, geometry=8).fit, X[:500], y[:500])
        database = hasher.transform(X, labels=y)
        by_F = metrics.asymmetric_mean_average_precision(hasher.decision_function(Xq), yq, database, y)
        gains.append(by_F - metrics.mean_average_precision(hasher.transform(Xq), yq, database, y))
    assert np.mean(gains) > 0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["dog"] * 3, "X has 4 rows, but labels has 3"),
        ([1, 2, 3, 4], "labels are of another type than y was in fit: a number"),
        (np.eye(4), r"labels must be \(n,\) classes"),
    ],
)
def test_labels_that_do_not_fit_are_refused(words, labels, message):
    with pytest.raises(InputError, match=message):
        words[0].transform(words[1][:4], labels=labels)


def test_other_hashers_have_no_codes_of_labels(blobs):
    X, y = blobs
    with pytest.raises(UnsupportedError, match="DISHK has no codes of labels; DISH and DeepDISH have"):
        DISHK(8, n_anchors=20).fit(X, y).transform(X, labels=y)
    with pytest.raises(UnsupportedError, match="DISHK has no codes of labels; DISH and DeepDISH have"):
        DISHK(8, n_anchors=20).fit(X, y).with_labels(np.zeros((len(X), 1), np.uint8), y)


def test_labels_find_rows_better_than_x(all_steps):
    X, y = clusters(800, 20, spread=2.5)
    Xq, yq = clusters(200, 20, seed=1, spread=2.5)
    hasher = DISH(32, n_anchors=100).fit(X, y)
    queries = hasher.transform(Xq)
    by_label, by_x = (metrics.mean_average_precision(queries, yq, c, y) for c in (hasher.codes_, hasher.transform(X)))
    assert by_label > by_x + 0.05
