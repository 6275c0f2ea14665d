"""A page in a real browser (Chromium)."""

import re
import shutil
import time
from contextlib import contextmanager

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run", "--disable-dev-shm-usage"]

needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(
        BROWSER is None, reason="no browser found: `sh tests/web/install_chromium.sh` as root installs one"
    ),
]


@contextmanager
def opened(browser, url, width=1280, height=900, scheme="light", hits=True):
    """Open a page. At the end, check that it had no errors and sent requests to its own server only."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(10_000)
    problems, asked = [], set()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.add(re.sub(r"^(blob:)?(https?://[^/]+).*", r"\2", request.url)))
    page.goto(url)
    if hits:
        page.wait_for_selector("#hits li")
    yield page
    page.close()
    assert problems == []
    assert asked == {re.match(r"https?://[^/]+", url)[0]}


def until(page, expression, seconds=10):
    """Wait until an expression is true. (Playwright's own function needs eval, which the page's policy forbids.)"""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


def wait_for_hits(page, n):
    until(page, f"document.querySelectorAll('#hits li').length === {n}")
