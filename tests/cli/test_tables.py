"""Tables through the command line: .csv with and without headers, .parquet by columns, .npz wherever .npy goes."""

import json

import numpy as np
import pytest

import dish

QUICK = ("--bits", 8, "--anchors", 20, "-q")


@pytest.fixture
def folder(tmp_path, blobs):
    X, y = blobs
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", X=X, y=y)
    return tmp_path


def write_csv(path, rows, header=None):
    lines = [",".join(map(str, np.atleast_1d(row))) for row in rows]
    path.write_text("\n".join(([header] if header else []) + lines) + "\n")
    return path


def codes_of(model):
    return dish.load(model).codes_


def test_headers_do_not_become_rows_or_classes(cli, folder, blobs):
    X, y = blobs
    assert cli("fit", folder / "X.npy", folder / "y.npy", "-o", folder / "m.dish", *QUICK)[0] == 0
    expected = codes_of(folder / "m.dish")
    for x_header, y_header, option in (
        ("a,b,c,d,e,f", "label", ()),
        ("0,1,2,3,4,5", "label", ("--header",)),
        (None, None, ("--no-header",)),
    ):
        x, labels = write_csv(folder / "x.csv", X, x_header), write_csv(folder / "y.csv", y, y_header)
        if option:
            code, _, err = cli("fit", x, labels, "-o", folder / "c.dish", *QUICK)
            assert (code, "x.csv: the first line" in err, option[0] in err) == (2, True, True)
        code, _, err = cli("fit", x, labels, "-o", folder / "c.dish", *option, *QUICK)
        assert code == 0, err
        np.testing.assert_array_equal(codes_of(folder / "c.dish"), expected)


def test_a_header_and_one_label_too_few_is_no_shift(cli, folder, blobs):
    labels = write_csv(folder / "y.csv", blobs[1][:-1], "label")  # as many lines as X has rows
    code, _, err = cli("fit", folder / "X.npy", labels, "-o", folder / "m.dish", *QUICK)
    assert code == 2
    assert "X has 120 rows but y has 119" in err
    names = write_csv(folder / "y.csv", [f"class {v}" for v in blobs[1][:-1]], "topic")
    code, _, err = cli("fit", folder / "X.npy", names, "-o", folder / "m.dish", *QUICK)
    assert (code, "--no-header" in err) == (2, True)
    code, _, err = cli("fit", folder / "X.npy", names, "-o", folder / "m.dish", "--header", *QUICK)
    assert (code, "y has 119" in err) == (2, True)


def test_header_options_decide(cli, folder, blobs):
    names = write_csv(folder / "y.csv", [f"class {v}" for v in blobs[1]], "label")
    assert cli("fit", folder / "X.npy", names, "-o", folder / "m.dish", "--header", *QUICK)[0] == 0
    code, _, err = cli("fit", folder / "X.npy", names, "-o", folder / "m.dish", "--no-header", *QUICK)
    assert (code, "y has 121" in err, "--header" in err) == (2, True, True)


def test_id_vector_and_label_in_one_parquet_file(cli, folder, blobs):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    X, y = blobs
    keys = [f"doc{i}" for i in range(len(X))]
    pq.write_table(pa.table({"key": keys, "emb": list(X), "topic": [f"t{v}" for v in y]}), folder / "t.parquet")
    code, _, err = cli("fit", folder / "t.parquet", "-o", folder / "m.dish", *QUICK)
    assert (code, "--x-column" in err) == (2, True)
    named = ("--x-column", "emb", "--y-column", "topic", "--id-column", "key")
    assert cli("fit", folder / "t.parquet", "-o", folder / "m.dish", *named, *QUICK)[0] == 0
    assert cli("encode", folder / "m.dish", folder / "t.parquet", "-o", folder / "c.npy", *named)[0] == 0
    assert np.load(folder / "c.ids.npy").tolist() == keys
    assert np.load(folder / "c.labels.npy")[0] == "t0"
    beside = ("--ids", folder / "c.ids.npy", "--labels", folder / "c.labels.npy")
    within = ("--ids", folder / "t.parquet", "--labels", folder / "t.parquet", *named[2:])
    for options in (beside, within):
        assert cli("index", folder / "c.npy", "-o", folder / "ix.dish", *options)[0] == 0
        ix = dish.HammingIndex.load(folder / "ix.dish")
        assert ix.labels_of(["doc0", "doc119"]).tolist() == ["t0", "t2"]
    pair = (folder / "t.parquet", "-")
    code, out, err = cli("eval", folder / "m.dish", "--db", *pair, "--queries", *pair, *named, "--json")
    assert code == 0, err
    assert json.loads(out)["map"] > 0.9


