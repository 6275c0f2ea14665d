"""Read images from files, folders, arrays and torch Datasets as uint8 (n, H, W, 3).

``decode`` is the only decoder, so training, encoding and serving see the same pixels. It converts grey, CMYK and
palette images to RGB, makes transparent pixels white, scales 16 bits to 8, and applies the EXIF rotation. With a
size, it cuts out the central square and resizes it; a much larger JPEG is decoded at a fraction of its size, which is
many times faster. HEIC and AVIF need a plug-in for Pillow, or a Pillow that reads them.

A file that cannot be read (truncated, empty, not an image, more than ``MAX_PIXELS``) is skipped with a warning if it
comes from a folder, and an error if it was given by name. A folder is refused if no image of some label can be read,
or more than half of all images cannot.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import ImageError, InputError, TooManyPixels
from dish.install import pip_install
from dish.labels import plain_labels
from dish.progress import progress

MAX_PIXELS = 50_000_000
MAX_SCANS = 64  # of a JPEG: a progressive one has about ten; each takes a pass over all pixels and can have 31 bytes
MAX_PARTS = 20_000  # segments of a JPEG, chunks of a PNG, blocks of a GIF in memory: Pillow reads each in Python
BAND = 1 << 20  # pixels that are converted to RGB at a time, to save memory
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
PLUGGED = {".heic": "pillow-heif", ".heif": "pillow-heif", ".avif": "pillow-avif-plugin"}  # suffix → its plug-in
DRAFT = 2  # a JPEG is decoded at no less than this multiple of the wanted side

Pixels = NDArray[np.uint8]
Hold = Callable[[int], AbstractContextManager[Any]]


def decode(
    source: Any,
    size: int | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
    formats: Sequence[str] | None = None,
    name: str = "",
    hold: Hold = nullcontext,
) -> Pixels:
    """Read one image, uint8 (H, W, 3), from a path, bytes or a binary stream. Thread-safe.

    All code that encodes images calls this with the same ``size`` (``hasher.image_side``), so that an uploaded photo
    gets the same code as the file does from ``dish encode``.

    Parameters
    ----------
    source : path, bytes or binary stream
        The image file.
    size : int or None
        Cut out the central square and resize it to this side. None: keep the image as it is.
    max_pixels : int
        Larger images raise ``TooManyPixels`` before they are decoded.
    formats : sequence of str or None
        Pillow's names of the formats to accept, such as ("PNG", "JPEG"). None: all that Pillow reads.
    name : str
        The name of the image in errors. Default: the path.
    hold : function
        Called with the number of pixels; returns a context manager to decode in, which may wait for memory.
    """
    Image, ImageOps = _pillow()
    with _opened(source, max_pixels, formats, name, hold) as image:
        if size is not None:
            image.draft(None, (DRAFT * size, DRAFT * size))  # has an effect on JPEGs only
        ImageOps.exif_transpose(image, in_place=True)
        image = _rgb(image)
        if size is not None:
            image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
        return np.array(image, np.uint8)


def is_readable(path: Path) -> bool:
    """Whether ``decode`` can read a file."""
    try:
        decode(path, 16)
    except ImageError:
        return False
    return True


def shrunk(source: bytes, side: int, max_pixels: int = MAX_PIXELS, hold: Hold = nullcontext) -> bytes:
    """An image file scaled down to at most ``side`` × ``side``, as JPEG. The aspect ratio is kept."""
    _, ImageOps = _pillow()
    with _opened(source, max_pixels, hold=hold) as image:
        image.draft(None, (side, side))
        ImageOps.exif_transpose(image, in_place=True)
        small = _rgb(image)
        small.thumbnail((side, side))
        file = io.BytesIO()
        small.save(file, "JPEG", quality=82, optimize=True)
        return file.getvalue()


def kind_of(source: bytes) -> str:
    """Pillow's name of a file's format, such as "JPEG"."""
    with _opened(source, max_pixels=None) as image:
        return str(image.format)


@contextmanager
def _opened(
    source: Any,
    max_pixels: int | None,
    formats: Sequence[str] | None = None,
    name: str = "",
    hold: Hold = nullcontext,
) -> Iterator[Any]:
    """The image as Pillow opens it. Whatever goes wrong in the block becomes an ImageError."""
    Image, _ = _pillow()
    in_memory = isinstance(source, bytes | bytearray | memoryview)
    name = name or ("image" if in_memory else str(source))
    if in_memory and _n_parts(bytes(source), MAX_PARTS + 1) > MAX_PARTS:
        raise ImageError(f"{name}: not a readable image (it has more than {MAX_PARTS:,} parts)")
    try:
        with Image.open(io.BytesIO(source) if in_memory else source, formats=formats) as image:
            width, height = image.size
            if max_pixels is not None and width * height > max_pixels:
                raise TooManyPixels(f"{name}: {width}×{height} is more than {max_pixels:,} pixels")
            if image.format in ("JPEG", "MPO"):
                _check_scans(image.fp, name)
            with hold(width * height):
                yield image
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # the latter under -W error
        raise TooManyPixels(f"{name}: too many pixels ({type(error).__name__}: {error})") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
        raise ImageError(f"{name}: not a readable image ({type(error).__name__}: {error})") from None


def _n_parts(data: bytes, most: int) -> int:
    """Number of segments of a JPEG, chunks of a PNG or blocks of a GIF, up to ``most``; 0 for other formats.

    What follows the first scan or the first frame does not count. A byte between segments, which Pillow skips, does.
    """
    if data.startswith(b"GIF"):
        return _n_gif_blocks(data, most)
    n, i = 0, 2 if data.startswith(b"\xff\xd8") else 8 if data.startswith(b"\x89PNG") else len(data)
    while i + 4 <= len(data) and n < most:
        n += 1
        if data[0] == 0x89:
            i += 12 + int.from_bytes(data[i : i + 4], "big")
        elif data[i] != 0xFF or data[i + 1] == 0xFF:
            i += 1
        elif data[i + 1] == 0xDA:
            break
        elif data[i + 1] < 0xC0 or 0xD0 <= data[i + 1] <= 0xD9:  # not a segment, or one without content
            i += 2
        else:
            i += 2 + int.from_bytes(data[i + 2 : i + 4], "big")
    return n


def _n_gif_blocks(data: bytes, most: int) -> int:
    """Number of blocks before the first frame of a GIF, up to ``most``. A byte between them counts as one."""
    colours = 3 << (data[10] % 8 + 1) if data[10:11] >= b"\x80" else 0
    n, i = 0, 13 + colours
    while i < len(data) and data[i] not in b",;" and n < most:
        n += 1
        if data[i] != ord("!"):
            i += 1
            continue
        i += 2
        while i < len(data) and data[i] and n < most:
            n += 1
            i += 1 + data[i]
        i += 1  # the empty block at the end
    return n


def _check_scans(file: Any, name: str) -> None:
    """Reject a JPEG with too many scans. In its compressed data, FF is never followed by DA."""
    place = file.tell()
    file.seek(0)
    n = file.read().count(b"\xff\xda")
    file.seek(place)
    if n > MAX_SCANS:
        raise ImageError(f"{name}: not a readable image (a JPEG of {n:,} scans; at most {MAX_SCANS} are allowed)")


def _rgb(image: Any) -> Any:
    """Convert an image of any mode to RGB, band by band. Transparent pixels become white."""
    Image, _ = _pillow()
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    image.load()
    deep = _is_deep(image)
    rgb, rows = Image.new("RGB", image.size), max(1, BAND // max(1, image.width))
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        rgb.paste(_band_to_rgb(band, deep), (0, top))
    return rgb


def _is_deep(image: Any) -> bool:
    """Whether the values of an image exceed 255."""
    if image.mode == "F":
        return bool(np.nan_to_num(np.asarray(image)).max(initial=0) > 255)
    return image.mode.startswith("I;16") or (image.mode == "I" and image.getextrema()[1] > 255)


def _band_to_rgb(image: Any, deep: bool) -> Any:
    Image, _ = _pillow()
    if image.mode.startswith("I") or image.mode == "F":  # 16 bits or more
        return Image.fromarray(_eight_bits(image, deep)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Any, deep: bool) -> Pixels:
    """Grey values of 16 bits or more, or floats, scaled to 0 … 255. Transparent pixels become white."""
    values = np.nan_to_num(np.asarray(image, np.float64))
    top = 65535.0 if deep else 255.0
    grey = (values.clip(0, top) / top * 255).astype(np.uint8)
    clear = image.info.get("transparency")
    return grey if clear is None else np.where(values == clear, np.uint8(255), grey)


@cache
def _pillow() -> tuple[Any, Any]:
    """Pillow's modules Image and ImageOps, with the installed plug-ins registered."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ModuleNotFoundError(f"reading images needs Pillow: {pip_install('images')}") from None
    with suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    with suppress(ImportError):
        importlib.import_module("pillow_avif")  # registers itself
    return Image, ImageOps


