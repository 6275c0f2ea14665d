"""`dish encode`, `dish eval` and `dish info`."""

import json

import numpy as np
import pandas as pd
import pytest

import dish
from dish import DISH

QUICK = ("--bits", 8, "--anchors", 20, "-q")


def test_fit_encode_eval_info(cli, files):
    code, out, _ = cli(
        "fit",
        files / "X.npy",
        files / "y.npy",
        "-o",
        files / "m.dish",
        "--bits",
        24,
        "--anchors",
        100,
    )
    assert code == 0
    assert "24 bits learned from 500 rows" in out
    code, out, _ = cli("encode", files / "m.dish", files / "Xq.npy", "-o", files / "c.npy")
    assert code == 0
    X, y, Xq = (np.load(files / f"{n}.npy") for n in ("X", "y", "Xq"))
    np.testing.assert_array_equal(np.load(files / "c.npy"), DISH(24, n_anchors=100).fit(X, y).transform(Xq))
    pairs = [
        "--db",
        files / "X.npy",
        files / "y.npy",
        "--queries",
        files / "Xq.npy",
        files / "yq.npy",
    ]
    code, out, _ = cli("eval", files / "m.dish", *pairs)
    assert code == 0
    assert "precision within radius 2" in out
    code, out, _ = cli("eval", files / "m.dish", *pairs, "--json")
    report = json.loads(out)
    assert report["map"] > 0.9
    assert (report["n_queries"], report["n_database"], report["n_bits"]) == (200, 500, 24)
    code, out, _ = cli("info", files / "m.dish")
    assert "n_anchors" in out
    assert "100 × 64" in out


@pytest.mark.slow
def test_images_fit_encode_eval_info(cli, image_folder, tmp_path):
    quick = ("--net", "6conv", "--image-size", 16, "--bits", 12, "--epochs", 4, "--iter", 1, "--device", "cpu")
    code, out, err = cli("fit", image_folder, *quick, "-o", tmp_path / "m.dish")
    assert code == 0, err
    assert "12 bits learned from 24 images" in out
    assert cli("encode", tmp_path / "m.dish", image_folder, "-o", tmp_path / "c.npy")[0] == 0
    codes = np.load(tmp_path / "c.npy")
    assert codes.shape == (24, 2)
    np.testing.assert_array_equal(codes, dish.load(tmp_path / "m.dish").transform(image_folder))
    ids, labels = np.load(tmp_path / "c.ids.npy"), np.load(tmp_path / "c.labels.npy")
    assert ids[0] == "dark/0"
    assert [name.split("/")[0] for name in ids] == list(labels)
    named = ("--ids", tmp_path / "c.ids.npy", "--labels", tmp_path / "c.labels.npy", "--bits", 12)
    assert cli("index", tmp_path / "c.npy", *named, "-o", tmp_path / "ix.dish")[0] == 0
    np.save(tmp_path / "y.npy", np.repeat([0, 1], 12))
    reports = []
    for labels in ("-", tmp_path / "y.npy"):
        code, out, err = cli(
            "eval", tmp_path / "m.dish", "--db", image_folder, labels, "--queries", image_folder, labels, "--json"
        )
        assert code == 0, err
        reports.append(json.loads(out))
    assert reports[0] == reports[1]
    assert reports[0]["n_queries"] == 24
    assert reports[0]["map"] > 0.9
    code, out, _ = cli("info", tmp_path / "m.dish")
    assert "DeepDISH" in out
    assert "6conv" in out
    assert "model.body" in out
    assert "arrays" in out
    assert len(out.splitlines()) < 50  # not a line for each of its layers


