"""Rows and labels from .npy, .npz, .parquet and .csv files and from folders of shards."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from dish.errors import DataFileError
from dish.io import readers
from dish.io.readers import (
    ColumnNames,
    as_saved,
    feature_names,
    has_shards,
    read_features,
    read_ids,
    read_labels,
    read_npy,
)
from dish.io.rows import Shards, blocks_of

X = np.arange(6.0).reshape(3, 2)
X7 = np.arange(35, dtype=np.float32).reshape(7, 5)
Y7 = np.array([0, 1, 0, 1, 0, 1, 1])


def write_parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def write_csv(path, text):
    path.write_text(text)
    return path


def rows_of(path, **columns):
    return read_features(path, columns=ColumnNames(**columns))[0]


# --- .npy and .npz ---


def test_npy_is_memory_mapped_and_finds_its_labels(tmp_path):
    np.save(tmp_path / "f.npy", X7)
    rows, y = read_features(tmp_path / "f.npy")
    assert isinstance(rows, np.memmap)
    assert y is None
    np.save(tmp_path / "f_labels.npy", Y7)
    assert np.array_equal(read_features(tmp_path / "f.npy")[1], Y7)
    np.save(tmp_path / "other.npy", 1 - Y7)
    assert np.array_equal(read_features(tmp_path / "f.npy", tmp_path / "other.npy")[1], 1 - Y7)


@pytest.mark.parametrize("name", ["y", "Y"])
def test_npz_holds_rows_and_labels(tmp_path, name):
    y = Y7 if name == "y" else np.eye(2)[Y7]
    np.savez(tmp_path / "f.npz", X=X7, **{name: y})
    rows, labels = read_features(tmp_path / "f.npz")
    assert np.array_equal(rows, X7)
    assert np.array_equal(labels, y)
    assert np.array_equal(read_labels(tmp_path / "f.npz"), y)


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
        "objects.npz": "holds Python objects, which are not loaded",
    }


def test_damaged_and_misnamed_files_are_named(tmp_path):
    for name, message in damaged(tmp_path).items():
        with pytest.raises(DataFileError, match=rf"{name} .*{message}"):
            read_features(tmp_path / name)
    for read in (read_npy, read_labels, read_features):
        with pytest.raises(FileNotFoundError, match=r"no file.* .*none\.npy"):
            read(tmp_path / "none.npy")


@pytest.mark.filterwarnings("ignore:invalid escape")
def test_damaged_npy_headers_raise_data_file_errors(tmp_path):
    """A header is a Python literal: NumPy's parser raises TokenError, OverflowError, SyntaxError and more."""
    np.save(tmp_path / "x.npy", X)
    whole = (tmp_path / "x.npy").read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(600):
        broken = bytearray(whole)
        for place in rng.integers(6, 80, rng.integers(1, 4)):
            broken[place] = rng.choice(np.frombuffer(b"(){}'\"9,:-\\\n\0 eL\xff", np.uint8))
        (tmp_path / "bad.npy").write_bytes(broken)
        for mode in (None, "r"):
            try:
                read_npy(tmp_path / "bad.npy", mode)
            except (DataFileError, MemoryError):
                refused += 1
    assert refused > 600


def test_error_for_object_arrays_says_how_to_save_text(tmp_path):
    np.save(tmp_path / "y.npy", np.array(["a", "b"], object), allow_pickle=True)
    with pytest.raises(DataFileError, match=r"y\.npy .*Python objects.*np\.save\(path, y\.astype\(str\)\)"):
        read_labels(tmp_path / "y.npy")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.npy", X7[0], r"f\.npy must hold a matrix of numbers.*\(5,\)"),
        ("f.npy", X7[:0], r"f\.npy must hold a matrix of numbers.*\(0, 5\)"),
        ("f.npy", np.array([["a", "b"]]), "matrix of numbers"),
        ("f.npy", np.array([[{}]], dtype=object), "f.npy holds Python objects"),
        ("f.npy", b"\x93NUMPY", "f.npy is not a .npy file"),
        ("f.npy", b"", "f.npy is not a .npy file"),
        ("f.npz", b"PK\x03\x04 broken", "f.npz is not a .npz file"),
        ("f.npz", {"a": X7, "b": X7}, "holds a, b; name the wanted array X"),
        ("f.npz", {"X": X7, "y": Y7[:4]}, r"7 rows, but its labels have shape \(4,\)"),
        ("f.txt", b"1,2", r"f\.txt: files of this kind cannot be read; use \.npy"),
    ],
)
def test_unusable_feature_files_are_refused(tmp_path, name, content, message):
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(file, **content)
    else:
        np.save(file, content, allow_pickle=True)
    with pytest.raises(DataFileError, match=message):
        read_features(file)


