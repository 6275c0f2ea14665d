"""The one reader of array files: what it takes, and files that are not what their names say."""

import numpy as np
import pytest

from dish.errors import DataFileError
from dish.io.columns import Columns
from dish.io.features import read_features
from dish.io.tables import read_labels, read_npy, read_rows

X = np.arange(6.0).reshape(3, 2)


def write_parquet(path, **columns):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def test_lists_and_columns_of_a_parquet_file_are_the_same_matrix(tmp_path):
    lists = write_parquet(tmp_path / "lists.parquet", v=list(X))
    columns = write_parquet(tmp_path / "columns.parquet", a=X[:, 0], b=X[:, 1])
    for file in (lists, columns):
        assert np.array_equal(read_rows(file), X)
        assert np.array_equal(read_labels(file), X)
    values = write_parquet(tmp_path / "values.parquet", a=["x", "y", "x"])
    assert read_labels(values).tolist() == ["x", "y", "x"]


def test_a_column_of_values_is_no_matrix(tmp_path):
    with pytest.raises(DataFileError, match=r"must be a matrix \(n, d\), found shape \(3,\)"):
        read_rows(write_parquet(tmp_path / "a.parquet", a=[1.0, 2.0, 3.0]))


@pytest.mark.parametrize("lists", [[[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]], [[1.0, 2.0], None]])
def test_lists_of_different_lengths_are_refused(tmp_path, lists):
    with pytest.raises(DataFileError, match="'v' differ in length"):
        read_rows(write_parquet(tmp_path / "a.parquet", v=lists))


def damaged(tmp_path):
    np.savez(tmp_path / "cut.npz", X=X)
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-30])
    (tmp_path / "flipped.npz").write_bytes(whole.replace(X.tobytes(), (X + 1).tobytes()))
    (tmp_path / "archive.npy").write_bytes(whole)
    np.save(tmp_path / "single.npy", X)
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    np.savez(tmp_path / "objects.npz", X=np.array([{}], dtype=object))
    return {
        "cut.npz": "is not a .npz file of numbers, or is damaged",
        "flipped.npz": "is not a .npz file of numbers, or is damaged",
        "archive.npy": "it is an archive of arrays",
        "single.npz": "it is a single array",
        "objects.npz": "holds Python objects, which are not read",
    }


def test_damage_and_wrong_names_are_errors_that_name_the_file(tmp_path):
    for name, message in damaged(tmp_path).items():
        with pytest.raises(DataFileError, match=rf"{name} .*{message}"):
            read_rows(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"no file at .*none\.npy"):
        read_npy(tmp_path / "none.npy")


def test_a_csv_keeps_every_row_and_character(tmp_path):
    (tmp_path / "bom.csv").write_bytes("\ufeff1,2\n3,4\n".encode())
    np.testing.assert_array_equal(read_rows(tmp_path / "bom.csv"), [[1, 2], [3, 4]])
    (tmp_path / "sharp.csv").write_text("C#\nC\nF#\n")
    assert read_labels(tmp_path / "sharp.csv", Columns(header=False)).tolist() == ["C#", "C", "F#"]
    (tmp_path / "quoted.csv").write_text('"a, b"\nc\n"a, b"\n')
    assert read_labels(tmp_path / "quoted.csv").tolist() == ["a, b", "c", "a, b"]
    (tmp_path / "gap.csv").write_text("1,,3\n4,5,6\n")
    with pytest.raises(DataFileError, match="empty field"):
        read_rows(tmp_path / "gap.csv")


# --- Labels of a .csv file are what was written ---


def labels_of(tmp_path, text, **columns):
    (tmp_path / "y.csv").write_text(text)
    return read_labels(tmp_path / "y.csv", Columns(**columns))


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        ("9007199254740992\n9007199254740993\n", [2**53, 2**53 + 1], "i"),
        ("9223372036854775807\n9223372036854775808\n", ["9223372036854775807", "9223372036854775808"], "U"),
        ("001\n1\n01\n1\n", ["001", "1", "01", "1"], "U"),
        ("+1\n1\n", ["+1", "1"], "U"),
        ("1_0\n10\n", ["1_0", "10"], "U"),
        ("3\n-1\n0\n", [3, -1, 0], "i"),
        ("1.0\n2.5\n3\n", [1.0, 2.5, 3.0], "f"),
        ("1.000e+00\n2.000e+00\n", [1.0, 2.0], "f"),
        ('3\n""\n4\n', [3, None, 4], "O"),
        ('a\n""\na\n', ["a", None, "a"], "O"),
        ("nan\ncat\nnan\n", ["nan", "cat", "nan"], "U"),
    ],
)
def test_labels_of_a_csv_stay_what_was_written(tmp_path, text, expected, kind):
    y = labels_of(tmp_path, text)
    assert y.tolist() == expected
    assert y.dtype.kind == kind


