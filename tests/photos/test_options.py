import numpy as np
import pytest

from dish import registry
from dish.photos.options import BITS, PhotoOptions, check_labels_early, must_relearn, next_state
from dish.photos.state import LibraryState
from helpers.photos import draw

LABELS = np.array(["a", "b", "a"])


def test_the_method_follows_from_labels_and_epochs():
    assert next_state(PhotoOptions(), None, None) == LibraryState("pca_itq", 256)
    assert next_state(PhotoOptions(), None, LABELS) == LibraryState("dish", 64, ("a", "b"))
    assert next_state(PhotoOptions(epochs=2), None, LABELS) == LibraryState("deep_dish", 64, ("a", "b"))
    assert next_state(PhotoOptions(bits=32), None, None).bits == 32
    with pytest.raises(ValueError, match="--train needs labels"):
        next_state(PhotoOptions(epochs=2), None, None)


def test_the_methods_are_registered():
    for method in BITS:
        assert registry.find(method)


def test_a_fine_tuned_network_and_its_bits_are_kept():
    before = LibraryState("deep_dish", 16, ("a", "b"), rows=3)
    assert next_state(PhotoOptions(), before, LABELS) == before
    assert next_state(PhotoOptions(relearn=True), before, LABELS) == LibraryState("dish", 64, ("a", "b"), rows=3)
    assert next_state(PhotoOptions(), before, None).method == "pca_itq"


def test_when_codes_are_learned_again():
    before = LibraryState("dish", 64, ("a", "b"), rows=10)
    assert not must_relearn(before, before, 15)
    assert must_relearn(before, before, 16)
    for method, bits, labels in (("pca_itq", 64, ("a", "b")), ("dish", 32, ("a", "b")), ("dish", 64, ())):
        assert must_relearn(before, LibraryState(method, bits, labels), 10)


def test_missing_labels_are_reported_before_any_work(tmp_path):
    files = {"a/1.png": draw(tmp_path / "a" / "1.png", 1), "b/2.png": draw(tmp_path / "b" / "2.png", 2)}
    check_labels_early(files, PhotoOptions(labels=True))
    loose = {**files, "3.png": draw(tmp_path / "3.png", 3)}
    check_labels_early(loose, PhotoOptions())
    with pytest.raises(ValueError, match="1 photos are not in a sub-folder"):
        check_labels_early(loose, PhotoOptions(labels=True))
    (tmp_path / "3.png").write_bytes(b"not an image")  # will be skipped, so it needs no label
    check_labels_early(loose, PhotoOptions(labels=True))
