"""Uploaded pictures → rows for a hasher, and the pictures that the page may show."""

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

from dish.io import images
from dish.io.atomic import write_atomically
from dish.web.errors import Refused

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
PHONES = {"HEIF": "image/heic", "AVIF": "image/avif"}  # taken where Pillow reads them here
SHOWN = frozenset(FORMATS.values())  # every browser shows them
KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"}
KINDS |= {".heic": "image/heic", ".heif": "image/heif", ".avif": "image/avif", ".bmp": "image/bmp"}
KINDS |= {".tif": "image/tiff", ".tiff": "image/tiff"}
ENDING = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "GIF": ".gif", "HEIF": ".heic", "AVIF": ".avif"}
MAX_FILE = 64 << 20  # of a served picture

Image = NDArray[np.uint8]
Picture = tuple[bytes, str]  # content and media type


# --- uploads ---


def decode(data: bytes, max_pixels: int, size: int | None = None) -> Image:
    """An uploaded file as RGB, uint8 (H, W, 3), by the decoder of training and encoding; else a refusal."""
    formats = taken_formats()
    try:
        return images.decode(data, size, max_pixels=max_pixels, formats=formats, name="the picture")
    except images.TooManyPixels as error:
        raise Refused(413, f"{error}") from None
    except images.ImageError as error:
        raise Refused(422, f"not a readable picture ({', '.join(formats)}): {_short(error)}") from None


def taken_formats() -> tuple[str, ...]:
    """Pillow's names of the formats that may be uploaded: few, since each decoder is one more thing to attack."""
    return (*FORMATS, *(kind for kind in PHONES if images.can_read(kind)))


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "unknown kind of file" if "cannot identify" in text else text[:160]


def _gist32(image: Image) -> NDArray[Any]:
    """GIST of 32 × 32 pixels, length one: as the rows of CIFAR-10 are made."""
    from dish.datasets.gist import gist

    return gist(image[None], normalize=True)  # (1, 512)


def _digits8(image: Image) -> NDArray[Any]:
    """8 × 8 amounts of ink, 0 … 16: dark on light, or light on dark where the border is dark."""
    grey = image.mean(axis=2)  # (8, 8)
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    ink = 255 - grey if np.median(border) > 127 else grey
    return np.rint(ink * 16 / 255).reshape(1, 64)


def _lite0(image: Image) -> NDArray[Any]:
    """The last hidden layer of EfficientNet-Lite0: as the rows of ``dish photos`` are made."""
    from dish.deep.image_features import extractor

    return extractor()(image[None])  # (1, 1280)


def _image(image: Image) -> NDArray[Any]:
    return image[None]  # (1, H, W, 3)


class Preparation(NamedTuple):
    """How a picture becomes a row: cut to its middle square of a side (None: the model's own), then the rest."""

    side: int | None
    row: Callable[[Image], NDArray[Any]]


# How an uploaded picture becomes what the hasher takes. "vector": the hasher takes no pictures.
PREPARE: dict[str, Preparation | None] = {
    "vector": None,
    "gist32": Preparation(32, _gist32),
    "digits8": Preparation(8, _digits8),
    "efficientnet_lite0": Preparation(224, _lite0),
    "image": Preparation(None, _image),
}


# --- pictures to show ---


class Pictures(Protocol):
    """What has pictures by the key of an item."""

    def __contains__(self, key: object) -> bool: ...

    def read(self, key: str) -> Picture | None:
        """Content and media type, or None."""
        ...


class ArrayPictures:
    """Pictures made from arrays, uint8 (H, W) or (H, W, 3)."""

    def __init__(self, find: Callable[[str], Image | None]) -> None:
        self.find = find

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def read(self, key: str) -> Picture | None:
        """The array as PNG."""
        image = self.find(key)
        return None if image is None else (to_png(image), FORMATS["PNG"])


def to_png(image: Image) -> bytes:
    """An array as a PNG file."""
    from PIL import Image as pillow

    buffer = io.BytesIO()
    pillow.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


class FolderPictures:
    """Pictures in a folder, by their path within it, with or without its ending.

    The table is made once: a key from a client is looked up in it, and never becomes part of a path. Links that
    lead out of the folder are left out (``refused`` counts them). ``add`` gives a new file a name of its own making.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        root = Path(folder)
        if not root.is_dir():
            raise NotADirectoryError(f"--images: {folder} is not a folder")
        self.root = root = root.resolve()
        self.table: dict[str, Path] = {}
        self.refused = 0
        self._adding = threading.Lock()
        for parent, _, names in os.walk(root):  # does not follow linked folders
            for name in sorted(names):
                file = Path(parent, name)
                if file.suffix.lower() not in KINDS:
                    continue
                target = file.resolve()
                if not (target.is_relative_to(root) and target.is_file() and target.suffix.lower() in KINDS):
                    self.refused += 1
                    continue
                key = file.relative_to(root)
                self.table[key.as_posix()] = target
                self.table.setdefault(key.with_suffix("").as_posix(), target)

    def __contains__(self, key: object) -> bool:
        return key in self.table

    def read(self, key: str) -> Picture | None:
        """The file as it is; None if it is gone, or has become a link since the table was made."""
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
            return content.read(), KINDS[path.suffix.lower()]

    def add(self, name: str, content: bytes, label: str | None) -> str:
        """Write a new picture into the folder, or into the sub-folder of its label if there is one; its key.

        The ending is that of the content. A name that is taken gets a number; nothing is ever replaced.
        """
        ending = ENDING[images.kind_of(content)]
        stem = re.sub(r"[^\w ()-]+", "_", Path(name).stem).strip(" _")[:80] or "photo"
        tops = {key.partition("/")[0] for key in self.table if "/" in key}
        folder = self.root / label if label in tops else self.root
        with self._adding:
            path = folder / f"{stem}{ending}"
            for number in count(2):
                if not path.exists():
                    break
                path = folder / f"{stem}-{number}{ending}"
            write_atomically(path, content)
            key = path.relative_to(self.root)
            self.table[key.as_posix()] = path
            self.table.setdefault(key.with_suffix("").as_posix(), path)
        return key.as_posix()

    def discard(self, key: str) -> None:
        """Delete a picture that ``add`` wrote, and that could not be used after all."""
        path = self.table.pop(key)
        self.table = {other: target for other, target in self.table.items() if target != path}
        path.unlink(missing_ok=True)
