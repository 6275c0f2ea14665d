"""The page in a real browser: digits, vectors, and a folder of photos."""

import io
import re
import threading
from contextlib import closing
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from dish import DISH
from dish.deep import image_features
from dish.index.hamming import HammingIndex
from dish.photos import PhotoOptions
from dish.web.collection import Collection
from dish.web.limits import Limits
from dish.web.photos import open_photos
from dish.web.pictures import ArrayPictures
from helpers.page import needs_browser, opened, until, wait_for_hits
from helpers.photos import Patches, draw
from helpers.web import ink, png, serving, writable

pytestmark = needs_browser


def test_first_search(browser, digits_url):
    with opened(browser, digits_url) as page:
        assert "Handwritten digits" in page.title()
        assert "1,497 pictures as 64-bit codes" in page.inner_text("#about")
        assert page.locator("#samples button").count() == 15
        assert page.locator("#hits li").count() == 24
        right = page.locator("#hits .right").count()
        assert f"24 hits, {right} with the right label" in page.inner_text("#status")
        assert page.locator("#hits .right").count() + page.locator("#hits .wrong").count() == 24
        assert page.locator("#times").is_hidden()  # shown with the bits
        page.check("#with-bits")
        assert re.fullmatch(r"[\d.]+ ms", page.inner_text("#time-search"))
        until(page, "[...document.images].slice(0, 10).every(i => i.complete && i.naturalWidth > 0)")


def test_differing_bits_equal_the_distance(browser, digits_url):
    with opened(browser, digits_url) as page:
        page.check("#with-bits")
        page.check("input[value=radius]", force=True)
        page.locator("#amount").fill("9")
        until(page, "document.getElementById('amount-shown').textContent === '9'")
        page.wait_for_timeout(400)
        drawn = page.evaluate(
            """[...document.querySelectorAll('#hits li')].map(li => [
                 (li.querySelector('.differs').getAttribute('d').match(/M/g) || []).length,
                 parseInt(li.querySelector('.distance .of-bits').textContent),
                 (li.querySelector('svg').innerHTML.match(/M/g) || []).length])"""
        )
        assert len(drawn) > 0
        assert all(differs == distance <= 9 and bits == 64 for differs, distance, bits in drawn)


def test_samples_slider_and_hits_start_searches(browser, digits_url):
    with opened(browser, digits_url) as page:
        page.locator("#amount").fill("5")
        wait_for_hits(page, 5)
        assert page.inner_text("#amount-shown") == "5"
        with page.expect_response(lambda answer: answer.url.endswith("/search")):
            page.locator("#samples button").nth(7).click()
        page.wait_for_selector("#samples li:nth-child(8) button[aria-pressed=true]")
        page.locator("#hits .similar").nth(2).click()
        until(page, "document.getElementById('query-name').textContent.startsWith('Item ')")
        number = re.search(r"Item (\d+)", page.inner_text("#query-name"))[1]
        page.fill("#id", number)
        page.press("#id", "Enter")
        until(page, f"document.getElementById('query-name').textContent === 'Item {number}'")
        page.fill("#id", "999999")
        page.click("#by-id button")
        page.wait_for_selector("#error:not([hidden])")
        assert "no item 999999" in page.inner_text("#error")


def test_keyboard_reaches_everything(browser, digits_url):
    with opened(browser, digits_url) as page:
        seen = []
        for _ in range(34):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.id || document.activeElement.closest('[id]')?.id"))
            outline = page.evaluate(
                """(e => [e, e.nextElementSibling].filter(Boolean)
                     .some(x => getComputedStyle(x).outlineStyle !== 'none'))(document.activeElement)"""
            )
            assert outline, seen[-1]  # the focus is visible
        assert {"theme", "file", "more", "samples", "amount", "id", "with-bits", "share", "hits"} <= set(seen)
        page.locator("#samples button").nth(3).focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#samples li:nth-child(4) button[aria-pressed=true]")
        page.locator("#amount").focus()
        page.keyboard.press("ArrowRight")
        wait_for_hits(page, 25)


