"""The contract of a hasher: kinds of rows, errors that say what to do, blocks, files and fingerprints."""

from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.exceptions import NotFittedError

import dish
from dish import DISH, DISHK, HammingIndex, codes, hasher, registry
from dish.baselines.lsh import LSH
from dish.errors import InputError, ModelFileError, UnsupportedError
from dish.hasher import Hasher, as_rows, to_json_value
from dish.io import modelfile

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 90)
X = (RNG.standard_normal((90, 6)) + 2 * np.eye(6)[Y]).astype(np.float32)
TAGS = [["red", "round"] if v else ["blue"] for v in Y]


def fit(rows, labels):
    return DISHK(n_bits=8, n_anchors=20).fit(rows, labels)


@pytest.fixture(scope="module")
def expected():
    return fit(X, Y)


class Sums(Hasher):
    """Two bits: the signs of the first two columns."""

    _state = ("shift_",)

    def __init__(self, n_bits=2):
        self.n_bits = n_bits

    def fit(self, X, y=None):
        self._check_n_bits()
        self._check_X(X, reset=True)
        self.shift_ = np.zeros(2)
        return self

    def _decision_values(self, X):
        return X[:, :2] - self.shift_


# --- Rows and labels of other libraries ---

ROWS = {
    "pandas frame": lambda: pd.DataFrame(X, columns=[f"f{i}" for i in range(6)]),
    "pandas column of arrays": lambda: pd.Series(list(X)),
    "pandas column of lists": lambda: pd.Series(X.tolist()),
    "pandas frame of one column of vectors": lambda: pd.DataFrame({"embedding": list(X)}),
    "list of arrays": lambda: list(X),
    "arrow table": lambda: pa.table({f"f{i}": X[:, i] for i in range(6)}),
    "arrow lists": lambda: pa.array(X.tolist(), pa.list_(pa.float32())),
    "arrow vectors": lambda: pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 6),
    "polars frame": lambda: pl.DataFrame(X),
    "polars column of lists": lambda: pl.Series(X.tolist()),
    "tensor": lambda: torch.from_numpy(X),
    "tensor that needs a gradient": lambda: torch.from_numpy(X.copy()).requires_grad_(),
    "row blocks": lambda: iter([X[:50], X[50:]]),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_rows_of_every_library_give_the_same_codes(rows, expected):
    np.testing.assert_array_equal(fit(rows(), Y).transform(rows()), expected.transform(X))


@pytest.mark.parametrize(
    "labels", [pd.Series(Y, index=Y), pa.array(Y), pl.Series(Y)], ids=["pandas", "arrow", "polars"]
)
def test_labels_of_every_library_give_the_same_codes(labels, expected):
    np.testing.assert_array_equal(fit(X, labels).codes_, expected.codes_)


@pytest.mark.parametrize("kind", [list, pd.Series, pa.array, pl.Series])
def test_tags_of_every_library_are_label_sets(kind):
    matrix = np.array([[v == 0, v > 0, v > 0] for v in Y], int)  # blue, red, round
    np.testing.assert_array_equal(fit(X, kind(TAGS)).codes_, fit(X, matrix).codes_)


def test_the_index_of_a_frame_is_kept():
    names = [f"row {i}" for i in range(90)]
    frame = pd.DataFrame(X, index=names)
    packed = fit(frame, Y).set_output(transform="pandas").transform(frame)
    assert list(packed.index) == names
    index = HammingIndex(n_bits=8)
    index.add(packed.to_numpy(), ids=frame.index)
    assert set(index.search(packed.to_numpy()[:1], k=90)[1][0]) == set(names)


def test_bfloat16_rows_become_float32(expected):
    half = torch.from_numpy(X).bfloat16()
    rows = as_rows(half)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(expected.transform(half), expected.transform(half.float().numpy()))


@pytest.mark.parametrize("kind", [partial(DISHK, n_anchors=20), LSH])
def test_whole_numbers_have_the_codes_of_the_same_floats(kind):
    rows = np.round(100 * X).astype(np.int64) + 1_700_000_000
    made = kind(n_bits=8).fit(rows.astype(np.float64), Y)
    codes = made.transform(rows.astype(np.float64))
    frame = pd.DataFrame(rows, columns=list("abcdef")).assign(truth=Y > 0)
    for same in (rows, rows.astype(">i8"), rows.astype(">f8"), torch.from_numpy(rows), rows.tolist(), iter([rows])):
        np.testing.assert_array_equal(made.transform(same), codes)
    np.testing.assert_array_equal(kind(n_bits=8).fit(rows, Y).transform(rows), codes)
    assert made._check_X(frame, reset=True).dtype == np.float64  # a column of truth values does not change the others


