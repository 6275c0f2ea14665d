"""What the tests of the service share."""

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

from dish import DISH
from helpers.page import BROWSER, FLAGS
from helpers.web import make_client, make_index


@pytest.fixture(scope="session")
def learned(digits):
    """A hasher, rows, labels and the ids they have in the index."""
    X, y, _, _ = digits
    return (
        DISH(n_bits=32, n_anchors=60, random_state=0).fit(X[:600], y[:600]),
        X[:600],
        y[:600],
        np.arange(1000, 1600),
    )


@pytest.fixture(scope="module")
def client(learned):
    return make_client(learned)


@pytest.fixture
def files(learned, tmp_path):
    learned[0].save(tmp_path / "m.dish")
    make_index(learned).save(tmp_path / "ix.dish")
    return tmp_path


@pytest.fixture(scope="module")  # while it is open, its event loop is in the way of others
def browser():
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield chromium
        chromium.close()