def test_uploads(browser, digits_url, digits):
    X, y = digits[2], digits[3]
    with opened(browser, digits_url) as page:
        good = png(ink(X[0]))
        page.set_input_files("#file", {"name": "mine.png", "mimeType": "image/png", "buffer": good})
        until(page, "document.getElementById('query-name').textContent === 'mine.png'")
        assert f"most often {y[0]}" in page.inner_text("#status")
        assert page.locator("#hits .right").count() == 0  # the upload has no label
        page.set_input_files("#file", {"name": "bad.png", "mimeType": "image/png", "buffer": good[:50]})
        page.wait_for_selector("#error:not([hidden])")
        assert "not a readable picture" in page.inner_text("#error")
        assert page.get_attribute("#error", "role") == "alert"
        assert page.locator("#hits li").count() == 0
        page.set_input_files("#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"})
        until(page, "document.getElementById('error').textContent.includes('a.txt is not a picture')")
        page.set_input_files("#file", {"name": "mine.png", "mimeType": "image/png", "buffer": good})
        wait_for_hits(page, 24)
        assert page.locator("#error").is_hidden()


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_nothing_is_wider_than_the_screen(browser, digits_url, width):
    with opened(browser, digits_url, width=width, height=780) as page:
        page.evaluate("document.getElementById('options').open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = page.evaluate(
            "[...document.querySelectorAll('button, input:not([type=radio]), .choice span, nav a, summary')]"
            ".filter(e => innerWidth > 736 || !e.closest('#samples'))"  # swiped through on a phone
            ".map(e => [e.id || e.className || e.textContent, e.getBoundingClientRect()])"
            ".filter(([, r]) => r.width).map(([n, r]) => [n, r.width, r.height, r.left, r.right])"
        )
        assert len(boxes) > 20
        for name, w, h, left, right in boxes:
            assert left >= 0, name
            assert right <= width, name
            assert min(w, h) >= 24, (name, w, h)  # large enough for a finger
        page.goto(digits_url + "/docs")
        page.wait_for_selector("article")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_screen_readers_find_a_name_for_everything(browser, digits_url):
    with opened(browser, digits_url) as page:
        nameless = page.evaluate(
            """[...document.querySelectorAll('button, input, a[href], svg, img')].filter(e => {
                 if (e.tagName === 'IMG') return !e.hasAttribute('alt');
                 const labels = [...(e.labels || [])].map(l => l.textContent).join('');
                 const own = e.getAttribute('aria-label') || labels;
                 return !(own || e.textContent.trim());
               }).map(e => e.outerHTML.slice(0, 80))"""
        )
        assert nameless == []
        assert page.get_attribute("html", "lang") == "en"
        assert page.get_attribute("#status", "aria-live") == "polite"
        for landmark in ("header", "main", "nav[aria-label]"):
            assert page.locator(landmark).count() == 1
        assert page.locator("h1").count() == 1
        assert page.get_by_role("slider", name="Number of neighbours").count() == 1
        assert page.get_by_role("radio").count() == 2
        assert (
            page.get_by_role(
                "button", name=re.compile(r"Item \d+, \d, the same label, [a-z ]+, distance \d+")
            ).count()
            > 0
        )
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))


CONTRAST = """(() => {
  const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
      .map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
      return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
      if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
  return [...document.querySelectorAll('p, h1, h3, dt, dd, label, legend, output, span, button, a, strong')]
    .filter(e => e.checkVisibility() && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
    .map(e => { const a = light(getComputedStyle(e).color), b = light(behind(e));
      return [e.textContent.trim().slice(0, 30), (Math.max(a, b) + .05) / (Math.min(a, b) + .05)]; });
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser, digits_url, scheme):
    with opened(browser, digits_url, scheme=scheme) as page:
        assert page.get_attribute("html", "data-theme") == scheme
        page.set_input_files("#file", {"name": "b.png", "mimeType": "image/png", "buffer": b"x"})
        page.wait_for_selector("#error:not([hidden])")
        texts = page.evaluate(CONTRAST)
        page.locator("#samples button").first.click()
        page.wait_for_selector("#hits li")
        texts += page.evaluate(CONTRAST)
        assert len(texts) > 60
        assert [text for text in texts if text[1] < 4.5] == []  # WCAG AA


def test_theme_button_is_remembered(browser, digits_url):
    with opened(browser, digits_url) as page:
        paper = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(paper)
        page.click("#theme")
        assert page.inner_text("#theme") == "Light theme"  # what the next click does
        assert page.evaluate(paper) != before
        page.reload()
        assert page.get_attribute("html", "data-theme") == "dark"


def test_collection_without_pictures(browser, digits):
    X, y, _, _ = digits
    hasher = DISH(n_bits=24, n_anchors=40, random_state=0).fit(X[:300], y[:300])
    index = HammingIndex(24)
    index.add(hasher.transform(X[:300]), ids=[f"row<{i}>" for i in range(300)], labels=y[:300])
    with (
        serving(Collection(hasher, index)) as (host, port),
        opened(browser, f"http://{host}:{port}", width=360, height=780) as page,
    ):
        assert page.locator("#drop").is_hidden()
        assert page.locator("img").count() == 0
        page.click("#options summary")
        page.fill("#id", "row<7>")
        page.press("#id", "Enter")
        until(page, "document.getElementById('query-name').textContent === 'Item row<7>'")
        assert page.locator("#hits .name").count() == 24
        assert "itself" in page.inner_text("#hits")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_page_asks_for_the_token(browser, digits_demo):
    limits = Limits(token="sesame")
    with serving(digits_demo, limits) as (host, port), opened(browser, f"http://{host}:{port}", hits=False) as page:
        page.wait_for_selector("#unlock:not([hidden])")
        page.fill("#token", "wrong")
        page.press("#token", "Enter")
        page.wait_for_timeout(300)
        assert page.locator("#hits li").count() == 0
        page.fill("#token", "sesame")
        page.press("#token", "Enter")
        page.wait_for_selector("#hits li")
        assert page.locator("#unlock").is_hidden()
        until(page, "[...document.images].slice(0, 10).every(i => i.complete && i.naturalWidth > 0)")


def test_api_page_shows_every_route(browser, digits_url):
    with opened(browser, digits_url + "/docs", hits=False) as page:
        page.wait_for_selector("article")
        text = page.inner_text("#routes")
        for route in ("POST /search", "POST /encode", "POST /items", "GET /health", "GET /metrics"):
            assert route in text
        page.click("summary >> nth=0")
        assert "vector" in page.inner_text("details[open] pre")


# --- a folder of photos ---


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    """The address of a writable server of photos, its folder and its collection. Two photos are the same."""
    folder = tmp_path_factory.mktemp("photos") / "Summer in Norway"
    for i in range(30):
        draw(folder / f"a rather long name of a photo {i:02}.png", i, side=64)
    (folder / "copy of 7.png").write_bytes((folder / "a rather long name of a photo 07.png").read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_features, "extractor", lambda net=image_features.NET: Patches())
        found, _ = open_photos(folder, PhotoOptions(), folder.parent / "home", writable=True, say=lambda line: None)
        with closing(found), serving(found) as (host, port):
            yield f"http://{host}:{port}", folder, found


def large_photo(width=4000, height=3000):
    """A photo of 12 megapixels and more than 4 MB, as a phone takes it."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (2, 2, 3), np.uint8)
    pixels = coarse.repeat(height // 2, 0).repeat(width // 2, 1).astype(np.int16)
    pixels += rng.integers(-40, 40, pixels.shape, np.int16)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=88)
    return file.getvalue()


