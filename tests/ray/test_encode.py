import pickle
import subprocess
import sys

import numpy as np
import pytest

from dish import DISH, codes
from dish.errors import InputError, ModelMismatchError
from dish.ray.encode import EncodeBatch

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A hasher, its file, and rows with ids and labels as a table."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 6)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int) + 2 * (X[:, 1] > 0)
    hasher = DISH(n_bits=12, n_anchors=20, random_state=0).fit(X, y)
    path = tmp_path_factory.mktemp("model") / "model.dish"
    hasher.save(path)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 6)
    return hasher, str(path), X, pa.table({"id": np.arange(90) * 3, "vector": vectors, "label": y.astype(str)})


def test_a_table_with_codes_instead_of_vectors(model):
    hasher, path, X, table = model
    found = EncodeBatch(path)(table)
    assert found.column_names == ["id", "label", "code"]
    np.testing.assert_array_equal(codes.parse(found, 12, "arrow"), hasher.transform(X))
    assert found.schema.metadata == {b"dish.n_bits": b"12", b"dish.model": hasher.fingerprint_.encode()}
    assert found["id"] == table["id"]
    assert EncodeBatch(path, keep=["id"])(table).column_names == ["id", "code"]


def test_a_slice_a_record_batch_several_pieces_and_no_rows(model):
    hasher, path, X, table = model
    encode = EncodeBatch(path, keep=[])
    wanted = hasher.transform(X)
    pieces = pa.concat_tables([table.slice(0, 20), table.slice(20, 50), table.slice(70)])
    batch = table.slice(7, 30).combine_chunks().to_batches()[0]
    for given, rows in ((pieces, slice(None)), (table.slice(7, 30), slice(7, 37)), (batch, slice(7, 37))):
        np.testing.assert_array_equal(codes.parse(encode(given), 12, "arrow"), wanted[rows])
    none = encode(table.slice(0, 0))
    assert (none.num_rows, none.schema.field("code").type) == (0, pa.binary(2))


@pytest.mark.parametrize("kind", ["lists", "large lists", "float64", "columns"])
def test_vectors_of_several_types(model, kind):
    hasher, path, X, _ = model
    if kind == "columns":
        table, column = pa.table({f"x{j}": X[:, j] for j in range(6)}), [f"x{j}" for j in range(6)]
    else:
        types = {"lists": pa.list_(pa.float32()), "large lists": pa.large_list(pa.float32())}
        table, column = pa.table({"v": pa.array(X.tolist(), types.get(kind, pa.list_(pa.float64())))}), "v"
    found = EncodeBatch(path, column)(table)
    np.testing.assert_array_equal(codes.parse(found, 12, "arrow"), hasher.transform(X))


def test_data_frames_keep_their_index(model):
    hasher, path, X, table = model
    pd = pytest.importorskip("pandas")
    frame = table.to_pandas().set_index(pd.Index(np.arange(90)[::-1]))
    (found,) = EncodeBatch(path).map_in_pandas([frame])
    assert list(found.columns) == ["id", "label", "code"]
    assert found.index.equals(frame.index)
    assert found["code"].tolist() == [code.tobytes() for code in hasher.transform(X)]
    assert EncodeBatch(path).frame(frame[:0]).shape == (0, 3)  # an empty partition


def test_a_model_file_that_was_replaced_is_read_again(model, tmp_path):
    hasher, _, X, table = model
    other = DISH(n_bits=12, n_anchors=20, random_state=1).fit(X, X[:, 2] > 0)
    for one in (hasher, other):
        one.save(tmp_path / "model.dish")
        found = EncodeBatch(str(tmp_path / "model.dish"))(table)
        np.testing.assert_array_equal(codes.parse(found, 12, "arrow"), one.transform(X))


def test_spark_gets_codes_of_variable_size(model):
    hasher, path, X, table = model
    batches = list(EncodeBatch(path, keep=["id"]).map_in_arrow(table.to_batches(max_chunksize=40)))
    assert [batch.num_rows for batch in batches] == [40, 40, 10]
    assert batches[0].schema == pa.schema([("id", pa.int64()), ("code", pa.binary())])
    found = [code for batch in batches for code in batch["code"].to_pylist()]
    assert found == [code.tobytes() for code in hasher.transform(X)]


def test_it_is_small_when_sent(model):
    _, path, _, table = model
    encode = EncodeBatch(path)
    encode(table)  # has loaded the model
    again = pickle.loads(pickle.dumps(encode))
    assert len(pickle.dumps(encode)) < 500
    assert again(table) == encode(table)


