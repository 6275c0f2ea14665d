"""Pictures made small for the page: 24 hits are a few hundred kilobytes, not 24 originals."""

from __future__ import annotations

import threading
from collections import OrderedDict

from dish.io import images
from dish.web.pictures import SHOWN, Picture, Pictures

SIDE = 320  # of a thumbnail: two pixels of it for each one on the screen
MOST_SIDE = 2048  # of the large view
AS_IT_IS = 48 << 10  # bytes of a file that need not be made smaller
MOST_PIXELS = 200_000_000
MEMORY = 64 << 20  # bytes of thumbnails that are kept


class Thumbnails:
    """Made when they are asked for, and kept: the least recently shown ones go first. For many threads."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures
        self._kept: OrderedDict[tuple[str, int], Picture] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def read(self, key: str, side: int) -> Picture | None:
        """The picture of a key, no larger than ``side``; None if there is none, or none that can be read."""
        with self._lock:
            if (key, side) in self._kept:
                self._kept.move_to_end((key, side))
                return self._kept[key, side]
        whole = self.pictures.read(key)
        small = None if whole is None else _small(whole, side)
        if small is not None and small is not whole:
            self._keep((key, side), small)
        return small

    def _keep(self, at: tuple[str, int], picture: Picture) -> None:
        with self._lock:
            if at not in self._kept:
                self._kept[at] = picture
                self._bytes += len(picture[0])
            while self._bytes > MEMORY:
                self._bytes -= len(self._kept.popitem(last=False)[1][0])


def _small(whole: Picture, side: int) -> Picture | None:
    content, kind = whole
    if kind in SHOWN and len(content) <= AS_IT_IS:
        return whole
    try:
        return images.shrunk(content, side, MOST_PIXELS), "image/jpeg"
    except images.ImageError:
        return None
