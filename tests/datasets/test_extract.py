"""Features of image folders and named data sets, with a cheap function in place of the network."""

import numpy as np
import pytest
from PIL import Image

from dish import datasets
from dish.datasets import extract
from dish.datasets.tinyimagenet import list_tinyimagenet
from dish.deep import image_features
from dish.errors import ImageError
from dish.io.readers import read_features
from helpers.photos import Patches, draw
from helpers.tinyimagenet import write_tinyimagenet


def test_features_of_tiny_imagenet(feature_network, tmp_path):
    root = write_tinyimagenet(tmp_path)
    written = extract.write_features(str(root), tmp_path / "X.npy", "some net")
    assert (written.n, written.width, written.labelled, written.problems) == (18, 48, True, {})
    X, y = read_features(tmp_path / "X.npy")
    listing = list_tinyimagenet(root)
    assert y.tolist() == listing.labels
    assert np.load(tmp_path / "X.ids.npy").tolist() == list(listing.files)
    image = Image.open(root / "val" / "images" / "val_5.JPEG").resize((32, 32), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(X[-1], feature_network(np.asarray(image)[None])[0], atol=0.02)
    assert not list(tmp_path.glob("*.db")) + list(tmp_path.glob(".*.db"))


def test_subfolders_are_labels_and_unreadable_files_are_skipped(feature_network, tmp_path):
    photos = tmp_path / "photos"
    for i in range(4):
        draw(photos / ("cats" if i < 2 else "dogs") / f"{i}.png", i)
    (photos / "cats" / "broken.png").write_bytes(b"no picture")
    written = extract.write_features(str(photos), tmp_path / "X.npy", "some net")
    assert (written.n, list(written.problems)) == (4, ["cats/broken.png"])
    assert np.load(tmp_path / "X_labels.npy").tolist() == ["cats", "cats", "dogs", "dogs"]


def test_a_folder_of_mostly_unreadable_files_is_rejected(feature_network, tmp_path):
    draw(tmp_path / "photos" / "0.png", 0)
    for name in ("a.png", "b.png"):
        (tmp_path / "photos" / name).write_bytes(b"no picture")
    with pytest.raises(ImageError, match="2 of 3 images cannot be read"):
        extract.write_features(str(tmp_path / "photos"), tmp_path / "X.npy", "some net")


def test_images_outside_subfolders_have_no_labels(feature_network, tmp_path):
    for i in range(3):
        draw(tmp_path / "photos" / f"{i}.png", i)
    assert not extract.write_features(str(tmp_path / "photos"), tmp_path / "X.npy", "some net").labelled
    assert not (tmp_path / "X_labels.npy").exists()
    draw(tmp_path / "photos" / "cats" / "4.png", 4)
    with pytest.warns(UserWarning, match="sub-folders are not used as labels: 3 images"):
        assert not extract.write_features(str(tmp_path / "photos"), tmp_path / "X.npy", "some net").labelled


def test_folders_without_images_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="contains no images"):
        extract.list_images(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"neither a folder of images nor a data set \(cifar10\)"):
        extract.list_images(tmp_path / "none")


def test_an_interrupted_call_is_resumed(feature_network, tmp_path, monkeypatch):
    photos, output = tmp_path / "photos", tmp_path / "X.npy"
    for i in range(40):
        draw(photos / "a" / f"{i:02}.png", i)
    whole = Patches.__call__

    def stops(self, pixels):
        if self.seen >= 2 * image_features.BATCH:
            raise KeyboardInterrupt
        return whole(self, pixels)

    monkeypatch.setattr(Patches, "__call__", stops)
    with pytest.raises(KeyboardInterrupt):
        extract.write_features(str(photos), output, "some net")
    assert not output.exists()
    monkeypatch.setattr(Patches, "__call__", whole)
    feature_network.seen = 0
    assert extract.write_features(str(photos), output, "some net").n == 40
    assert feature_network.seen == 40 - 2 * image_features.BATCH
    assert np.load(tmp_path / "X.ids.npy").tolist() == [f"a/{i:02}.png" for i in range(40)]


def test_features_of_a_named_data_set(feature_network, tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    some = datasets.Dataset("cifar10", pixels, np.arange(20) % 2, label_names=("cat", "dog"))
    monkeypatch.setitem(extract.SETS, "cifar10", lambda: some)
    extract.write_features("cifar10", tmp_path / "X.npy", "some net")
    X, y = read_features(tmp_path / "X.npy")
    np.testing.assert_allclose(X, feature_network(pixels), rtol=1e-6)  # already of the network's input size
    assert y.tolist() == ["cat", "dog"] * 10
