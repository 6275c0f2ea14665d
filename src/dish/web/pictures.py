"""Pictures: uploads become rows for a hasher, and the pictures of items are found for the page."""

from __future__ import annotations

import io
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from dish.errors import ImageError, TooManyPixels
from dish.io import images
from dish.io.atomic import write_atomically

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
OPTIONAL_FORMATS = {"HEIF": "image/heic", "AVIF": "image/avif"}  # accepted if Pillow can read them here
SHOWN = frozenset(FORMATS.values())  # media types that every browser shows
MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".heic": "image/heic",
    ".heif": "image/heif",
    ".avif": "image/avif",
    ".bmp": "image/bmp",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
}
SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "GIF": ".gif", "HEIF": ".heic", "AVIF": ".avif"}
MAX_FILE = 64 << 20  # bytes of a picture that is served
MAX_NAME = 80  # characters of the name of an added picture

Pixels = NDArray[np.uint8]
PIECE = 64 << 10  # bytes of a file that are read and sent at a time


@dataclass(frozen=True)
class Picture:
    """A picture to send: its content, or an open file."""

    media_type: str
    source: bytes | BinaryIO
    size: int

    def read(self) -> bytes:
        """Return the content, and close the file."""
        with closing(self):
            return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Return the content in pieces."""
        if isinstance(self.source, bytes):
            yield self.source
            return
        left = self.size  # the file may grow meanwhile
        while left and (piece := self.source.read(min(PIECE, left))):
            left -= len(piece)
            yield piece

    def close(self) -> None:
        """Close the file."""
        if not isinstance(self.source, bytes):
            self.source.close()


class PixelBudget:
    """Lets threads decode pictures at the same time, up to a number of pixels; a larger picture is decoded alone.

    A picture takes up to twelve bytes per pixel while it is decoded.
    """

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for a picture."""
        with self._changed:
            self._changed.wait_for(lambda: not self.used or self.used + pixels <= self.most)
            self.used += pixels
        try:
            yield
        finally:
            with self._changed:
                self.used -= pixels
                self._changed.notify_all()


BUDGET = PixelBudget(16_000_000)  # of all uploads and thumbnails in this process


# --- uploads ---


def decode(data: bytes, max_pixels: int, size: int | None = None) -> Pixels:
    """Decode an upload to RGB, uint8 (H, W, 3), with the same decoder as training and encoding."""
    formats = accepted_formats()
    try:
        return images.decode(data, size, max_pixels=max_pixels, formats=formats, name="the picture", hold=BUDGET.hold)
    except TooManyPixels as error:
        raise HTTPException(413, f"{error}") from None
    except ImageError as error:
        text = " ".join(str(error).split())
        reason = "unknown file format" if "cannot identify" in text else text[:160]
        raise HTTPException(422, f"not a readable picture ({', '.join(formats)}): {reason}") from None


def accepted_formats() -> tuple[str, ...]:
    """Return Pillow's names of the accepted formats. They are few, because every decoder can be attacked."""
    return (*FORMATS, *(kind for kind in OPTIONAL_FORMATS if images.can_read(kind)))


def _gist32(image: Pixels) -> NDArray[Any]:
    """Return the normalised GIST of 32 × 32 pixels, like the rows of CIFAR-10."""
    from dish.datasets.gist import gist

    return gist(image[None], normalize=True)  # (1, 512)


def _digits8(image: Pixels) -> NDArray[Any]:
    """Return 8 × 8 amounts of ink from 0 to 16. The border tells whether the ink is dark or light."""
    grey = image.mean(axis=2)  # (8, 8)
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    ink = 255 - grey if np.median(border) > 127 else grey
    return np.rint(ink * 16 / 255).reshape(1, 64)


def _lite0(image: Pixels) -> NDArray[Any]:
    """Return the last hidden layer of EfficientNet-Lite0, like the rows of ``dish photos``."""
    from dish.deep.image_features import extractor

    return extractor()(image[None])  # (1, 1280)


def _image(image: Pixels) -> NDArray[Any]:
    return image[None]  # (1, H, W, 3)


