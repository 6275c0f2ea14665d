"""The one reader of array files: what it takes, and files that are not what their names say."""

import numpy as np
import pytest

from dish.io.tables import DataFileError, read_labels, read_npy, read_rows

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
        "objects.npz": "it holds no array, or one of Python objects",
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
    assert read_labels(tmp_path / "sharp.csv").tolist() == ["C#", "C", "F#"]
    (tmp_path / "gap.csv").write_text("1,,3\n4,5,6\n")
    with pytest.raises(DataFileError, match="empty field"):
        read_rows(tmp_path / "gap.csv")
