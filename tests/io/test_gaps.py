"""Rows with gaps in files of every kind: they are found, counted and named, or left out."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dish.errors import DataFileError, InputError
from dish.io.gaps import KeptRows, counted, describe, take_rows, without_id, without_labels, without_vector
from dish.io.readers import ColumnNames, own_ids, read_features, read_labels
from dish.io.rows import RowSource, Shards, blocks_of, check_finite
from dish.lazy import torch

NAN = float("nan")


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def read(path, **columns):
    return read_features(path, columns=ColumnNames(gaps=True, **columns))[0]


# --- Reading ---


@pytest.mark.parametrize(
    ("lists", "kind", "dtype"),
    [
        ([[1, 2], None, [3, 4], [], [5, None]], pa.list_(pa.float32()), np.float32),
        ([[1, 2], None, [3, 4], [], [5, None]], pa.list_(pa.int64()), np.float64),
        ([[1, 2], None, [3, 4], None, [5, None]], pa.list_(pa.float32(), 2), np.float32),
        ([[1, 2], None, [3, 4], [], [5, NAN]], pa.large_list(pa.float64()), np.float64),
    ],
)
def test_vectors_of_a_parquet_file_that_are_null_empty_or_nan(tmp_path, lists, kind, dtype):
    path = parquet(tmp_path / "t.parquet", v=pa.array(lists, kind))
    X = read(path)
    assert X.dtype == dtype
    np.testing.assert_array_equal(X, [[1, 2], [NAN, NAN], [3, 4], [NAN, NAN], [5, NAN]])
    assert without_vector(X).tolist() == [False, True, False, True, True]
    says = r"t\.parquet: 3 of 5 rows without a complete vector \(rows 1, 3, 4, counted from 0\): .*--drop-missing"
    with pytest.raises(DataFileError, match=says):
        read_features(path)


def test_the_error_names_ids_and_the_columns_with_gaps(tmp_path):
    path = parquet(
        tmp_path / "t.parquet",
        id=[f"p{i}" for i in range(9)],
        a=[None] * 7 + [1, 2],
        b=[1.0] * 9,
        c=[True, None] * 4 + [True],
    )
    says = r"8 of 9 rows .*\(rows 0, 1, 2, 3, 4, …, .*; ids 'p0', 'p1', 'p2', 'p3', 'p4', …; gaps in 'a', 'c'\)"
    with pytest.raises(DataFileError, match=says):
        read_features(path)
    assert np.isnan(read(path)).sum() == 7 + 4
    with pytest.raises(DataFileError, match=r"7 of 9 rows .*; gaps in 'a'\)"):
        read_features(path, columns=ColumnNames(x=("a", "b")))


@pytest.mark.parametrize(
    "text", ["a,b,id\n1,2,x\n,4,y\n5,6,z\n", "a,b,id\n1,2,x\nnan,4,y\n5,6,z\n", 'a,b,id\n1,2,x\n"",4,y\n5,6,z\n']
)
def test_an_empty_field_of_a_csv_file_is_a_gap(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    np.testing.assert_array_equal(read(tmp_path / "t.csv"), [[1, 2], [NAN, 4], [5, 6]])
    with pytest.raises(DataFileError, match=r"1 of 3 rows .*\(row 1, counted from 0; id 'y'; gaps in 'a'\)"):
        read_features(tmp_path / "t.csv")


def test_an_empty_field_among_truth_values(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,True\n3,\n")
    np.testing.assert_array_equal(read(tmp_path / "t.csv"), [[1, 1], [3, NAN]])


def test_shards_may_begin_with_gaps(tmp_path):
    parquet(tmp_path / "0.parquet", v=pa.array([None] * 20 + [[1.0, 2.0]], pa.list_(pa.float64())))
    parquet(tmp_path / "1.parquet", v=[[3.0, 4.0], [5.0, 6.0]])
    X = read(tmp_path)
    assert isinstance(X, Shards)
    assert np.flatnonzero(~without_vector(X)).tolist() == [20, 21, 22]
    with pytest.raises(DataFileError, match=r"0\.parquet contains NaN or infinity: .*--drop-missing"):
        read_features(tmp_path)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.full((3, 2), NAN))
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    assert without_vector(read(tmp_path)).all()


def test_a_file_without_any_vector_is_refused(tmp_path):
    with pytest.raises(DataFileError, match=r"t\.parquet must hold a matrix of numbers"):
        read(parquet(tmp_path / "t.parquet", v=pa.array([None, []], pa.list_(pa.float64()))))


def test_lists_of_other_lengths_are_named(tmp_path):
    path = parquet(tmp_path / "t.parquet", v=[[1.0, 2.0], None, [3.0, 4.0], [5.0]])
    with pytest.raises(DataFileError, match=r"1 of 4 do not have 2 values, .*row 3 \(counted from 0\) with 1$"):
        read(path)


def test_ids_that_come_with_rows(tmp_path):
    table = parquet(tmp_path / "t.parquet", id=[7, 8], v=[[1.0], [2.0]], key=["a", "b"])
    np.savez(tmp_path / "t.npz", X=np.ones((2, 2)), ids=[5, 6])
    np.save(tmp_path / "t.npy", np.ones((2, 2)))
    assert own_ids(table, ColumnNames()).tolist() == [7, 8]
    assert own_ids(table, ColumnNames(ids="key")).tolist() == ["a", "b"]
    assert own_ids(tmp_path / "t.npz", ColumnNames()).tolist() == [5, 6]
    assert own_ids(tmp_path / "t.npy", ColumnNames()) is None
    assert own_ids(tmp_path, ColumnNames()) is None


# --- What is missing ---


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([1, 2, None], [0, 0, 1]),
        ([0, 1, -1], [0, 0, 1]),
        (["a", "", None], [0, 1, 1]),
        ([0.0, NAN, 1.0], [0, 1, 0]),
        ([["red"], [], None], [0, 0, 1]),
        (np.array([[0, 1], [NAN, 1], [NAN, NAN]]), [0, 0, 1]),
        (np.eye(3, dtype=int), [0, 0, 0]),
    ],
)
def test_rows_without_a_label(y, expected):
    if isinstance(y, list) and isinstance(y[0], list):
        y = np.fromiter(y, object, 3)
    assert without_labels(y).tolist() == [bool(one) for one in expected]


def test_labels_and_ids_of_files(tmp_path):
    (tmp_path / "t.csv").write_text("id,label\nx,cat\n,\nz,dog\n")
    assert without_labels(read_labels(tmp_path / "t.csv")).tolist() == [False, True, False]
    assert without_id(own_ids(tmp_path / "t.csv", ColumnNames())).tolist() == [False, True, False]
    assert without_id(np.arange(3)).tolist() == [False] * 3
    path = parquet(tmp_path / "t.parquet", id=[1, None, 3], y=[[0, 1], None, [1, 1]], tags=[["a"], None, []])
    assert without_id(own_ids(path, ColumnNames())).tolist() == [False, True, False]
    for name in ("y", "tags"):
        assert without_labels(read_labels(path, ColumnNames(y=name))).tolist() == [False, True, False]


def test_the_message_names_the_first_rows():
    mask = np.zeros(20_000, bool)
    mask[[4, 17]] = True
    assert (
        describe("d.npy", "a label", mask) == "d.npy: 2 of 20,000 rows without a label (rows 4, 17, counted from 0)"
    )
    mask[100:140] = True
    text = describe("d.npy", "a label", mask, np.arange(20_000) + 7)
    assert "42 of 20,000 rows" in text
    assert text.endswith("(rows 4, 17, 100, 101, 102, …, counted from 0; ids 11, 24, 107, 108, 109, …)")


def test_an_error_about_one_row_becomes_one_about_all(tmp_path):
    X = np.ones((40, 3))
    X[[3, 30]] = NAN
    np.save(tmp_path / "X.npy", X)
    mapped = read_features(tmp_path / "X.npy")[0]
    with (
        pytest.raises(DataFileError, match=r"X\.npy: 2 of 40 rows .*rows 3, 30"),
        counted(tmp_path / "X.npy", mapped),
    ):
        check_finite(mapped, 0, mapped)
    with pytest.raises(InputError, match="another problem"), counted(tmp_path / "X.npy", mapped):
        raise InputError("another problem")
    infinite = np.full((2, 2), np.inf)
    np.save(tmp_path / "X.npy", infinite)
    mapped = read_features(tmp_path / "X.npy")[0]
    with pytest.raises(InputError, match="row 0"), counted(tmp_path / "X.npy", mapped):
        check_finite(mapped, 0, mapped)


# --- Leaving rows out ---


@pytest.mark.parametrize("kind", ["array", "map", "shards"])
def test_kept_rows_read_like_a_matrix(tmp_path, kind):
    X = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    X[::7, 1] = NAN
    given = X
    if kind == "map":
        np.save(tmp_path / "X.npy", X)
        given = np.load(tmp_path / "X.npy", mmap_mode="r")
    elif kind == "shards":
        given = Shards([lambda: X[:123], lambda: X[123:]], [123, 377], 4, X.dtype, ["a", "b"])
    kept = np.flatnonzero(~without_vector(given))
    some, expected = take_rows(given, kept), X[kept]
    assert isinstance(some, KeptRows) == (kind != "array")
    assert (some.shape, some.dtype, len(some)) == (expected.shape, X.dtype, len(kept))
    for which in (slice(None), slice(10, 300), slice(0, 9, 2), [3, 400, 5], 17, expected[:, 0] > 0):
        np.testing.assert_array_equal(some[which], expected[which])
    np.testing.assert_array_equal(np.concatenate(list(blocks_of(some, 100))), expected)
    np.testing.assert_array_equal(np.asarray(some), expected)
    source = RowSource(some, slice(50, 200))
    np.testing.assert_array_equal(
        source.take(np.array([0, 9, 77]), torch.device("cpu")), expected[50:200][[0, 9, 77]]
    )


def test_an_infinite_row_is_named_by_its_row_in_the_file(tmp_path):
    X = np.ones((9, 2))
    X[2], X[5] = NAN, np.inf
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    some = take_rows(mapped, np.flatnonzero(~without_vector(mapped)))
    with pytest.raises(InputError, match=r"in row 4 \(row 5 with the rows that were left out\)"):
        check_finite(some[:], 0, some)
