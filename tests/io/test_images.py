"""Images of every kind, by the rules stated in dish.io.images."""

import io
import re
import sys
import threading
import warnings

import numpy as np
import pytest
from PIL import Image

from dish import DeepDISH
from dish.errors import ImageError, TooManyPixels
from dish.io import images
from dish.io.images import decode, read_image, with_labels


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
    pixels = read_image(save(tmp_path / name, mode, colour))
    assert pixels.shape == (8, 12, 3)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, np.broadcast_to(wanted, (8, 12, 3)))


def test_palettes_with_and_without_transparency(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "b.png", transparency=1)
    assert (read_image(tmp_path / "a.png") == (10, 200, 30)).all()
    assert (read_image(tmp_path / "b.png") == 255).all()


@pytest.mark.parametrize(("mode", "colour"), [("RGB", (10, 20, 30)), ("L", 40)])
def test_a_colour_that_stands_for_transparent_becomes_white(tmp_path, mode, colour):
    assert (read_image(save(tmp_path / "a.png", mode, colour, transparency=colour)) == 255).all()


def test_exif_rotation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    half = np.zeros((8, 16, 3), np.uint8)
    half[:, :8] = 255  # left half white
    Image.fromarray(half).save(tmp_path / "a.jpg", exif=exif, quality=100)
    pixels = read_image(tmp_path / "a.jpg")
    assert pixels.shape == (16, 8, 3)
    assert pixels[:7].min() > 200  # now the upper one
    assert pixels[9:].max() < 50


def test_the_middle_square_is_taken(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "a.png")
    pixels = read_image(tmp_path / "a.png", 10)
    assert pixels.shape == (10, 10, 3)
    assert (pixels == 255).all()


def damaged(folder):
    """Names of files that cannot be read, and a part of the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(256, size=(50, 50, 3), dtype=np.uint8)).save(folder / "cut.jpg")
    (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:900])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("no image at all")
    save(folder / "huge.png", "1", 1, size=(images.MAX_PIXELS // 5000 + 1, 5000))
    save(folder / "bomb.png", "1", 1, size=(20_000, 20_000))  # Pillow itself refuses that many
    return {
        "cut.jpg": "truncated",
        "empty.png": "cannot identify",
        "text.png": "cannot identify",
        "huge.png": "10001×5000 is more than 50,000,000 pixels",
        "bomb.png": "DecompressionBomb",
    }


def test_what_cannot_be_read_is_named_with_the_reason(tmp_path):
    for name, reason in damaged(tmp_path).items():
        with pytest.raises(ImageError, match=f"{name}.*{re.escape(reason)}"):
            read_image(tmp_path / name)


# --- one decoder: a path, its bytes and a stream give the same pixels ---


def odd_pictures(folder):
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
    for path in odd_pictures(tmp_path / "odd"):
        wanted = read_image(path, size)
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
    assert (read_image(tmp_path / "b.png")[0, 5] == 255).all()


def test_the_limit_and_the_formats_are_the_callers(tmp_path):
    path = save(tmp_path / "a.png", "RGB", (1, 2, 3), size=(20, 10))
    assert decode(path, max_pixels=200).shape == (10, 20, 3)
    with pytest.raises(TooManyPixels, match=r"a\.png: 20×10 is more than 199 pixels"):
        decode(path, max_pixels=199)
    with pytest.raises(TooManyPixels, match="mine: 20×10"):
        decode(path.read_bytes(), max_pixels=199, name="mine")
    with pytest.raises(ImageError, match="cannot identify"):
        decode(path, formats=("JPEG",))


@pytest.mark.filterwarnings("ignore:Image size")
def test_a_burst_of_threads_leaves_the_warning_filters_alone(tmp_path):
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


def test_a_folder_of_mixed_sizes(tmp_path):
    X, y = with_labels(make_folder(tmp_path), None, 16)
    assert X.shape == (16, 16, 16, 3)
    assert y.tolist() == ["dark"] * 8 + ["light"] * 8
    np.testing.assert_array_equal(X[:8, 0, 0, 0], range(8))  # in the order of the names
    assert (with_labels(str(tmp_path), None, 16)[0] == X).all()


def test_damaged_files_are_skipped_with_a_warning_that_names_them(tmp_path):
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


def test_a_class_of_which_nothing_can_be_read_is_refused(tmp_path):
    make_folder(tmp_path)
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "a.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(ImageError, match="label 'lost'"):
        with_labels(tmp_path, None, 16)


def deep(**params):
    return DeepDISH(8, net="6conv", image_size=16, epochs=1, n_iter=0, batch_size=8, device="cpu", **params)


def test_fit_and_transform_take_folders(tmp_path):
    make_folder(tmp_path / "fit")
    hasher = deep().fit(tmp_path / "fit")
    save(tmp_path / "new" / "a.jpg", "CMYK", (0, 0, 0, 0))
    save(tmp_path / "new" / "b.png", "LA", (0, 255))
    assert hasher.transform(tmp_path / "new").shape == (2, 1)
    assert hasher.transform(tmp_path / "fit").shape == (16, 1)


def test_images_beside_the_sub_folders_are_not_dropped_silently(tmp_path):
    make_folder(tmp_path)
    save(tmp_path / "loose.png", "L", 1)
    with pytest.warns(UserWarning, match=r"images in .* itself are left out \(1: loose.png, …\)"):
        assert len(with_labels(tmp_path, None, 16)[0]) == 16


def test_files_that_differ_in_their_suffix_alone_have_names_of_their_own(tmp_path):
    for name in ("a.png", "a.jpg", "b.png"):
        save(tmp_path / name, "L", 1)
    assert images.read_folder(tmp_path, None, 16)[2] == ["a.jpg", "a.png", "b"]


def test_folders_to_learn_from_must_have_labels(tmp_path):
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
    with pytest.raises(FileNotFoundError, match=r"no folder of images at .*missing"):
        deep().fit(tmp_path / "missing")


@pytest.mark.parametrize("suffix", [".heic", ".avif", ".webp"])
def test_formats_of_phones_are_read_where_pillow_can(tmp_path, suffix):
    if suffix not in images.suffixes():
        pytest.skip(f"no plug-in of Pillow here reads {suffix}")
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:, 48:] = 200
    Image.fromarray(pixels).save(tmp_path / f"photo{suffix}", quality=95)
    assert [p.suffix for p in images.image_files(tmp_path)] == [suffix]
    read = images.read_image(tmp_path / f"photo{suffix}", 32)
    assert read.shape == (32, 32, 3)
    assert read[:, :10].mean() < 20
    assert read[:, -10:].mean() > 180


def test_a_large_jpeg_is_unpacked_small_and_looks_the_same(tmp_path):
    x, y = np.meshgrid(np.linspace(0, 255, 1600), np.linspace(0, 255, 1200))
    pixels = np.stack([x, y, 255 - x], axis=2).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=95)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    small, whole = (images.read_image(tmp_path / name, 64).astype(int) for name in ("a.jpg", "a.png"))
    assert np.abs(small - whole).max() <= 6
