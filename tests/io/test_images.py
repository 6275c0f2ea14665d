"""Images from files, folders, arrays and Datasets."""

import io
import re
import struct
import sys
import threading
import time
import tracemalloc
import warnings
import zlib
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from PIL import Image

from dish import DeepDISH
from dish.errors import ImageError, TooManyPixels
from dish.io import images
from dish.io.images import check_images, decode, with_labels
from helpers.worst_requests import flat_png, large_exif, many_blocks, many_segments, progressive_jpeg


def save(path, mode, colour, size=(12, 8), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)
    return path


# --- one image ---


@pytest.mark.parametrize(
    ("name", "mode", "colour", "wanted"),
    [
        ("a.png", "RGB", (10, 20, 30), (10, 20, 30)),
        ("a.png", "L", 77, (77, 77, 77)),
        ("a.png", "1", 1, (255, 255, 255)),
        ("a.png", "RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("a.png", "RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("a.png", "RGBA", (0, 0, 0, 51), (204, 204, 204)),
        ("a.png", "LA", (9, 0), (255, 255, 255)),
        ("a.png", "I;16", 65535, (255, 255, 255)),
        ("a.png", "I;16", 257 * 100, (100, 100, 100)),
        ("a.png", "I;16", 200, (0, 0, 0)),  # dark, but 16 bits deep all the same
        ("a.tif", "F", 100.0, (100, 100, 100)),
        ("a.tif", "F", float("nan"), (0, 0, 0)),
        ("a.tif", "CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("a.bmp", "RGB", (1, 2, 3), (1, 2, 3)),
        ("a.webp", "RGB", (255, 255, 255), (255, 255, 255)),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, name, mode, colour, wanted):
    pixels = decode(save(tmp_path / name, mode, colour))
    assert pixels.shape == (8, 12, 3)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.broadcast_to(wanted, (8, 12, 3)))


def test_palettes_with_and_without_transparency(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "b.png", transparency=1)
    assert (decode(tmp_path / "a.png") == (10, 200, 30)).all()
    assert (decode(tmp_path / "b.png") == 255).all()


@pytest.mark.parametrize(("mode", "colour"), [("RGB", (10, 20, 30)), ("L", 40)])
def test_a_transparent_colour_becomes_white(tmp_path, mode, colour):
    assert (decode(save(tmp_path / "a.png", mode, colour, transparency=colour)) == 255).all()


def test_exif_rotation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    half = np.zeros((8, 16, 3), np.uint8)
    half[:, :8] = 255  # left half white
    Image.fromarray(half).save(tmp_path / "a.jpg", exif=exif, quality=100)
    pixels = decode(tmp_path / "a.jpg")
    assert pixels.shape == (16, 8, 3)
    assert pixels[:7].min() > 200  # now the upper one
    assert pixels[9:].max() < 50


def test_the_central_square_is_cut_out(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "a.png")
    pixels = decode(tmp_path / "a.png", 10)
    assert pixels.shape == (10, 10, 3)
    assert (pixels == 255).all()


@cache
def white(width, height):
    """A white PNG file with one bit per pixel."""
    file = io.BytesIO()
    Image.new("1", (width, height), 1).save(file, "PNG", compress_level=1)
    return file.getvalue()


def damaged(folder):
    """Names of files that cannot be read, and a part of the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(256, size=(50, 50, 3), dtype=np.uint8)).save(folder / "cut.jpg")
    (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:900])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("no image at all")
    (folder / "huge.png").write_bytes(white(images.MAX_PIXELS // 5000 + 1, 5000))
    (folder / "bomb.png").write_bytes(white(18_000, 10_000))  # Pillow itself refuses that many pixels
    return {
        "cut.jpg": "truncated",
        "empty.png": "cannot identify",
        "text.png": "cannot identify",
        "huge.png": "10001×5000 is more than 50,000,000 pixels",
        "bomb.png": "too many pixels (DecompressionBomb",
    }


def test_errors_name_the_file_and_the_reason(tmp_path):
    for name, reason in damaged(tmp_path).items():
        with pytest.raises(ImageError, match=f"{name}.*{re.escape(reason)}"):
            decode(tmp_path / name)


# --- one decoder: a path, its bytes and a stream give the same pixels ---


def odd_images(folder):
    """Wide pictures whose decoding has a choice to make."""
    rng = np.random.default_rng(0)
    colours = rng.integers(256, size=(24, 40, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    clear = np.dstack([colours, rng.integers(256, size=(24, 40), dtype=np.uint8)])
    folder.mkdir(exist_ok=True)
    Image.fromarray(colours).save(folder / "wide.png")
    Image.fromarray(rng.integers(65536, size=(24, 40), dtype=np.uint16)).save(folder / "deep.png")
    Image.fromarray(colours).convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(colours).save(folder / "turned.jpg", exif=exif)
    Image.fromarray(colours).quantize(16).save(folder / "palette.png")
    Image.fromarray(colours).quantize(16).save(folder / "clear-palette.gif", transparency=3)
    Image.fromarray(clear).save(folder / "clear.webp", lossless=True)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("size", [None, 16, 64])
def test_a_path_its_bytes_and_a_stream_give_the_same_pixels(tmp_path, size):
    for path in odd_images(tmp_path / "odd"):
        wanted = decode(path, size)
        data = path.read_bytes()
        for source in (data, memoryview(data), io.BytesIO(data)):
            np.testing.assert_array_equal(decode(source, size, formats=("PNG", "JPEG", "GIF", "WEBP")), wanted)
        assert wanted.shape == ((size, size, 3) if size else wanted.shape)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    values = np.linspace(0, 65535, 24 * 40).round().astype(np.uint16).reshape(24, 40)
    Image.fromarray(values).save(tmp_path / "a.png")
    pixels = decode((tmp_path / "a.png").read_bytes())
    assert np.abs(pixels[..., 0] - values / 257).max() <= 1
    Image.fromarray(values).save(tmp_path / "b.png", transparency=int(values[0, 5]))
    assert (decode(tmp_path / "b.png")[0, 5] == 255).all()


def test_pixel_limit_and_formats(tmp_path):
    path = save(tmp_path / "a.png", "RGB", (1, 2, 3), size=(20, 10))
    assert decode(path, max_pixels=200).shape == (10, 20, 3)
    with pytest.raises(TooManyPixels, match=r"a\.png: 20×10 is more than 199 pixels"):
        decode(path, max_pixels=199)
    with pytest.raises(TooManyPixels, match="mine: 20×10"):
        decode(path.read_bytes(), max_pixels=199, name="mine")
    with pytest.raises(ImageError, match="cannot identify"):
        decode(path, formats=("JPEG",))


@pytest.mark.filterwarnings("ignore:Image size")
def test_decoding_in_threads_leaves_the_warning_filters_alone(tmp_path):
    """Pillow warns of 12,000 × 10,000 pixels; hiding that by ``catch_warnings`` is not safe among threads."""
    path = save(tmp_path / "large.png", "1", 1, size=(12_000, 10_000))
    small = save(tmp_path / "small.png", "L", 1).read_bytes()
    before, interval = list(warnings.filters), sys.getswitchinterval()

    def work():
        for _ in range(100):
            decode(small)
            with pytest.raises(TooManyPixels):
                decode(path)

    threads = [threading.Thread(target=work) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert warnings.filters == before


# --- folders ---


def make_folder(folder, n=8):
    for i in range(n):
        save(folder / "dark" / f"{i}.png", "RGB", (i, 0, 0), size=(16 + i, 20))
        save(folder / "light" / f"{i}.png", "L", 255 - i, size=(40, 16 + i))
    return folder


def test_a_folder_of_images_of_different_sizes(tmp_path):
    X, y = with_labels(make_folder(tmp_path), None, 16)
    assert X.shape == (16, 16, 16, 3)
    assert y.tolist() == ["dark"] * 8 + ["light"] * 8
    np.testing.assert_array_equal(X[:8, 0, 0, 0], range(8))  # in the order of the names
    assert (with_labels(str(tmp_path), None, 16)[0] == X).all()


def test_damaged_files_are_skipped_with_a_warning(tmp_path):
    reasons = damaged(make_folder(tmp_path) / "dark")
    with pytest.warns(UserWarning, match="5 of 21 images cannot be read and are skipped") as caught:
        X, y = with_labels(tmp_path, None, 16)
    text = str(caught[0].message)
    for name, reason in reasons.items():
        assert name in text
        assert reason in text
    assert len(X) == len(y) == 16
    with pytest.warns(UserWarning, match="skipped"):
        _, y = with_labels(tmp_path, np.arange(21), 16)  # labels given: those of skipped files go with them
    assert y.tolist() == [*range(8), *range(13, 21)]
    with pytest.raises(ValueError, match=r"y has 20 labels, but .* has 21 images"):
        with_labels(tmp_path, np.arange(20), 16)


@pytest.mark.slow
def test_a_folder_that_is_mostly_damaged_is_refused(tmp_path):
    damaged(make_folder(tmp_path, 1) / "dark")
    with pytest.raises(ImageError, match="5 of 7 images cannot be read"):
        with_labels(tmp_path, None, 16)


def test_a_label_without_readable_images_is_refused(tmp_path):
    make_folder(tmp_path)
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "a.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(ImageError, match="label 'lost'"):
        with_labels(tmp_path, None, 16)


def deep(**params):
    return DeepDISH(8, net="6conv", image_size=16, epochs=1, n_iter=0, batch_size=8, device="cpu", **params)


@pytest.mark.slow
def test_fit_and_transform_take_folders(tmp_path):
    make_folder(tmp_path / "fit")
    hasher = deep().fit(tmp_path / "fit")
    save(tmp_path / "new" / "a.jpg", "CMYK", (0, 0, 0, 0))
    save(tmp_path / "new" / "b.png", "LA", (0, 255))
    assert hasher.transform(tmp_path / "new").shape == (2, 1)
    assert hasher.transform(tmp_path / "fit").shape == (16, 1)


def test_images_outside_the_sub_folders_cause_a_warning(tmp_path):
    make_folder(tmp_path)
    save(tmp_path / "loose.png", "L", 1)
    with pytest.warns(UserWarning, match=r"1 images directly in .* are left out \(loose.png, …\)"):
        assert len(with_labels(tmp_path, None, 16)[0]) == 16


def test_names_keep_the_suffix_where_they_would_be_equal(tmp_path):
    for name in ("a.png", "a.jpg", "b.png"):
        save(tmp_path / name, "L", 1)
    assert images.read_folder(tmp_path, None, 16)[2] == ["a.jpg", "a.png", "b"]


def test_training_folders_must_have_labels(tmp_path):
    flat = tmp_path / "flat"
    save(flat / "a.png", "L", 1)
    with pytest.raises(ValueError, match=r"requires y .* sub-folder per label"):
        deep().fit(flat)
    with pytest.raises(ValueError, match="no sub-folders"):
        images.labelled_paths(flat)
    one = tmp_path / "one"
    for i in range(3):
        save(one / "only" / f"{i}.png", "L", i)
    with pytest.raises(ValueError, match=r"1 class .*'only'"):
        deep().fit(one)
    (one / "void").mkdir()
    with pytest.raises(ValueError, match="void has no images"):
        deep().fit(one)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match="nothing has no images"):
        deep().fit(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"no folder of images .*missing"):
        deep().fit(tmp_path / "missing")


@pytest.mark.parametrize("suffix", [".heic", ".avif", ".webp"])
def test_heic_avif_and_webp_are_read_where_pillow_can(tmp_path, suffix):
    if suffix not in images.suffixes():
        pytest.skip(f"no plug-in of Pillow here reads {suffix}")
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:, 48:] = 200
    Image.fromarray(pixels).save(tmp_path / f"photo{suffix}", quality=95)
    assert [p.suffix for p in images.image_files(tmp_path)] == [suffix]
    read = decode(tmp_path / f"photo{suffix}", 32)
    assert read.shape == (32, 32, 3)
    assert read[:, :10].mean() < 20
    assert read[:, -10:].mean() > 180


def test_a_large_jpeg_decoded_at_reduced_size_looks_the_same(tmp_path):
    x, y = np.meshgrid(np.linspace(0, 255, 1600), np.linspace(0, 255, 1200))
    pixels = np.stack([x, y, 255 - x], axis=2).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=95)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    small, whole = (decode(tmp_path / name, 64).astype(int) for name in ("a.jpg", "a.png"))
    assert np.abs(small - whole).max() <= 6


# --- arrays, Datasets and lists of files ---


class Items:
    """A Dataset with the given items."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(256, size=(6, 10, 12, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["uint8", "float", "tensor", "PIL"])
def test_datasets_of_every_kind(kind, pixels):
    make = {
        "uint8": lambda a: a,
        "float": lambda a: a.astype(np.float32) / 255,
        "tensor": lambda a: torch.from_numpy(a).permute(2, 0, 1) / 255,
        "PIL": Image.fromarray,
    }[kind]
    X, y = with_labels(Items([(make(a), i % 2) for i, a in enumerate(pixels)]), None, None)
    np.testing.assert_array_equal(X, pixels)
    assert y.tolist() == [0, 1] * 3
    X, y = with_labels(Items([make(a) for a in pixels]), None, None)
    np.testing.assert_array_equal(X, pixels)
    assert y is None


def test_a_torch_dataset(pixels):
    data = torch.utils.data.TensorDataset(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.arange(6))
    X, y = with_labels(data, None, None)
    np.testing.assert_array_equal(X, pixels)
    assert y.tolist() == list(range(6))


def test_unusable_datasets_are_refused(pixels):
    with pytest.raises(ValueError, match="differ in size"):
        with_labels(Items([(pixels[0], 0), (pixels[1, :8], 1)]), None, None)
    with pytest.raises(ValueError, match=r"X\[1\]: images of floats must be in 0 … 1"):
        with_labels(Items([(pixels[0] / 255, 0), (pixels[1] / 255 - 0.5, 1)]), None, None)
    with pytest.raises(ValueError, match="0 samples"):
        with_labels(Items([]), None, None)
    X, _ = with_labels(Items([((0.1, 0.2, 0.3), 0), ((0.4, 0.5, 0.6), 1)]), None, None)  # rows may be tuples
    assert X.shape == (2, 3)
    odd = (
        ({"image": pixels[0]}, "dict"),
        ((pixels[0], 1, 2), "tuple"),
        ([pixels[0], 1, 2], "list"),
        (None, "NoneType"),
    )
    for item, kind in odd:
        with pytest.raises(ValueError, match=rf"X\[0\]: items of a Dataset must be images .*; got a {kind}"):
            with_labels(Items([item]), None, None)
    with pytest.raises(ValueError, match=r"DataLoader: pass its Dataset, X.dataset"):
        with_labels(torch.utils.data.DataLoader(Items([(pixels[0], 0)])), None, None)


def test_one_file_and_a_list_of_files(tmp_path, pixels):
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path, image in zip(paths, pixels, strict=False):
        Image.fromarray(image).save(path)
    one, y = with_labels(str(paths[1]), None, 10)
    several, _ = with_labels(paths, None, 10)
    assert one.shape == (1, 10, 10, 3)
    assert y is None
    np.testing.assert_array_equal(several[1:2], one)
    paths[2].write_bytes(b"no image")
    with pytest.raises(ImageError, match=r"2\.png"):  # skipping it would leave codes without their paths
        with_labels(paths, None, 10)
    paths[2].unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 3 files do not exist: .*2\.png"):
        with_labels(paths, None, 10)


def test_arrays_of_images(pixels):
    np.testing.assert_array_equal(check_images(pixels), pixels)
    np.testing.assert_array_equal(check_images(list(pixels)), pixels)
    for grey in (pixels[..., 0], pixels[..., :1]):
        np.testing.assert_array_equal(check_images(grey), np.repeat(pixels[..., :1], 3, 3))
    for bad, message in (
        (pixels / 255, "uint8 of shape .* got float64"),
        (pixels.transpose(0, 3, 1, 2), r"\(6, 3, 10, 12\)"),
        (pixels[:0], "0 samples"),
        (pixels[:, :3], "too small"),
        (pixels[0], r"\(10, 12, 3\) is one image: pass X\[None\]"),
        ([pixels[0], pixels[1, :8]], "differ in size"),
    ):
        with pytest.raises(ValueError, match=message):
            check_images(bad)
    assert images.looks_like_images(list(pixels))
    assert not images.looks_like_images([np.zeros((2, 3)), np.zeros((4, 3))])  # row blocks


def test_shrunk_images_keep_their_aspect_ratio(tmp_path):
    path = save(tmp_path / "a.png", "RGBA", (10, 20, 30, 0), size=(400, 100))
    small = images.shrunk(path.read_bytes(), 64)
    assert images.kind_of(small) == "JPEG"
    assert decode(small).shape == (16, 64, 3)
    assert decode(small).min() > 250  # transparent pixels are white
    with pytest.raises(TooManyPixels, match="400×100"):
        images.shrunk(path.read_bytes(), 64, max_pixels=1000)
    with pytest.raises(ImageError, match="not a readable image"):
        images.shrunk(b"text", 64)


def test_kind_and_readability_of_files(tmp_path):
    path = save(tmp_path / "a.png", "L", 1)
    assert images.kind_of(path.read_bytes()) == "PNG"
    assert images.is_readable(path)
    path.write_bytes(b"text")
    assert not images.is_readable(path)
    with pytest.raises(ImageError, match="not a readable image"):
        images.kind_of(b"text")
    assert images.can_read("PNG")
    assert not images.can_read("MYSTERY")


def test_labels_of_skipped_images_are_dropped_from_sparse_labels(tmp_path):
    make_folder(tmp_path, 2)
    (tmp_path / "dark" / "0.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="1 of 4 images cannot be read"):
        _, y = with_labels(tmp_path, sp.csr_array(np.eye(4)), 16)
    np.testing.assert_array_equal(y.toarray(), np.eye(4)[1:])


# --- blocks ---


class Squares:
    """A Dataset of images, the last of another size if ``odd``."""

    def __init__(self, n, odd=False):
        self.n, self.odd = n, odd

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        side = 10 if self.odd and i == self.n - 1 else 8
        return np.full((side, side, 3), i, np.uint8), "label"


@pytest.mark.parametrize("kind", ["dataset", "array", "folder", "files"])
def test_blocks_have_all_images_in_order(kind, tmp_path):
    given = Squares(10)
    if kind == "array":
        given = np.stack([given[i][0] for i in range(10)])
    elif kind != "dataset":
        paths = [save(tmp_path / f"{i}.png", "RGB", (i, i, i), (8, 8)) for i in range(10)]
        given = tmp_path if kind == "folder" else paths
    found = list(images.blocks(given, 8, 4 * 8 * 8 * 3))
    assert [len(block) for block in found] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate(found)[:, 0, 0, 0], np.arange(10))


def test_blocks_of_images_that_differ_in_size_are_refused():
    with pytest.raises(ValueError, match="images differ in size"):
        list(images.blocks(Squares(3, odd=True), 8, 10**6))
    with pytest.raises(ValueError, match="the Dataset has 0 samples"):
        list(images.blocks(Squares(0), 8, 10**6))


def test_sources_of_images(tmp_path):
    for source in (tmp_path, str(tmp_path), [tmp_path], Squares(2)):
        assert images.is_image_source(source)
    for other in (np.zeros((2, 8, 8, 3)), [np.zeros((8, 8, 3))], [], torch.zeros(2, 3), None):
        assert not images.is_image_source(other)
    with pytest.raises(ValueError, match="pass its Dataset"):
        images.is_image_source(torch.utils.data.DataLoader(Squares(2)))


def test_jpeg_of_many_scans_is_refused(tmp_path):
    """Each takes a pass over all pixels, for 31 bytes of the file."""
    start = time.process_time()
    for source in (progressive_jpeg(3000), tmp_path / "scans.jpg"):
        (tmp_path / "scans.jpg").write_bytes(progressive_jpeg(3000))
        with pytest.raises(ImageError, match="3,001 scans; at most 64"):
            images.decode(source, 8)
    assert time.process_time() - start < 1
    assert images.decode(progressive_jpeg(60, 800), 8).shape == (8, 8, 3)


@pytest.mark.parametrize("part", [b"\xff\xe5\0\2", b"\0", b"\xff", b"\xff\x01"])
def test_jpeg_of_many_segments_is_refused(part):
    with pytest.raises(ImageError, match="20,000 parts"):
        images.decode(many_segments(part))
    assert images.decode(many_segments(b"\xff\xe5" + struct.pack(">H", 60_000) + bytes(59_998))).shape == (8, 8, 3)


def test_png_of_many_chunks_is_refused():
    chunk = struct.pack(">I", 0) + b"teSt" + struct.pack(">I", zlib.crc32(b"teSt"))
    with pytest.raises(ImageError, match="20,000 parts"):
        images.decode(flat_png(extra=chunk * 20_000, side=8))
    assert images.decode(flat_png(extra=chunk * 100, side=8)).shape == (8, 8, 3)


@pytest.mark.parametrize("part", [b"!\xfe\1a\0", b"!\xfe" + b"\1a" * 30_000 + b"\0", b"\0"])
def test_gif_of_many_blocks_is_refused(part):
    start = time.process_time()
    with pytest.raises(ImageError, match="20,000 parts"):
        images.decode(many_blocks(part))
    assert time.process_time() - start < 1
    assert images.decode(many_blocks(b"!\xfe" + b"\xff" + b"a" * 255 + b"\0", 5000)).shape == (8, 8, 3)
    for end in range(14):  # a broken start
        with pytest.raises(ImageError):
            images.decode(many_blocks(part)[:end])


@pytest.mark.filterwarnings("ignore:Tag data")
def test_exif_data_take_little_memory():
    """500 tags that share 900 kB."""
    tracemalloc.start()
    try:
        images.decode(flat_png(extra=large_exif(), side=8))
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "CMYK", "I;16", "I", "F", "1"])
def test_bands_give_the_same_pixels(mode, monkeypatch):
    rng = np.random.default_rng(0)
    if mode in ("I;16", "I", "F"):
        kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
        image = Image.fromarray(rng.integers(0, 60_000, (40, 30)).astype(kind))
        image.putpixel((29, 39), 65_535)
    else:
        image = Image.fromarray(rng.integers(0, 256, (40, 30, 4), np.uint8)).convert("RGB" if mode == "P" else "RGBA")
        image = image.quantize(16) if mode == "P" else image.convert("CMYK" if mode == "CMYK" else mode)
    if mode in ("P", "I;16"):
        image.info["transparency"] = 3
    whole = np.asarray(images._rgb(image))
    monkeypatch.setattr(images, "BAND", 100)
    np.testing.assert_array_equal(np.asarray(images._rgb(image)), whole)