def test_columns_of_a_parquet_file_are_features(cli, files):
    import pyarrow as pa
    import pyarrow.parquet as pq

    X = np.load(files / "X.npy")
    pq.write_table(pa.table({f"f{i}": X[:, i] for i in range(64)}), files / "wide.parquet")
    cli(
        "fit",
        files / "X.npy",
        files / "y.npy",
        "-o",
        files / "m.dish",
        "--bits",
        8,
        "--anchors",
        20,
        "-q",
    )
    cli("encode", files / "m.dish", files / "wide.parquet", "-o", files / "a.npy")
    cli("encode", files / "m.dish", files / "X.npy", "-o", files / "b.npy")
    np.testing.assert_array_equal(np.load(files / "a.npy"), np.load(files / "b.npy"))


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
    separate = ("--ids", folder / "c.ids.npy", "--labels", folder / "c.labels.npy")
    within = ("--ids", folder / "t.parquet", "--labels", folder / "t.parquet", *named[2:])
    for options in (separate, within):
        assert cli("index", folder / "c.npy", "-o", folder / "ix.dish", *options)[0] == 0
        ix = dish.HammingIndex.load(folder / "ix.dish")
        assert ix.labels_of(["doc0", "doc119"]).tolist() == ["t0", "t2"]
    pair = (folder / "t.parquet", "-")
    code, out, err = cli("eval", folder / "m.dish", "--db", *pair, "--queries", *pair, *named, "--json")
    assert code == 0, err
    assert json.loads(out)["map"] > 0.9


def test_encode_rejects_other_output_formats(cli, folder):
    assert cli("fit", folder / "X.npy", folder / "y.npy", "-o", folder / "m.dish", *QUICK)[0] == 0
    for name in ("c.csv", "c.parquet", "c.npz"):
        code, _, err = cli("encode", folder / "m.dish", folder / "X.npy", "-o", folder / name)
        assert (code, "written as .npy" in err) == (2, True)
        assert not (folder / name).exists()


def test_eval_matches_tags_by_name(cli, folder, blobs):
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


def test_eval_compares_with_other_rankings(digits, cli, tmp_path):
    X, y, Xq, yq = digits
    X, y = X[:700].astype(np.float32), y[:700]
    model = DISH(n_bits=24, n_anchors=100).fit(X[y < 8], y[y < 8])
    model.save(tmp_path / "m.dish")
    for name, array in {"X": X, "y": y, "Xq": Xq, "yq": yq}.items():
        np.save(tmp_path / f"{name}.npy", array)
    pair, queries = ([tmp_path / f"X{q}.npy", tmp_path / f"y{q}.npy"] for q in ("", "q"))
    command = ["eval", tmp_path / "m.dish", "--db", *pair, "--queries"]
    code, out, err = cli(*command, *queries, "--seen", tmp_path / "y.npy", "--picture", tmp_path / "e.svg")
    assert code == 0, err
    assert "float cosine" in out
    assert "queries of seen classes (200), 700 rows" in out
    assert "unknown: how many of 700 database rows were trained on" in out
    assert "</svg>" in (tmp_path / "e.svg").read_text()
    assert "in the database" not in err
    code, out, err = cli(*command, *pair, "--json")
    assert "700 of 700 queries are also in the database" in err
    assert [line["ranking"] for line in json.loads(out)["rankings"]][-2:] == ["DISH", "DISH, label codes"]
    code, out, _ = cli(*command, *queries, "--no-compare", "--json")
    assert json.loads(out)["rankings"] == []
    code, _, err = cli(*command, *queries, "--picture", tmp_path / "e.jpg")
    assert code == 2
    assert "--picture must end in .pdf, .svg, .png" in err


@pytest.fixture
def half_trained(digits, cli, tmp_path):
    """A model of the first 300 rows of X.npy, and the arguments of `dish eval` for all 500."""
    X, y, Xq, yq = digits
    for name, array in {"Xt": X[:300], "yt": y[:300], "X": X[:500], "y": y[:500], "Xq": Xq, "yq": yq}.items():
        np.save(tmp_path / f"{name}.npy", array)
    options = ("--bits", 16, "--anchors", 40, "-q")
    assert cli("fit", tmp_path / "Xt.npy", tmp_path / "yt.npy", "-o", tmp_path / "m.dish", *options)[0] == 0
    return tmp_path, ("--db", tmp_path / "X.npy", tmp_path / "y.npy"), tmp_path / "m.dish"


