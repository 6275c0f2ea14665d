"""`dish index`, `dish search` and `dish store`."""

import json

import numpy as np
import pytest

import dish
from dish.web.index_writer import IndexWriter
from helpers.codes import brute_nearest, make_codes
from helpers.stores import address_of


def test_index_and_search(cli, tmp_path):
    B = make_codes("clustered", 300, 24)
    names = np.array([f"n{i}" for i in range(300)])
    for name, array in {"B": B, "ids": names, "y": np.arange(300) % 4, "Q": B[:3]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    made = cli(
        "index", tmp_path / "B.npy", "-o", tmp_path / "ix.dish", "--ids", tmp_path / "ids.npy",
        "--labels", tmp_path / "y.npy",
    )  # fmt: skip
    assert made == (0, f"{tmp_path / 'ix.dish'}: 300 codes of 24 bits\n", "")
    code, out, _ = cli("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--k", 4, "--json")
    assert code == 0
    D, rows = brute_nearest(B[:3], B, 4)
    for i, line in enumerate(out.splitlines()):
        hits = json.loads(line)["hits"]
        assert [hit["id"] for hit in hits] == names[rows[i]].tolist()
        assert [hit["distance"] for hit in hits] == D[i].tolist()
        assert [hit["label"] for hit in hits] == (rows[i] % 4).tolist()
    code, out, _ = cli("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--radius", 0)
    assert out.splitlines()[0].startswith("query 0: n0 (0, 0)")
    code, out, _ = cli("info", tmp_path / "ix.dish")
    assert "HammingIndex" in out


def test_errors_are_one_line_and_write_nothing(cli, tmp_path):
    B = make_codes("clustered", 300, 24)
    np.save(tmp_path / "B.npy", B)
    np.save(tmp_path / "floats.npy", np.ones((2, 3)))
    cli("index", tmp_path / "B.npy", "-o", tmp_path / "ix.dish")
    for message, call in {
        "packed codes are uint8": ("index", tmp_path / "floats.npy", "-o", tmp_path / "no.dish"),
        "3 bytes per row": ("index", tmp_path / "B.npy", "-o", tmp_path / "no.dish", "--bits", 64),
        "one of the inputs": ("index", tmp_path / "B.npy", "-o", tmp_path / "B.npy"),
        "there is no index": ("search", tmp_path / "none.dish", "--codes", tmp_path / "B.npy"),
        "k must be": ("search", tmp_path / "ix.dish", "--codes", tmp_path / "B.npy", "--k", 0),
    }.items():
        code, _, err = cli(*call)
        assert (code, len(err.strip().splitlines())) == (2, 1)
        assert message in err
    assert not (tmp_path / "no.dish").exists()


@pytest.fixture
def rescored(tmp_path):
    """Rows X (200, 5), their codes as an index with labels, the model, and queries q.npy, q_x.npy."""
    X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    hasher = dish.DISH(n_bits=16, n_anchors=30).fit(X, X[:, 0] > 0)
    index = dish.HammingIndex(16, model=hasher.fingerprint_)
    index.add(hasher.transform(X), ids=np.arange(200)[::-1], labels=np.arange(200) % 4)
    hasher.save(tmp_path / "m.dish")
    index.save(tmp_path / "ix.dish")
    for name, array in {"q": hasher.transform(X[:2]), "q_x": X[:2], "x": X[::-1], "ids": np.arange(50, 90)}.items():
        np.save(tmp_path / f"{name}.npy", array)
    return hasher, index, X


def test_filters_and_rescoring(cli, tmp_path, rescored):
    hasher, index, X = rescored
    index.attach_vectors(X[::-1])  # the vector of the id i is row i
    call = ["search", tmp_path / "ix.dish", "--codes", tmp_path / "q.npy", "--k", 5, "--json"]
    by_vectors = ["--vectors", tmp_path / "x.npy", "--query-vectors", tmp_path / "q_x.npy"]
    by_outputs = ["--model", tmp_path / "m.dish", "--query-vectors", tmp_path / "q_x.npy"]
    Q, F, some = hasher.transform(X[:2]), hasher.decision_function(X[:2]), np.arange(50, 90)
    for options, (D, found) in (
        (["--labels", "1", "--labels", "2"], index.search(Q, 5, labels=[1, 2])),
        (["--ids", tmp_path / "ids.npy"], index.search(Q, 5, some)),
        (["--rescore", "float", "--shortlist", 40, *by_vectors],
         index.search(Q, 5, rescore="float", shortlist=40, query_vectors=X[:2])),
        (["--rescore", "asymmetric", *by_outputs, "--labels", "3"],
         index.search(F, 5, labels=[3], rescore="asymmetric")),
    ):  # fmt: skip
        code, out, err = cli(*call, *options)
        assert code == 0, err
        hits = [json.loads(line)["hits"] for line in out.splitlines()]
        assert [[hit["id"] for hit in line] for line in hits] == found.tolist()
        measure = "score" if "--rescore" in options else "distance"
        np.testing.assert_allclose([[hit[measure] for hit in line] for line in hits], D, rtol=1e-5)
    code, out, _ = cli(*call[:-3], "--radius", 3, "--labels", "1", "--json")
    _, _, found = index.radius_search(Q, 3, labels=[1])
    assert [hit["id"] for line in out.splitlines() for hit in json.loads(line)["hits"]] == found.tolist()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rescore", "exact"], "asymmetric or float"),
        (["--rescore", "float"], "needs --vectors"),
        (["--rescore", "asymmetric", "--model", "m.dish"], "needs --query-vectors"),
        (["--shortlist", 20], "give --rescore, too"),
        (["--model", "m.dish"], "--model is for --rescore asymmetric"),
        (["--rescore", "asymmetric", "--radius", 2], "-k instead of --radius"),
        (["--rescore", "asymmetric", "--model", "m.dish", "--query-vectors", "x.npy"], "200 rows for 2 codes"),
    ],
)
def test_rescoring_needs_its_files(cli, tmp_path, rescored, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("search", "ix.dish", "--codes", "q.npy", *options)
    assert (code, says in err) == (2, True), err


@pytest.mark.parametrize("engine", ["sqlite", "duckdb", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_store(engine, request, cli, monkeypatch, tmp_path):
    B = make_codes("clustered", 900, 64)
    for name, array in {"B": B, "y": np.arange(900) % 3, "Q": B[:2]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.setenv("DISH_STORE", address_of(engine, request, tmp_path))
    push = ("store", "push", tmp_path / "B.npy", "--table", "from cli", "--labels", tmp_path / "y.npy")
    assert cli(*push) == (0, "from cli: 900 rows written, 900 in total\n", "")
    assert cli(*push, "--resume")[1] == "from cli: 0 rows written, 900 in total\n"
    code, _, err = cli(*push)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert "resume" in err
    search = ("store", "search", "--table", "from cli", "--codes", tmp_path / "Q.npy", "--k", 1)
    assert cli(*search)[:2] == (0, "query 0: 0 (0, 0)\nquery 1: 1 (0, 1)\n")
    code, out, _ = cli(*search[:-2], "--radius", 0, "--json")
    assert (code, json.loads(out.splitlines()[0])["hits"][0]) == (0, {"id": 0, "distance": 0, "label": 0})
    code, _, err = cli(*search, "--address", f"mysql:///{tmp_path}")
    assert (code, "address must be postgresql://" in err) == (2, True)


QUICK = ("--bits", 8, "--anchors", 20, "-q")


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


def test_adding_without_labels_keeps_those_that_are_there(cli, folder):
    for name, array in {"c": np.arange(6, dtype=np.uint8).reshape(3, 2), "ids": [7, 8, 9], "y": [1, 2, 3]}.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "new_ids.npy", [10, 9, 7])
    path, add = folder / "ix.dish", ("index", folder / "c.npy", "-o", folder / "ix.dish", "--add")
    assert cli(*add[:-1], "--ids", folder / "ids.npy", "--labels", folder / "y.npy")[0] == 0
    assert cli(*add, "--ids", folder / "new_ids.npy")[0] == 0
    ix = dish.HammingIndex.load(path)
    assert ix.labels_of([7, 8, 9, 10]).tolist() == [1, 2, 3, None]
    assert ix.get([10, 9, 7]).tolist() == [[0, 1], [2, 3], [4, 5]]  # the codes are the new ones
    assert cli(*add)[0] == 0  # without ids, too
    assert dish.HammingIndex.load(path).labels_of([7, 8, 9, 11]).tolist() == [1, 2, 3, None]
    assert cli(*add, "--ids", folder / "ids.npy", "--labels", folder / "ids.npy")[0] == 0
    assert dish.HammingIndex.load(path).labels_of([7, 8, 9]).tolist() == [7, 8, 9]


def test_k_cuts_the_rows_within_a_radius(cli, folder):
    np.save(folder / "c.npy", np.array([[0], [1], [3], [7], [255]], np.uint8))
    np.save(folder / "q.npy", np.array([[0], [255]], np.uint8))
    assert cli("index", folder / "c.npy", "-o", folder / "ix.dish")[0] == 0

    def found(*options):
        _, out, _ = cli("search", folder / "ix.dish", "--codes", folder / "q.npy", "--json", *options)
        return [[hit["id"] for hit in json.loads(line)["hits"]] for line in out.splitlines()]

    assert found("--radius", 2) == [[0, 1, 2], [4]]
    assert found("-k", 2, "--radius", 2) == [[0, 1], [4]]
    assert found("-k", 2) == [[0, 1], [4, 3]]
    assert found() == [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
    for wrong in (("-k", 0), ("-k", 0, "--radius", 1), ("--radius", -1)):
        assert cli("search", folder / "ix.dish", "--codes", folder / "q.npy", *wrong)[0] == 2


def test_adding_needs_an_index_and_codes(cli, folder, index):
    code, _, err = cli("index", folder / "c.npy", "-o", folder / "none.dish", "--add")
    assert (code, "none.dish" in err) == (2, True)
    for options in ((), ("--add",), ("--ids", folder / "ids.npy")):
        code, _, err = cli("index", "-o", folder / "ix.dish", *options)
        assert (code, "CODES are missing" in err) == (2, True)


def test_changes_of_a_server_are_not_lost(cli, folder, index):
    """While it runs, after it was killed, and after its journal was given up."""
    path, ids = folder / "ix.dish", folder / "gone.npy"
    np.save(ids, [100])
    commands = [
        ("-o", path, "--remove", ids),
        (folder / "c.npy", "-o", path, "--add"),
        (folder / "c.npy", "-o", path),
    ]
    writer = IndexWriter(path)
    writer.start(None)
    writer.change({"ids": [7], "codes": "0707", "labels": None})
    for where, says in (("running", "a server with --writable"), ("killed", "start ")):
        for command in commands:
            code, _, err = cli("index", *command)
            assert (code, says in err) == (2, True), (where, command, err)
        writer.release()
    code, _, err = cli("index", "-o", path, "--discard-journal", "--remove", ids)
    assert (code, "works alone" in err) == (2, True)
    code, out, _ = cli("index", "-o", path, "--discard-journal")
    assert (code, "10 codes" in out, "journal deleted" in out) == (0, True, True)
    assert [cli("index", *command)[0] for command in commands] == [0, 0, 0]


def test_removal_says_what_it_did_not_find(cli, folder, index):
    np.save(folder / "gone.npy", [100, 100, 555])
    code, out, _ = cli("index", "-o", folder / "ix.dish", "--remove", folder / "gone.npy")
    assert (code, "1 removed, 1 not found" in out) == (0, True)
    np.save(folder / "gone.npy", ["101", "102"])
    code, out, err = cli("index", "-o", folder / "ix.dish", "--remove", folder / "gone.npy")
    assert (code, "are strings, those of the index integers" in err) == (2, True)
    assert len(dish.HammingIndex.load(folder / "ix.dish")) == 9


def test_rejects_codes_of_another_model(cli, folder):
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


def test_store_gets_the_model_of_the_codes(cli, folder, monkeypatch):
    from dish import stores

    models = []

    def opened(*_, model=None, **__):
        models.append(model)
        raise ValueError("enough")

    monkeypatch.setattr(stores, "open", opened)
    assert cli("fit", folder / "both.npz", "-o", folder / "m.dish", *QUICK)[0] == 0
    assert cli("encode", folder / "m.dish", folder / "X.npy", "-o", folder / "c.npy")[0] == 0
    server = ("--address", "postgresql://nowhere", "--table", "t")
    cli("store", "push", folder / "c.npy", *server)
    cli("store", "search", "--codes", folder / "c.npy", *server)
    assert models == [dish.load(folder / "m.dish").fingerprint_] * 2


def test_codes_get_the_bits_of_labels_that_are_known_later(digits, cli, tmp_path):
    X, y, _, _ = digits
    hasher = dish.DISH(n_bits=20, n_anchors=50).fit(X[:400], y[:400])
    labels = np.append((y[:49] + 1) % 10, 77)  # wrong ones: the codes of labels differ from those of rows
    hasher.save(tmp_path / "m.dish")
    for name, array in {"X": X[:100], "y": labels, "y2": y[50:100]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert cli("encode", tmp_path / "m.dish", tmp_path / "X.npy", "-o", tmp_path / "all.npy")[0] == 0
    from_x = np.load(tmp_path / "all.npy")
    np.save(tmp_path / "a.npy", from_x[:50])
    np.save(tmp_path / "b.npy", from_x[50:])
    index, model = tmp_path / "ix.dish", ("--label-codes", "--model", tmp_path / "m.dish")
    first = ("index", tmp_path / "a.npy", "-o", index, "--bits", 20, "--labels", tmp_path / "y.npy", *model)
    code, _, err = cli(*first)
    assert code == 0
    assert "labels: 1 of 50 rows have a label that was not in fit" in err
    assert cli("index", tmp_path / "b.npy", "-o", index, "--add", "--labels", tmp_path / "y2.npy", *model)[0] == 0
    found = dish.HammingIndex.load(index)
    with pytest.warns(UserWarning, match="1 of 100"):
        expected = hasher.transform(X[:100], labels=np.append(labels, y[50:100]))
    np.testing.assert_array_equal(found.get(np.arange(100)), expected)
    assert (expected[:49] != from_x[:49]).any(axis=1).all()
    assert found.labels_of([0, 49, 99]).tolist() == [labels[0], 77, y[99]]


def test_label_codes_need_labels_and_the_model_of_the_codes(digits, cli, tmp_path):
    X, y, _, _ = digits
    for name, bits, method in (("m", 24, dish.DISH), ("other", 24, dish.DISH), ("paper", 24, dish.DISHK)):
        method(n_bits=bits, n_anchors=50, random_state=len(name)).fit(X[:300], y[:300]).save(
            tmp_path / f"{name}.dish"
        )
    np.save(tmp_path / "X.npy", X[:10])
    np.save(tmp_path / "y.npy", y[:10])
    np.save(tmp_path / "text.npy", y[:10].astype(str))
    for name in ("m", "paper"):
        cli("encode", tmp_path / f"{name}.dish", tmp_path / "X.npy", "-o", tmp_path / f"{name}.npy")
    labels = ("--labels", tmp_path / "y.npy")
    for message, call in {
        "--label-codes needs --labels and --model": (tmp_path / "m.npy", "--label-codes", *labels),
        "is only for --label-codes": (tmp_path / "m.npy", *labels, "--model", tmp_path / "m.dish"),
        "needs --labels": (tmp_path / "m.npy", "--label-codes", "--model", tmp_path / "m.dish"),
        "holds codes of the model": (
            tmp_path / "m.npy",
            "--label-codes",
            *labels,
            "--model",
            tmp_path / "other.dish",
        ),
        "DISHK has no codes": (tmp_path / "paper.npy", "--label-codes", *labels, "--model", tmp_path / "paper.dish"),
        "another type than y was in fit": (
            tmp_path / "m.npy",
            "--label-codes",
            "--labels",
            tmp_path / "text.npy",
            "--model",
            tmp_path / "m.dish",
        ),
    }.items():
        code, _, err = cli("index", *call, "-o", tmp_path / "no.dish")
        assert (code, len(err.strip().splitlines())) == (2, 1), err
        assert message in err
    assert not (tmp_path / "no.dish").exists()
