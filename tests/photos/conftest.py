"""A folder of small pictures, and a network that costs nothing."""

import pytest

from dish.deep import image_features
from helpers.photos import Patches, draw


@pytest.fixture
def network(monkeypatch):
    patches = Patches()
    monkeypatch.setattr(image_features, "extractor", lambda net=image_features.NET: patches)
    return patches


@pytest.fixture
def folder(tmp_path):
    for i in range(12):
        draw(tmp_path / "Summer 2024" / f"IMG_{i:03}.png", i)
    return tmp_path / "Summer 2024"
