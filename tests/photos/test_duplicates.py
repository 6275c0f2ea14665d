import numpy as np
import pytest

from dish.photos import duplicates
from dish.photos.duplicates import find_duplicates


@pytest.mark.parametrize("rows", [2, 1024])
def test_groups_are_sorted_by_size_and_keep_the_order_of_names(rows, monkeypatch):
    monkeypatch.setattr(duplicates, "ROWS", rows)
    features = np.eye(4, dtype=np.float32)[[1, 0, 0, 2, 0, 1]]
    assert find_duplicates("abcdef", features) == [["b", "c", "e"], ["a", "f"]]


@pytest.mark.parametrize("rows", [1, 1024])
def test_copies_of_copies_belong_together(rows, monkeypatch):
    monkeypatch.setattr(duplicates, "ROWS", rows)
    angles = np.deg2rad([40, 90, 0, 20, 300])
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert find_duplicates("abcde", features) == [["a", "c", "d"]]  # 40°, 0° and 20°: cos 20° = 0.94
    assert find_duplicates("abcde", features, least=0.95) == []


def test_too_many_photos_are_rejected():
    with pytest.raises(ValueError, match="at most 20,000 photos, got 20,001"):
        find_duplicates(range(20_001), np.zeros((20_001, 1), np.float32))
