"""Ids, labels and vectors that `dish encode` writes next to codes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dish import DISH, HammingIndex
from dish.cli.code_columns import column_of
from dish.errors import InputError
from dish.io.readers import ColumnNames

N = 40


@pytest.fixture
def tables(tmp_path):
    """A model, and a folder with two tables of products, of which one row has no vector and one no label."""
    rng = np.random.default_rng(0)
    y = np.arange(N) % 2
    X = (4 * rng.normal(size=(2, 5))[y] + rng.normal(size=(N, 5))).astype(np.float16)
    names = np.array([f"kind {k}" for k in y])
    DISH(8, n_anchors=10).fit(X.astype(np.float32), names).save(tmp_path / "m.dish")
    vectors = [None if i == 7 else X[i] for i in range(N)]
    labels = [None if i == 25 else name for i, name in enumerate(names.tolist())]
    (tmp_path / "shop").mkdir()
    for part, rows in enumerate((slice(0, 15), slice(15, N))):
        table = {"sku": [f"s{i}" for i in range(N)[rows]], "topic": labels[rows]}
        table["embedding"] = pa.array(vectors[rows], pa.list_(pa.float16()))
        pq.write_table(pa.table(table), tmp_path / "shop" / f"part-{part}.parquet")
    return tmp_path, X


def test_a_folder_of_tables_becomes_an_index_that_rescores(cli, tables):
    folder, X = tables
    columns = ("--x-column", "embedding", "--y-column", "topic", "--id-column", "sku", "--drop-missing")
    codes = folder / "c.npy"
    code, out, err = cli("encode", folder / "m.dish", folder / "shop", *columns, "--save-vectors", "-o", codes)
    assert code == 0, err
    for name in (
        "c.ids.npy: the ids",
        "c.labels.parquet: the labels",
        "c.rows.npy: the row",
        "c.vectors.npy: the vec",
    ):
        assert name in out
    kept = np.delete(np.arange(N), 7)
    np.testing.assert_array_equal(np.load(folder / "c.vectors.npy"), X[kept])
    assert np.load(folder / "c.ids.npy").tolist() == [f"s{i}" for i in kept]
    given = ("--ids", folder / "c.ids.npy", "--labels", folder / "c.labels.parquet")
    code, _, err = cli("index", codes, *given, "-o", folder / "ix.dish")
    assert code == 0, err
    assert HammingIndex.load(folder / "ix.dish").labels_of(["s25", "s26"]).tolist() == [None, "kind 0"]
    vectors = ("--vectors", folder / "c.vectors.npy", "--vector-ids", folder / "c.ids.npy")
    rescore = ("--rescore", "float", "--query-vectors", folder / "c.vectors.npy", "--k", 1)
    code, out, err = cli("search", folder / "ix.dish", "--codes", codes, *vectors, *rescore)
    assert code == 0, err
    assert [line.split()[2] for line in out.splitlines()] == [f"s{i}" for i in kept]


def test_columns_of_several_types_are_an_error(tmp_path):
    for part, values in enumerate((["1", None], [2, 3], [None, None])):
        pq.write_table(pa.table({"sku": values}), tmp_path / f"{part}.parquet")
    with pytest.raises(InputError, match="text in some of its files and numbers in others"):
        column_of(tmp_path, ColumnNames(ids="sku"), "sku")
    (tmp_path / "1.parquet").unlink()
    assert column_of(tmp_path, ColumnNames(ids="sku"), "sku").tolist() == ["1", None, None, None]