def test_labels_must_be_one_or_two_dimensional(tmp_path):
    np.save(tmp_path / "y.npy", np.zeros((3, 1)))
    assert read_labels(tmp_path / "y.npy").shape == (3,)
    np.save(tmp_path / "y.npy", np.zeros((3, 2, 2)))
    with pytest.raises(DataFileError, match=r"labels must have shape \(n,\) or \(n, l\), found \(3, 2, 2\)"):
        read_labels(tmp_path / "y.npy")
    with pytest.raises(DataFileError, match=r"y\.tsv: files of this kind.*\.txt"):
        read_labels(write_csv(tmp_path / "y.tsv", "1"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3\n-1\n", [3, -1]),
        ("001\n1", ["001", "1"]),
        ("\ufeffa b\r\nc\u2028d\n\n", ["a b", "c\u2028d", None]),
        ("", []),
    ],
)
def test_a_text_file_has_one_id_or_label_per_line(tmp_path, text, expected):
    (tmp_path / "y.txt").write_bytes(text.encode())
    for read in (read_labels, read_ids):
        assert read(tmp_path / "y.txt").tolist() == expected
    (tmp_path / "y.txt").write_bytes(b"\xff")
    with pytest.raises(DataFileError, match=r"is not a \.txt file in UTF-8"):
        read_labels(tmp_path / "y.txt")


def test_columns_that_npy_files_can_hold():
    assert as_saved("t.parquet", "id", np.array(["a", "b"], object)).dtype.kind == "U"
    with pytest.raises(DataFileError, match="column 'id' has gaps, lists or values of several types"):
        as_saved("t.parquet", "id", np.array(["a", None], object))
    with pytest.raises(DataFileError, match=r"column 'id' holds 'x1\\x00'; a \.npy file drops zero characters"):
        as_saved("t.parquet", "id", np.array(["x1", "x1\0"], object))


# --- .csv: values ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("a,b\n1,2\n\n3,4\n\n", [[1, 2], [3, 4]]),  # blank lines
        ("a,b\r\n1,2\r\n3,4", [[1, 2], [3, 4]]),
        ("\ufeffa,b\n1,2\n3,4\n", [[1, 2], [3, 4]]),  # byte order mark
        ('"a, or so","b\nc"\n" 1 ","+2"\n3,4\n', [[1, 2], [3, 4]]),
        ("a,b\n1e0,.2e1\n3.,inf\n", [[1, 2], [3, np.inf]]),
        ("a,a\n1,2\n3,4\n", [[1, 2], [3, 4]]),  # a name that occurs twice
        ("a\n1\n3\n", [[1], [3]]),
        ("a,b,c\nTrue,2,false\nFalse,0.5,true\n", [[1, 2, 0], [0, 0.5, 1]]),
    ],
)
def test_rows_of_a_csv_file(tmp_path, text, expected):
    np.testing.assert_array_equal(rows_of(write_csv(tmp_path / "x.csv", text)), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a,b\n1,2\n3,x\n",
            r"x\.csv: row 3 \(the first line is row 1\) has 'x', which is not a number, in column 'b'; .*--y-column",
        ),
        ("a,b\n1,True\n3,x\n", r"row 3 .* has 'x', which is neither True nor False, as in other rows, in column 'b'"),
        ("a,b\n1,2\n3,True\n", r"row 3 .* has 'True', which is not a number, in column 'b'"),
        ("a,b\n1,2\n3\n", r"x\.csv: row 3 .* has 1 fields, but the first line has 2"),
        ("a,b\n1,2\n3,4,5\n", r"x\.csv: row 3 .* has 3 fields, but the first line has 2"),
        ("a,b\n1,2\n" + "3,4\n" * 20 + "5;6\n", r"row 23 .* has 1 fields"),
        ('a,b\n1,"2\n3,4\n', r"x\.csv: row 2 .* has 2 fields|row 2 .* is not a number"),
        ("a,b\n", r"x\.csv has a header, but no rows"),
        ("", r"x\.csv is empty"),
        ("\n\n", r"x\.csv is empty"),
        ("label\n1\n", r"x\.csv has no columns of features, only label"),
    ],
)
def test_errors_in_csv_files_name_file_row_and_column(tmp_path, text, message):
    with pytest.raises(DataFileError, match=message):
        read_features(write_csv(tmp_path / "x.csv", text))


