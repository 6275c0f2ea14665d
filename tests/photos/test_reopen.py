"""The next day: a library in which nothing has changed opens from its files alone."""

import subprocess
import sys

import numpy as np
import pytest

from dish.photos import Wishes, open_library, reopen
from dish.photos.state import read_state
from dish.registry import load
from dish.web.photos import open_photos
from helpers.photos import draw


@pytest.fixture
def home(tmp_path, folder, network):
    open_library(folder, Wishes(), tmp_path / "home", say=lambda line: None)
    return tmp_path / "home"


def reopened(folder, home, **wishes):
    return reopen(folder, Wishes(**wishes), home, load, lambda line: None)


def test_neither_torch_nor_scikit_learn_is_loaded(folder, home):
    program = f"""
import sys
from pathlib import Path
from dish.photos import Wishes
from dish.web.photos import open_photos
found, library = open_photos(Path({str(folder)!r}), Wishes(), Path({str(home)!r}), writable=True, say=print)
code = found.code_of("IMG_003.png")
print(found.search(code, k=1, radius=None, limit=5).ids, found.kind, found.n_features, library.takes)
found.close()
print(sorted({{"torch", "sklearn", "scipy.stats", "pandas"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['IMG_003.png'] PCAITQ 48 efficientnet_lite0", "[]"]


def test_the_model_is_read_at_the_first_upload(folder, home):
    found, library = open_photos(folder, Wishes(), home, writable=False, say=lambda line: None)
    assert found.hasher._loaded is None
    assert (found.n_bits, library.new, library.gone) == (256, 0, 0)
    rows = np.random.default_rng(0).normal(size=(3, 48)).astype(np.float32)
    np.testing.assert_array_equal(found.hasher.transform(rows), load(home / "model.dish").transform(rows))
    assert found.hasher._loaded is not None


@pytest.mark.parametrize("change", ["new", "gone", "other", "model", "index", "state", "bits", "labels", "again"])
def test_any_change_is_brought_up_to_date(folder, home, change):
    assert reopened(folder, home) is not None
    wishes = {}
    if change == "new":
        draw(folder / "new.png", 99)
    elif change == "gone":
        (folder / "IMG_000.png").unlink()
    elif change == "other":
        draw(folder / "IMG_001.png", 77, side=44)
    elif change in ("model", "index", "state"):
        (home / {"model": "model.dish", "index": "index.dish", "state": "library.json"}[change]).write_bytes(b"?")
    elif change == "labels":
        with pytest.raises(ValueError, match="12 photos lie in no sub-folder"):
            reopened(folder, home, labels=True)
        return
    else:
        wishes = {"bits": {"bits": 64}, "again": {"again": True}}[change]
    assert reopened(folder, home, **wishes) is None
    open_library(folder, Wishes(**wishes), home, say=lambda line: None)
    library = reopened(folder, home)
    assert library.hasher.fingerprint_ == load(home / "model.dish").fingerprint_ == library.index.model
    assert set(library.index.ids.tolist()) == {path.name for path in folder.iterdir()}


def test_a_photo_removed_on_the_page_needs_no_network_either(folder, home):
    library = reopened(folder, home)
    library.index.remove(["IMG_005.png"])
    library.index.save(home / "index.dish")  # as the server does when it ends
    for _ in range(2):
        assert "IMG_005.png" not in reopened(folder, home).index.ids.tolist()
    assert read_state(home).removed == ("IMG_005.png",)