def test_it_imports_no_engine():
    script = "import sys, dish.ray.encode; print(sorted({'ray', 'pyspark', 'dask', 'lance'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


def test_what_cannot_be_encoded(model):
    _, path, _, table = model
    for changed, options, message in (
        (table, {"column": "vectors"}, "the table has no column 'vectors'; its columns are id, vector, label"),
        (table, {"keep": ["name"]}, "no column 'name'"),
        (table, {"column": "label"}, "column 'label' must hold numbers or lists of numbers, got string"),
        (table.append_column("code", table["id"]), {}, "the table has a column 'code' already"),
        (pa.table({"vector": [{"x": 1.0}]}), {}, "numbers or lists of numbers, got struct"),
        (pa.table({"vector": [[1.0] * 6, None]}), {}, "1 of 2 rows have a null in vector, the first is number 1"),
        (pa.table({"vector": [[1.0] * 6, [1.0] * 5]}), {}, "must have one length"),
        (pa.table({"vector": [[1.0] * 5 + [None]]}), {}, "no nulls"),
        (pa.table({"vector": [[1.0] * 5]}), {}, "5 features"),
    ):
        with pytest.raises(ValueError, match=message):
            EncodeBatch(path, **options)(changed)
    with pytest.raises(ModelMismatchError, match="0123456789abcdef"):
        EncodeBatch(path, model="0123456789abcdef")(table)
    with pytest.raises(InputError, match="several columns 'id'"):
        EncodeBatch(path)(table.append_column("id", table["id"]))


# --- engines ---


@pytest.fixture
def files(model, tmp_path):
    """The rows in files that engines read: a folder of .parquet, of .npy, and a .lance folder."""
    import pyarrow.parquet as pq

    _, _, X, table = model
    for folder in ("parquet", "npy"):
        (tmp_path / folder).mkdir()
    for i in range(3):
        rows = slice(30 * i, 30 * i + 30)
        pq.write_table(table.slice(30 * i, 30), tmp_path / "parquet" / f"{i}.parquet")
        np.save(tmp_path / "npy" / f"{i}.npy", X[rows])
    return tmp_path


def check_codes(model, ids, found):
    """Each id once, with the code of its row."""
    hasher, _, X, table = model
    wanted = dict(zip(table["id"].to_pylist(), map(bytes, hasher.transform(X)), strict=True))
    assert len(ids) == len(wanted)
    assert dict(zip(ids, map(bytes, found), strict=True)) == wanted


@pytest.mark.engines
@pytest.mark.parametrize("kind", ["parquet", "npy", "lance"])
def test_on_ray_data(model, files, ray, kind):
    hasher, path, X, table = model
    options = {"fn_constructor_args": (path, "data" if kind == "npy" else "vector"), "batch_format": "pyarrow"}
    options["compute"] = ray.data.ActorPoolStrategy(size=1)
    if kind == "lance":
        lance = pytest.importorskip("lance", reason="encoding of Lance on Ray Data is NOT tested: no pylance")
        lance.write_dataset(table, str(files / "x.lance"), max_rows_per_file=30)
        rows = ray.data.read_lance(str(files / "x.lance"))
    else:
        rows = {"parquet": ray.data.read_parquet, "npy": ray.data.read_numpy}[kind](str(files / kind))
    found = rows.map_batches(EncodeBatch, **options).take_all()
    if kind == "npy":
        assert sorted(row["code"] for row in found) == sorted(map(bytes, hasher.transform(X)))
    else:
        check_codes(model, [row["id"] for row in found], [row["code"] for row in found])


@pytest.mark.engines
def test_on_dask(model, files):
    dd = pytest.importorskip("dask.dataframe")
    _, path, _, _ = model
    frame = dd.read_parquet(files / "parquet" / "*.parquet", columns=["id", "vector"])
    encode = EncodeBatch(path)
    found = frame.map_partitions(encode.frame, meta={"id": "int64", "code": object}).compute(scheduler="threads")
    check_codes(model, found["id"].tolist(), found["code"].tolist())


@pytest.mark.engines
@pytest.mark.parametrize("method", ["mapInPandas", "mapInArrow"])
def test_on_spark(model, files, spark, method):
    _, path, _, _ = model
    rows = spark.read.parquet(str(files / "parquet")).select("id", "vector")
    encode = EncodeBatch(path)
    function = encode.map_in_pandas if method == "mapInPandas" else encode.map_in_arrow
    found = getattr(rows, method)(function, "id long, code binary").collect()
    check_codes(model, [row.id for row in found], [row.code for row in found])
