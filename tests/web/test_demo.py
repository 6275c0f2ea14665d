"""The collections of `dish demo --serve`."""

import numpy as np
import pytest
from starlette.testclient import TestClient

from dish import DISH, datasets
from dish.datasets.gist import gist
from dish.web import demo
from dish.web.app import create_app
from helpers.web import upload


@pytest.mark.slow
def test_cifar10_is_trained_once_and_finds_uploads(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    stripes = np.sin(np.arange(32) * (1 + y[:, None]) / 2)[:, None, :, None]  # (120, 1, 32, 1)
    noise = rng.normal(0, 20, (120, 32, 32, 3))
    images = np.clip(128 + 60 * stripes + noise, 0, 255).astype(np.uint8)
    names = ("one", "two", "three", "four")
    photographs = datasets.Dataset("p", images, y, queries=5, label_names=names)
    rows = datasets.Dataset("g", gist(images, normalize=True), y, queries=5, label_names=names)
    monkeypatch.setattr(datasets, "load_cifar10", lambda: photographs)
    monkeypatch.setattr(datasets, "cifar10_gist", lambda: rows)
    monkeypatch.setenv("DISH_CACHE", str(tmp_path))
    found = demo.cifar10(n_train=80)
    assert len(found) == 100
    client = TestClient(create_app(found))
    right = 0
    for sample in client.get("/samples?n=20").json():
        picture = client.get(f"/images/{sample['picture']}").content
        right += upload(client, picture, k="5").json()["labels"].count(sample["label"])
    assert right >= 80  # of 100: the stripes are easy to tell apart
    monkeypatch.setattr(DISH, "fit", lambda *_: 1 / 0)
    assert len(demo.cifar10(n_train=80)) == 100  # the model comes from the cache
    for key in ("120", "sample-999", "sample-", "x", "-1", "²", "9" * 30):
        assert client.get(f"/images/{key}").status_code == 404, key


@pytest.mark.parametrize(
    ("options", "says"), [(["--serve", "--data", "cats"], "digits, cifar10"), (["--data", "cifar10"], "--serve")]
)
def test_rejects_an_unknown_demo(options, says, cli):
    code, _, errors = cli("demo", *options)
    assert code == 2
    assert says in errors