def test_npz_and_shards_of_npz_go_everywhere(cli, folder, blobs):
    X, y = blobs
    (folder / "shards").mkdir()
    for i, part in enumerate(np.array_split(np.arange(120), 3)):
        np.savez(folder / "shards" / f"part-{i}.npz", X=X[part], y=y[part])
    assert cli("fit", folder / "X.npy", folder / "y.npy", "-o", folder / "m.dish", *QUICK)[0] == 0
    for source in (folder / "both.npz", folder / "shards"):
        assert cli("fit", source, "-o", folder / "s.dish", *QUICK)[0] == 0
        np.testing.assert_array_equal(codes_of(folder / "s.dish"), codes_of(folder / "m.dish"))
        assert cli("encode", folder / "m.dish", source, "-o", folder / "c.npy")[0] == 0
        np.testing.assert_array_equal(np.load(folder / "c.npy"), dish.load(folder / "m.dish").transform(X))
        code, out, err = cli("eval", folder / "m.dish", "--db", source, "-", "--queries", source, "-", "--json")
        assert code == 0, err
        assert json.loads(out)["map"] > 0.9


@pytest.mark.parametrize("source", ["X.npy", "both.npz", "t.parquet", "t.csv"])
def test_bench_takes_files_of_any_kind(cli, tmp_path, blobs, source):
    X, y = np.repeat(blobs[0], 3, axis=0), np.repeat(blobs[1], 3)  # a split takes 100 queries per class
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", X=X, y=y)
    write_csv(tmp_path / "t.csv", np.column_stack([X, y]), "a,b,c,d,e,f,label")
    if source == "t.parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"v": list(X), "label": y}), tmp_path / source)
    call = ("bench", "--data", tmp_path / source, "--methods", "l2", "--bits", 8, "--results", tmp_path / "runs")
    if source == "X.npy":
        assert "--labels" in "".join(cli(*call[:-1], tmp_path / "failed")[1:])
        call += ("--labels", tmp_path / "y.npy")
    code, _, err = cli(*call)
    assert code == 0, err
    (run,) = (tmp_path / "runs").rglob("*.json")
    assert json.loads(run.read_text())["map"] > 0.9


def test_encode_does_not_write_npy_under_another_name(cli, folder):
    assert cli("fit", folder / "X.npy", folder / "y.npy", "-o", folder / "m.dish", *QUICK)[0] == 0
    for name in ("c.csv", "c.parquet", "c.npz"):
        code, _, err = cli("encode", folder / "m.dish", folder / "X.npy", "-o", folder / name)
        assert (code, "written as .npy" in err) == (2, True)
        assert not (folder / name).exists()


def test_tags_are_label_sets(cli, folder, blobs):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    X, y = blobs
    tags = [["a"] if c == 0 else ["b", "c"] if c == 1 else ["c"] for c in y]
    pq.write_table(pa.table({"v": list(X), "label": tags}), folder / "t.parquet")
    pq.write_table(pa.table({"v": list(X[45:]), "label": tags[45:]}), folder / "q.parquet")  # no "a": other columns
    assert cli("fit", folder / "t.parquet", "-o", folder / "m.dish", *QUICK)[0] == 0
    code, out, err = cli(
        *(
            "eval",
            folder / "m.dish",
            "--db",
            folder / "t.parquet",
            "-",
            "--queries",
            folder / "q.parquet",
            "-",
            "--json",
        )
    )
    assert code == 0, err
    Y = np.array([[c == 0, c == 1, c >= 1] for c in y], int)
    hasher = dish.load(folder / "m.dish")
    codes = hasher.transform(X)
    expected = dish.metrics.mean_average_precision(codes[45:], Y[45:], codes, Y)
    assert json.loads(out)["map"] == pytest.approx(expected)