def test_a_blank_line_among_labels_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="line 2 is blank"):
        labels_of(tmp_path, "1\n\n2\n")
    assert labels_of(tmp_path, "1\n2\n\n\n").tolist() == [1, 2]


# --- Headers ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label\n3\n1\n", [3, 1]),  # text over numbers
        ("0\n1.0\n2.0\n", [1.0, 2.0]),  # pandas' name of an unnamed column over numbers that are not whole
        ("0\ncat\ndog\n", ["cat", "dog"]),
        ("0\n1\n0\n", [0, 1, 0]),  # labels that begin with the class 0
        ("cat\ndog\ncat\n", ["cat", "dog", "cat"]),  # the first line comes again: a label
        ("3\ncat\n", ["3", "cat"]),
        ("a,b\n0,1\n1,1\n", [[0, 1], [1, 1]]),
        ("id,label\n7,x\n8,y\n", ["x", "y"]),
    ],
)
def test_headers_of_label_files(tmp_path, text, expected):
    assert labels_of(tmp_path, text).tolist() == expected


@pytest.mark.parametrize("text", ["label\ncat\ndog\ncat\n", "0\n1\nother\n", "0,1\n1,0\n1,1\n"])
def test_a_header_that_cannot_be_told_is_not_guessed(tmp_path, text):
    with pytest.raises(DataFileError, match=r"y\.csv: the first line .* --header or --no-header"):
        labels_of(tmp_path, text)
    lines = text.split()
    assert len(labels_of(tmp_path, text, header=True)) == len(lines) - 1
    assert len(labels_of(tmp_path, text, header=False)) == len(lines)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("f0,f1\n1,2\n3,4\n", 2),
        ("0,1\n0.5,2\n3,4.5\n", 2),  # pandas' numeric header
        ("0,1\n0.5,2\n", 1),
        ("1.5,2\n3,4\n", 2),
        ("nan,2\n3,4\n", 2),
    ],
)
def test_headers_of_files_of_rows(tmp_path, text, rows):
    (tmp_path / "x.csv").write_text(text)
    assert len(read_rows(tmp_path / "x.csv")) == rows


def test_a_count_over_whole_numbers_may_be_a_row(tmp_path):
    (tmp_path / "x.csv").write_text("0,1,2\n5,6,7\n")
    with pytest.raises(DataFileError, match="--header or --no-header"):
        read_rows(tmp_path / "x.csv")
    assert read_rows(tmp_path / "x.csv", Columns(header=True)).tolist() == [[5, 6, 7]]
    assert len(read_rows(tmp_path / "x.csv", Columns(header=False))) == 2