NO_NUMBERS = {
    "a frame with an id next to the vectors": (
        lambda: pd.DataFrame({"id": range(90), "embedding": list(X)}),
        r"X has a column of vectors, 'embedding', among others: pass only that column, X\['embedding'\]",
    ),
    "the same in polars": (
        lambda: pl.DataFrame({"id": range(90), "embedding": X.tolist()}),
        "X has a column of vectors, 'embedding', among others",
    ),
    "a frame with a column of text": (
        lambda: pd.DataFrame(X, columns=list("abcdef")).assign(name="x"),
        r"must hold numbers, but its columns \['name'\] hold text: drop them, or encode them as numbers",
    ),
    "texts": (lambda: ["a text"] * 90, r"it holds text \('a text'\): embed the texts first"),
    "a long text": (lambda: ["x" * 90] * 90, r"it holds text \('x{40}…'\)"),
    "an array of texts": (lambda: np.array([["a", "b"]] * 90), r"it holds text \('a'\)"),
    "rows of several lengths": (lambda: [[1.0, 2.0]] * 89 + [[1.0]], "vectors of one length; it has lengths 1, 2"),
    "a column of vectors of several lengths": (
        lambda: pd.Series([[0.0] * 6] * 89 + [[1.0]]),
        r"must have the same length; row 0 has 6 numbers, row 89 has shape \(1,\)",
    ),
    "blocks of several widths": (lambda: iter([X, X[:, :2]]), "X: the row blocks have different widths"),
    "no blocks": (lambda: iter([]), "or there are no blocks"),
}


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize(("rows", "message"), NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_rows_that_are_not_numbers_are_refused_with_advice(rows, message, expected):
    for use in (lambda: LSH(n_bits=4).fit(rows()), lambda: expected.decision_function(as_rows(rows()))):
        with pytest.raises(InputError, match=message):
            use()


# --- F and codes ---


def test_no_rows_give_no_codes(expected):
    assert expected.transform(X[:0]).shape == (0, 1)
    assert expected.decision_function(X[:0]).shape == (0, 8)
    assert expected.transform([X[:0]]).shape == (0, 1)


def test_large_inputs_are_encoded_by_blocks(expected, monkeypatch):
    monkeypatch.setattr(hasher, "F_ROWS", 7)
    np.testing.assert_array_equal(expected.transform(X), codes.pack(expected.decision_function(X)))


@pytest.mark.parametrize("n_bits", [1, 5, 8])
def test_a_prefix_of_the_code(expected, n_bits):
    F = expected.decision_function(X)
    np.testing.assert_array_equal(expected.transform(X, n_bits=n_bits), codes.pack(F[:, :n_bits]))


@pytest.mark.parametrize("n_bits", [0, 9, 2.5])
def test_a_prefix_that_is_no_part_of_the_code_is_refused(expected, n_bits):
    with pytest.raises(InputError, match="n_bits"):
        expected.transform(X, n_bits=n_bits)


def test_streamed_rows_are_checked_and_named_by_their_index_in_X(expected, tmp_path):
    bad = X.copy()
    bad[70, 2] = np.nan
    np.save(tmp_path / "X.npy", bad)
    for rows in (iter([bad[:50], bad[50:]]), np.load(tmp_path / "X.npy", mmap_mode="r"), tmp_path / "X.npy"):
        with pytest.raises(InputError, match="row 70"):
            expected.transform(rows)


def test_streamed_rows_give_the_same_codes(expected, tmp_path):
    np.save(tmp_path / "X.npy", X)
    for rows in (iter([X[:50], X[50:]]), np.load(tmp_path / "X.npy", mmap_mode="r"), tmp_path / "X.npy"):
        np.testing.assert_array_equal(expected.transform(rows), expected.transform(X))


def test_far_too_many_bits_are_refused_before_memory_is_used():
    with pytest.raises(InputError, match="n_bits must be a whole number from 1 to 16384, got 100000"):
        DISH(n_bits=100_000).fit(X, Y)


def test_a_hasher_that_was_not_fitted_says_so(tmp_path):
    for use in (
        lambda h: h.transform(X),
        lambda h: h.decision_function(X),
        lambda h: h.save(tmp_path / "m.dish"),
        lambda h: h.fingerprint_,
    ):
        with pytest.raises(NotFittedError):
            use(Sums())


def test_a_class_without_decision_values_says_so():
    made = Sums().fit(X)
    with pytest.raises(UnsupportedError, match="Sums defines no decision function"):
        Hasher._decision_values(made, X)


def test_names_of_the_output_columns(expected):
    assert list(expected.get_feature_names_out()) == ["dishk0"]
    assert expected.__sklearn_tags__().target_tags.required
    assert not LSH().__sklearn_tags__().target_tags.required
    changed = fit(X, Y).set_params(n_bits=16)
    with pytest.raises(InputError, match="n_bits changed after fit"):
        changed.get_feature_names_out()


# --- Which rows it was trained on ---

SOME = np.concatenate([X[::3], X[:5] + 1])  # 30 training rows, then 5 others
EXPECTED = np.arange(35) < 30


@pytest.mark.filterwarnings("ignore:n_anchors")
@pytest.mark.parametrize("method", ["dish_k", "dish", "lsh"])  # without and with codes of labels; without classes
def test_training_rows_are_recognised_after_loading(method, tmp_path):
    made = registry.find(method)(n_bits=8).fit(X, Y)
    mark = made.fingerprint_
    with pytest.raises(InputError, match=r"does not know its training rows: call remember_rows\(X\) after fit"):
        made.trained_on(X)
    assert made.remember_rows(X) is made
    assert made.fingerprint_ == mark
    made.save(tmp_path / "m.dish")
    same = dish.load(tmp_path / "m.dish")
    assert same.row_hashes_.nbytes == 8 * len(np.unique(X, axis=0))
    for known in (made, same):
        np.testing.assert_array_equal(known.trained_on(SOME), EXPECTED)
    assert same.trained_on(X[:0]).shape == (0,)
    np.testing.assert_array_equal(same.transform(X), made.transform(X))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".csv"])
