"""Features of images and of image files, computed once."""

import numpy as np
import pytest
import torch
from PIL import Image

from dish import nets
from dish.deep import image_features
from dish.deep.image_features import Extractor, file_features
from dish.io.feature_cache import FeatureCache
from helpers.deep import patches


@pytest.fixture
def small(tmp_path, monkeypatch):
    """An extractor with random weights of 6conv."""
    torch.manual_seed(0)
    torch.save(nets.build("6conv", None).state_dict(), tmp_path / "w.pth")
    made = Extractor("6conv", str(tmp_path / "w.pth"), "cpu")
    monkeypatch.setattr(image_features, "extractor", lambda net: made)
    return made


@pytest.fixture
def files(tmp_path):
    (tmp_path / "photos").mkdir()
    for i, image in enumerate(patches(5, 0)[0]):
        Image.fromarray(image).save(tmp_path / "photos" / f"{i}.png")
    return {f"{i}": tmp_path / "photos" / f"{i}.png" for i in range(5)}


def test_features_have_length_one(small):
    rows = small(np.random.default_rng(0).integers(256, size=(4, 32, 32, 3), dtype=np.uint8))
    assert rows.shape == (4, small.width) == (4, 192)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


def test_only_new_and_changed_files_are_computed(small, files, tmp_path, monkeypatch):
    monkeypatch.setattr(image_features, "BATCH", 2)
    with FeatureCache(tmp_path / "cache", "6conv") as cached:
        assert file_features(files, cached, "6conv") == list(files)
        assert file_features(files, cached, "6conv") == []
        Image.fromarray(patches(9, 3)[0][8]).resize((20, 20)).save(files["3"])
        del files["1"]
        assert file_features(files, cached, "6conv") == ["3"]
        assert set(cached.stamps()) == {"0", "2", "3", "4"}


def test_unreadable_files_are_recorded_and_not_read_again(small, files, tmp_path):
    files["2"].write_bytes(b"junk")
    with FeatureCache(tmp_path / "cache", "6conv") as cached:
        assert file_features(files, cached, "6conv") == ["0", "1", "3", "4"]
        assert file_features(files, cached, "6conv") == []
        assert "2.png: not a readable image" in cached.problems()["2"]
