"""Thumbnails and their cache."""

import io

import numpy as np
from PIL import Image

from dish.web.pictures import FolderPictures
from dish.web.thumbnails import Thumbnails


def test_thumbnails_keep_their_shape(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    turned = Image.fromarray(noise)
    exif = turned.getexif()
    exif[0x0112] = 6  # rotate by 90°
    turned.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    Image.fromarray(noise[:40, :40]).save(tmp_path / "small.png")
    Image.fromarray(noise).save(tmp_path / "grey.tif")
    thumbnails = Thumbnails(FolderPictures(tmp_path))
    for key, size in (("large.png", (320, 240)), ("turned.jpg", (240, 320)), ("grey", (320, 240))):
        small = thumbnails.read(key, 320)
        assert (Image.open(io.BytesIO(small.read())).size, small.media_type) == (size, "image/jpeg")
        assert small.size == len(small.read()) < 120_000
        assert thumbnails.read(key, 320) is small  # from the cache
    small = thumbnails.read("small.png", 320)
    assert (small.read(), small.media_type) == ((tmp_path / "small.png").read_bytes(), "image/png")
    assert thumbnails.read("none.png", 320) is None


def test_cache_drops_the_oldest(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    for i in range(4):
        Image.fromarray(noise).save(tmp_path / f"{i}.png")
    monkeypatch.setattr("dish.web.thumbnails.CACHE_BYTES", 100_000)
    thumbnails = Thumbnails(FolderPictures(tmp_path))
    for i in range(4):
        thumbnails.read(f"{i}.png", 320)
    assert 0 < len(thumbnails._cache) < 4
    assert thumbnails._bytes == sum(len(one.read()) for one in thumbnails._cache.values()) <= 100_000
