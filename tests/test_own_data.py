"""Rows and labels as other libraries hold them, and the messages for what cannot be read."""

import numpy as np
import pandas as pd
import pytest

from dish import DISH, HammingIndex, load

pa = pytest.importorskip("pyarrow")
pl = pytest.importorskip("polars")
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 90)
X = (RNG.standard_normal((90, 6)) + 2 * np.eye(6)[Y]).astype(np.float32)
TAGS = [["red", "round"] if v else ["blue"] for v in Y]


def fit(rows, labels):
    return DISH(n_bits=8, n_anchors=20).fit(rows, labels)


@pytest.fixture(scope="module")
def expected():
    return fit(X, Y)


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
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_rows_of_every_library_give_the_same_codes(rows, expected):
    np.testing.assert_array_equal(fit(rows(), Y).transform(rows()), expected.transform(X))


@pytest.mark.parametrize(
    "labels", [pd.Series(Y, index=Y), pa.array(Y), pl.Series(Y)], ids=["pandas", "arrow", "polars"]
)
def test_labels_of_every_library(labels, expected):
    np.testing.assert_array_equal(fit(X, labels).codes_, expected.codes_)


@pytest.mark.parametrize("kind", [list, pd.Series, pa.array, pl.Series])
def test_tags_of_every_library(kind):
    matrix = np.array([[v == 0, v > 0, v > 0] for v in Y], int)  # blue, red, round
    np.testing.assert_array_equal(fit(X, kind(TAGS)).codes_, fit(X, matrix).codes_)


def test_the_index_is_kept():
    names = [f"row {i}" for i in range(90)]
    frame = pd.DataFrame(X, index=names)
    codes = fit(frame, Y).set_output(transform="pandas").transform(frame)
    assert list(codes.index) == names
    ix = HammingIndex(n_bits=8)
    ix.add(codes.to_numpy(), ids=frame.index)
    assert set(ix.search(codes.to_numpy()[:1], k=90)[1][0]) == set(names)


MESSAGES = {
    "a column of vectors must hold vectors of one length; row 0 has 6 numbers, but row 1 is of shape": lambda: fit(
        pd.Series([[0.0] * 6, [1.0]]), [0, 1]
    ),
    "a 2-D y must hold only 0 and 1, one column per label; it holds <U4. Give tags as one list per row": lambda: fit(
        X, np.array([["red", "blue"]] * 90)
    ),
    "labels are lists of several lengths, and their items are no strings": lambda: fit(X, [[1, 2], [3]] * 45),
    "y has no label .* in row 0 and 30 rows in all": lambda: fit(X, pd.Series([None, "a", "b"] * 30, dtype="string")),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_what_cannot_be_read_says_what_to_do(message):
    with pytest.raises(ValueError, match=message):
        MESSAGES[message]()


def test_files_that_cannot_be_read_say_what_to_do(cli, tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "objects.npy", np.array(["a", "b", "c"] * 30, object))
    code, _, err = cli("fit", tmp_path / "X.npy", tmp_path / "objects.npy", "-o", tmp_path / "m.dish")
    assert code == 2
    assert "holds Python objects, which are not read" in err
    assert "np.save(path, y.astype(str))" in err
    (tmp_path / "sh").mkdir()
    (tmp_path / "sh" / "notes.txt").write_text("neither pictures nor shards")
    code, _, err = cli("fit", tmp_path / "sh", "-o", tmp_path / "m.dish")
    assert (code, "has no images, nor shards (.npy, .npz, .parquet)" in err) == (2, True)
    (tmp_path / "sh" / "notes.txt").unlink()
    np.savez(tmp_path / "sh" / "part.npz", X=X, y=Y)
    assert cli("fit", tmp_path / "sh", "-o", tmp_path / "m.dish", "--bits", 8, "--anchors", 20)[0] == 0


def test_rows_without_a_label_are_dropped_where_the_user_says_so(cli, tmp_path):
    np.save(tmp_path / "X.npy", X)
    gaps = np.where(np.arange(90) % 3 == 0, -1, Y)
    np.save(tmp_path / "y.npy", gaps)
    command = ["fit", tmp_path / "X.npy", tmp_path / "y.npy", "-o", tmp_path / "m.dish", "--bits", 8, "--anchors", 20]
    assert cli(*command)[0] == 2
    code, out, err = cli(*command, "--drop-unlabelled")
    assert code == 0
    assert "30 of 90 rows have no label" in err
    assert "learned from 60 rows" in out


def test_no_rows_no_codes(expected):
    assert expected.transform(X[:0]).shape == (0, 1)
    assert expected.decision_function(X[:0]).shape == (0, 8)


NO_NUMBERS = {
    "a frame with an id beside the vectors": (
        lambda: pd.DataFrame({"id": range(90), "embedding": list(X)}),
        r"a column of vectors, 'embedding', beside others: pass it alone, X\['embedding'\]",
    ),
    "the same in polars": (
        lambda: pl.DataFrame({"id": range(90), "embedding": X.tolist()}),
        "a column of vectors, 'embedding', beside others",
    ),
    "a frame with a column of text": (
        lambda: pd.DataFrame(X, columns=list("abcdef")).assign(name="x"),
        r"must hold numbers, but its columns \['name'\] hold text: leave them out",
    ),
    "texts": (lambda: ["a text"] * 90, r"it holds text \('a text'\): turn texts into vectors first"),
    "an array of texts": (lambda: np.array([["a", "b"]] * 90), r"it holds text \('a'\)"),
    "rows of several lengths": (lambda: [[1.0, 2.0]] * 89 + [[1.0]], "vectors of one length; it holds some of 1, 2"),
}


@pytest.mark.parametrize(("rows", "says"), NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_is_no_number_is_named(rows, says, expected):
    with pytest.raises(ValueError, match=says):
        fit(rows(), Y)
    with pytest.raises(ValueError, match=says):
        expected.transform(rows())


def test_far_too_many_bits_are_refused_before_memory_is():
    with pytest.raises(ValueError, match="n_bits must be a whole number from 1 to 16384, got 100000"):
        DISH(n_bits=100_000).fit(X, Y)


def test_an_index_is_not_a_model(tmp_path):
    HammingIndex(8).save(tmp_path / "ix.dish")
    with pytest.raises(ValueError, match=r"ix.dish holds an index, not a model; HammingIndex.load reads it"):
        load(tmp_path / "ix.dish")


def test_rows_and_columns_in_each_others_place_are_noticed(cli, tmp_path):
    np.save(tmp_path / "X.npy", X.T)
    np.save(tmp_path / "y.npy", Y)
    code, _, err = cli("fit", tmp_path / "X.npy", tmp_path / "y.npy", "-o", tmp_path / "m.dish")
    assert code == 2
    assert "X has 6 rows but y has 90; they must be equal (is X transposed? It has 6 rows and 90 columns)" in err