def test_training_rows_are_recognised_in_every_file_and_number_type(kind, suffix, tmp_path):
    rows = np.round(X * 8) / 8  # float16 holds these exactly
    made, path = fit(rows, Y).remember_rows(rows), tmp_path / f"X{suffix}"
    some = np.concatenate([rows[::3], rows[:5] + 100]).astype(kind)
    if suffix == ".npy":
        np.save(path, some)
    else:
        table = pd.DataFrame(some.astype(np.float32) if suffix == ".parquet" and kind == np.float16 else some)
        table.columns = [f"f{j}" for j in range(6)]
        table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    np.testing.assert_array_equal(made.trained_on(path), EXPECTED)


def test_training_rows_are_recognised_if_columns_are_in_another_order(tmp_path):
    table = pd.DataFrame(X, columns=list("abcdef"))
    made = fit(table, Y).remember_rows(table)
    table[list("fbdeca")].to_parquet(tmp_path / "X.parquet")
    assert made.trained_on(tmp_path / "X.parquet").all()


def test_training_rows_may_come_in_blocks_and_as_tensors(expected):
    whole = fit(X, Y).remember_rows(X)
    for rows in (iter(np.array_split(X, 7)), [X[:40], X[40:]], torch.from_numpy(X)):
        np.testing.assert_array_equal(fit(X, Y).remember_rows(rows).row_hashes_, whole.row_hashes_)
    np.testing.assert_array_equal(whole.trained_on(iter(np.array_split(SOME, 3))), EXPECTED)


def test_learning_from_other_rows_forgets_the_hashes():
    made = DISHK(n_bits=8, n_anchors=20).fit(X, Y).remember_rows(X)
    made.partial_fit(X[:9] + 1, Y[:9])
    assert made.row_hashes_ is None
    assert made.remember_rows(X).fit(X[:60], Y[:60]).row_hashes_ is None


def test_damaged_row_hashes_are_refused(tmp_path):
    fit(X, Y).remember_rows(X).save(tmp_path / "m.dish")
    kind, content, arrays = modelfile.read(tmp_path / "m.dish")
    modelfile.save(tmp_path / "m.dish", kind, content, arrays | {"row_hashes_": arrays["row_hashes_"][::-1]})
    with pytest.raises(ModelFileError, match="row hashes of the model must be distinct"):
        dish.load(tmp_path / "m.dish")


# --- Files ---