def test_csv_files_must_be_utf8(tmp_path):
    (tmp_path / "y.csv").write_bytes("label\ngrün\n".encode("latin-1"))
    with pytest.raises(DataFileError, match=r"y\.csv"):
        read_labels(tmp_path / "y.csv")


def test_a_csv_file_is_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "CSV_BLOCK", 256)
    table = np.random.default_rng(0).standard_normal((500, 3))
    text = "a,b,c\n" + "\n".join(",".join(map(repr, row)) for row in table.tolist())
    np.testing.assert_array_equal(rows_of(write_csv(tmp_path / "x.csv", text)), table)
    y = [f"class {i % 7}" for i in range(500)]
    assert read_labels(write_csv(tmp_path / "y.csv", "label\n" + "\n".join(y))).tolist() == y
    with pytest.raises(DataFileError, match=r"row 502 .* has 'x'"):
        read_features(write_csv(tmp_path / "x.csv", text + "\n1,2,x\n"))


def test_tables_without_pyarrow_name_the_extra(tmp_path):
    write_csv(tmp_path / "x.csv", "a,b\n1,2\n")
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from dish.io.readers import read_features\n"
        "try: read_features(sys.argv[1])\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "x.csv"], capture_output=True, text=True)
    assert "needs pyarrow: pip install 'dish-hash[tables]'" in done.stdout, done.stderr


# --- .csv: labels are what was written ---


@pytest.mark.parametrize(
    ("values", "expected", "kind"),
    [
        ("9007199254740992\n9007199254740993", [2**53, 2**53 + 1], "i"),
        ("9223372036854775807\n9223372036854775808", ["9223372036854775807", "9223372036854775808"], "U"),
        ("001\n1\n01\n1", ["001", "1", "01", "1"], "U"),
        ("13\n1٣", ["13", "1٣"], "U"),
        ("1.5\n1.٥", ["1.5", "1.٥"], "U"),
        ("+1\n1", ["+1", "1"], "U"),
        ("1_0\n10", ["1_0", "10"], "U"),
        ("3\n-1\n0", [3, -1, 0], "i"),
        ("1.0\n2.5\n3", [1.0, 2.5, 3.0], "f"),
        ("1.000e+00\n2.000e+00", [1.0, 2.0], "f"),
        ('3\n""\n4', [3, None, 4], "O"),
        ('a\n""\na', ["a", None, "a"], "O"),
        ("nan\ncat\nnan", ["nan", "cat", "nan"], "U"),
        ('"a, b"\nc\nC#\n', ["a, b", "c", "C#"], "U"),
    ],
)
def test_labels_of_a_csv_file_stay_what_was_written(tmp_path, values, expected, kind):
    for text, header in ((f"label\n{values}\n", None), (f"topic\n{values}\n", True), (f"{values}\n", False)):
        y = read_labels(write_csv(tmp_path / "y.csv", text), ColumnNames(header=header))
        assert y.tolist() == expected
        assert y.dtype.kind == kind


def test_several_columns_of_labels(tmp_path):
    assert read_labels(write_csv(tmp_path / "y.csv", "a,b\n0,1\n1,1\n")).tolist() == [[0, 1], [1, 1]]
    with pytest.raises(DataFileError, match="must be 0 and 1; if one column holds the classes"):
        read_labels(write_csv(tmp_path / "y.csv", "a,b\n0,cat\n1,dog\n"))
    assert read_labels(write_csv(tmp_path / "y.csv", "id,label\n7,x\n8,y\n")).tolist() == ["x", "y"]


