"""Progress bars and the time of each stage."""

import io
import re
import threading
import time

import numpy as np
import pytest

from dish import DISH
from dish import progress as module
from dish.progress import Stopwatch, progress, rounds


class Terminal(io.StringIO):
    def isatty(self):
        return True


def use_terminal(monkeypatch, patience=0.0):
    """Make standard error a terminal. Not a fixture: pytest sets standard error before every phase of a test."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(module, "PATIENCE", patience)
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("RANK", raising=False)
    return screen


def test_a_bar_with_the_remaining_time_is_shown_on_a_terminal(monkeypatch):
    terminal = use_terminal(monkeypatch)
    with progress("encoding", 10) as advance:
        for _ in range(5):
            advance(1)
    assert "encoding" in terminal.getvalue()
    assert "50%" in terminal.getvalue()
    assert re.search(r"0:\d\d left", terminal.getvalue())
    assert module._bar.shown is None


@pytest.mark.parametrize("reason", ["quick", "rank", "no terminal", "thread"])
def test_no_bar_is_shown(reason, monkeypatch):
    terminal = use_terminal(monkeypatch, patience=60.0 if reason == "quick" else 0.0)
    if reason == "rank":
        monkeypatch.setenv("RANK", "1")
    if reason == "no terminal":
        monkeypatch.setattr(Terminal, "isatty", lambda self: False)

    def work():
        with progress("encoding", 10) as advance:
            advance(10)

    if reason == "thread":
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    assert terminal.getvalue() == ""


def test_blocks_share_one_bar_and_count_for_the_one_around_them(monkeypatch):
    use_terminal(monkeypatch, patience=60.0)
    with progress("fit"), progress("selection", 4):
        with progress("stage"):  # without a total: passes on what is inside
            with progress("regression", 10, counts=2) as advance:
                advance(5)
                outer, done = module._bar._outermost()
                assert (outer.title, done) == ("selection", 1)
            with progress("silent", 10) as advance:
                advance(10)
        outer, done = module._bar._outermost()
        assert (outer.title, done) == ("selection", 2)
    assert module._bar.blocks == []


def test_an_error_removes_the_bar(monkeypatch):
    use_terminal(monkeypatch)
    with pytest.raises(ZeroDivisionError), progress("fit"), progress("stage", 3) as advance:
        advance(1 // 0)
    assert module._bar.blocks == []
    assert module._bar.shown is None


def test_a_fit_shows_its_stages(monkeypatch, digits):
    X, y, *_ = digits
    terminal = use_terminal(monkeypatch)
    DISH(16, n_anchors=20).fit(X[:200], y[:200])
    for stage in ("DISH", "features", "selection · regression", "left"):
        assert stage in terminal.getvalue()


def test_a_bar_changes_no_code(monkeypatch, digits):
    X, y, *_ = digits
    plain = DISH(16, n_anchors=20).fit(X[:200], y[:200]).codes_
    use_terminal(monkeypatch)
    assert np.array_equal(DISH(16, n_anchors=20).fit(X[:200], y[:200]).codes_, plain)


def test_rounds_are_a_range_with_progress(monkeypatch):
    terminal = use_terminal(monkeypatch)
    assert list(rounds(4)) == [0, 1, 2, 3]
    assert "75%" in terminal.getvalue()
    for i in rounds(4, "bits"):
        if i == 1:
            break
    assert module._bar.blocks == []


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


def test_remaining_times_are_readable():
    assert [module._clock(s) for s in (0.4, 61, 3725)] == ["0:00", "1:01", "1:02:05"]
