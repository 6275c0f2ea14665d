"""The folder for downloaded and computed data."""

from dish.io.data_cache import cache_folder


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_folder("here").name == "here"
    monkeypatch.setenv("DISH_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("DISH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "dish"