def test_eval_says_how_many_rows_were_trained_on(half_trained, cli):
    folder, database, model = half_trained
    queries = ("--queries", folder / "Xq.npy", folder / "yq.npy")
    code, out, err = cli("eval", model, *database, *queries)
    assert (code, err) == (0, "")
    assert "300 of 500 database rows were trained on" in out
    first, second = (out.index(f"all queries (200), {rows}") for rows in ("200 rows not", "300 rows that were"))
    assert out.index("not trained on: 200") < out.index("trained on: 300") < first < second
    trained = ("--db", folder / "Xt.npy", folder / "yt.npy")
    _, out, _ = cli("eval", model, *trained, *queries, "--no-compare")
    assert "300 of 300 database rows were trained on. New rows will have lower scores: hold rows out" in out
    _, _, err = cli("eval", model, *trained, "--queries", folder / "X.npy", folder / "y.npy", "--no-compare")
    assert "the model was trained on 300 of 500 queries" in err


def test_eval_scores_rows_that_were_not_trained_on_by_default(half_trained, cli, digits):
    folder, database, model = half_trained
    X, y, Xq, yq = digits
    code, out, err = cli("eval", model, *database, "--queries", folder / "Xq.npy", folder / "yq.npy", "--json")
    assert code == 0, err
    found, hasher = json.loads(out), dish.load(model)
    expected = dish.metrics.evaluate(hasher.transform(Xq), yq, hasher.transform(X[300:500]), y[300:500], n_bits=16)
    assert found["map"] == found["parts"]["untrained"]["map"] == pytest.approx(expected.map)
    assert (found["database"], found["n_trained_rows"], found["n_all_rows"]) == ("untrained", 300, 500)
    assert [line["database"] for line in found["rankings"]] == ["untrained"] * 6 + ["trained"] * 6


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".csv"])
def test_eval_recognises_rows_of_other_files(half_trained, cli, suffix):
    folder, (_, rows, labels), model = half_trained
    X, path = np.load(rows), folder / f"other{suffix}"
    if suffix == ".npy":
        np.save(path, X.astype(np.float16))
    else:
        table = pd.DataFrame(X.astype(np.float32), columns=[f"x{j}" for j in range(64)])
        table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    options = ("--queries", folder / "Xq.npy", folder / "yq.npy", "--no-compare", "--json")
    code, out, err = cli("eval", model, "--db", path, labels, *options)
    assert code == 0, err
    assert json.loads(out)["n_trained_rows"] == 300


def test_rows_with_labels_get_the_codes_of_their_labels(digits, cli, tmp_path):
    X, y, _, _ = digits
    hasher = DISH(n_bits=24, n_anchors=50).fit(X[:400], y[:400].astype(str))
    hasher.save(tmp_path / "m.dish")
    table = pd.DataFrame(X[:50], columns=[f"x{j}" for j in range(X.shape[1])])
    table["digit"] = ["" if i % 5 == 0 else f"{label}" for i, label in enumerate(y[:50])]
    table.astype({"digit": str}).to_parquet(tmp_path / "t.parquet")
    options = ["encode", tmp_path / "m.dish", tmp_path / "t.parquet", "--y-column", "digit", "-o", tmp_path / "c.npy"]
    assert cli(*options, "--label-codes")[0] == 0
    found = np.load(tmp_path / "c.npy")
    np.testing.assert_array_equal(found, hasher.transform(X[:50], labels=table["digit"].tolist()))
    np.testing.assert_array_equal(found[::5], hasher.transform(X[:50:5]))
    np.save(tmp_path / "X.npy", X[:50])
    code, _, err = cli("encode", tmp_path / "m.dish", tmp_path / "X.npy", "-o", tmp_path / "c.npy", "--label-codes")
    assert code == 2
    assert "--label-codes:" in err
    assert "has no labels; name their column with --y-column" in err
