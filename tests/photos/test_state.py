import pytest

from dish import HammingIndex
from dish.photos.state import LibraryState, default_home, read_state, removed_by_hand, write_state
from helpers.codes import make_codes


def test_the_state_survives_a_round_trip(tmp_path):
    state = LibraryState("dish", 64, ("a", "b"), 7, ("x.png", "y.png"), ("z.png",), "0123", (5, 6))
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state


@pytest.mark.parametrize("content", [b"nonsense", b"[]", b"{}", b'{"method": "dish", "bits": 8, "other": 1}'])
def test_a_damaged_state_is_none(tmp_path, content):
    assert read_state(tmp_path) is None
    (tmp_path / "library.json").write_bytes(content)
    assert read_state(tmp_path) is None


def test_every_folder_has_its_own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("DISH_CACHE", str(tmp_path))
    homes = {default_home(tmp_path / name) for name in ("a/Summer 2024", "b/Summer 2024", "c")}
    assert len(homes) == 3
    assert all(home.parent == tmp_path / "photos" for home in homes)
    assert default_home(tmp_path / "a" / "Summer 2024").name.startswith("Summer_2024-")


def test_photos_removed_by_hand_stay_out_until_they_change():
    index = HammingIndex(8)
    index.add(make_codes("random", 2, 8), ["a", "b"])
    before = LibraryState("dish", 8, members=("a", "b", "c", "d"), removed=("e", "f"))
    readable = ["a", "b", "c", "e", "f"]
    assert removed_by_hand(None, index, readable, []) == set()
    assert removed_by_hand(before, index, readable, []) == {"c", "e", "f"}  # d is gone from the folder
    assert removed_by_hand(before, index, readable, ["e"]) == {"c", "f"}
    assert removed_by_hand(before, None, readable, []) == {"e", "f"}