def test_title_and_captions_of_a_folder(browser, album):
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


def test_large_photo_is_shrunk_before_upload(browser, album):
    url, _, _ = album
    photo = large_photo()
    assert len(photo) > Limits().max_body
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


def test_slow_first_upload_shows_a_message(browser, album, monkeypatch):
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
        page.goto(shared)  # opened by somebody else
        until(page, "document.getElementById('query-name').textContent === 'A shared code'")
        assert page.locator("#hits .label").first.inner_text() == "mine.png"
        page.locator("#hits li button").first.click()
        expect(page.locator("#large")).to_be_visible()
        page.click("#large-remove")
        assert "mine.png" in found.index
        page.click("#large-remove")  # confirm
        until(page, "document.getElementById('status').textContent.includes('Removed mine.png')")
        assert "mine.png" not in found.index
        (folder / "mine.png").unlink()  # the file stays
        assert "mine.png" not in page.locator("#hits .label").all_inner_texts()


def test_large_view(browser, album):
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


def test_ids_are_suggested_and_duplicates_found(browser, album):
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
        assert "1 picture has duplicates: 1 file could be deleted" in page.inner_text("#status")


def test_error_offers_another_search(browser, album):
    url, _, _ = album
    with opened(browser, url) as page:
        page.set_input_files("#file", {"name": "bad.png", "mimeType": "image/png", "buffer": b"x"})
        page.wait_for_selector("#error:not([hidden])")
        page.click("#recover")
        wait_for_hits(page, 24)
        assert page.locator("#error").is_hidden()


def test_results_come_first_on_a_phone(browser, album):
    url, _, _ = album
    with opened(browser, url, width=390, height=844) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        top = page.evaluate("document.querySelector('#hits li').getBoundingClientRect().top")
        assert top < 0.55 * 844, top  # hits are visible without scrolling
        assert page.locator("#by-id").is_hidden()
        page.click("#options summary")
        assert page.locator("#by-id").is_visible()
        page.click("#options summary")
        page.locator("#hits li button").first.click()
        box = page.locator("#large").bounding_box()
        assert box["x"] >= 0
        assert box["width"] <= 390


def test_read_only_page_has_no_remove_button(browser, album):
    url, _, found = album
    writer, found.writer = found.writer, None
    try:
        with opened(browser, url) as page:
            page.locator("#hits li button").first.click()
            assert page.locator("#large-remove").is_hidden()
    finally:
        found.writer = writer


@pytest.mark.parametrize("ids", [["..", ".", "a/b", "?q#h", "a\n"], [2**63 - 1, 2**53 + 1, -(2**63), 2**53 + 2, 7]])
def test_page_removes_items_whatever_their_id(browser, learned, tmp_path, ids):
    hasher, X, _, _ = learned
    index = HammingIndex(32)
    index.add(hasher.transform(X[:5]), ids=ids)
    index.save(tmp_path / "ix.dish")
    with (
        closing(writable(learned, tmp_path, pictures=ArrayPictures(lambda key: np.zeros((8, 8), np.uint8)))) as found,
        serving(found) as (host, port),
    ):
        for id in ids[:-1]:
            address = f"http://{host}:{port}/?id={quote(str(id), safe='')}&k=1"
            with opened(browser, address) as page:
                page.locator("#hits li button").first.click()
                assert page.inner_text("#large-name").strip() == str(id).strip()
                page.click("#large-remove")
                page.click("#large-remove")  # confirm
                until(page, "document.getElementById('status').textContent.includes('Removed ')")
            assert id not in found.index
        assert found.index.ids.tolist() == ids[-1:]
