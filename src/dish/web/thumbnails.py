"""Small versions of pictures for the page: 24 hits take a few hundred kilobytes instead of 24 originals."""

from __future__ import annotations

import threading
from collections import OrderedDict

from dish.errors import ImageError
from dish.io import images
from dish.web.pictures import BUDGET, SHOWN, Picture, Pictures

DEFAULT_SIDE = 320  # two pixels per pixel of the screen
MAX_SIDE = 2048
SMALL_FILE = 48 << 10  # bytes up to which a file is sent unchanged
MAX_PIXELS = 200_000_000
CACHE_BYTES = 64 << 20


class Thumbnails:
    """A thread-safe cache of thumbnails. The least recently used ones are dropped first."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures
        self._cache: OrderedDict[tuple[str, int], Picture] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def read(self, key: str, side: int) -> Picture | None:
        """Return the picture of a key, no larger than ``side``, or None if there is none or it cannot be read."""
        with self._lock:
            if (key, side) in self._cache:
                self._cache.move_to_end((key, side))
                return self._cache[key, side]
        original = self.pictures.find(key)
        if original is None or (original.media_type in SHOWN and original.size <= SMALL_FILE):
            return original
        try:
            content = images.shrunk(original.read(), side, MAX_PIXELS, BUDGET.hold)
        except ImageError:
            return None
        small = Picture("image/jpeg", content, len(content))
        self._store((key, side), small)
        return small

    def _store(self, key: tuple[str, int], picture: Picture) -> None:
        with self._lock:
            if key not in self._cache:
                self._cache[key] = picture
                self._bytes += picture.size
            while self._bytes > CACHE_BYTES:
                self._bytes -= self._cache.popitem(last=False)[1].size
