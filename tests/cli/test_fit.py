"""`dish fit`: rows, images, tables, and the options of every method."""

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest

import dish
from dish import registry
from dish.cli import fit, method_options
from dish.deep import training_time
from dish.io import images

QUICK = ("--bits", 8, "--anchors", 20, "-q")


def write_csv(path, rows, header=None):
    lines = [",".join(map(str, np.atleast_1d(row))) for row in rows]
    path.write_text("\n".join(([header] if header else []) + lines) + "\n")
    return path


def codes_of(model):
    return dish.load(model).codes_


def test_labels_of_images_from_a_file(cli, image_folder, tmp_path):
    quick = ("--image-size", 16, "--bits", 4, "--epochs", 1, "--iter", 0, "--device", "cpu", "-q")
    np.save(tmp_path / "y.npy", np.arange(24) % 3)
    assert cli("fit", image_folder, tmp_path / "y.npy", *quick, "-o", tmp_path / "m.dish") == (0, "", "")
    np.save(tmp_path / "y.npy", np.arange(23))
    code, _, err = cli("fit", image_folder, tmp_path / "y.npy", *quick, "-o", tmp_path / "m2.dish")
    assert (code, "23 labels" in err) == (2, True)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_all_file_types_give_the_same_codes(cli, files, suffix):
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


def test_header_is_neither_a_row_nor_a_class(cli, folder, blobs):
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


def test_missing_label_is_found_despite_a_header(cli, folder, blobs):
    labels = write_csv(folder / "y.csv", blobs[1][:-1], "label")  # as many lines as X has rows
    code, _, err = cli("fit", folder / "X.npy", labels, "-o", folder / "m.dish", *QUICK)
    assert code == 2
    assert "X has 120 rows but y has 119" in err
    names = write_csv(folder / "y.csv", [f"class {v}" for v in blobs[1][:-1]], "topic")
    code, _, err = cli("fit", folder / "X.npy", names, "-o", folder / "m.dish", *QUICK)
    assert (code, "--no-header" in err) == (2, True)
    code, _, err = cli("fit", folder / "X.npy", names, "-o", folder / "m.dish", "--header", *QUICK)
    assert (code, "y has 119" in err) == (2, True)


def test_header_options_override_detection(cli, folder, blobs):
    names = write_csv(folder / "y.csv", [f"class {v}" for v in blobs[1]], "label")
    assert cli("fit", folder / "X.npy", names, "-o", folder / "m.dish", "--header", *QUICK)[0] == 0
    code, _, err = cli("fit", folder / "X.npy", names, "-o", folder / "m.dish", "--no-header", *QUICK)
    assert (code, "y has 121" in err, "--header" in err) == (2, True, True)


def test_npz_files_and_npz_shards(cli, folder, blobs):
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


def test_options_reach_the_estimator(cli, folder, tmp_path):
    options = ("--bits", 12, "--anchors", 20, "--gamma", 0.5, "--iter", 2, "--seed", 3, "--similar-weight", 4)
    call = (
        "fit",
        folder / "X.npy",
        folder / "y.npy",
        "-o",
        tmp_path / "m.dish",
        "--method",
        "dish_k",
        *options,
        "-q",
    )
    assert cli(*call)[0] == 0
    model = dish.load(tmp_path / "m.dish")
    assert type(model) is dish.DISHK
    params = model.get_params()
    wanted = {"n_bits": 12, "n_anchors": 20, "gamma": 0.5, "n_iter": 2, "random_state": 3, "similar_weight": 4}
    assert {name: params[name] for name in wanted} == wanted


@pytest.mark.parametrize("option", [("--resume",), ("--x-column", "a"), ("--id-column", "a")])
def test_options_for_rows_are_rejected_for_images(cli, image_folder, tmp_path, option):
    code, _, err = cli("fit", image_folder, "-o", tmp_path / "m.dish", *option)
    assert (code, f"{option[0]} is for rows of features" in err) == (2, True)


def test_vector_method_rejects_a_folder_of_images(cli, image_folder, tmp_path):
    code, _, err = cli("fit", image_folder, "-o", tmp_path / "m.dish", "--method", "dish")
    assert code == 2
    assert "DISH learns from rows of features: use --method deep_dish" in err


@pytest.mark.parametrize("installed", [True, False])
def test_photos_are_encoded_by_a_pretrained_network(cli, image_folder, tmp_path, monkeypatch, installed):
    """Unless an option is about the network. A note says what was chosen."""
    found = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(fit._Job, "run", lambda job, params: found.append(params) or "")
    _, _, err = cli("fit", image_folder, "-o", tmp_path / "m.dish")
    cli("fit", image_folder, "-o", tmp_path / "m.dish", "--epochs", 2)
    chosen = [(p["net"], p["weights"], p["freeze"]) for p in found]
    plain = ("6conv", None, False)
    assert chosen == [("efficientnet_lite0", "imagenet", True) if installed else plain, plain]
    assert "no option names a network" in err
    assert ("EfficientNet-Lite0" in err) == installed


