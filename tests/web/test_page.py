"""The page in a real browser (Chromium), against a real server on this machine."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from dish.index.hamming import HammingIndex
from dish.web import demo
from dish.web.collection import Collection
from dish.web.middleware import Limits
from helpers.page import needs_browser, opened, serving, until, wait_for_hits

pytestmark = needs_browser


@pytest.fixture(scope="module")
def digits_demo():
    return demo.digits()


@pytest.fixture(scope="module")
def url(digits_demo):
    with serving(digits_demo) as address:
        yield address


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_the_page_loads_and_shows_a_search(browser, url):
    with opened(browser, url) as page:
        assert "Handwritten digits" in page.title()
        assert "1,497 pictures as 64-bit codes" in page.inner_text("#about")
        assert page.locator("#samples button").count() == 15
        assert page.locator("#hits li").count() == 24
        right = page.locator("#hits .right").count()
        assert f"24 hits, {right} with the right label" in page.inner_text("#status")
        assert page.locator("#hits .right").count() + page.locator("#hits .wrong").count() == 24
        assert page.locator("#times").is_hidden()  # for those who ask for the bits
        page.check("#with-bits")
        assert re.fullmatch(r"[\d.]+ ms", page.inner_text("#time-search"))
        until(page, "[...document.images].slice(0, 10).every(i => i.complete && i.naturalWidth > 0)")


def test_the_bits_that_differ_are_as_many_as_the_distance(browser, url):
    with opened(browser, url) as page:
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


def test_samples_the_slider_and_hits_search_again(browser, url):
    with opened(browser, url) as page:
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


def test_the_keyboard_is_enough(browser, url):
    with opened(browser, url) as page:
        seen = []
        for _ in range(34):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.id || document.activeElement.closest('[id]')?.id"))
            outline = page.evaluate(
                """(e => [e, e.nextElementSibling].filter(Boolean)
                     .some(x => getComputedStyle(x).outlineStyle !== 'none'))(document.activeElement)"""
            )
            assert outline, seen[-1]  # one can see where one is
        assert {"theme", "file", "more", "samples", "amount", "id", "with-bits", "share", "hits"} <= set(seen)
        page.locator("#samples button").nth(3).focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#samples li:nth-child(4) button[aria-pressed=true]")
        page.locator("#amount").focus()
        page.keyboard.press("ArrowRight")
        wait_for_hits(page, 25)


def test_uploads_good_and_bad(browser, url, digits):
    X, y = digits[2], digits[3]
    with opened(browser, url) as page:
        good = png((255 - X[0].reshape(8, 8) * 255 / 16).astype(np.uint8))
        page.set_input_files("#file", {"name": "mine.png", "mimeType": "image/png", "buffer": good})
        until(page, "document.getElementById('query-name').textContent === 'mine.png'")
        assert f"most often {y[0]}" in page.inner_text("#status")
        assert page.locator("#hits .right").count() == 0  # nobody said what it is
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
def test_nothing_is_wider_than_the_screen(browser, url, width):
    with opened(browser, url, width=width, height=780) as page:
        page.evaluate("document.getElementById('options').open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = page.evaluate(
            "[...document.querySelectorAll('button, input:not([type=radio]), .choice span, nav a, summary')]"
            ".filter(e => innerWidth > 736 || !e.closest('#samples'))"  # on a phone these are swiped through
            ".map(e => [e.id || e.className || e.textContent, e.getBoundingClientRect()])"
            ".filter(([, r]) => r.width).map(([n, r]) => [n, r.width, r.height, r.left, r.right])"
        )
        assert len(boxes) > 20
        for name, w, h, left, right in boxes:
            assert left >= 0, name
            assert right <= width, name
            assert min(w, h) >= 24, (name, w, h)  # large enough for a finger
        page.goto(url + "/docs")
        page.wait_for_selector("article")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_everything_has_a_name_for_screen_readers(browser, url):
    with opened(browser, url) as page:
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
def test_text_can_be_read(browser, url, scheme):
    with opened(browser, url, scheme=scheme) as page:
        assert page.get_attribute("html", "data-theme") == scheme
        page.set_input_files("#file", {"name": "b.png", "mimeType": "image/png", "buffer": b"x"})
        page.wait_for_selector("#error:not([hidden])")
        texts = page.evaluate(CONTRAST)
        page.locator("#samples button").first.click()
        page.wait_for_selector("#hits li")
        texts += page.evaluate(CONTRAST)
        assert len(texts) > 60
        assert [text for text in texts if text[1] < 4.5] == []  # WCAG AA


def test_dark_and_light_by_the_button_and_kept(browser, url):
    with opened(browser, url) as page:
        paper = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(paper)
        page.click("#theme")
        assert page.inner_text("#theme") == "Light theme"  # what the next click does
        assert page.evaluate(paper) != before
        page.reload()
        assert page.get_attribute("html", "data-theme") == "dark"


def test_vectors_without_pictures(browser, digits):
    from dish import DISH

    X, y, _, _ = digits
    hasher = DISH(n_bits=24, n_anchors=40, random_state=0).fit(X[:300], y[:300])
    index = HammingIndex(24)
    index.add(hasher.transform(X[:300]), ids=[f"row<{i}>" for i in range(300)], labels=y[:300])
    with serving(Collection(hasher, index)) as url, opened(browser, url, width=360, height=780) as page:
        assert page.locator("#drop").is_hidden()
        assert page.locator("img").count() == 0
        page.click("#options summary")
        page.fill("#id", "row<7>")
        page.press("#id", "Enter")
        until(page, "document.getElementById('query-name').textContent === 'Item row<7>'")
        assert page.locator("#hits .name").count() == 24
        assert "itself" in page.inner_text("#hits")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_token_is_asked_for(browser, digits_demo):
    limits = Limits(token="sesame")
    with serving(digits_demo, limits) as url, opened(browser, url, hits=False) as page:
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


def test_the_page_of_the_api_shows_every_route(browser, url):
    with opened(browser, url + "/docs", hits=False) as page:
        page.wait_for_selector("article")
        text = page.inner_text("#routes")
        for route in ("POST /search", "POST /encode", "POST /items", "GET /health", "GET /metrics"):
            assert route in text
        page.click("summary >> nth=0")
        assert "vector" in page.inner_text("details[open] pre")
