"""GIST of images with known content."""

import numpy as np
import pytest
import torch

from dish.datasets import gist as module
from dish.datasets.gist import gist, prefilter


def grating(cycles_per_pixel, angle, size=64, contrast=60.0, phase=0.3):
    row, column = np.mgrid[:size, :size]
    wave = np.sin(2 * np.pi * cycles_per_pixel * (np.cos(angle) * column + np.sin(angle) * row) + phase)
    return np.rint(128 + contrast * wave).astype(np.uint8)


def channels(features):
    """Reshape (n, 512) to (n, scale, orientation, block)."""
    return features.reshape(-1, module.N_SCALES, module.N_ORIENTATIONS, 16)


def scene(seed=0, size=40):
    """Return an image with structure at every scale."""
    rng = np.random.default_rng(seed)
    f = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size)) + 1 / size
    x = np.fft.ifft2(np.fft.fft2(rng.standard_normal((size, size))) / f).real
    x = (x - x.mean()) / x.std()
    return np.clip(120 + 35 * x, 20, 235).astype(np.uint8)


def cosine(a, b):
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def test_shape_dtype_and_blocks_of_images(monkeypatch):
    images = np.stack([scene(s, 32) for s in range(7)])
    whole = gist(images)
    assert whole.shape == (7, 512)
    assert whole.dtype == np.float32
    assert (whole > 0).all()
    monkeypatch.setattr(module, "BLOCK", 3)
    np.testing.assert_allclose(gist(images), whole, rtol=1e-5, atol=1e-6)  # FFTs round per batch
    assert gist(images[:0]).shape == (0, 512)


def test_a_grating_peaks_in_the_channel_of_its_orientation():
    pairs = [(scale, orientation) for scale in range(3) for orientation in range(8)]
    frequency = module.TOP_FREQUENCY / module.SCALE_STEP ** np.arange(3)
    images = np.stack([grating(frequency[scale], np.pi * orientation / 8) for scale, orientation in pairs])
    for (scale, orientation), response in zip(pairs, channels(gist(images)).mean(-1), strict=True):
        assert response[scale].argmax() == orientation
        across = response[scale, (orientation + 4) % 8]
        assert response[scale, orientation] > 5 * across


@pytest.mark.parametrize("scale", [0, 1, 2, 3])
def test_a_grating_peaks_in_the_channel_of_its_frequency(scale):
    f = module.TOP_FREQUENCY / module.SCALE_STEP**scale
    response = channels(gist(grating(f, 0.0, size=128)[None]))[0].mean(-1)
    assert response[:, 0].argmax() == scale


def test_a_texture_responds_in_its_own_block():
    image = np.full((64, 64), 128, np.uint8)
    image[16:32, 32:48] = grating(0.2, 0.0)[16:32, 32:48]  # block row 1, block column 2
    response = channels(gist(image[None]))[0].sum((0, 1)).reshape(4, 4)
    assert np.unravel_index(response.argmax(), (4, 4)) == (1, 2)
    assert response[3, 0] < 0.1 * response[1, 2]


def test_the_response_matches_a_filter_applied_to_the_whole_spectrum():
    size, margin = 32, 8
    side = size + 2 * margin
    x = prefilter(torch.from_numpy(scene(3, size)).float()[None])
    f = torch.fft.fftfreq(side)
    spectrum = torch.fft.fft2(module.mirror(x, margin))
    got = channels(module._FilterBank(size)(x).numpy())[0]
    for scale, orientation in [(1, 0), (1, 3), (2, 5), (3, 6)]:
        centre, angle = module.TOP_FREQUENCY / module.SCALE_STEP**scale, np.pi * orientation / 8
        gain = module._gain(f[:, None], f, centre, angle)
        response = torch.fft.ifft2(spectrum * gain)[0].abs()[margin:-margin, margin:-margin]
        expected = response.reshape(4, 8, 4, 8).mean((1, 3)).ravel().numpy()
        np.testing.assert_allclose(got[scale, orientation], expected, rtol=0.1)


def test_a_small_shift_changes_little_and_another_image_much():
    scenes = np.stack([scene(s) for s in range(8)])
    here, shifted = gist(scenes[:, :32, :32]), gist(scenes[:, 1:33, 1:33])
    moved = np.linalg.norm(here - shifted, axis=1)
    assert (moved < 0.25 * np.linalg.norm(here, axis=1)).all()
    to_others = np.linalg.norm(here[:, None] - shifted, axis=2)[~np.eye(8, dtype=bool)]
    assert moved.max() < 0.7 * to_others.min()


def test_the_prefilter_removes_lighting_and_does_not_amplify_faint_contrast():
    image = scene(2, 32).astype(float)
    darker = np.rint(image / 2)
    shaded = np.rint(image * np.linspace(0.5, 1.0, 32))
    flat = np.rint(128 + 0.02 * (image - 128))
    full, dark, shade, faint = gist(np.stack([image, darker, shaded, flat]).astype(np.uint8))
    assert cosine(full, dark) > 0.99
    assert np.linalg.norm(full - dark) < 0.1 * np.linalg.norm(full)
    assert cosine(full, shade) > 0.98
    assert np.linalg.norm(faint) < 0.5 * np.linalg.norm(full)  # noise is not amplified


def test_a_flat_image_has_no_edges():
    features = gist(np.full((1, 32, 32), 77, np.uint8))
    assert np.abs(features).max() < 1e-3
    assert np.isfinite(gist(np.full((1, 32, 32), 77, np.uint8), normalize=True)).all()


def test_colours_are_averaged_and_rows_normalised():
    grey = np.stack([scene(s, 32) for s in range(2)])
    colour = np.repeat(grey[..., None], 3, axis=3)
    np.testing.assert_allclose(gist(colour), gist(grey), rtol=1e-4)
    tinted = colour.copy()
    tinted[..., 0], tinted[..., 2] = colour[..., 0] // 2, np.minimum(colour[..., 2] + 20, 255)
    assert not np.allclose(gist(tinted), gist(grey), rtol=1e-2)
    np.testing.assert_allclose(np.linalg.norm(gist(grey, normalize=True), axis=1), 1.0, rtol=1e-5)


def test_images_of_other_shapes_are_resized():
    image = scene(4, 64)
    assert gist(image[None, :50, :61]).shape == (1, 512)
    small = image.reshape(32, 2, 32, 2).mean((1, 3)).astype(np.uint8)
    assert cosine(gist(image[None], size=32)[0], gist(small[None])[0]) > 0.98


def test_progress_counts_every_image():
    done = []
    gist(np.zeros((600, 16, 16), np.uint8), progress=done.append)
    assert sum(done) == 600
    assert len(done) > 1


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 32, 32), np.float32), "uint8.*float32"),
        (np.zeros((32, 32), np.uint8), r"\(n, H, W\).*\(32, 32\)"),
        (np.zeros((2, 32, 32, 4), np.uint8), r"\(2, 32, 32, 4\)"),
        (np.zeros((2, 4, 32), np.uint8), "8 × 8.*4 × 32"),
    ],
)
def test_invalid_images_are_rejected(images, message):
    with pytest.raises(ValueError, match=message):
        gist(images)


@pytest.mark.parametrize("size", [8, 33, 32.0, True])
def test_invalid_sizes_are_rejected(size):
    with pytest.raises(ValueError, match="size must be"):
        gist(np.zeros((1, 32, 32), np.uint8), size=size)