@pytest.mark.parametrize(
    ("options", "epochs", "note"),
    [
        ((), 3, "note: 3 epochs per round, about"),
        (("--quiet",), 3, ""),
        (("--iter", 0), 12, "--epochs 60 takes about"),
        (("--epochs", 7), 7, ""),
        (("--checkpoint", "c"), 60, ""),
    ],
)
def test_epochs_are_as_many_as_take_about_a_minute(cli, image_folder, tmp_path, monkeypatch, options, epochs, note):
    found, n = [], len(images.image_files(image_folder))
    monkeypatch.setattr(training_time, "seconds_per_image", lambda net, side, device: 5 / n)
    monkeypatch.setattr(fit._Job, "run", lambda job, params: found.append(params) or "")
    code, _, err = cli("fit", image_folder, "-o", tmp_path / "m.dish", "--net", "6conv", *options)
    assert (code, found[0]["epochs"]) == (0, epochs), err
    assert note in err
    assert ("epochs per round" in err) == bool(note)


def test_method_can_be_any_name_or_class(cli, folder, tmp_path, monkeypatch):
    (tmp_path / "fit_methods.py").write_text(
        "from dish.baselines.lsh import LSH\nclass MyHasher(LSH): pass\nclass NoSave:\n"
        "    def fit(self, X, y): pass\n    transform = decision_function = fit\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    call = ("fit", folder / "X.npy", folder / "y.npy", "-o", tmp_path / "m.dish", "--method")
    assert cli(*call, "sdh", "--bits", 12, "--anchors", 20, "--lam", 2, "-q") == (0, "", "")
    model = dish.load(tmp_path / "m.dish")
    assert type(model) is registry.find("sdh")
    assert (model.n_bits, model.n_anchors, model.lam) == (12, 20, 2.0)
    code, out, err = cli(*call, "fit_methods:MyHasher", "--bits", 12)
    assert (code, "12 bits learned from 120 rows" in out) == (0, True), err
    code, _, err = cli(*call, "fit_methods:NoSave")
    assert (code, "NoSave cannot be saved" in err) == (2, True)
    code, _, err = cli(*call, "magic")
    assert (code, "method must be one of dish, dish_k" in err) == (2, True)


def test_unsupervised_method_needs_no_labels(cli, folder, tmp_path):
    np.save(tmp_path / "alone.npy", np.load(folder / "X.npy"))
    call = ("fit", tmp_path / "alone.npy", "-o", tmp_path / "m.dish", "--bits", 6)
    assert cli(*call, "--method", "pca_itq", "-q")[0] == 0
    code, _, err = cli(*call, "--method", "sdh")
    assert (code, "labels Y are missing" in err) == (2, True)


def test_rejects_an_option_of_another_method_and_names_it(cli, folder, image_folder, tmp_path):
    rows = ("fit", folder / "X.npy", folder / "y.npy", "-o", tmp_path / "m.dish")
    for call, message in {
        (*rows, "--net", "6conv"): "--net is not an option of DISH, the default method for rows of features; methods "
        "that have it: deep_dish, dish_d",
        (*rows, "--method", "sdh", "--epochs", 3): "--epochs is not an option of SDH (--method sdh)",
        ("fit", image_folder, "-o", tmp_path / "m.dish", "--gamma", 1): "--gamma is not an option of DeepDISH, the "
        "default method for a folder of images; methods that have it: dish, dish_k",
        (*rows, "--nonsense", 1): "No such option: --nonsense",
        (*rows, "--method", "sdh", "--resume"): "--resume needs a method that writes checkpoints, and SDH does not",
        (
            *rows,
            "--resume",
        ): "--resume needs a method that writes checkpoints, and DISH does not: leave it out, or use",
        (*rows, "--checkpoint", "c"): "--checkpoint needs a method that writes checkpoints, and DISH does not",
    }.items():
        code, _, err = cli(*call)
        assert (code, message in err) == (2, True), err
    assert not (tmp_path / "m.dish").exists()


def test_help_shows_the_options_of_the_method(cli):
    for words, shown, hidden in (
        ((), "--anchors", "--epochs"),
        (("--method", "cnnbh"), "--epochs", "--gamma"),
        (("--method=sdh",), "--lam", "--epochs"),
    ):
        code, out, _ = cli("fit", *words, "--help")
        assert code == 0
        assert "--method" in out
        assert shown in out
        assert hidden not in out.split("Example:")[0]


def test_files_that_cannot_be_read_say_what_to_do(cli, folder, blobs):
    X, y = blobs
    np.save(folder / "X.npy", X)
    np.save(folder / "objects.npy", np.array(["a", "b", "c"] * 40, object))
    code, _, err = cli("fit", folder / "X.npy", folder / "objects.npy", "-o", folder / "m.dish")
    assert code == 2
    assert "np.save(path, y.astype(str))" in err
    (folder / "shards").mkdir()
    (folder / "shards" / "notes.txt").write_text("neither images nor shards")
    code, _, err = cli("fit", folder / "shards", "-o", folder / "m.dish")
    assert (code, "has no images" in err) == (2, True)
    (folder / "shards" / "notes.txt").unlink()
    np.savez(folder / "shards" / "part.npz", X=X, y=y)
    assert cli("fit", folder / "shards", "-o", folder / "m.dish", *QUICK)[0] == 0


def test_rows_without_a_label_are_dropped_on_request(cli, folder, blobs):
    X, y = blobs
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.where(np.arange(120) % 3 == 0, -1, y))
    command = ["fit", folder / "X.npy", folder / "y.npy", "-o", folder / "m.dish", "--bits", 8, "--anchors", 20]
    assert cli(*command)[0] == 2
    code, out, err = cli(*command, "--drop-missing")
    assert code == 0
    assert "40 of 120 rows without a label" in err
    assert "learned from 80 rows" in out