class Preparation(NamedTuple):
    """How a picture becomes a row: cropped to its centre square, resized to ``side``, then ``to_row``.

    ``side`` None means the model's own input size.
    """

    side: int | None
    to_row: Callable[[Pixels], NDArray[Any]]


# The values of --input. "vector": the model takes no pictures.
PREPARATIONS: dict[str, Preparation | None] = {
    "vector": None,
    "gist32": Preparation(32, _gist32),
    "digits8": Preparation(8, _digits8),
    "efficientnet_lite0": Preparation(224, _lite0),
    "image": Preparation(None, _image),
}


# --- pictures of items ---


class Pictures(Protocol):
    """Pictures by the key of an item."""

    def find(self, key: str) -> Picture | None:
        """Return the picture of a key, or None."""
        ...


class ArrayPictures:
    """Pictures made from arrays, uint8 (H, W) or (H, W, 3)."""

    def __init__(self, pixels_of: Callable[[str], Pixels | None]) -> None:
        self.pixels_of = pixels_of

    def find(self, key: str) -> Picture | None:
        """Return the array as PNG."""
        image = self.pixels_of(key)
        if image is None:
            return None
        content = to_png(image)
        return Picture(FORMATS["PNG"], content, len(content))


def to_png(image: Pixels) -> bytes:
    """Return an array as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


class FolderPictures:
    """Pictures in a folder, by their path within it, with or without the suffix.

    The table of files is made once: a key from a client is looked up in it and never becomes part of a path. Links
    that lead out of the folder are left out; ``n_rejected`` counts them.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        root = Path(folder)
        if not root.is_dir():
            raise NotADirectoryError(f"--images: {folder} is not a folder")
        self.root = root = root.resolve()
        self.table: dict[str, Path] = {}
        self.n_rejected = 0
        self._lock = threading.Lock()
        for parent, _, names in os.walk(root):  # does not follow linked folders
            for name in sorted(names):
                file = Path(parent, name)
                if file.suffix.lower() not in MEDIA_TYPES:
                    continue
                target = file.resolve()
                if target.is_relative_to(root) and target.is_file() and target.suffix.lower() in MEDIA_TYPES:
                    self._register(file, target)
                else:
                    self.n_rejected += 1

    def _register(self, file: Path, target: Path) -> str:
        key = file.relative_to(self.root)
        self.table[key.as_posix()] = target
        self.table.setdefault(key.with_suffix("").as_posix(), target)
        return key.as_posix()

    def find(self, key: str) -> Picture | None:
        """Return the file, open, or None if it is gone or has become a link since the table was made."""
        path = self.table.get(key)
        if path is None or os.path.realpath(path) != str(path):
            return None
        try:
            file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            return None
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE:
            os.close(file)
            return None
        return Picture(MEDIA_TYPES[path.suffix.lower()], os.fdopen(file, "rb"), about.st_size)

    def add(self, name: str, content: bytes, label: str | None, is_taken: Callable[[str], bool]) -> str:
        """Write a new picture and return its key.

        It goes into the sub-folder of its label if there is one. Its suffix follows from its content. A number is
        appended to a name that is taken; no file is ever replaced.
        """
        suffix = SUFFIXES[images.kind_of(content)]
        stem = _short(re.sub(r"[^\w ()-]+", "_", Path(name).stem).strip(" _")) or "photo"
        with self._lock:
            sub_folders = {key.partition("/")[0] for key in self.table if "/" in key}
            folder = self.root / label if label in sub_folders else self.root
            path = folder / f"{stem}{suffix}"
            for number in count(2):
                if not path.exists() and not is_taken(path.relative_to(self.root).as_posix()):
                    break
                path = folder / f"{stem}-{number}{suffix}"
            write_atomically(path, content)
            return self._register(path, path)

    def discard(self, key: str) -> None:
        """Delete a picture that ``add`` wrote and that could not be indexed."""
        with self._lock:
            path = self.table.pop(key)
            self.table = {other: target for other, target in self.table.items() if target != path}
            path.unlink(missing_ok=True)


def _short(name: str) -> str:
    """Return the name, cut to what file systems allow. They count bytes: 255 with suffix, number and ".tmp"."""
    return name[:MAX_NAME].encode()[: 2 * MAX_NAME].decode(errors="ignore")