def test_what_pandas_writes(tmp_path):
    pd = pytest.importorskip("pandas")
    frame, labels = pd.DataFrame(X + 0.5), pd.DataFrame({"label": [4, 5, 4]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    labels.to_csv(tmp_path / "y.csv", index=False)
    assert np.array_equal(read_rows(tmp_path / "x.csv"), X + 0.5)
    assert read_labels(tmp_path / "y.csv").tolist() == [4, 5, 4]
    pd.Series([1.0, None, 2.0], name="label").to_csv(tmp_path / "y.csv", index=False)
    np.testing.assert_array_equal(read_labels(tmp_path / "y.csv"), [1, np.nan, 2])
    frame.to_csv(tmp_path / "x.csv")
    labels.to_csv(tmp_path / "y.csv")
    for read, name in ((read_rows, "x.csv"), (read_labels, "y.csv")):
        with pytest.raises(DataFileError, match=rf"{name}: .*looks like an index column: .*index=False"):
            read(tmp_path / name)


def test_a_column_that_counts_the_rows_is_suspect(tmp_path):
    (tmp_path / "x.csv").write_text("0,1.5\n1,2.5\n2,3.5\n")
    with pytest.warns(UserWarning, match="counts the rows"):
        assert read_rows(tmp_path / "x.csv").shape == (3, 2)


# --- Columns by name ---


def test_id_vector_and_label_in_one_table(tmp_path):
    pytest.importorskip("pyarrow")
    file = write_parquet(tmp_path / "t.parquet", id=[7, 8, 9], embedding=list(X), label=["a", "b", "a"])
    rows, y = read_features(file)
    assert np.array_equal(rows, X)
    assert y.tolist() == ["a", "b", "a"]
    odd = write_parquet(tmp_path / "o.parquet", key=[7, 8, 9], v=list(X), kind=["a", "b", "a"])
    with pytest.raises(DataFileError, match=r"key \(int64\), v \(list.*\), kind \(string\).*--x-column"):
        read_features(odd)
    rows, y = read_features(odd, columns=Columns(x=("v",), y="kind", ids="key"))
    assert np.array_equal(rows, X)
    assert y.tolist() == ["a", "b", "a"]
    assert read_labels(odd, Columns(y="key")).tolist() == [7, 8, 9]
    with pytest.raises(DataFileError, match="has no column 'w'; it has key, v, kind"):
        read_features(odd, columns=Columns(x=("w",)))


def test_columns_of_a_csv_by_name(tmp_path):
    (tmp_path / "t.csv").write_text("key,a,b,kind\nk1,1,2,x\nk2,3,4,y\n")
    with pytest.raises(DataFileError, match=r"found 'k1' in column 'key'; .*--y-column.*--id-column"):
        read_features(tmp_path / "t.csv")
    rows, y = read_features(tmp_path / "t.csv", columns=Columns(y="kind", ids="key"))
    assert rows.tolist() == [[1, 2], [3, 4]]
    assert y.tolist() == ["x", "y"]
    assert read_rows(tmp_path / "t.csv", Columns(x=("b",))).tolist() == [[2], [4]]
    with pytest.raises(DataFileError, match="--no-header"):
        read_features(tmp_path / "t.csv", columns=Columns(y="kind", header=False))


def test_labels_of_a_parquet_file_stay_exact(tmp_path):
    numbers = write_parquet(tmp_path / "n.parquet", y=[2**53, 2**53 + 1, None])
    assert read_labels(numbers).tolist() == [2**53, 2**53 + 1, None]
    tags = write_parquet(tmp_path / "t.parquet", y=[["red"], ["red", "round"], []])
    assert [list(row) for row in read_labels(tags)] == [["red"], ["red", "round"], []]


def test_pandas_index_in_a_parquet_file_is_no_feature(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}, index=[5, 6, 9]).to_parquet(tmp_path / "x.parquet")
    assert np.array_equal(read_rows(tmp_path / "x.parquet"), X)


# --- Damage ---


@pytest.mark.filterwarnings("ignore:invalid escape")
def test_any_damaged_npy_header_is_one_kind_of_error(tmp_path):
    """A header is a Python literal: NumPy's parser raises TokenError, OverflowError, SyntaxError and more."""
    np.save(tmp_path / "x.npy", X)
    whole = (tmp_path / "x.npy").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(600):
        damaged = bytearray(whole)
        for place in rng.integers(6, 80, rng.integers(1, 4)):
            damaged[place] = rng.choice(np.frombuffer(b"(){}'\"9,:-\\\n\0 eL\xff", np.uint8))
        (tmp_path / "bad.npy").write_bytes(damaged)
        for mode in (None, "r"):
            try:
                read_npy(tmp_path / "bad.npy", mode)
            except (DataFileError, MemoryError):
                refused += 1
    assert refused > 600


def test_an_array_of_objects_says_how_to_save_text(tmp_path):
    np.save(tmp_path / "y.npy", np.array(["a", "b"], object), allow_pickle=True)
    with pytest.raises(DataFileError, match=r"y\.npy .*Python objects.*np\.save\(path, y\.astype\(str\)\)"):
        read_labels(tmp_path / "y.npy")
