"""Pictures: uploads become rows for a hasher, and the pictures of items are found for the page."""

from __future__ import annotations

import io
import os
import re
import stat
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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

Pixels = NDArray[np.uint8]
PictureFile = tuple[bytes, str]  # content and media type


# --- uploads ---


def decode(data: bytes, max_pixels: int, size: int | None = None) -> Pixels:
    """Decode an upload to RGB, uint8 (H, W, 3), with the same decoder as training and encoding."""
    formats = accepted_formats()
    try:
        return images.decode(data, size, max_pixels=max_pixels, formats=formats, name="the picture")
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

    def read(self, key: str) -> PictureFile | None:
        """Return content and media type, or None."""
        ...


class ArrayPictures:
    """Pictures made from arrays, uint8 (H, W) or (H, W, 3)."""

    def __init__(self, find: Callable[[str], Pixels | None]) -> None:
        self.find = find

    def read(self, key: str) -> PictureFile | None:
        """Return the array as PNG."""
        image = self.find(key)
        return None if image is None else (to_png(image), FORMATS["PNG"])


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

    def read(self, key: str) -> PictureFile | None:
        """Return the file, or None if it is gone or has become a link since the table was made."""
        path = self.table.get(key)
        if path is None or os.path.realpath(path) != str(path):
            return None
        try:
            file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            return None
        with os.fdopen(file, "rb") as content:
            about = os.fstat(content.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE:
                return None
            return content.read(), MEDIA_TYPES[path.suffix.lower()]

    def add(self, name: str, content: bytes, label: str | None) -> str:
        """Write a new picture and return its key.

        It goes into the sub-folder of its label if there is one. Its suffix follows from its content. A number is
        appended to a name that is taken; no file is ever replaced.
        """
        suffix = SUFFIXES[images.kind_of(content)]
        stem = re.sub(r"[^\w ()-]+", "_", Path(name).stem).strip(" _")[:80] or "photo"
        sub_folders = {key.partition("/")[0] for key in self.table if "/" in key}
        folder = self.root / label if label in sub_folders else self.root
        with self._lock:
            path = folder / f"{stem}{suffix}"
            for number in count(2):
                if not path.exists():
                    break
                path = folder / f"{stem}-{number}{suffix}"
            write_atomically(path, content)
            return self._register(path, path)

    def discard(self, key: str) -> None:
        """Delete a picture that ``add`` wrote and that could not be indexed."""
        path = self.table.pop(key)
        self.table = {other: target for other, target in self.table.items() if target != path}
        path.unlink(missing_ok=True)
