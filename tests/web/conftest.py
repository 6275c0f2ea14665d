"""Fixtures of the tests of the service. There is one browser and one server of digits per session."""

import numpy as np
import pytest

from dish import DISH
from helpers.page import BROWSER, FLAGS
from helpers.quick import few_steps
from helpers.web import make_client, make_index, serving


@pytest.fixture(scope="session")
def learned(digits):
    """A hasher, its rows, their labels and their ids in the index."""
    X, y, _, _ = digits
    with few_steps():
        hasher = DISH(n_bits=32, n_anchors=60, random_state=0).fit(X[:600], y[:600])
    return hasher, X[:600], y[:600], np.arange(1000, 1600)


@pytest.fixture(scope="session")
def client(learned):
    """A client of a read-only service."""
    return make_client(learned)


@pytest.fixture
def files(learned, tmp_path):
    """A folder with the model m.dish and the index ix.dish."""
    learned[0].save(tmp_path / "m.dish")
    make_index(learned).save(tmp_path / "ix.dish")
    return tmp_path


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def digits_demo():
    """The collection of `dish demo --serve`."""
    from dish.web import demo

    with few_steps():
        return demo.digits()


@pytest.fixture(scope="session")
def digits_url(digits_demo):
    """The address of a server of the digits."""
    with serving(digits_demo) as (host, port):
        yield f"http://{host}:{port}"
