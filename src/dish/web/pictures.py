"""Uploaded pictures → rows for a hasher, and the pictures that the page may show."""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dish.web.errors import Refused

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".gif": "GIF"}
MAX_FILE = 32 << 20  # of a served picture

Image = NDArray[np.uint8]
Picture = tuple[bytes, str]  # content and media type


# --- uploads ---


def decode(data: bytes, max_pixels: int) -> Image:
    """An uploaded file as RGB, uint8 (H, W, 3); refused unless it is a whole picture of a sane size."""
    from PIL import Image as pillow
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own, looser limit
            file = pillow.open(io.BytesIO(data), formats=list(FORMATS))
            width, height = file.size  # from the header: nothing is unpacked yet
            if width * height > max_pixels:
                raise Refused(413, f"the picture has {width} × {height} pixels; at most {max_pixels:,} are taken")
            picture = ImageOps.exif_transpose(file).convert("RGBA")
            page = pillow.new("RGBA", picture.size, "white")  # what is transparent shows the paper
            return np.array(pillow.alpha_composite(page, picture).convert("RGB"))
    except pillow.DecompressionBombError:
        raise Refused(413, f"the picture is too large; at most {max_pixels:,} pixels are taken") from None
    except Refused:
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        kinds = ", ".join(FORMATS)
        raise Refused(422, f"not a readable picture ({kinds}): {_short(error)}") from None


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "unknown kind of file" if "cannot identify" in text else text[:120] or type(error).__name__


def _resize(image: Image, side: int) -> Image:
    """The middle square of a picture, side × side; left alone where it has that size."""
    from PIL import Image as pillow
    from PIL import ImageOps

    if image.shape[:2] == (side, side):
        return image
    return np.array(ImageOps.fit(pillow.fromarray(image), (side, side), pillow.Resampling.LANCZOS))


def _gist32(image: Image) -> NDArray[Any]:
    """GIST of 32 × 32 pixels, length one: as the rows of CIFAR-10 are made."""
    from dish.datasets.gist import gist

    return gist(_resize(image, 32)[None], normalize=True)  # (1, 512)


def _digits8(image: Image) -> NDArray[Any]:
    """8 × 8 amounts of ink, 0 … 16: dark on light, or light on dark where the border is dark."""
    grey = _resize(image, 8).mean(axis=2)  # (8, 8)
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    ink = 255 - grey if np.median(border) > 127 else grey
    return np.rint(ink * 16 / 255).reshape(1, 64)


def _image(image: Image) -> NDArray[Any]:
    return image[None]  # (1, H, W, 3): the hasher has its own preparation


# How an uploaded picture becomes what the hasher takes. "vector": the hasher takes no pictures.
PREPARE: dict[str, Callable[[Image], NDArray[Any]] | None] = {
    "vector": None,
    "gist32": _gist32,
    "digits8": _digits8,
    "image": _image,
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
    lead out of the folder are left out (``refused`` counts them).
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        root = Path(folder)
        if not root.is_dir():
            raise NotADirectoryError(f"--images: {folder} is not a folder")
        root = root.resolve()
        self.table: dict[str, Path] = {}
        self.refused = 0
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
            return content.read(), FORMATS[KINDS[path.suffix.lower()]]
