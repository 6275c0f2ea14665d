"""An unchanged library opens from its files alone."""

import subprocess
import sys

import numpy as np
import pytest

from dish.photos import PhotoOptions, reopen
from dish.photos.library import open_library
from dish.photos.state import read_state
from dish.registry import load
from dish.web.photos import open_photos
from helpers.photos import draw


@pytest.fixture
def home(tmp_path, photo_folder, feature_network):
    open_library(photo_folder, PhotoOptions(bits=32), tmp_path / "home", say=lambda line: None)
    return tmp_path / "home"


def reopened(folder, home, **options):
    return reopen(folder, PhotoOptions(**options), home, load, lambda line: None)


def test_neither_torch_nor_scikit_learn_is_loaded(photo_folder, home):
    program = f"""
import sys
from pathlib import Path
from dish.photos import PhotoOptions
from dish.web.collection import SearchRange
from dish.web.photos import open_photos
folder, home = Path({str(photo_folder)!r}), Path({str(home)!r})
found, library = open_photos(folder, PhotoOptions(), home, writable=True, say=print)
code = found.code_of("IMG_003.png")
hits = found.search_many(code, [SearchRange(k=1)], 5, found.index.snapshot())[0]
print(hits.ids, found.kind, found.n_features, library.takes)
found.close()
print(sorted({{"torch", "sklearn", "scipy.stats", "pandas"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['IMG_003.png'] PCAITQ 48 efficientnet_lite0", "[]"]


def test_the_model_is_loaded_by_the_first_upload(photo_folder, home):
    found, library = open_photos(photo_folder, PhotoOptions(), home, writable=False, say=lambda line: None)
    assert found.hasher._loaded is None
    assert (found.n_bits, library.new, library.gone) == (32, 0, 0)
    rows = np.random.default_rng(0).normal(size=(3, 48)).astype(np.float32)
    np.testing.assert_array_equal(found.hasher.transform(rows), load(home / "model.dish").transform(rows))
    assert found.hasher._loaded is not None


@pytest.mark.parametrize("change", ["new", "gone", "other", "model", "index", "state", "bits", "labels", "relearn"])
def test_a_changed_library_is_not_reopened(photo_folder, home, change):
    assert reopened(photo_folder, home) is not None
    options = {}
    if change == "new":
        draw(photo_folder / "new.png", 99)
    elif change == "gone":
        (photo_folder / "IMG_000.png").unlink()
    elif change == "other":
        draw(photo_folder / "IMG_001.png", 77, side=44)
    elif change in ("model", "index", "state"):
        (home / {"model": "model.dish", "index": "index.dish", "state": "library.json"}[change]).write_bytes(b"?")
    elif change == "labels":
        with pytest.raises(ValueError, match="12 photos are not in a sub-folder"):
            reopened(photo_folder, home, labels=True)
        return
    else:
        options = {"bits": {"bits": 64}, "relearn": {"relearn": True}}[change]
    assert reopened(photo_folder, home, **options) is None
    open_library(photo_folder, PhotoOptions(**options), home, say=lambda line: None)
    library = reopened(photo_folder, home)
    assert library.hasher.fingerprint_ == load(home / "model.dish").fingerprint_ == library.index.model
    assert set(library.index.ids.tolist()) == {path.name for path in photo_folder.iterdir()}


def test_a_photo_removed_on_the_page_needs_no_update(photo_folder, home):
    library = reopened(photo_folder, home)
    library.index.remove(["IMG_005.png"])
    library.index.save(home / "index.dish")  # as the server does when it ends
    for _ in range(2):
        assert "IMG_005.png" not in reopened(photo_folder, home).index.ids.tolist()
    assert read_state(home).removed == ("IMG_005.png",)
