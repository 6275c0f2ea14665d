"""Addresses and warnings."""

import pytest

from dish.web import sockets
from dish.web.limits import Limits


def test_rejects_an_address_in_use():
    first = sockets.listen("127.0.0.1", 0)
    with first, pytest.raises(OSError, match="cannot listen"):
        sockets.listen("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize(
    ("token", "says"), [(None, "ANYONE"), ("t", "It can be guessed"), ("a long random token", "A token is required")]
)
def test_warns_if_other_machines_can_reach_the_server(token, says, capsys):
    found = sockets.limits_for_host(Limits(token=token), "0.0.0.0", ["search.example"])
    assert "search.example" in found.hosts
    assert found.any_address
    assert says in capsys.readouterr().err


def test_no_warning_on_loopback(capsys):
    assert not sockets.limits_for_host(Limits(), "127.0.0.1", []).any_address
    assert capsys.readouterr().err == ""


def test_url_of_an_ipv6_address():
    with sockets.listen("::1", 0) as listener:
        assert sockets.url("::1", listener) == f"http://[::1]:{listener.getsockname()[1]}/"