def test_a_transposed_X_is_noticed(cli, folder, blobs):
    X, y = blobs
    np.save(folder / "X.npy", X.T)
    np.save(folder / "y.npy", y)
    code, _, err = cli("fit", folder / "X.npy", folder / "y.npy", "-o", folder / "m.dish")
    assert code == 2
    assert "X has 6 rows but y has 120" in err
    assert "transposed" in err


def test_a_refused_fit_leaves_no_checkpoint(cli, folder):
    X = np.load(folder / "X.npy")
    X[5, 0] = np.nan
    np.save(folder / "bad.npy", X)
    call = (
        "fit",
        folder / "bad.npy",
        folder / "y.npy",
        "-o",
        folder / "m.dish",
        "--method",
        "dish_k",
        "--bits",
        8,
        "-q",
    )
    code, _, err = cli(*call)
    assert (code, "1 of 120 rows without a complete vector (row 5," in err) == (2, True)
    assert not (folder / "m.dish.checkpoint").exists()
    assert not (folder / "m.dish").exists()


def test_only_methods_with_checkpoints_use_the_folder_beside_the_output(cli, folder):
    """Here it has the checkpoint of a fit with another ν: refused by --resume, else replaced."""
    X, y, place = np.load(folder / "X.npy"), np.load(folder / "y.npy"), folder / "m.dish.checkpoint"
    dish.DISHK(8, n_anchors=20, nu=2e-4, checkpoint=place).fit(X, y)
    call = ("fit", folder / "X.npy", folder / "y.npy", "-o", folder / "m.dish", "--bits", 8, "--anchors", 20, "-q")
    assert cli(*call)[0] == 0  # dish
    assert (place / "state.dish").exists()
    code, _, err = cli(*call, "--method", "dish_k", "--resume")
    assert (code, "belongs to a fit with other parameters" in err) == (2, True), err
    assert cli(*call, "--method", "dish_k")[0] == 0
    assert not place.exists()


def test_a_usage_error_does_not_import_every_method(cli, folder, monkeypatch):
    monkeypatch.setattr(method_options, "refusal", lambda *_, **__: pytest.fail("looked for other methods"))
    code, _, err = cli("fit", folder / "both.npz", "-o", folder / "m.dish", "--bits")
    assert (code, "--bits" in err) == (2, True)


@pytest.mark.parametrize("method", ["dish", "pca_itq"])  # reads its rows block by block, or whole
def test_a_model_remembers_the_rows_that_had_labels(cli, folder, blobs, method):
    X, y = blobs
    labels = [None if i < 20 else f"c{k}" for i, k in enumerate(y)]
    pd.DataFrame(X, columns=list("abcdef")).assign(y=labels).to_parquet(folder / "t.parquet")
    options = ("--drop-missing", "--bits", 4, "-q", "--method", method)
    assert cli("fit", folder / "t.parquet", "-o", folder / "m.dish", *options)[0] == 0
    known = dish.load(folder / "m.dish").without_names().trained_on(X)
    np.testing.assert_array_equal(known, np.arange(120) >= 20)
    assert cli("fit", folder / "X.npy", folder / "y.npy", "-o", folder / "n.dish", "--no-row-hashes", *QUICK)[0] == 0
    assert dish.load(folder / "n.dish").row_hashes_ is None


def test_a_model_remembers_its_images(cli, image_folder, tmp_path):
    quick = ("--image-size", 16, "--bits", 4, "--epochs", 1, "--iter", 0, "--device", "cpu", "-q")
    assert cli("fit", image_folder, *quick, "-o", tmp_path / "m.dish")[0] == 0
    known = dish.load(tmp_path / "m.dish")
    assert known.trained_on(image_folder).sum() == 24
    assert not known.trained_on(np.full((1, 16, 16, 3), 255, np.uint8)).any()
