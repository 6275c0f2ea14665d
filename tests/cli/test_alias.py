"""`dish alias`."""

import json

import numpy as np
import pytest

from dish import DISH, HammingIndex


@pytest.fixture
def folder(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 5))
    for i in (1, 2):
        hasher = DISH(n_bits=8, n_anchors=20, random_state=i).fit(X, X[:, 0] > 0)
        hasher.save(tmp_path / f"m{i}.dish")
        index = HammingIndex(8, model=hasher.fingerprint_)
        index.add(hasher.transform(X))
        index.save(tmp_path / f"ix{i}.dish")
    return tmp_path


def test_set_show_and_roll_back(cli, folder):
    alias = folder / "p.alias"
    for i in (1, 2):
        code, out, _ = cli("alias", "set", alias, "--model", folder / f"m{i}.dish", "--index", folder / f"ix{i}.dish")
        assert code == 0
        assert f"m{i}.dish" in out
        assert "60 items, codes of 8 bits, DISH" in out
    code, out, _ = cli("alias", "show", alias, "--json")
    shown = json.loads(out)
    assert shown["current"]["index"].endswith("ix2.dish")
    assert shown["previous"]["index"].endswith("ix1.dish")
    code, out, _ = cli("alias", "rollback", alias)
    assert (code, "ix1.dish" in out) == (0, True)
    code, out, _ = cli("alias", "show", alias)
    assert out.index("ix1.dish") < out.index("ix2.dish")


def test_errors_are_one_line(cli, folder):
    code, _, errors = cli(
        "alias", "set", folder / "p.alias", "--model", folder / "m1.dish", "--index", folder / "ix2.dish"
    )
    assert (code, errors.count("\n")) == (2, 1)
    assert "cannot be compared" in errors
    code, _, errors = cli("alias", "show", folder / "p.alias")
    assert (code, "dish alias set" in errors) == (2, True)
