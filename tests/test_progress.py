"""Progress bars and the time of each stage."""

import io
import time

import pytest

from dish.progress import Stopwatch, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def use_terminal(monkeypatch):
    """Make standard error a terminal. Not a fixture: pytest sets standard error before every phase of a test."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("RANK", raising=False)
    return screen


def test_a_bar_is_shown_on_a_terminal(monkeypatch):
    terminal = use_terminal(monkeypatch)
    with progress("encoding", 10) as advance:
        for _ in range(10):
            advance(1)
            time.sleep(0.02)
    assert "encoding" in terminal.getvalue()


@pytest.mark.parametrize("reason", ["worth", "rank", "no terminal"])
def test_no_bar_is_shown(reason, monkeypatch):
    terminal = use_terminal(monkeypatch)
    if reason == "rank":
        monkeypatch.setenv("RANK", "1")
    if reason == "no terminal":
        monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    with progress("encoding", 10, worth=reason != "worth") as advance:
        advance(10)
    assert terminal.getvalue() == ""


def test_the_seconds_of_a_stage_add_up():
    watch = Stopwatch()
    watch.timings_ = {}
    for _ in range(2):
        with watch._stage("anchors"):
            time.sleep(0.02)
    with watch._stage("codes"):
        pass
    assert watch.timings_["anchors"] >= 0.04
    assert watch.timings_["codes"] < 0.04