# --- .csv: the header ---


@pytest.mark.parametrize(
    "text",
    [
        "1.5,2\n3,4\n",
        "0,1\n0.5,2\n3,4.5\n",  # pandas' names for unnamed columns
        "1,,3\n4,5,6\n",
        "nan,2\n3,4\n",
        "True,2\nFalse,4\n",
        "3\n1\n2\n",
    ],
)
def test_a_first_line_of_numbers_is_not_guessed_at(tmp_path, text):
    path = write_csv(tmp_path / "t.csv", text)
    for read in (read_features, read_labels):
        with pytest.raises(DataFileError, match=r"t\.csv: the first line .* looks like data; pass --no-header"):
            read(path)
    assert len(read_labels(path, ColumnNames(header=True))) == len(text.split()) - 1
    if ",," not in text:
        assert len(rows_of(path, header=False, gaps=True)) == len(text.split())


@pytest.mark.parametrize("first", ["topic", "cat", "C#"])
def test_the_first_line_of_a_column_of_text_is_not_guessed_at(tmp_path, first):
    path = write_csv(tmp_path / "y.csv", f"{first}\ncat\ndog\n")
    with pytest.raises(DataFileError, match=rf"the first line \({first}\) looks like data"):
        read_labels(path)
    assert read_labels(path, ColumnNames(header=True)).tolist() == ["cat", "dog"]
    assert read_labels(path, ColumnNames(header=False)).tolist() == [first, "cat", "dog"]


@pytest.mark.parametrize("name", ["y", "label", "id"])
def test_usual_names_are_headers(tmp_path, name):
    path = write_csv(tmp_path / "y.csv", f"{name}\ncat\ndog\n")
    assert read_labels(path).tolist() == read_ids(path).tolist() == ["cat", "dog"]


def test_choosing_columns_implies_a_header(tmp_path):
    path = write_csv(tmp_path / "t.csv", "0,1,2\n5,6,7\n")
    assert rows_of(path, x=("0", "2")).tolist() == [[5, 7]]
    with pytest.raises(DataFileError, match=r"chosen by name, but --no-header"):
        rows_of(path, x=("0", "2"), header=False)


