"""One's own features: array files and folders of shards."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dish.datasets import Shards, load_features
from dish.errors import DataFileError
from dish.io.blocks import blocks_of

X7 = np.arange(35, dtype=np.float32).reshape(7, 5)
Y7 = np.array([0, 1, 0, 1, 0, 1, 1])


def test_npy_is_memory_mapped_and_finds_its_labels(tmp_path):
    np.save(tmp_path / "f.npy", X7)
    data = load_features(tmp_path / "f.npy")
    assert isinstance(data.X, np.memmap)
    assert data.y is None
    with pytest.raises(ValueError, match="f has no labels"):
        data.split()
    np.save(tmp_path / "f_labels.npy", Y7)
    data = load_features(tmp_path / "f.npy", queries=1)
    assert np.array_equal(data.y, Y7)
    assert len(data.split().query) == 2
    np.save(tmp_path / "other.npy", 1 - Y7)
    assert np.array_equal(load_features(tmp_path / "f.npy", tmp_path / "other.npy").y, 1 - Y7)


@pytest.mark.parametrize("name", ["y", "Y"])
def test_npz(tmp_path, name):
    y = Y7 if name == "y" else np.eye(2)[Y7]
    np.savez(tmp_path / "f.npz", X=X7, **{name: y})
    data = load_features(tmp_path / "f.npz")
    assert np.array_equal(data.X, X7)
    assert np.array_equal(data.y, y)


def write_shards(folder, kind):
    folder.mkdir()
    for i, part in enumerate([slice(0, 3), slice(3, 4), slice(4, 7)]):
        if kind == "npz":
            np.savez(folder / f"{i}.npz", X=X7[part], y=Y7[part])
            continue
        if kind == "npy":
            np.save(folder / f"X_{i}.npy", X7[part])
            np.save(folder / f"y_{i}.npy", Y7[part])
            continue
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        columns = {"label": Y7[part]}
        if kind == "list":
            columns["x"] = list(X7[part])
        else:
            columns |= {f"x{j}": X7[part, j] for j in range(5)}
        pq.write_table(pa.table(columns), folder / f"part-{i}.parquet")


@pytest.mark.parametrize("kind", ["npy", "npz", "list", "columns"])
def test_shards_read_as_one_matrix(tmp_path, kind):
    write_shards(tmp_path / "s", kind)
    data = load_features(tmp_path / "s")
    X = data.X
    assert isinstance(X, Shards)
    assert X.shape == (7, 5)
    assert X.dtype == np.float32
    assert np.array_equal(data.y, Y7)
    for which in (slice(None), slice(2, 5), slice(6, None, -2), [6, 0, 3, 3], Y7 == 1, 4, -1):
        assert np.array_equal(X[which], X7[which])
    assert np.array_equal(np.asarray(X), X7)
    assert np.array_equal(np.concatenate(list(blocks_of(X, 2))), X7)
    with pytest.raises(IndexError):
        X[7]


@pytest.mark.parametrize("kind", ["npy", "npz", "list"])
def test_shards_that_do_not_fit_are_refused(tmp_path, kind):
    folder = tmp_path / "s"
    write_shards(folder, kind)
    file = sorted(folder.iterdir())[1]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataFileError, match=rf"{file.name} is not a .*, or is damaged"):
        load_features(folder)
    if kind == "npy":
        np.save(file, X7[3:4, :4])
        with pytest.raises(DataFileError, match=r"X_1.npy has 4 features, but .*X_0.npy has 5"):
            load_features(folder)
        np.save(file, X7[3:4])
        (folder / "y_2.npy").unlink()
        with pytest.raises(DataFileError, match="has 3 files of features, but 2 of labels"):
            load_features(folder)


def test_a_parquet_shard_of_another_width_is_refused(tmp_path):
    write_shards(tmp_path / "s", "list")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"label": [1], "x": [[1.0, 2.0]]}), tmp_path / "s" / "part-1.parquet")
    with pytest.raises(DataFileError, match=r"part-1\.parquet has 2 features"):
        load_features(tmp_path / "s").rows()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.npy", X7[0], r"f\.npy must hold a matrix of numbers.*\(5,\)"),
        ("f.npy", np.array([["a", "b"]]), "matrix of numbers"),
        ("f.npy", np.array([[{}]], dtype=object), "f.npy holds Python objects"),
        ("f.npy", b"\x93NUMPY", "f.npy is not a .npy file"),
        ("f.npy", b"", "f.npy is not a .npy file"),
        ("f.npz", b"PK\x03\x04 broken", "f.npz is not a .npz file"),
        ("f.npz", {"a": X7, "b": X7}, "holds a, b; name the wanted array X"),
        ("f.npz", {"X": X7, "y": Y7[:4]}, r"7 rows, but its labels are of shape \(4,\)"),
        ("f.txt", b"1,2", "unknown kind of file"),
    ],
)
def test_wrong_feature_files_are_refused(tmp_path, name, content, message):
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(file, **content)
    else:
        np.save(file, content, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        load_features(file)


def test_a_truncated_npy_and_wrong_folders_are_refused(tmp_path):
    np.save(tmp_path / "f.npy", X7)
    whole = (tmp_path / "f.npy").read_bytes()
    (tmp_path / "f.npy").write_bytes(whole[:-4])
    with pytest.raises(DataFileError, match=r"f\.npy is not a \.npy file of numbers, or is damaged"):
        load_features(tmp_path / "f.npy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataFileError, match="found none"):
        load_features(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_features(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]}, r"part\.parquet: the lists in column 'x' differ in length"),
        ({"label": [0, 1]}, r"part\.parquet holds labels but no features"),
        ({"x": ["a", "b"]}, "matrix of numbers"),
    ],
)
def test_wrong_parquet_shards_are_refused(tmp_path, columns, message):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    with pytest.raises(DataFileError, match=message):
        load_features(tmp_path)


def test_a_parquet_shard_may_have_one_feature_and_many_labels_a_row(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [[0, 1], [1, 1]]}), tmp_path / "part.parquet")
    data = load_features(tmp_path)
    assert data.rows().tolist() == [[1], [2]]
    assert data.y.tolist() == [[0, 1], [1, 1]]


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
        load_features(tmp_path)


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
    assert load_features(tmp_path).X.shape == (7 * len(names), 5)


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_shard_full_of_nan_is_named_at_once(tmp_path, kind):
    for i, value in enumerate((1.0, np.nan)):
        rows = np.full((50, 3), value, np.float32)
        if kind == "npy":
            np.save(tmp_path / f"{i}.npy", rows)
        else:
            table = pytest.importorskip("pyarrow").table({"x": list(rows)})
            pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / f"{i}.parquet")
    with pytest.raises(DataFileError, match=rf"1\.{kind} contains NaN or infinity"):
        load_features(tmp_path)


def test_labels_of_the_wrong_length_are_named(tmp_path):
    for i, n in enumerate((7, 6)):
        np.save(tmp_path / f"X_{i}.npy", X7)
        np.save(tmp_path / f"y_{i}.npy", Y7[:n])
    with pytest.raises(DataFileError, match=r"X_1\.npy has 7 rows, but .*y_1\.npy has 6 labels"):
        load_features(tmp_path)


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path):
    for i in range(12):
        np.save(tmp_path / f"X{i}.npy", np.full((2, 3), float(i)))
        np.save(tmp_path / f"labels{i}.npy", np.full(2, i))
    data = load_features(tmp_path)
    np.testing.assert_array_equal(data.X[:][:, 0], np.repeat(np.arange(12.0), 2))
    np.testing.assert_array_equal(data.y, np.repeat(np.arange(12), 2))


def test_parquet_columns_go_by_name_and_gaps_are_nan(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"b": [7] * 40 + [None], "a": [5] * 41}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())}), tmp_path / "2.parquet")
    X = load_features(tmp_path).X
    np.testing.assert_array_equal(X[:3], [[1, 3], [2, 4], [5, 7]])
    assert np.isnan(X[42][1])
    pq.write_table(pa.table({"a": [1], "c": [2]}), tmp_path / "1.parquet")
    with pytest.raises(DataFileError, match=r"1\.parquet has other columns than the first shard"):
        load_features(tmp_path)


def test_more_shards_than_open_files(tmp_path):
    resource = pytest.importorskip("resource")
    for i in range(80):
        np.save(tmp_path / f"{i}.npy", np.full((1, 2), float(i)))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 30, before[1]))
    try:
        assert load_features(tmp_path).X[:].sum() == 2 * sum(range(80))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_folder_says_what_shards_may_be(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataFileError, match=r"shards of one kind, \.npy, \.npz or \.parquet files; found none"):
        load_features(tmp_path)
    np.save(tmp_path / "0.npy", X7)
    np.savez(tmp_path / "1.npz", X=X7)
    with pytest.raises(DataFileError, match=r"found \.npy and \.npz"):
        load_features(tmp_path)


def test_npz_shards_with_labels_of_another_length_are_named(tmp_path):
    np.savez(tmp_path / "0.npz", X=X7, y=Y7)
    np.savez(tmp_path / "1.npz", X=X7, y=Y7[:3])
    with pytest.raises(DataFileError, match=r"1\.npz has 7 rows, but labels of shape \(3,\)"):
        load_features(tmp_path)


def test_threads_that_read_different_shards_get_their_own_rows(tmp_path):
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.full((50, 3), float(i)))
    X = load_features(tmp_path).X
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:

            def wrong(i):
                return sum(bool((X[50 * i : 50 * i + 50] != i).any()) for _ in range(1500))

            assert sum(pool.map(wrong, range(4))) == 0
    finally:
        sys.setswitchinterval(before)
