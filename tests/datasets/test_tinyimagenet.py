"""Tiny ImageNet on a few pictures in the official layout, and `dish features` on that and other folders."""

import numpy as np
import pytest
from PIL import Image

from dish import datasets
from dish.datasets import extract, tinyimagenet
from dish.deep import image_features
from dish.errors import DataFileError
from dish.io.readers import read_features
from helpers.photos import Patches, draw

WNIDS = ("n01443537", "n02124075", "n07920052")


@pytest.fixture
def network(monkeypatch):
    patches = Patches()
    monkeypatch.setattr(image_features, "extractor", lambda net=image_features.NET: patches)
    return patches


@pytest.fixture
def tiny(tmp_path):
    """Three classes with four training images each, six images to validate, and some without labels."""
    root, lines = tmp_path / "tiny-imagenet-200", []
    for c, wnid in enumerate(WNIDS):
        for i in range(4):
            draw(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 * c + i, side=64)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    for i in range(6):
        draw(root / "val" / "images" / f"val_{i}.JPEG", 100 + i, side=64)
        lines.append(f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t0\t63\t63\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    draw(root / "test" / "images" / "test_0.JPEG", 999, side=64)
    (root / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n")
    return root


def test_rows_of_train_come_first_and_val_has_its_annotated_labels(tiny):
    data = datasets.load_tinyimagenet(tiny)
    assert data.X.shape == (18, 64, 64, 3)
    assert data.X.dtype == np.uint8
    np.testing.assert_array_equal(data.y, [*np.repeat([0, 1, 2], 4), 0, 1, 2, 0, 1, 2])
    assert data.label_names == ("goldfish", "Egyptian cat", "n07920052")
    assert data.ids[0] == "train/n01443537/images/n01443537_0.JPEG"
    assert data.ids[-1] == "val/images/val_5.JPEG"
    np.testing.assert_array_equal(data.X[13], np.asarray(Image.open(tiny / "val" / "images" / "val_1.JPEG")))


def test_what_is_not_whole_is_named(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no Tiny ImageNet at .*val_annotations\.txt"):
        datasets.load_tinyimagenet(tmp_path)
    notes = tiny / "val" / "val_annotations.txt"
    whole = notes.read_text()
    notes.write_text(whole.replace("n02124075", "n99999999", 1))
    with pytest.raises(DataFileError, match="line 2: train has no class 'n99999999'"):
        datasets.load_tinyimagenet(tiny)
    notes.write_text(whole.replace("val_2", "val_9"))
    with pytest.raises(DataFileError, match=r"line 3: there is no .*val_9\.JPEG"):
        datasets.load_tinyimagenet(tiny)
    notes.write_text(whole)
    for file in (tiny / "train" / WNIDS[1] / "images").iterdir():
        file.unlink()
    with pytest.raises(DataFileError, match=f"{WNIDS[1]}.*holds no images"):
        datasets.load_tinyimagenet(tiny)


# --- features ---


def test_features_of_the_official_folder(tiny, network, tmp_path, cli):
    code, out, _ = cli("features", tiny, "-o", tmp_path / "X.npy")
    assert code == 0, out
    assert "18 rows of 48 features, labels beside them" in out
    X, y = read_features(tmp_path / "X.npy")
    listing = tinyimagenet.list_tinyimagenet(tiny)
    assert y.tolist() == listing.labels
    assert np.load(tmp_path / "X.ids.npy").tolist() == list(listing.files)
    pixels = np.asarray(
        Image.open(tiny / "val" / "images" / "val_5.JPEG").resize((32, 32), Image.Resampling.BILINEAR)
    )
    np.testing.assert_allclose(X[-1], network(pixels[None])[0], atol=0.02)
    assert not list(tmp_path.glob("*.db")) + list(tmp_path.glob(".*.db"))


def test_sub_folders_are_labels_and_unreadable_files_are_left_out(network, tmp_path, cli):
    photos = tmp_path / "photos"
    for i in range(4):
        draw(photos / ("cats" if i < 2 else "dogs") / f"{i}.png", i)
    (photos / "cats" / "broken.png").write_bytes(b"no picture")
    code, out, err = cli("features", photos, "-o", tmp_path / "X.npy")
    assert code == 0
    assert "4 rows" in out
    assert "left out: " in err
    assert "broken.png" in err
    assert np.load(tmp_path / "X_labels.npy").tolist() == ["cats", "cats", "dogs", "dogs"]


def test_loose_images_have_no_labels(network, tmp_path, cli):
    for i in range(3):
        draw(tmp_path / "photos" / f"{i}.png", i)
    code, out, _ = cli("features", tmp_path / "photos", "-o", tmp_path / "X.npy")
    assert (code, "no labels" in out) == (0, True)
    assert not (tmp_path / "X_labels.npy").exists()
    draw(tmp_path / "photos" / "cats" / "4.png", 4)
    _, out, err = cli("features", tmp_path / "photos", "-o", tmp_path / "X.npy")
    assert "no labels" in out
    assert "3 images" in err


def test_a_call_that_was_cut_off_is_resumed(network, tmp_path, monkeypatch):
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
    network.seen = 0
    assert extract.write_features(str(photos), output, "some net").n == 40
    assert network.seen == 40 - 2 * image_features.BATCH
    assert np.load(tmp_path / "X.ids.npy").tolist() == [f"a/{i:02}.png" for i in range(40)]


def test_features_of_a_named_set(network, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 32, 32, 3), np.uint8)
    some = datasets.Dataset("cifar10", pixels, np.arange(20) % 2, label_names=("cat", "dog"))
    monkeypatch.setitem(extract.SETS, "cifar10", lambda: some)
    extract.write_features("cifar10", tmp_path / "X.npy", "some net")
    X, y = read_features(tmp_path / "X.npy")
    np.testing.assert_allclose(X, network(pixels), rtol=1e-6)  # as large as the network takes: not resized
    assert y.tolist() == ["cat", "dog"] * 10


def test_bad_arguments_are_named(tmp_path, cli):
    draw(tmp_path / "photos" / "0.png", 0)
    for given, message in (
        (("features", tmp_path / "photos", "-o", tmp_path / "X.csv"), "features are written as .npy"),
        (("features", tmp_path / "photos", "-o", tmp_path / "X.npy", "--net", "nin"), "published weights"),
        (("features", tmp_path / "none", "-o", tmp_path / "X.npy"), "neither a folder of images nor one of cifar10"),
        (("features", tmp_path / "photos", "-o", tmp_path / "photos" / "X.npy"), "among the inputs"),
    ):
        code, _, err = cli(*given)
        assert code == 2
        assert message in err
