import json
import subprocess
import sys

import numpy as np
import pytest

from dish import DISH


@pytest.fixture
def files(tmp_path, digits):
    X, y, Xq, yq = digits
    for name, array in {"X": X[:500], "y": y[:500], "Xq": Xq, "yq": yq}.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def test_fit_encode_eval_info(cli, files):
    code, out, _ = cli(
        "fit", files / "X.npy", files / "y.npy", "-o", files / "m.dish", "--bits", 24, "--anchors", 100
    )
    assert code == 0
    assert "24 bits learned from 500 rows" in out
    code, out, _ = cli("encode", files / "m.dish", files / "Xq.npy", "-o", files / "c.npy")
    assert code == 0
    X, y, Xq = (np.load(files / f"{n}.npy") for n in ("X", "y", "Xq"))
    np.testing.assert_array_equal(np.load(files / "c.npy"), DISH(24, 100).fit(X, y).transform(Xq))
    pairs = ["--db", files / "X.npy", files / "y.npy", "--queries", files / "Xq.npy", files / "yq.npy"]
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


@pytest.fixture
def photos(tmp_path):
    """Folders of small pictures: dark and light ones."""
    from PIL import Image

    for label, level in {"dark": 40, "light": 210}.items():
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(12):
            noise = np.random.default_rng(i).normal(level, 15, (16, 16, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(noise).save(tmp_path / "photos" / label / f"{i}.png")
    return tmp_path / "photos"


@pytest.mark.slow
def test_images_fit_encode_eval_info(cli, photos, tmp_path):
    import dish

    quick = ("--net", "6conv", "--image-size", 16, "--bits", 12, "--epochs", 4, "--rounds", 1, "--device", "cpu")
    code, out, err = cli("fit", photos, *quick, "-o", tmp_path / "m.dish")
    assert code == 0, err
    assert "12 bits learned from 24 images" in out
    assert cli("encode", tmp_path / "m.dish", photos, "-o", tmp_path / "c.npy")[0] == 0
    codes = np.load(tmp_path / "c.npy")
    assert codes.shape == (24, 2)
    np.testing.assert_array_equal(codes, dish.load(tmp_path / "m.dish").transform(photos))
    ids, labels = np.load(tmp_path / "c.ids.npy"), np.load(tmp_path / "c.labels.npy")
    assert ids[0] == "dark/0"
    assert [name.split("/")[0] for name in ids] == list(labels)
    named = ("--ids", tmp_path / "c.ids.npy", "--labels", tmp_path / "c.labels.npy", "--bits", 12)
    assert cli("index", tmp_path / "c.npy", *named, "-o", tmp_path / "ix.dish")[0] == 0
    np.save(tmp_path / "y.npy", np.repeat([0, 1], 12))
    reports = []
    for labels in ("-", tmp_path / "y.npy"):
        code, out, err = cli(
            "eval", tmp_path / "m.dish", "--db", photos, labels, "--queries", photos, labels, "--json"
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


def test_labels_of_images_may_be_a_file(cli, photos, tmp_path):
    quick = ("--image-size", 16, "--bits", 4, "--epochs", 1, "--rounds", 0, "--device", "cpu", "-q")
    np.save(tmp_path / "y.npy", np.arange(24) % 3)
    assert cli("fit", photos, tmp_path / "y.npy", *quick, "-o", tmp_path / "m.dish") == (0, "", "")
    np.save(tmp_path / "y.npy", np.arange(23))
    code, _, err = cli("fit", photos, tmp_path / "y.npy", *quick, "-o", tmp_path / "m2.dish")
    assert (code, "23 labels" in err) == (2, True)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_other_kinds_of_files_give_the_same_codes(cli, files, suffix):
    import pyarrow as pa
    import pyarrow.parquet as pq

    X, y = np.load(files / "X.npy"), np.load(files / "y.npy")
    names = np.array([f"digit {v}" for v in y])
    if suffix == ".npz":
        np.savez(files / "X.npz", X=X, other=y)
        np.savez(files / "y.npz", names)
    elif suffix == ".csv":
        header = ",".join(f"f{i}" for i in range(64))
        np.savetxt(files / "X.csv", X, delimiter=",", header=header, comments="")
        (files / "y.csv").write_text("label\n" + "\n".join(names))
    else:
        pq.write_table(pa.table({"v": list(X)}), files / "X.parquet")
        pq.write_table(pa.table({"label": names}), files / "y.parquet")
    for kind in (".npy", suffix):
        fit = ("fit", files / f"X{kind}", files / f"y{kind}", "-o", files / "m.dish")
        assert cli(*fit, "--bits", 8, "--anchors", 20)[0] == 0
        assert cli("encode", files / "m.dish", files / "Xq.npy", "-o", files / f"c{kind}.npy")[0] == 0
    np.testing.assert_array_equal(np.load(files / "c.npy.npy"), np.load(files / f"c{suffix}.npy"))


def test_columns_of_a_parquet_file_are_features(cli, files):
    import pyarrow as pa
    import pyarrow.parquet as pq

    X = np.load(files / "X.npy")
    pq.write_table(pa.table({f"f{i}": X[:, i] for i in range(64)}), files / "wide.parquet")
    cli("fit", files / "X.npy", files / "y.npy", "-o", files / "m.dish", "--bits", 8, "--anchors", 20, "-q")
    cli("encode", files / "m.dish", files / "wide.parquet", "-o", files / "a.npy")
    cli("encode", files / "m.dish", files / "X.npy", "-o", files / "b.npy")
    np.testing.assert_array_equal(np.load(files / "a.npy"), np.load(files / "b.npy"))


def bad_calls(files):
    X, y, m = files / "X.npy", files / "y.npy", files / "m.dish"
    np.save(files / "short.npy", np.zeros(3))
    np.save(files / "flat.npy", np.zeros(500))
    np.save(files / "narrow.npy", np.zeros((5, 3)))
    np.save(files / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (files / "junk.npy").write_bytes(b"junk")
    (files / "junk.parquet").write_bytes(b"junk")
    (files / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (files / "bare.csv").write_text("1,2\n3,4\n")
    (files / "empty.csv").write_text("")
    (files / "words.csv").write_text("a,b\nc,d\n")
    np.savez(files / "many.npz", a=np.ones(2), b=np.ones(2))
    (files / "X.txt").write_text("1 2")
    (files / "folder").mkdir()
    out = files / "out.dish"
    return {
        "there is no file": ("fit", files / "none.npy", y, "-o", out),
        "y has 3": ("fit", X, files / "short.npy", "-o", out),
        "matrix": ("fit", files / "flat.npy", y, "-o", out),
        "junk.npy": ("fit", files / "junk.npy", y, "-o", out),
        "junk.parquet": ("fit", files / "junk.parquet", y, "-o", out),
        "--no-header": ("fit", files / "bare.csv", y, "-o", out),
        "ragged.csv": ("fit", files / "ragged.csv", y, "-o", out),
        "is empty": ("fit", files / "empty.csv", y, "-o", out),
        "is not a number": ("fit", files / "words.csv", y, "-o", out),
        "Python objects": ("fit", X, files / "objects.npy", "-o", out),
        "holds a, b": ("fit", files / "many.npz", y, "-o", out),
        "files of this kind": ("fit", files / "X.txt", y, "-o", out),
        "n_bits": ("fit", X, y, "-o", out, "--bits", 0),
        "loss must be": ("fit", X, y, "-o", out, "--loss", "l1"),
        "--gamma": ("fit", X, y, "-o", out, "--gamma", "x"),
        "does not exist": ("fit", X, y, "-o", files / "nowhere" / "m.dish"),
        "it is a folder": ("fit", X, y, "-o", files),
        "no model file": ("encode", files / "none.dish", X, "-o", out),
        "not a dish model": ("info", X),
        "one of the inputs": ("encode", m, X, "-o", X),
        "device must be": ("fit", X, y, "-o", out, "--device", "meta"),
        "k must be": ("eval", m, "--db", X, y, "--queries", X, y, "--top", 0),
        "3 features": ("encode", m, files / "narrow.npy", "-o", out),
        "labels Y are missing": ("fit", X, "-o", out),
        "needs a folder of images": ("fit", X, y, "-o", out, "--net", "6conv"),
        "net must be": ("fit", files / "folder", "-o", out, "--net", "resnet"),
        "has no images": ("fit", files / "folder", "-o", out, "--quiet"),
        "is a folder, but this DISH": ("encode", m, files / "folder", "-o", out),
        "labels - need": ("eval", m, "--db", X, "-", "--queries", X, y),
    }


def test_bad_input_is_one_clear_line_and_exit_code_2(cli, files):
    assert cli("fit", files / "X.npy", files / "y.npy", "-o", files / "m.dish", "--anchors", 20)[0] == 0
    for message, call in bad_calls(files).items():
        code, _, err = cli(*call)
        assert code == 2, (call, err)
        assert message in err, (call, err)
        assert "Traceback" not in err
        assert len(err.strip().splitlines()) == 1, err
    assert not (files / "out.dish").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("fit",), "Missing"),
        (("frobnicate",), "No such command"),
        (("fit", "a", "b", "-o", "c", "--bits", "x"), "--bits"),
    ],
)
def test_usage_errors_are_one_line_and_exit_with_2(cli, call, message):
    code, _, err = cli(*call)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_no_command_shows_the_help(cli):
    code, out, err = cli()
    assert "fit" in out + err
    assert code in (0, 2)


def test_control_c_is_one_line_and_130(cli, files, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(DISH, "fit", stop)
    code, _, err = cli("fit", files / "X.npy", files / "y.npy", "-o", files / "m.dish")
    assert (code, err.strip()) == (130, "dish: stopped")
    assert not (files / "m.dish").exists()


def test_version_and_module(cli):
    import dish

    assert cli("--version")[1].strip() == f"dish {dish.__version__}"
    done = subprocess.run([sys.executable, "-m", "dish", "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == f"dish {dish.__version__}"


@pytest.mark.slow
def test_demo_writes_table_model_and_page(cli, tmp_path):
    code, out, _ = cli("demo", "--output", tmp_path / "d")
    assert code == 0
    for text in ("l2 distance", "LSH 16 bits", "DISH 64 bits", "query"):
        assert text in out
    page = (tmp_path / "d" / "digits.html").read_text()
    assert page.count("<figure") == 110
    assert page.count('class="right"') >= 80  # of 100 neighbours; all of them right would be luck
    assert (tmp_path / "d" / "digits.dish").exists()
