"""`dish features`."""

import numpy as np

from helpers.photos import draw


def test_features_and_labels_are_written(feature_network, tmp_path, cli):
    for i in range(4):
        draw(tmp_path / "photos" / ("cats" if i < 2 else "dogs") / f"{i}.png", i)
    (tmp_path / "photos" / "cats" / "broken.png").write_bytes(b"no picture")
    code, out, err = cli("features", tmp_path / "photos", "-o", tmp_path / "X.npy")
    assert code == 0, err
    assert "4 rows of 48 features" in out
    assert "broken.png" in err
    assert np.load(tmp_path / "X.npy").shape == (4, 48)
    assert np.load(tmp_path / "X_labels.npy").tolist() == ["cats", "cats", "dogs", "dogs"]


def test_images_without_labels(feature_network, tmp_path, cli):
    for i in range(3):
        draw(tmp_path / "photos" / f"{i}.png", i)
    code, out, _ = cli("features", tmp_path / "photos", "-o", tmp_path / "X.npy")
    assert (code, "no labels" in out) == (0, True)


def test_errors_name_the_argument(tmp_path, cli):
    draw(tmp_path / "photos" / "0.png", 0)
    for given, message in (
        (("features", tmp_path / "photos", "-o", tmp_path / "X.csv"), ".npy"),
        (("features", tmp_path / "photos", "-o", tmp_path / "X.npy", "--net", "nin"), "published weights"),
        (("features", tmp_path / "none", "-o", tmp_path / "X.npy"), "neither a folder of images nor a data set"),
        (("features", tmp_path / "photos", "-o", tmp_path / "photos" / "X.npy"), "inside the input folder"),
    ):
        code, _, err = cli(*given)
        assert code == 2
        assert message in err
