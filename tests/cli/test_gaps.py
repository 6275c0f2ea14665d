"""`--drop-missing`: without it rows with gaps are named, with it what is written still says which row it is of."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dish
from dish import DISH, HammingIndex, stores

N = 60
NO_VECTOR, NO_LABEL, NO_ID = [4, 17, 30], [8, 17], [21]
KEPT = [i for i in range(N) if i not in NO_VECTOR]
LEARNED = [i for i in KEPT if i not in NO_LABEL]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A model, and a table of products with null vectors (list column), null labels and a null id."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    y = np.arange(N) % 3
    X = (4 * rng.normal(size=(3, 5))[y] + rng.normal(size=(N, 5))).astype(np.float32)
    DISH(8, n_anchors=10).fit(X, np.array([f"kind {k}" for k in y])).save(folder / "m.dish")
    table = {
        "id": [f"p{i}" for i in range(N)],
        "sku": [None if i in NO_ID else f"s{i}" for i in range(N)],
        "embedding": pa.array(
            [None if i in NO_VECTOR else X[i].astype(np.float16) for i in range(N)], pa.list_(pa.float16())
        ),
        "topic": [None if i in NO_LABEL else f"kind {k}" for i, k in enumerate(y)],
    }
    pq.write_table(pa.table(table), folder / "t.parquet")
    return folder, X.astype(np.float16).astype(np.float32)


X_OF = ("--x-column", "embedding")
COLUMNS = (*X_OF, "--y-column", "topic", "--id-column", "id")
VECTORS = "3 of 60 rows without a complete vector (rows 4, 17, 30, counted from 0; ids 'p4', 'p17', 'p30')"
LABELS = "2 of 60 rows without a label (rows 8, 17, counted from 0; ids 'p8', 'p17')"


def refused(cli, *command):
    """The line that a command ends with."""
    code, _, err = cli(*command)
    assert code == 2, err
    return err.strip().splitlines()[-1]


def test_fit_names_rows_with_gaps_or_drops_and_counts_them(cli, shop, tmp_path):
    folder, _ = shop
    command = ["fit", folder / "t.parquet", "-o", tmp_path / "m.dish", *COLUMNS, "--bits", 8, "--anchors", 10]
    assert f"{VECTORS}: leave them out with --drop-missing" in refused(cli, *command)
    code, out, err = cli(*command, "--drop-missing")
    assert code == 0, err
    assert f"dish: note: {folder / 't.parquet'}: {VECTORS} are left out" in err
    assert f"{LABELS} are left out" in err
    assert f"learned from {len(LEARNED)} rows" in out
    unknown = {"embedding": [[1.0, 2.0]] * 3, "topic": pa.array([None] * 3, pa.string()), "id": [1, 2, 3]}
    pq.write_table(pa.table(unknown), tmp_path / "t.parquet")
    command[1] = tmp_path / "t.parquet"
    assert "no row is left, because every row is without a label" in refused(cli, *command, "--drop-missing")


def test_a_memory_map_with_gaps_is_read_to_the_end_before_it_is_refused(cli, shop, tmp_path):
    _, X = shop
    X = X.copy()
    X[NO_VECTOR, 2] = np.nan
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.arange(N) % 3)
    command = ["fit", tmp_path / "X.npy", tmp_path / "y.npy", "-o", tmp_path / "m.dish", "--bits", 8, "--anchors", 10]
    assert "3 of 60 rows without a complete vector (rows 4, 17, 30, counted from 0)" in refused(cli, *command)
    code, out, err = cli(*command, "--drop-missing")
    assert (code, "learned from 57 rows" in out) == (0, True), err


def encode(cli, shop, output, *options):
    code, out, err = cli("encode", shop[0] / "m.dish", shop[0] / "t.parquet", "-o", output, *options)
    assert code == 0, err
    return out, err


def test_codes_say_which_rows_they_are_of(cli, shop, tmp_path):
    folder, X = shop
    command = [
        "encode",
        folder / "m.dish",
        folder / "t.parquet",
        "-o",
        tmp_path / "c.npy",
        *X_OF,
        "--id-column",
        "id",
    ]
    assert VECTORS in refused(cli, *command)
    assert not list(tmp_path.iterdir())
    _, err = encode(cli, shop, tmp_path / "c.npy", *X_OF, "--id-column", "id", "--drop-missing")
    assert f"{VECTORS} are left out" in err
    codes, expected = np.load(tmp_path / "c.npy"), dish.load(folder / "m.dish").transform(X)
    np.testing.assert_array_equal(codes, expected[KEPT])
    assert np.load(tmp_path / "c.rows.npy").tolist() == KEPT
    assert np.load(tmp_path / "c.ids.npy").tolist() == [f"p{i}" for i in KEPT]


def test_rows_without_an_id_are_gaps_if_ids_are_written(cli, shop, tmp_path):
    command = ["encode", shop[0] / "m.dish", shop[0] / "t.parquet", "-o", tmp_path / "c.npy", *X_OF]
    pq.write_table(pq.read_table(shop[0] / "t.parquet").take(KEPT), tmp_path / "t.parquet")
    command[2] = tmp_path / "t.parquet"
    says = f"1 of 57 rows without an id (row {KEPT.index(21)}, counted from 0; id None)"
    assert says in refused(cli, *command, "--id-column", "sku")
    assert cli(*command, "--id-column", "sku", "--drop-missing")[0] == 0
    assert np.load(tmp_path / "c.ids.npy").tolist() == [f"s{i}" for i in KEPT if i != 21]


def test_rows_without_a_label_get_the_codes_of_their_features(cli, shop, tmp_path):
    folder, X = shop
    encode(cli, shop, tmp_path / "c.npy", *COLUMNS, "--label-codes", "--drop-missing")
    y = np.array([None if i in NO_LABEL else f"kind {i % 3}" for i in range(N)], object)
    expected = dish.load(folder / "m.dish").transform(X[KEPT], labels=y[KEPT])
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), expected)
    assert pq.read_table(tmp_path / "c.labels.parquet")["label"].to_pylist() == y[KEPT].tolist()
    index = [tmp_path / "c.npy", "-o", tmp_path / "ix.dish", "--ids", tmp_path / "c.ids.npy"]
    assert cli("index", *index, "--labels", tmp_path / "c.labels.parquet")[0] == 0
    ix = HammingIndex.load(tmp_path / "ix.dish")
    assert ix.labels_of(["p9", "p8"]).tolist() == ["kind 0", None]


def test_places_of_codes_never_pass_for_numbers_of_rows(cli, shop, tmp_path):
    codes = tmp_path / "c.npy"
    encode(cli, shop, codes, *X_OF, "--drop-missing")
    ix = ["index", codes, "-o", tmp_path / "ix.dish"]
    push = ["store", "push", codes, "--address", f"duckdb:///{tmp_path / 'd.db'}", "--table", "t"]
    export = ["export", codes, "--engine", "qdrant", "-o", tmp_path / "out"]
    for command in (ix, push, export):
        assert f"would be wrong: give --ids {tmp_path / 'c.rows.npy'}" in refused(cli, *command)
        code, _, err = cli(*command, "--ids", tmp_path / "c.rows.npy")
        assert code == 0, err
    assert sorted(HammingIndex.load(tmp_path / "ix.dish").ids.tolist()) == KEPT
    assert "use --engine with --ids" in refused(cli, "export", codes, "--to", "bson")
    assert "place i of" in cli("export", codes, "--to", "hex")[2]
    code, _, err = cli("search", tmp_path / "ix.dish", "--codes", codes, "-k", 1)
    assert (code, "query i is the row" in err) == (0, True), err
    np.save(codes, np.load(codes)[:5])  # a file of other codes: the rows are not of these
    assert cli(*ix)[0] == 0


def test_encoding_all_rows_again_removes_what_says_otherwise(cli, shop, tmp_path):
    _, X = shop
    encode(cli, shop, tmp_path / "c.npy", *COLUMNS, "--drop-missing")
    np.save(tmp_path / "X.npy", X)
    assert cli("encode", shop[0] / "m.dish", tmp_path / "X.npy", "-o", tmp_path / "c.npy", "--drop-missing")[0] == 0
    assert not (tmp_path / "c.rows.npy").exists()
    assert cli("index", tmp_path / "c.npy", "-o", tmp_path / "ix.dish")[0] == 0


def test_ids_with_gaps(cli, shop, tmp_path):
    np.save(tmp_path / "c.npy", np.arange(3, dtype=np.uint8)[:, None])
    (tmp_path / "ids.csv").write_text("id,label\n7,x\n,y\n9,z\n")
    files = ["--ids", tmp_path / "ids.csv", "--labels", tmp_path / "ids.csv"]
    ix = ["index", tmp_path / "c.npy", "-o", tmp_path / "ix.dish", *files]
    push = [
        "store",
        "push",
        tmp_path / "c.npy",
        "--address",
        f"duckdb:///{tmp_path / 'd.db'}",
        "--table",
        "t",
        *files,
    ]
    for command in (ix, push):
        assert "1 of 3 rows without an id (row 1, counted from 0)" in refused(cli, *command)
        code, _, err = cli(*command, "--drop-missing")
        assert (code, "are left out" in err) == (0, True), err
    index = HammingIndex.load(tmp_path / "ix.dish")
    with stores.open(f"duckdb:///{tmp_path / 'd.db'}", "t", n_bits=8) as store:
        for where in (index, store):
            assert where.labels_of([7, 9]).tolist() == ["x", "z"]
            np.testing.assert_array_equal(where.get([7, 9]), [[0], [2]])


def test_eval_needs_labels_of_queries_and_rows(cli, shop, tmp_path):
    folder, X = shop
    table = folder / "t.parquet"
    np.savez(tmp_path / "q.npz", X=X[LEARNED][:9], y=[f"kind {i % 3}" for i in LEARNED[:9]])
    columns = (*X_OF, "--y-column", "topic", "--json", "--no-compare")
    command = ["eval", folder / "m.dish", "--db", table, "-", "--queries", tmp_path / "q.npz", "-", *columns]
    assert VECTORS in refused(cli, *command)
    code, out, err = cli(*command, "--drop-missing")
    assert (code, f"{LABELS} are left out" in err) == (0, True), err
    assert json.loads(out)["n_database"] == len(LEARNED)
    pairs = ["--db", tmp_path / "q.npz", "-", "--queries", table, "-"]
    code, out, err = cli("eval", folder / "m.dish", *pairs, *columns, "--drop-missing")
    assert json.loads(out)["n_queries"] == len(LEARNED), err


@pytest.mark.filterwarnings("ignore:n_anchors")
def test_backfill_encodes_the_rows_that_have_codes(cli, shop, tmp_path):
    folder, X = shop
    newer = DISH(8, n_anchors=10, random_state=1)
    newer.fit(X, np.array([f"kind {i % 3}" for i in range(N)]), compatible_with=dish.load(folder / "m.dish"))
    newer.save(tmp_path / "newer.dish")
    encode(cli, shop, tmp_path / "c.npy", *X_OF, "--drop-missing")
    command = ["backfill", tmp_path / "newer.dish", folder / "t.parquet", tmp_path / "c.npy", "--budget", 99, *X_OF]
    assert VECTORS in refused(cli, *command)
    np.save(tmp_path / "c.rows.npy", np.arange(len(KEPT)))
    assert "codes of other rows" in refused(cli, *command, "--drop-missing")
    np.save(tmp_path / "c.rows.npy", KEPT)
    code, _, err = cli(*command, "--drop-missing")
    assert code == 0, err
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), newer.transform(X)[KEPT])


@pytest.mark.slow
def test_drift_and_bench_leave_rows_out(cli, shop, tmp_path):
    folder, _ = shop
    table = folder / "t.parquet"
    command = ["drift", folder / "m.dish", table, *X_OF, "--json"]
    assert VECTORS in refused(cli, *command)
    code, out, err = cli(*command, "--drop-missing")
    assert (code, json.loads(out)["n"]) == (0, len(KEPT)), err
    split = np.array(["train", "query"])[(np.arange(N) % 4 == 0).astype(int)]
    np.save(tmp_path / "split.npy", split)
    results = ["--methods", "lsh", "--bits", 8, "--results", tmp_path / "runs", "--split", tmp_path / "split.npy"]
    command = ["bench", "--data", table, *COLUMNS, *results]
    assert VECTORS in refused(cli, *command)
    code, out, err = cli(*command, "--drop-missing")
    assert (code, f"{LABELS} are left out" in err, "lsh" in out) == (0, True, True), err


def test_a_csv_file_with_empty_cells(cli, shop, tmp_path):
    (tmp_path / "t.csv").write_text("id,a,b,label\nx,1,2,cat\ny,,4,dog\nz,5,6,\n" + "w,7,8,cat\nv,1,9,dog\n" * 9)
    command = ["fit", tmp_path / "t.csv", "-o", tmp_path / "m.dish", "--bits", 8, "--anchors", 10]
    says = refused(cli, *command)
    assert "1 of 21 rows without a complete vector (row 1, counted from 0; id 'y'; gaps in 'a')" in says
    code, out, err = cli(*command, "--drop-missing")
    assert (code, "1 of 21 rows without a label (row 2, counted from 0; id 'z')" in err) == (0, True), err
    assert "learned from 19 rows" in out


def test_the_flag_does_not_go_with_ray_or_images(cli, shop, image_folder, tmp_path):
    table = shop[0] / "t.parquet"
    command = ["encode", shop[0] / "m.dish", table, "-o", tmp_path / "out", "--ray", "--drop-missing"]
    assert "--drop-missing does not go with --ray" in refused(cli, *command)
    assert "--drop-missing is for rows" in refused(
        cli, "fit", image_folder, "-o", tmp_path / "m.dish", "--drop-missing"
    )