def test_files_that_pandas_writes(tmp_path):
    frame, labels = pd.DataFrame(X + 0.5, columns=["a", "b"]), pd.DataFrame({"label": [4, 5, 4]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    labels.to_csv(tmp_path / "y.csv", index=False)
    assert np.array_equal(rows_of(tmp_path / "x.csv"), X + 0.5)
    assert read_labels(tmp_path / "y.csv").tolist() == [4, 5, 4]
    pd.Series([1.0, None, 2.0], name="label").to_csv(tmp_path / "y.csv", index=False)
    np.testing.assert_array_equal(read_labels(tmp_path / "y.csv"), [1, np.nan, 2])
    frame.to_csv(tmp_path / "x.csv")
    labels.rename(columns={"label": "topic"}).to_csv(tmp_path / "y.csv")
    for read, name in ((read_features, "x.csv"), (read_labels, "y.csv")):
        with pytest.raises(DataFileError, match=rf"{name}: .*looks like an index column: .*index=False"):
            read(tmp_path / name)


def test_a_column_that_counts_the_rows_is_suspect(tmp_path):
    path = write_csv(tmp_path / "x.csv", "n,a\n0,1.5\n1,2.5\n2,3.5\n")
    with pytest.warns(UserWarning, match="counts the rows"):
        assert rows_of(path).shape == (3, 2)


# --- Tables: columns by name ---


def test_id_vector_and_label_in_one_table(tmp_path):
    file = write_parquet(tmp_path / "t.parquet", id=[7, 8, 9], embedding=list(X), label=["a", "b", "a"])
    rows, y = read_features(file)
    assert np.array_equal(rows, X)
    assert y.tolist() == ["a", "b", "a"]
    odd = write_parquet(tmp_path / "o.parquet", key=[7, 8, 9], v=list(X), kind=["a", "b", "a"])
    with pytest.raises(DataFileError, match=r"key \(int64\), v \(list.*\), kind \(string\).*--x-column"):
        read_features(odd)
    rows, y = read_features(odd, columns=ColumnNames(x=("v",), y="kind", ids="key"))
    assert np.array_equal(rows, X)
    assert y.tolist() == ["a", "b", "a"]
    assert read_labels(odd, ColumnNames(y="key")).tolist() == [7, 8, 9]
    with pytest.raises(DataFileError, match="has no column 'w'; its columns are key, v, kind"):
        read_features(odd, columns=ColumnNames(x=("w",)))


def test_columns_of_a_csv_by_name(tmp_path):
    path = write_csv(tmp_path / "t.csv", "key,a,b,kind\nk1,1,2,x\nk2,3,4,y\n")
    with pytest.raises(DataFileError, match=r"'k1', which is not a number, in column 'key'; .*--id-column"):
        read_features(path)
    rows, y = read_features(path, columns=ColumnNames(y="kind", ids="key"))
    assert rows.tolist() == [[1, 2], [3, 4]]
    assert y.tolist() == ["x", "y"]
    assert rows_of(path, x=("b",)).tolist() == [[2], [4]]
    twice = write_csv(tmp_path / "t.csv", "a,a,b\n1,2,3\n")
    with pytest.raises(DataFileError, match="has several columns 'a'"):
        rows_of(twice, x=("a",))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_ids_and_labels_of_one_file(tmp_path, suffix):
    table, path = {"id": ["k1", "k2"], "label": ["a", "b"]}, tmp_path / f"t{suffix}"
    if suffix == ".csv":
        pd.DataFrame(table).to_csv(path, index=False)
    elif suffix == ".parquet":
        write_parquet(path, **table)
    else:
        np.savez(path, **table)
    assert read_ids(path).tolist() == ["k1", "k2"]
    assert read_labels(path).tolist() == ["a", "b"]
    if suffix != ".npz":
        assert read_ids(path, ColumnNames(y="id", ids="label")).tolist() == ["a", "b"]


def test_a_column_that_does_not_exist_is_refused_in_a_file_of_one_column(tmp_path):
    for path in (write_csv(tmp_path / "t.csv", "topic\na\nb\n"), write_parquet(tmp_path / "t.parquet", topic=["a"])):
        for read, columns in ((read_labels, ColumnNames(y="kind")), (read_ids, ColumnNames(ids="kind"))):
            with pytest.raises(DataFileError, match="has no column 'kind'; its columns are topic"):
                read(path, columns)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read every file")
def test_files_without_permission_are_not_called_damaged(tmp_path):
    np.save(tmp_path / "X.npy", X)
    (tmp_path / "X.npy").chmod(0)
    with pytest.raises(PermissionError):
        read_features(tmp_path / "X.npy")


# --- .parquet ---


def test_lists_and_columns_of_a_parquet_file_are_the_same_matrix(tmp_path):
    lists = write_parquet(tmp_path / "lists.parquet", v=list(X))
    columns = write_parquet(tmp_path / "columns.parquet", a=X[:, 0], b=X[:, 1])
    for file in (lists, columns):
        assert np.array_equal(rows_of(file), X)
        assert np.array_equal(read_labels(file), X)
    values = write_parquet(tmp_path / "values.parquet", a=["x", "y", "x"])
    assert read_labels(values).tolist() == ["x", "y", "x"]
    one = write_parquet(tmp_path / "one.parquet", a=[1.0, 2.0])
    assert rows_of(one).tolist() == [[1], [2]]
    assert read_labels(one).tolist() == [1, 2]


@pytest.mark.parametrize("lists", [[[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]], [[1.0, 2.0], None, [3.0]]])
def test_lists_of_different_lengths_are_refused(tmp_path, lists):
    with pytest.raises(DataFileError, match="'v' differ in length"):
        read_features(write_parquet(tmp_path / "a.parquet", v=lists))


def test_labels_of_a_parquet_file_stay_exact(tmp_path):
    numbers = write_parquet(tmp_path / "n.parquet", y=[2**53, 2**53 + 1, None])
    assert read_labels(numbers).tolist() == [2**53, 2**53 + 1, None]
    tags = write_parquet(tmp_path / "t.parquet", y=[["red"], ["red", "round"], []])
    assert [list(row) for row in read_labels(tags)] == [["red"], ["red", "round"], []]
    words = write_parquet(tmp_path / "d.parquet", y=pa.array(["a", "b", "a"]).dictionary_encode())
    assert read_labels(words).tolist() == ["a", "b", "a"]


def test_the_pandas_index_in_a_parquet_file_is_not_a_feature(tmp_path):
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}, index=[5, 6, 9]).to_parquet(tmp_path / "x.parquet")
    assert np.array_equal(rows_of(tmp_path / "x.parquet"), X)


