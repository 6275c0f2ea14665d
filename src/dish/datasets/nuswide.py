"""NUS-WIDE from its official files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dish.checks import check_integer
from dish.datasets.dataset import Dataset
from dish.errors import DataFileError
from dish.io.readers import StrPath
from dish.progress import progress

NUSWIDE_CONCEPTS = 21
NUSWIDE_WORDS = 500
IMAGES = Path("ImageList") / "Imagelist.txt"
READ_LINES = 10_000  # lines of a text file that are parsed at a time


def load_nuswide(path: StrPath, n_concepts: int = NUSWIDE_CONCEPTS) -> Dataset:
    """Read NUS-WIDE from its official files: 500-d bags of visual words and the most frequent concepts.

    ``path`` contains ``Groundtruth/AllLabels/Labels_<concept>.txt``, ``ImageList/Imagelist.txt`` and, in any
    sub-folder, ``BoW_int.dat``; all list the images in the same order. Images with none of the kept concepts are
    dropped. X is CSR float32 (n, 500), y CSR of 0 and 1 (n, concepts), the most frequent concept first.
    """
    n_concepts = check_integer("n_concepts", n_concepts, low=1)
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"no NUS-WIDE folder at {path}")
    ids = np.array([line.strip() for line in _read_text(path / IMAGES).splitlines() if line.strip()])
    Y, concepts = _nuswide_labels(path / "Groundtruth" / "AllLabels", len(ids), n_concepts)
    words = sorted(path.rglob("BoW*.dat"))
    if len(words) != 1:
        found = ", ".join(str(file) for file in words) or "none"
        raise DataFileError(f"{path} must contain exactly one BoW_int.dat (bags of visual words), found {found}")
    X = _read_counts(words[0], len(ids))
    kept = np.flatnonzero(np.diff(Y.indptr))
    return Dataset("nuswide", X[kept], sp.csr_array(Y[kept]), label_names=concepts, ids=ids[kept])


def is_nuswide(path: Path) -> bool:
    """Return whether a folder has the official layout."""
    return (path / IMAGES).is_file()


def _nuswide_labels(folder: Path, n: int, n_concepts: int) -> tuple[sp.csr_array, tuple[str, ...]]:
    files = sorted(folder.glob("Labels_*.txt"))
    if len(files) < n_concepts:
        raise DataFileError(f"{folder} must contain {n_concepts} files Labels_<concept>.txt, found {len(files)}")
    columns = []
    for file in files:
        marks = _read_text(file).split()
        if not set(marks) <= {"0", "1"}:
            raise DataFileError(f"{file} must hold one 0 or 1 per line; found {sorted(set(marks) - {'0', '1'})[0]!r}")
        if len(marks) != n:
            raise DataFileError(f"{file} has {len(marks):,} labels, but Imagelist.txt has {n:,} images")
        columns.append(np.array(marks) == "1")
    sizes = np.array([column.sum() for column in columns])
    kept = np.argsort(-sizes, kind="stable")[:n_concepts]
    Y = sp.csr_array(np.stack([columns[j] for j in kept], axis=1).astype(np.float32))
    return Y, tuple(files[j].stem.removeprefix("Labels_") for j in kept)


def _read_counts(path: Path, n: int) -> sp.csr_array:
    """Read n rows of 500 counts, block by block."""
    blocks: list[sp.csr_array] = []
    done = 0
    with open(path, encoding="utf-8") as file, progress(f"reading {path.name}", n) as step:
        while lines := list(islice(file, READ_LINES)):
            lines = [line for line in lines if line.strip()]
            if not lines:
                continue
            try:
                block = np.loadtxt(lines, dtype=np.int32, ndmin=2, comments=None)
            except ValueError as error:
                raise DataFileError(f"{path}, in the rows after {done}: {error}") from None
            if block.shape[1] != NUSWIDE_WORDS:
                raise DataFileError(f"{path} must have {NUSWIDE_WORDS} numbers per row, got {block.shape[1]}")
            if block.min() < 0:
                raise DataFileError(f"{path} has negative counts in the rows after {done}")
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