@cache
def suffixes() -> frozenset[str]:
    """The suffixes of image files that can be read with the installed plug-ins."""
    Image, _ = _pillow()
    Image.init()
    return frozenset(SUFFIXES | {s for s in PLUGGED if Image.EXTENSION.get(s) in Image.OPEN})


def can_read(kind: str) -> bool:
    """Whether the installed Pillow reads a format, by Pillow's name for it."""
    Image, _ = _pillow()
    Image.init()
    return kind in Image.OPEN


def labelled_paths(folder: Path) -> tuple[list[Path], list[str]]:
    """The image files of a folder with one sub-folder per label, sorted, and their labels."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder of images {folder}")
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise InputError(f"{folder} has no sub-folders: put the images of each label into a sub-folder with its name")
    paths, labels = [], []
    for c in classes:
        files = image_files(c)
        if not files:
            raise InputError(f"the folder {c} has no images: fill it or remove it")
        paths += files
        labels += [c.name] * len(files)
    if loose := [p.name for p in folder.iterdir() if _is_image(p)]:
        warnings.warn(
            f"{len(loose)} images directly in {folder} are left out ({min(loose)}, …): they have no label, since "
            "they are in no sub-folder. To encode them, move them to a folder without sub-folders",
            stacklevel=4,
        )
    return paths, labels


def image_files(folder: Path) -> list[Path]:
    """The image files in a folder and its sub-folders, sorted."""
    return sorted(p for p in folder.rglob("*") if _is_image(p))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in suffixes() and not path.name.startswith(".") and path.is_file()


def read_files(paths: list[Path], size: int) -> tuple[Pixels, NDArray[np.int64]]:
    """The images (k, size, size, 3) that can be read, and the indices of their files."""
    pixels = np.empty((len(paths), size, size, 3), np.uint8)
    kept: list[int] = []
    for i, image in _decoded(paths, size, skip_unreadable=True):
        pixels[len(kept)] = image
        kept.append(i)
    return pixels[: len(kept)], np.array(kept, np.int64)


def _decoded(paths: list[Path], size: int, skip_unreadable: bool) -> Iterator[tuple[int, Pixels]]:
    """Index and image of every file.

    Unreadable files are an error, or are skipped with a warning if at most half of the files are unreadable.
    """
    problems: list[str] = []
    with progress("reading images", len(paths)) as step:
        for i, path in enumerate(paths):
            try:
                image = decode(path, size)
            except ImageError as error:
                if not skip_unreadable:
                    raise
                problems.append(str(error))
            else:
                yield i, image
            step(1)
    if problems:
        listed = "\n  ".join(problems[:10]) + (f"\n  … and {len(problems) - 10} more" if len(problems) > 10 else "")
        if len(problems) > len(paths) / 2:
            raise ImageError(f"{len(problems)} of {len(paths)} images cannot be read:\n  {listed}")
        warnings.warn(
            f"{len(problems)} of {len(paths)} images cannot be read and are skipped:\n  {listed}", stacklevel=4
        )


def is_image_source(X: Any) -> bool:
    """Whether images have to be read from X: a path, a list of paths or a torch Dataset."""
    return isinstance(X, str | os.PathLike) or _is_path_list(X) or is_dataset(X)


def _is_path_list(X: Any) -> bool:
    return isinstance(X, list | tuple) and len(X) > 0 and all(isinstance(path, str | os.PathLike) for path in X)


def is_dataset(X: Any) -> bool:
    """Whether X is a map-style torch Dataset."""
    if hasattr(X, "dataset") and hasattr(X, "batch_size"):
        raise InputError("X is a DataLoader: pass its Dataset, X.dataset")
    return (
        hasattr(X, "__getitem__")
        and hasattr(X, "__len__")
        and not hasattr(X, "shape")
        and not isinstance(X, list | tuple | str)
    )


def blocks(X: Any, size: int, n_bytes: int) -> Iterator[NDArray[Any]]:
    """Blocks of about ``n_bytes`` of images (k, H, W, 3) from a folder, files, a Dataset or an array.

    Files are cut to their central square and resized to ``size``.
    """
    if hasattr(X, "shape"):
        rows = max(1, n_bytes // max(1, math.prod(X.shape[1:])))
        for i in range(0, len(X), rows):
            yield X[i : i + rows]
        return
    part: list[NDArray[Any]] = []
    for image in _images_of(X, size):
        if part and image.shape != part[0].shape:
            raise InputError(_differ({image.shape, part[0].shape}))
        part.append(image)
        if len(part) * image.nbytes >= n_bytes:
            yield np.stack(part)
            part = []
    if part:
        yield np.stack(part)


def _images_of(X: Any, size: int) -> Iterator[NDArray[Any]]:
    """The images of a folder, of files or of a Dataset, one after the other."""
    if is_dataset(X):
        yield from (image for image, _ in _items(X))
        return
    if isinstance(X, str | os.PathLike):
        path = Path(X)
        paths, skip = ([path], False) if path.is_file() else (_folder_images(path)[0], True)
    else:
        paths, skip = _existing(X), False
    yield from (image for _, image in _decoded(paths, size, skip))


def with_labels(X: Any, y: Any, size: int | None) -> tuple[Any, Any]:
    """X and y as arrays if X is a folder, image files or a Dataset; anything else is returned unchanged."""
    if isinstance(X, str | os.PathLike):
        return read_folder(Path(X), y, size or 224)[:2]
    if _is_path_list(X):
        decoded = _decoded(_existing(X), size or 224, skip_unreadable=False)
        return np.stack([image for _, image in decoded]), y
    if is_dataset(X):
        return _from_dataset(X, y)
    if hasattr(X, "detach"):
        return X.detach().cpu().numpy(), y
    return X, y


def _existing(paths: Iterable[Any]) -> list[Path]:
    """A list of files. None is skipped, so that row i is file i; a missing one is an error."""
    found = [Path(path) for path in paths]
    if missing := [path for path in found if not path.is_file()]:
        raise FileNotFoundError(f"X: {len(missing)} of {len(found)} files do not exist: {missing[0]}, …")
    return found


def _folder_images(folder: Path) -> tuple[list[Path], list[str]]:
    """The image files of a folder, and their labels; no labels if it has no sub-folders."""
    if any(p.is_dir() for p in folder.iterdir()) if folder.is_dir() else True:
        return labelled_paths(folder)
    paths = image_files(folder)
    if not paths:
        raise InputError(f"the folder {folder} has no images and no shards (.npy, .npz, .parquet)")
    return paths, []


def read_folder(folder: Path, y: Any, size: int) -> tuple[Pixels, Any, list[str]]:
    """The images of a folder or one file, their labels (``y``, or the names of the sub-folders) and names."""
    if folder.is_file():
        return decode(folder, size)[None], y, [folder.stem]
    paths, labels = _folder_images(folder)
    if y is not None:
        (y,) = plain_labels(y)
    if y is not None and y.shape[0] != len(paths):
        raise InputError(f"y has {y.shape[0]} labels, but {folder} has {len(paths)} images")
    pixels, kept = read_files(paths, size)
    names = _names([paths[i].relative_to(folder) for i in kept])
    if y is not None:
        return pixels, y[kept], names  # without those of skipped images
    if not labels:
        return pixels, None, names
    found = np.array(labels)[kept]
    missing = sorted(set(labels) - set(found))
    if missing:
        raise ImageError(f"no image of the label {missing[0]!r} in {folder} can be read")
    return pixels, found, names


def _names(paths: list[Path]) -> list[str]:
    """Paths without their suffix, unless two would have the same name."""
    short = [path.with_suffix("").as_posix() for path in paths]
    times = Counter(short)
    return [name if times[name] == 1 else path.as_posix() for name, path in zip(short, paths, strict=True)]


def _from_dataset(data: Any, y: Any) -> tuple[Any, Any]:
    """The images of a map-style Dataset, and their labels: ``y``, or those of the Dataset."""
    rows, labels = zip(*_items(data), strict=True)
    shapes = {r.shape for r in rows}
    if len(shapes) > 1:
        raise InputError(_differ(shapes))
    if y is None and labels[0] is not None:
        y = np.array([np.asarray(v) for v in labels])
    return np.stack(rows), y


def _items(data: Any) -> Iterator[tuple[NDArray[Any], Any]]:
    """Image and label of every item of a Dataset; the label is None if items are images alone."""
    if len(data) == 0:
        raise InputError("X: the Dataset has 0 samples")
    for i in range(len(data)):
        item = data[i]
        image, label = item if isinstance(item, tuple | list) and len(item) == 2 else (item, None)
        yield _item(image, i), label


def _differ(shapes: set[tuple[int, ...]]) -> str:
    return f"X: the Dataset's images differ in size ({sorted(shapes)[:3]} …): resize them to one size"


def _item(image: Any, i: int) -> NDArray[Any]:
    """An item of a Dataset as (H, W, 3) uint8, or a vector. Tensors may be (3, H, W); floats must be in 0 … 1."""
    try:
        a: NDArray[Any] = image.detach().cpu().numpy() if hasattr(image, "detach") else np.asarray(image)
    except ValueError:  # a tuple of an image and several other things
        a = np.asarray(None)
    if a.ndim == 0 or a.dtype.kind not in "uifb":
        raise InputError(
            f"X[{i}]: items of a Dataset must be images (arrays, tensors or Pillow images) or (image, label); got a "
            f"{type(image).__name__}"
        )
    if a.ndim == 3 and a.shape[0] in (1, 3) and a.shape[2] not in (1, 3):
        a = a.transpose(1, 2, 0)
    if a.ndim > 1 and a.dtype.kind == "f":
        if a.min(initial=0) < 0 or a.max(initial=0) > 1:
            raise InputError(f"X[{i}]: images of floats must be in 0 … 1 (not normalised); got {a.min()} … {a.max()}")
        a = (255 * a).round().astype(np.uint8)
    return check_images(a[None])[0] if a.ndim > 1 else a


def looks_like_images(X: Any) -> bool:
    """Whether X holds images, not row blocks: an array with three or four axes, or a list of (H, W, 3)."""
    if isinstance(X, list | tuple):
        return len(X) > 0 and np.ndim(X[0]) == 3
    return getattr(X, "ndim", 2) in (3, 4)


def check_images(X: Any) -> Pixels:
    """Images as uint8 (n, H, W, 3). Grey images, (n, H, W) or (n, H, W, 1), get three equal channels."""
    if isinstance(X, list | tuple) and len({np.shape(image) for image in X}) > 1:
        raise InputError("X: the images differ in size: resize them to one size")
    a = np.asarray(X)
    if a.ndim == 3 and a.dtype == np.uint8 and a.shape[2] == 3 and min(a.shape[:2]) >= 4:
        raise InputError(f"X of shape {a.shape} is one image: pass X[None], images of shape (n, H, W, 3)")
    if a.ndim == 3:
        a = a[..., None]
    if a.ndim != 4 or a.shape[3] not in (1, 3) or a.dtype != np.uint8:
        raise InputError(f"X must be images, uint8 of shape (n, H, W, 3); got {a.dtype} of shape {np.shape(X)}")
    if len(a) == 0:
        raise InputError("X has 0 samples")
    if min(a.shape[1:3]) < 4:
        raise InputError(f"X: images of {a.shape[1]}×{a.shape[2]} are too small; the minimum is 4×4")
    return np.ascontiguousarray(np.broadcast_to(a, (*a.shape[:3], 3)))
