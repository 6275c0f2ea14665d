"""The folder for downloaded and computed data."""

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from dish.errors import DownloadError
from dish.io.data_cache import cache_folder, download, save_npy


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_folder("here").name == "here"
    monkeypatch.setenv("DISH_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("DISH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "dish"


@pytest.fixture
def site(tmp_path):
    """The address of a folder that is served over HTTP."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *_: None
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "set.bin").write_bytes(b"content")
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_downloads_are_verified(site, tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch.core.time, "sleep", lambda _: None)  # between attempts
    known = "sha256:" + hashlib.sha256(b"content").hexdigest()
    path = download(f"{site}/set.bin", known, 7, tmp_path / "cache", timeout=5)
    assert path.read_bytes() == b"content"
    for name, known_hash in (("set.bin", "sha256:" + "0" * 64), ("missing.bin", known)):
        with pytest.raises(DownloadError, match=name):
            download(f"{site}/{name}", known_hash, 7, tmp_path / "other", timeout=5)


def test_save_npy_makes_the_folder(tmp_path):
    save_npy(tmp_path / "a" / "b" / "X.npy", np.arange(3))
    assert np.load(tmp_path / "a" / "b" / "X.npy").tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="Object arrays"):
        save_npy(tmp_path / "o.npy", np.array([{}], object))
    assert not (tmp_path / "o.npy").exists()