# --- Folders of shards ---


def write_shards(folder, kind):
    folder.mkdir()
    for i, part in enumerate([slice(0, 3), slice(3, 4), slice(4, 7)]):
        if kind == "npz":
            np.savez(folder / f"{i}.npz", X=X7[part], y=Y7[part])
        elif kind == "npy":
            np.save(folder / f"X_{i}.npy", X7[part])
            np.save(folder / f"y_{i}.npy", Y7[part])
        else:
            columns = {"x": list(X7[part])} if kind == "list" else {f"x{j}": X7[part, j] for j in range(5)}
            write_parquet(folder / f"part-{i}.parquet", label=Y7[part], **columns)


@pytest.mark.parametrize("kind", ["npy", "npz", "list", "columns"])
def test_shards_read_as_one_matrix(tmp_path, kind):
    assert not has_shards(tmp_path)
    write_shards(tmp_path / "s", kind)
    assert has_shards(tmp_path / "s")
    rows, y = read_features(tmp_path / "s")
    assert isinstance(rows, Shards)
    assert rows.shape == (7, 5)
    assert rows.dtype == np.float32
    assert np.array_equal(y, Y7)
    assert np.array_equal(np.asarray(rows), X7)
    assert np.array_equal(rows[[6, 0, 3, 3]], X7[[6, 0, 3, 3]])
    assert np.array_equal(np.concatenate(list(blocks_of(rows, 2))), X7)


@pytest.mark.parametrize("kind", ["npy", "npz", "list"])
def test_damaged_shards_are_named(tmp_path, kind):
    folder = tmp_path / "s"
    write_shards(folder, kind)
    file = sorted(folder.iterdir())[1]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataFileError, match=rf"{file.name} is not a .*, or is damaged"):
        read_features(folder)


def test_shards_that_do_not_match_are_named(tmp_path):
    folder = tmp_path / "npy"
    write_shards(folder, "npy")
    np.save(folder / "X_1.npy", X7[3:4, :4])
    with pytest.raises(DataFileError, match=r"X_1.npy has 4 features, but .*X_0.npy has 5"):
        read_features(folder)
    np.save(folder / "X_1.npy", X7[3:4])
    np.save(folder / "y_1.npy", Y7[:2])
    with pytest.raises(DataFileError, match=r"X_1\.npy has 1 rows, but .*y_1\.npy has 2 labels"):
        read_features(folder)
    np.save(folder / "y_1.npy", np.array(["a"]))
    with pytest.raises(DataFileError, match="labels are text in some shards and numbers in others"):
        read_features(folder)
    np.save(folder / "y_1.npy", np.array([[1]]))
    with pytest.raises(DataFileError, match="labels of its shards differ in shape"):
        read_features(folder)
    (folder / "y_2.npy").unlink()
    with pytest.raises(DataFileError, match="has 3 files of features, but 2 of labels"):
        read_features(folder)
    for file in folder.glob("X*"):
        file.unlink()
    with pytest.raises(DataFileError, match=r"holds labels .* but no features"):
        read_features(folder)
    folder = tmp_path / "parquet"
    write_shards(folder, "list")
    write_parquet(folder / "part-1.parquet", label=[1], x=[[1.0, 2.0]])
    with pytest.raises(DataFileError, match=r"part-1\.parquet has 2 features"):
        read_features(folder)
    write_parquet(folder / "part-1.parquet", x=[X7[3]])
    with pytest.raises(DataFileError, match="only 2 of 3 shards hold labels"):
        read_features(folder)
    folder = tmp_path / "npz"
    write_shards(folder, "npz")
    np.savez(folder / "1.npz", X=X7, y=Y7[:3])
    with pytest.raises(DataFileError, match=r"1\.npz has 7 rows, but labels of shape \(3,\)"):
        read_features(folder)


