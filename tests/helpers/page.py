"""A server in a thread and a page in a real browser (Chromium), for the tests of the page."""

import re
import shutil
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from dish.web.app import create_app

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run", "--disable-dev-shm-usage"]

needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(
        BROWSER is None, reason="no browser here: `sh tests/web/install_chromium.sh` as root installs one"
    ),
]


@contextmanager
def serving(collection, limits=None):
    """The address of a server in a thread."""
    config = uvicorn.Config(create_app(collection, limits), port=0, log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(15)


@contextmanager
def opened(browser, url, width=1280, height=900, scheme="light", hits=True):
    """A page that complains about nothing and asks nobody else."""
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
    """Wait until it holds. (Playwright's own waiting needs eval, which the page's security policy forbids.)"""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


def wait_for_hits(page, n):
    until(page, f"document.querySelectorAll('#hits li').length === {n}")
