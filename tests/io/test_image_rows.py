"""Images that come as arrays, Datasets or lists of files."""

import numpy as np
import pytest
import torch
from PIL import Image

from dish.errors import ImageError
from dish.io import images
from dish.io.images import check_images, with_labels


class Items:
    """A Dataset of given items."""

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
def test_datasets(kind, pixels):
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


def test_datasets_that_are_refused(pixels):
    with pytest.raises(ValueError, match="differ in size"):
        with_labels(Items([(pixels[0], 0), (pixels[1, :8], 1)]), None, None)
    with pytest.raises(ValueError, match=r"X\[1\]: images of floats must lie in 0 … 1"):
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
        with pytest.raises(ValueError, match=rf"X\[0\]: the Dataset must give an image.* gives a {kind}"):
            with_labels(Items([item]), None, None)
    with pytest.raises(ValueError, match=r"DataLoader: give the Dataset in it \(X.dataset\)"):
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
    with pytest.raises(FileNotFoundError, match=r"1 of 3 files are not there: .*2\.png"):
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
        (pixels[0], r"\(10, 12, 3\) is one image: give X\[None\]"),
        ([pixels[0], pixels[1, :8]], "differ in size"),
    ):
        with pytest.raises(ValueError, match=message):
            check_images(bad)
    assert images.looks_like_images(list(pixels))
    assert not images.looks_like_images([np.zeros((2, 3)), np.zeros((4, 3))])  # row blocks