def test_folders_hold_shards_of_one_kind(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataFileError, match=r"shards of one kind, \.npy, \.npz or \.parquet files; found none"):
        read_features(tmp_path)
    np.save(tmp_path / "0.npy", X7)
    np.savez(tmp_path / "1.npz", X=X7)
    with pytest.raises(DataFileError, match=r"found \.npy and \.npz"):
        read_features(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_features(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]}, r"part\.parquet: the lists in column 'x' differ in length"),
        ({"label": [0, 1]}, r"part\.parquet has no columns of features, only label"),
        ({"x": ["a", "b"]}, "matrix of numbers"),
        ({"x": pa.array([], pa.float64())}, "all shards are empty"),
    ],
)
def test_unusable_parquet_shards_are_refused(tmp_path, columns, message):
    write_parquet(tmp_path / "part.parquet", **columns)
    with pytest.raises(DataFileError, match=message):
        read_features(tmp_path)


def test_a_parquet_shard_may_have_one_feature_and_label_vectors(tmp_path):
    write_parquet(tmp_path / "part.parquet", x=[1.0, 2.0], y=[[0, 1], [1, 1]])
    rows, y = read_features(tmp_path)
    assert rows[:].tolist() == [[1], [2]]
    assert y.tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (("part-0", "part-2"), "part-1 is missing"),
        (("a_007", "a_010"), "a_008 is missing, and 1 more"),
        (("x1", "x3"), "x2 is missing"),
        (("s-00001-of-00003", "s-00003-of-00003"), "s-00002-of-00003 is missing"),
        (("s-0-of-3", "s-1-of-3"), "s-2-of-3 is missing"),
    ],
)
def test_a_missing_shard_is_named(tmp_path, names, missing):
    for name in names:
        np.save(tmp_path / f"{name}.npy", X7)
    with pytest.raises(DataFileError, match=missing):
        read_features(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("b", "a"),
        ("x1", "z9"),
        ("5",),
        ("s-1-of-2", "s-2-of-2"),
        ("v2-0", "v2-1"),
        ("e2020", "e2023"),
        ("yelp0", "yelp1"),
    ],
)
def test_shards_with_all_their_numbers_or_none_are_read(tmp_path, names):
    for name in names:
        np.save(tmp_path / f"{name}.npy", X7)
    assert read_features(tmp_path)[0].shape == (7 * len(names), 5)


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_shard_full_of_nan_is_named_before_a_pass_over_all(tmp_path, kind):
    for i, value in enumerate((1.0, np.nan)):
        rows = np.full((50, 3), value, np.float32)
        if kind == "npy":
            np.save(tmp_path / f"{i}.npy", rows)
        else:
            write_parquet(tmp_path / f"{i}.parquet", x=list(rows))
    with pytest.raises(DataFileError, match=rf"1\.{kind} contains NaN or infinity"):
        read_features(tmp_path)


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path):
    for i in range(12):
        np.save(tmp_path / f"X{i}.npy", np.full((2, 3), float(i)))
        np.save(tmp_path / f"labels{i}.npy", np.full(2, i))
    rows, y = read_features(tmp_path)
    np.testing.assert_array_equal(rows[:][:, 0], np.repeat(np.arange(12.0), 2))
    np.testing.assert_array_equal(y, np.repeat(np.arange(12), 2))


def test_parquet_columns_are_matched_by_name_and_gaps_are_nan(tmp_path):
    write_parquet(tmp_path / "0.parquet", a=[1, 2], b=[3, 4])
    write_parquet(tmp_path / "1.parquet", b=[7] * 40 + [None], a=[5] * 41)
    write_parquet(tmp_path / "2.parquet", a=pa.array([], pa.int64()), b=pa.array([], pa.int64()))
    rows = read_features(tmp_path)[0]
    np.testing.assert_array_equal(rows[:3], [[1, 3], [2, 4], [5, 7]])
    assert np.isnan(rows[42][1])
    write_parquet(tmp_path / "1.parquet", a=[1], c=[2])
    with pytest.raises(DataFileError, match=r"1\.parquet has other columns than the first shard: b, c"):
        read_features(tmp_path)


