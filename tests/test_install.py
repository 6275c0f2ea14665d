"""Hints to install extras name the distribution that is installed."""

import pytest

from dish import install


@pytest.mark.parametrize(
    ("torch", "extras", "expected"),
    [
        (True, ["tables"], "pip install 'dish-hash[tables]'"),
        (False, ["tables"], "pip install 'dish-hash-encode[tables]'"),
        (False, ["serve", "tables"], "pip install 'dish-hash-encode[serve,tables]'"),
        (False, ["serve", "efficientnet"], "pip install 'dish-hash[serve,efficientnet]'"),
    ],
)
def test_a_hint_never_pulls_in_torch_unless_the_extra_needs_it(monkeypatch, torch, extras, expected):
    monkeypatch.setattr(install, "find_spec", lambda name: object() if torch else None)
    assert install.pip_install(*extras) == expected