@pytest.mark.parametrize(
    "labels",
    [
        np.array([f"class {v}" for v in Y]),
        np.array([f"class {v}" for v in Y], object),
        np.array(["a", "a\0", "b"], object)[Y],
        Y * 1000,
        Y.astype(np.float64),
        Y > 0,
        np.eye(3, dtype=int)[Y],
        TAGS,
    ],
    ids=["strings", "objects", "zeros at the end", "ints", "floats", "truth values", "matrix", "tags"],
)
def test_classes_survive_saving(labels, tmp_path):
    made = DISH(n_bits=8, n_anchors=10).fit(X, labels)
    made.save(tmp_path / "m.dish")
    same = dish.load(tmp_path / "m.dish")
    assert same.classes_.tolist() == made.classes_.tolist()
    np.testing.assert_array_equal(same.predict_proba(X), made.predict_proba(X))


@pytest.mark.parametrize(
    ("classes", "kind"),
    [
        (np.array(["2020", "2021", "2022"], "datetime64[ns]"), r"datetime64\[ns\]"),
        (np.array([b"a", b"b", b"c"]), r"\|S1"),
        (np.array([Decimal("1.5"), Decimal("2.5"), Decimal("3.5")]), "Decimal"),
    ],
)
def test_classes_that_a_file_cannot_hold_are_refused_before_the_work(classes, kind):
    with pytest.raises(UnsupportedError, match=f"labels of type {kind}, .*: pass strings or integers"):
        DISH(n_bits=8, n_anchors=10).fit(X, classes[Y])


def test_names_of_features_survive_saving(tmp_path):
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(6)])
    fit(frame, Y).save(tmp_path / "m.dish")
    same = dish.load(tmp_path / "m.dish")
    assert list(same.feature_names_in_) == list(frame)
    same.transform(frame)
    with pytest.raises(ValueError, match="feature names"):
        same.transform(frame.rename(columns={"f0": "g"}))


@pytest.mark.parametrize("n_bits", [1, 7, 8, 13])
@pytest.mark.parametrize("kind", [DISH, DISHK, LSH])
def test_saved_and_loaded_codes_are_equal(kind, n_bits, tmp_path):
    made = (kind(n_bits=n_bits) if kind is LSH else kind(n_bits=n_bits, n_anchors=20)).fit(X, Y)
    made.save(tmp_path / "m.dish")
    same = dish.load(tmp_path / "m.dish")
    np.testing.assert_array_equal(same.decision_function(X), made.decision_function(X))
    for name in made._state:
        assert type(getattr(same, name)) is type(getattr(made, name)), name
    assert same.fingerprint_ == made.fingerprint_


def test_a_custom_kernel_cannot_be_saved_and_leaves_no_file(tmp_path):
    made = DISHK(n_bits=4, n_anchors=10, kernel=lambda X, A: X @ A.T).fit(X, Y)
    with pytest.raises(UnsupportedError, match="custom kernel function cannot be saved: model files hold no code"):
        made.save(tmp_path / "m.dish")
    assert not any(tmp_path.iterdir())


def test_the_fingerprint_is_of_the_hash_function_alone():
    made = DISHK(n_bits=8, n_anchors=20, n_iter=1).fit(X, Y)
    mark = made.fingerprint_
    made.codes_ = made.codes_[::-1]
    made.objective_ = made.objective_ + 1
    assert made.fingerprint_ == mark
    made.gamma_ *= 1.5
    assert made.fingerprint_ != mark


def test_fingerprints_of_classifiers():
    from sklearn.naive_bayes import GaussianNB

    marks = [
        DISHK(n_bits=4, n_anchors=10, loss=GaussianNB(var_smoothing=v), n_iter=0).fit(X, Y).fingerprint_
        for v in (1e-9, 1e-9, 1e-2)
    ]
    assert marks[0] == marks[1] != marks[2]


def test_a_restored_file_must_have_every_part_of_the_state(tmp_path):
    LSH(n_bits=4).fit(X).save(tmp_path / "m.dish")
    kind, content, arrays = modelfile.read(tmp_path / "m.dish")
    del arrays["mean_"]
    with pytest.raises(ModelFileError, match="lacks mean_"):
        LSH._restore(content, arrays)
    assert kind == "LSH"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("n_bits", np.int64(8), 8),
        ("nu", np.float32(0.5), 0.5),
        ("gamma", "auto", "auto"),
        ("checkpoint", "some/folder", None),
        ("random_state", np.random.RandomState(0), None),
        ("memory_budget", None, None),
        ("init", np.zeros((3, 2)), "array of shape (3, 2)"),
        ("anchors", sp.csr_array(np.zeros((3, 2))), "array of shape (3, 2)"),
        ("loss", [1, 2], "[1, 2]"),
    ],
)
def test_parameters_as_json(name, value, expected):
    assert to_json_value(name, value) == expected
