"""`dish fit`: its options are those of the estimators, and none is ignored."""

import importlib.util

import numpy as np
import pytest

from dish import DISH, DeepDISH
from dish.cli import fit
from dish.cli.fit import SETTINGS


@pytest.fixture
def rows(tmp_path, blobs):
    for name, array in zip(("X", "y"), blobs, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path / "X.npy", tmp_path / "y.npy"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    return tmp_path / "photos"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_defaults_are_those_of_the_estimators(setting):
    if setting.rows:
        assert setting.default == DISH().get_params()[setting.rows]
    if setting.images and setting.name != "bits":
        assert setting.default == DeepDISH().get_params()[setting.images]


def given(setting):
    """The option with some value."""
    value = {int: "5", float: "0.5"}.get(type(setting.default), "linear")
    return "--" + setting.name.replace("_", "-"), "5" if setting.name == "image_size" else value


@pytest.mark.parametrize("setting", [s for s in SETTINGS if not s.rows], ids=lambda s: s.name)
def test_options_of_images_are_refused_for_rows(cli, rows, tmp_path, setting):
    code, _, err = cli("fit", *rows, "-o", tmp_path / "m.dish", *given(setting))
    assert code == 2
    assert f"{given(setting)[0]} needs a folder of images" in err
    assert not (tmp_path / "m.dish").exists()


@pytest.mark.parametrize("setting", [s for s in SETTINGS if not s.images], ids=lambda s: s.name)
def test_options_of_rows_are_refused_for_images(cli, folder, tmp_path, setting):
    code, _, err = cli("fit", folder, "-o", tmp_path / "m.dish", *given(setting))
    assert code == 2
    assert f"{given(setting)[0]} is for rows of features" in err


@pytest.mark.parametrize("option", [("--resume",), ("--x-column", "a"), ("--id-column", "a")])
def test_other_options_of_rows_are_refused_for_images(cli, folder, tmp_path, option):
    code, _, err = cli("fit", folder, "-o", tmp_path / "m.dish", *option)
    assert (code, f"{option[0]} is for rows of features" in err) == (2, True)


def test_the_options_reach_the_estimator(cli, rows, tmp_path):
    import dish

    options = ("--bits", 12, "--anchors", 20, "--gamma", 0.5, "--iterations", 2, "--seed", 3, "--similar-weight", 4)
    assert cli("fit", *rows, "-o", tmp_path / "m.dish", *options, "-q")[0] == 0
    params = dish.load(tmp_path / "m.dish").get_params()
    wanted = {"n_bits": 12, "n_anchors": 20, "gamma": 0.5, "n_iter": 2, "random_state": 3, "similar_weight": 4}
    assert {name: params[name] for name in wanted} == wanted


def test_freeze_is_refused_for_rows(cli, rows, tmp_path):
    code, _, err = cli("fit", *rows, "-o", tmp_path / "m.dish", "--freeze")
    assert code == 2
    assert "--freeze needs a folder of images" in err


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_of_photos_gets_a_network_that_knows_photos(cli, folder, tmp_path, monkeypatch, there):
    """Unless an option says which network; what was chosen is said."""
    found = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if there else None)
    monkeypatch.setattr(fit, "_fit_images", lambda *args: found.append(args[-1]) or "")
    _, _, err = cli("fit", folder, "-o", tmp_path / "m.dish")
    cli("fit", folder, "-o", tmp_path / "m.dish", "--epochs", 2)
    chosen = [(p["net"], p["weights"], p["freeze"]) for p in found]
    plain = ("6conv", None, False)
    assert chosen == [("efficientnet_lite0", "imagenet", True) if there else plain, plain]
    assert ("stays as it is" in err) == there
    assert "no option says which network" in err