def test_more_shards_than_open_files(tmp_path):
    resource = pytest.importorskip("resource")
    for i in range(80):
        np.save(tmp_path / f"{i}.npy", np.full((1, 2), float(i)))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 30, before[1]))
    try:
        assert read_features(tmp_path)[0][:].sum() == 2 * sum(range(80))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# --- Columns by name ---


class Known:
    """A model that knows the names of its features."""

    feature_names_in_ = np.array(["a", "b", "y"], object)


FOR_MODEL = ColumnNames().for_model(Known())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_are_read_in_the_order_of_the_model(tmp_path, suffix):
    def write(**columns):
        path = tmp_path / f"t{suffix}"
        table = pa.table(columns)
        pq.write_table(table, path) if suffix == ".parquet" else pa_csv.write_csv(table, path)
        return path

    path = write(label=["u", "v"], y=[5, 6], b=[3, 4], id=[7, 8], a=[1, 2])
    X, y = read_features(path, columns=FOR_MODEL)
    np.testing.assert_array_equal(X, [[1, 3, 5], [2, 4, 6]])  # y is a feature of this model
    assert y.tolist() == ["u", "v"]
    assert feature_names(path, FOR_MODEL) == ("a", "b", "y")
    assert feature_names(path, ColumnNames(y="label")) == ("y", "b", "a")
    chosen = ColumnNames(x=("y", "a", "b")).for_model(Known())
    np.testing.assert_array_equal(read_features(path, columns=chosen)[0], X)
    with pytest.raises(DataFileError, match=r"'y' and 'label': which one holds the labels\? Name it with --y-column"):
        read_features(path)
    with pytest.raises(DataFileError, match="without 'y'"):
        read_features(path, columns=ColumnNames(y="y", x=("a", "b")).for_model(Known()))
    with pytest.raises(DataFileError, match=r"than the 3 features expected: without 'b' and with 'c', 'd'"):
        read_features(write(c=[1], a=[1], d=[2], y=[3]), columns=FOR_MODEL)


def test_columns_without_names_go_by_position(tmp_path):
    text = "1,2,3\n4,5,6\n"
    np.testing.assert_array_equal(
        read_features(write_csv(tmp_path / "x.csv", text), columns=replace(FOR_MODEL, header=False))[0],
        [[1, 2, 3], [4, 5, 6]],
    )
    write_parquet(tmp_path / "v.parquet", id=[1, 2], vector=[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert read_features(tmp_path / "v.parquet", columns=FOR_MODEL)[0].shape == (2, 3)
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    assert read_features(tmp_path / "x.npy", columns=FOR_MODEL)[0].shape == (2, 3)
    for name in ("v.parquet", "x.npy"):
        assert feature_names(tmp_path / name) == ()
    with pytest.raises(DataFileError, match="several columns 'a'"):
        feature_names(write_csv(tmp_path / "twice.csv", "a,a\n1,2\n"))


def test_an_empty_first_shard_does_not_decide_the_order_of_the_features(tmp_path):
    write_parquet(tmp_path / "0.parquet", b=pa.array([], pa.float64()), a=pa.array([], pa.float64()))
    write_parquet(tmp_path / "1.parquet", a=[1.0], b=[2.0])
    assert feature_names(tmp_path) == ("a", "b")
    np.testing.assert_array_equal(read_features(tmp_path)[0][:], [[1, 2]])


def test_many_columns_are_matched_in_linear_time():
    """Looking each name up in a list or a tuple would take minutes."""
    names = [f"f{i}" for i in range(30_000)]
    start = time.perf_counter()
    found = ColumnNames(order=tuple(names)).features_in("t.parquet", names[::-1])
    assert found == list(range(29_999, -1, -1))
    assert time.perf_counter() - start < 2


def test_shards_are_read_in_the_order_of_the_model(tmp_path):
    write_parquet(tmp_path / "0.parquet", b=[3], a=[1], y=[5])
    write_parquet(tmp_path / "1.parquet", a=[2], y=[6], b=[4])
    np.testing.assert_array_equal(read_features(tmp_path, columns=FOR_MODEL)[0][:], [[1, 3, 5], [2, 4, 6]])
    assert feature_names(tmp_path, FOR_MODEL) == ("a", "b", "y")
