"""Drift of a running server: which queries are counted, the window, several workers, and the gauges."""

import re

import numpy as np
import pytest

from dish.evaluation.drift import drift
from dish.web import drift_metrics
from dish.web.drift_metrics import DriftGauges, DriftMonitor
from dish.web.prometheus_metrics import METRICS_FOLDER
from helpers.web import make_client


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [1000.0]
    monkeypatch.setattr(drift_metrics.time, "monotonic", lambda: now[0])
    return now


def gauges(text):
    """Name and label → value of the gauges of drift."""
    lines = re.findall(r'^dish_drift_(\w+)(?:\{of="(\w+)"\})? (\S+)$', text, re.MULTILINE)
    return {(name, of): float(value) for name, of, value in lines}


def test_metrics_have_the_numbers_of_dish_drift(learned, digits):
    client, queries = make_client(learned), digits[2][:60].astype(np.float32)
    assert gauges(client.get("/metrics").text) == {}
    for row in queries[:30]:
        assert client.post("/search", json={"vector": row.tolist()}).status_code == 200
    client.post("/encode", json={"vectors": queries[30:].tolist()})
    client.post("/search", json={"id": 1000})  # not a new row
    found, expected = gauges(client.get("/metrics").text), drift(learned[0], queries)
    assert (found["n", ""], found["score", ""]) == (60, expected.score)
    assert found["unknown", ""] == expected.unknown
    for name, change in expected.changes.items():
        assert found["distance", name] == pytest.approx(change.distance)
        assert found["beyond_chance", name] == pytest.approx(change.beyond_chance)


def test_shifted_queries_raise_the_score(learned, digits):
    client = make_client(learned)
    client.post("/encode", json={"vectors": (3 * digits[2][:100] + 4).tolist()})
    assert gauges(client.get("/metrics").text)["score", ""] > 0.1


def test_items_that_are_added_are_not_queries(learned, digits):
    client = make_client(learned)
    client.post("/items", json={"ids": [1], "vectors": digits[2][:1].tolist()})
    assert gauges(client.get("/metrics").text) == {}


def test_a_busy_server_counts_a_sample(learned, digits, clock):
    monitor = DriftMonitor(learned[0])
    for _ in range(10):
        monitor.observe(digits[0][:60])
    assert monitor.drift().n == drift_metrics.BURST
    clock[0] += 2.0
    monitor.observe(digits[0][:1000])
    assert drift_metrics.BURST < monitor.drift().n <= drift_metrics.BURST + 2 * drift_metrics.ROWS_PER_SECOND


def test_the_window_forgets_old_queries(learned, digits, clock):
    monitor = DriftMonitor(learned[0])

    def ask(X, rounds):
        for _ in range(rounds):
            clock[0] += 100.0
            monitor.observe(X[:100].astype(np.float32))

    ask(5 * digits[0] + 9, 5)
    assert monitor.drift().score > 0.1
    ask(digits[0][700:], 30)
    assert monitor.drift().score < 0.1
    assert 1000 < monitor.drift().n <= 2400


def test_workers_report_the_sum(learned, digits, tmp_path, monkeypatch):
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path))
    X = digits[2].astype(np.float32)
    for pid, rows in ((11, X[:40]), (12, X[40:70]), (13, X[70:80])):
        monkeypatch.setattr(drift_metrics.os, "getpid", lambda pid=pid: pid)
        monitor = DriftMonitor(learned[0])
        monitor.observe(rows)
        (tmp_path / f"gauge_livesum_{pid}.db").touch()
    (tmp_path / "gauge_livesum_13.db").unlink()  # a worker that died
    expected = drift(learned[0], X[:70])
    assert monitor.drift().to_dict() == expected.to_dict()
    assert not list(tmp_path.glob("*.new"))


class WithoutProfile:
    """A hasher that tells nothing."""


def test_a_model_without_a_profile_has_no_gauges():
    monitor = DriftMonitor(WithoutProfile())
    monitor.observe(np.zeros((3, 4)))
    assert list(DriftGauges(lambda: monitor).collect()) == []
