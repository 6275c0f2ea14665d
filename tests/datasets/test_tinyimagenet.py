"""Tiny ImageNet from a few images in the official layout."""

import numpy as np
import pytest
from PIL import Image

from dish.datasets.tinyimagenet import load_tinyimagenet
from dish.errors import DataFileError
from helpers.tinyimagenet import WNIDS, write_tinyimagenet


@pytest.fixture
def tiny(tmp_path):
    return write_tinyimagenet(tmp_path)


def test_train_comes_first_and_val_has_its_annotated_labels(tiny):
    data = load_tinyimagenet(tiny)
    assert data.X.shape == (18, 64, 64, 3)
    assert data.X.dtype == np.uint8
    np.testing.assert_array_equal(data.y, [*np.repeat([0, 1, 2], 4), 0, 1, 2, 0, 1, 2])
    assert data.label_names == ("goldfish", "Egyptian cat", "n07920052")
    assert data.ids[0] == "train/n01443537/images/n01443537_0.JPEG"
    assert data.ids[-1] == "val/images/val_5.JPEG"
    np.testing.assert_array_equal(data.X[13], np.asarray(Image.open(tiny / "val" / "images" / "val_1.JPEG")))


def test_without_words_the_labels_are_named_by_wordnet_ids(tiny):
    (tiny / "words.txt").unlink()
    assert load_tinyimagenet(tiny).label_names == WNIDS


def test_incomplete_data_sets_are_rejected(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no Tiny ImageNet at .*val_annotations\.txt"):
        load_tinyimagenet(tmp_path)
    annotations = tiny / "val" / "val_annotations.txt"
    whole = annotations.read_text()
    annotations.write_text(whole.replace("n02124075", "n99999999", 1))
    with pytest.raises(DataFileError, match="line 2: train has no class 'n99999999'"):
        load_tinyimagenet(tiny)
    annotations.write_text(whole.replace("val_2", "val_9"))
    with pytest.raises(DataFileError, match=r"line 3: there is no .*val_9\.JPEG"):
        load_tinyimagenet(tiny)
    annotations.write_text(whole)
    for file in (tiny / "train" / WNIDS[1] / "images").iterdir():
        file.unlink()
    with pytest.raises(DataFileError, match=f"{WNIDS[1]}.*contains no images"):
        load_tinyimagenet(tiny)
