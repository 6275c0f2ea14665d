"""The page over somebody's photos: uploads from a phone, the large view, adding, removing, sharing, Back, a phone."""

import io
import threading

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from dish.deep import image_features
from dish.photos import PhotoOptions
from dish.web.photos import open_photos
from helpers.page import needs_browser, opened, serving, until, wait_for_hits
from helpers.photos import Patches, draw

pytestmark = needs_browser
BODY = 4 << 20  # of the service, at most, unless told otherwise: less than the photo that is uploaded


@pytest.fixture(scope="module")
def cheap():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_features, "extractor", lambda net=image_features.NET: Patches())
        yield


@pytest.fixture
def album(tmp_path, cheap):
    """A folder of photos with one copy among them, served for writing; its address and the folder."""
    folder = tmp_path / "Summer in Norway"
    for i in range(30):
        draw(folder / f"a rather long name of a photo {i:02}.png", i, side=64)
    (folder / "copy of 7.png").write_bytes((folder / "a rather long name of a photo 07.png").read_bytes())
    found, _ = open_photos(folder, PhotoOptions(), tmp_path / "home", writable=True, say=lambda line: None)
    with serving(found) as url:
        yield url, folder, found
    found.close()


def large_photo(width=4000, height=3000):
    """A photo of 12 megapixels and more than 4 MB, as a phone takes it."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (2, 2, 3), np.uint8)
    pixels = coarse.repeat(height // 2, 0).repeat(width // 2, 1).astype(np.int16)
    pixels += rng.integers(-40, 40, pixels.shape, np.int16)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=88)
    return file.getvalue()


def test_the_folder_is_the_title_and_captions_take_one_line(browser, album):
    url, _, _ = album
    with opened(browser, url) as page:
        assert page.inner_text("h1") == "Summer in Norway"
        assert "31 pictures" in page.inner_text("#about")
        heights = page.evaluate(
            "[...document.querySelectorAll('#hits .label')].map(e => e.getBoundingClientRect().height)"
        )
        assert len(heights) == 24
        assert max(heights) - min(heights) < 1
        assert max(heights) < 30
        words = set(page.locator("#hits .in-words").all_inner_texts())
        assert words <= {"itself", "same code", "very close", "close", "far"}
        assert "itself" in words
        sources = page.evaluate("[...document.querySelectorAll('#hits img')].map(e => new URL(e.src).pathname)")
        assert all(path.startswith("/thumbnails/") for path in sources)


def test_a_photo_of_twelve_megapixels_is_shrunk_and_searched(browser, album):
    url, _, _ = album
    photo = large_photo()
    assert len(photo) > BODY
    with opened(browser, url) as page:
        sent = []
        page.on(
            "request", lambda r: sent.append(len(r.post_data_buffer or b"")) if r.url.endswith("/search") else None
        )
        page.set_input_files("#file", {"name": "IMG_1234.jpg", "mimeType": "image/jpeg", "buffer": photo})
        until(page, "document.getElementById('query-name').textContent === 'IMG_1234.jpg'", seconds=30)
        wait_for_hits(page, 24)
        assert page.locator("#error").is_hidden()
        assert max(sent) < 1_000_000


def test_a_first_upload_that_takes_long_says_why(browser, album, monkeypatch):
    url, folder, found = album
    encode, loaded = found.encode_picture, threading.Event()

    def slowly(*given):
        assert loaded.wait(20)
        return encode(*given)

    monkeypatch.setattr(found, "encode_picture", slowly)
    with opened(browser, url) as page:
        data = draw(folder.parent / "mine.png", 77, side=64).read_bytes()
        page.set_input_files("#file", {"name": "mine.png", "mimeType": "image/png", "buffer": data})
        until(page, "document.getElementById('status').textContent.includes('it loads the network')")
        loaded.set()
        until(page, "!document.getElementById('status').textContent.includes('it loads the network')")
        wait_for_hits(page, 24)


def test_add_share_go_back_and_remove(browser, album):
    url, folder, found = album
    with opened(browser, url) as page:
        first = page.url
        assert "?id=" in first
        data = draw(folder.parent / "mine.png", 77, side=64).read_bytes()
        page.set_input_files("#file", {"name": "mine.png", "mimeType": "image/png", "buffer": data})
        until(page, "location.search.startsWith('?code=')")
        shared = page.url
        page.click("#add")
        until(page, "document.getElementById('status').textContent.includes('Added as mine.png')")
        assert (folder / "mine.png").read_bytes() == data
        assert "32 pictures" in page.inner_text("#about")
        assert "id=mine.png" in page.url
        page.go_back()
        until(page, "document.getElementById('query-name').textContent === 'mine.png'")  # the upload, as before
        assert page.url == shared
        page.go_back()
        until(page, f"location.href === '{first}'")
        until(page, "document.getElementById('query-name').textContent.startsWith('Item ')")
        page.goto(shared)  # as somebody else opens it
        until(page, "document.getElementById('query-name').textContent === 'A shared code'")
        assert page.locator("#hits .label").first.inner_text() == "mine.png"
        page.locator("#hits li button").first.click()
        expect(page.locator("#large")).to_be_visible()
        page.click("#large-remove")
        assert "mine.png" in found.index
        page.click("#large-remove")  # once more: really
        until(page, "document.getElementById('status').textContent.includes('Removed mine.png')")
        assert "mine.png" not in found.index
        assert (folder / "mine.png").exists()
        assert "mine.png" not in page.locator("#hits .label").all_inner_texts()


def test_the_large_view(browser, album):
    url, _, _ = album
    with opened(browser, url) as page:
        page.locator("#hits li").nth(1).locator("button").first.click()
        expect(page.locator("#large")).to_be_visible()
        name = page.inner_text("#large-name")
        assert name.endswith(".png")
        assert "bits differ" in page.inner_text("#large-facts")
        assert page.get_attribute("#large-open", "href").startswith("/images/")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#large-name") != name
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#large-name") == name
        page.click("#large-similar")
        expect(page.locator("#large")).to_be_hidden()
        until(page, f"document.getElementById('query-name').textContent === 'Item {name}'")
        page.locator("#hits li button").first.click()
        page.keyboard.press("Escape")
        expect(page.locator("#large")).to_be_hidden()


def test_names_are_suggested_and_copies_found(browser, album):
    url, _, _ = album
    with opened(browser, url) as page:
        page.locator("#id").press_sequentially("COPY")
        until(page, "document.querySelectorAll('#names option').length === 1")
        assert page.get_attribute("#names option", "value") == "copy of 7.png"
        page.click("#copies")
        page.wait_for_selector(".group")
        assert page.locator(".group").count() == 1
        assert page.locator(".group .name").all_inner_texts() == [
            "a rather long name of a photo 07.png",
            "copy of 7.png",
        ]
        assert "1 picture is there more than once" in page.inner_text("#status")


def test_an_error_shows_a_way_on(browser, album):
    url, _, _ = album
    with opened(browser, url) as page:
        page.set_input_files("#file", {"name": "bad.png", "mimeType": "image/png", "buffer": b"x"})
        page.wait_for_selector("#error:not([hidden])")
        page.click("#recover")
        wait_for_hits(page, 24)
        assert page.locator("#error").is_hidden()


def test_on_a_phone_the_results_come_first(browser, album):
    url, _, _ = album
    with opened(browser, url, width=390, height=844) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        top = page.evaluate("document.querySelector('#hits li').getBoundingClientRect().top")
        assert top < 0.55 * 844, top  # a row of hits is in sight without scrolling
        assert page.locator("#by-id").is_hidden()
        page.click("#options summary")
        assert page.locator("#by-id").is_visible()
        page.click("#options summary")
        page.locator("#hits li button").first.click()
        box = page.locator("#large").bounding_box()
        assert box["x"] >= 0
        assert box["width"] <= 390


def test_a_read_only_page_offers_no_writing(browser, album):
    url, _, found = album
    journal, found.journal = found.journal, None
    try:
        with opened(browser, url) as page:
            page.locator("#hits li button").first.click()
            assert page.locator("#large-remove").is_hidden()
    finally:
        found.journal = journal