# --- An index that is there ---


@pytest.fixture
def index(cli, folder):
    codes = np.arange(20, dtype=np.uint8).reshape(10, 2)
    np.save(folder / "c.npy", codes)
    np.save(folder / "ids.npy", np.arange(100, 110))
    assert cli("index", folder / "c.npy", "-o", folder / "ix.dish", "--ids", folder / "ids.npy")[0] == 0
    return codes


def test_add_to_an_index_and_remove_from_it(cli, folder, index):
    np.save(folder / "new.npy", np.array([[7, 7], [9, 9]], np.uint8))
    np.save(folder / "new_ids.npy", [109, 110])  # one of them is there
    code, out, _ = cli(
        "index", folder / "new.npy", "-o", folder / "ix.dish", "--add", "--ids", folder / "new_ids.npy"
    )
    assert (code, "11 codes" in out) == (0, True)
    ix = dish.HammingIndex.load(folder / "ix.dish")
    assert ix.get([109, 110]).tolist() == [[7, 7], [9, 9]]
    np.save(folder / "gone.npy", [100, 101])
    code, out, _ = cli("index", "-o", folder / "ix.dish", "--remove", folder / "gone.npy")
    assert (code, "9 codes" in out, "2 removed" in out) == (0, True, True)
    assert 100 not in dish.HammingIndex.load(folder / "ix.dish")


def test_adding_needs_an_index_and_codes(cli, folder, index):
    code, _, err = cli("index", folder / "c.npy", "-o", folder / "none.dish", "--add")
    assert (code, "none.dish" in err) == (2, True)
    for options in ((), ("--add",), ("--ids", folder / "ids.npy")):
        code, _, err = cli("index", "-o", folder / "ix.dish", *options)
        assert (code, "CODES are missing" in err) == (2, True)
    (folder / "ix.dish.journal").write_bytes(b"of a server")
    code, _, err = cli("index", folder / "c.npy", "-o", folder / "ix.dish", "--add")
    assert (code, "server" in err) == (2, True)


def test_codes_of_another_model_are_refused(cli, folder):
    for seed in (0, 1):
        model, codes = folder / f"m{seed}.dish", folder / f"c{seed}.npy"
        assert cli("fit", folder / "both.npz", "-o", model, "--seed", seed, *QUICK)[0] == 0
        assert cli("encode", model, folder / "X.npy", "-o", codes)[0] == 0
    assert cli("index", folder / "c0.npy", "-o", folder / "ix.dish")[0] == 0
    assert cli("search", folder / "ix.dish", "--codes", folder / "c0.npy")[0] == 0
    for command in (
        ("search", folder / "ix.dish", "--codes", folder / "c1.npy"),
        ("index", folder / "c1.npy", "-o", folder / "ix.dish", "--add"),
    ):
        code, _, err = cli(*command)
        assert (code, "model" in err, "c1.npy" in err) == (2, True, True), err
    np.save(folder / "plain.npy", np.load(folder / "c1.npy"))  # of unknown origin
    assert cli("search", folder / "ix.dish", "--codes", folder / "plain.npy")[0] == 0


def test_the_store_is_told_which_model_the_codes_are_of(cli, folder, monkeypatch):
    from dish.stores import postgres

    told = []

    class Store:
        def __init__(self, *_, model=None, **__):
            told.append(model)
            raise ValueError("enough")

    monkeypatch.setattr(postgres, "PostgresStore", Store)
    assert cli("fit", folder / "both.npz", "-o", folder / "m.dish", *QUICK)[0] == 0
    assert cli("encode", folder / "m.dish", folder / "X.npy", "-o", folder / "c.npy")[0] == 0
    server = ("--dsn", "postgresql://nowhere", "--table", "t")
    cli("store", "push", folder / "c.npy", *server)
    cli("store", "search", "--codes", folder / "c.npy", *server)
    assert told == [dish.load(folder / "m.dish").fingerprint_] * 2
