"""Small files for commands."""

import numpy as np
import pytest


@pytest.fixture
def files(tmp_path, digits):
    """500 digits to learn from, and queries."""
    X, y, Xq, yq = digits
    for name, array in {"X": X[:500], "y": y[:500], "Xq": Xq, "yq": yq}.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


@pytest.fixture
def image_folder(tmp_path):
    """Small dark and light images, in one sub-folder each."""
    from PIL import Image

    for label, level in {"dark": 40, "light": 210}.items():
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(12):
            noise = np.random.default_rng(i).normal(level, 15, (16, 16, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(noise).save(tmp_path / "photos" / label / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture
def folder(tmp_path, blobs):
    """Three groups of rows: X.npy and y.npy, and both in one .npz."""
    X, y = blobs
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", X=X, y=y)
    return tmp_path
