"""Counters of a running server, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class Meters:
    """Requests by method, route and status; how long they took; how many are under way; the process.

    Routes are the templates of the API, not the paths that clients send, so their number is bounded. Each app has a
    registry of its own: two apps in one process do not add up.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dish_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "dish_request_seconds", "Time to answer.", ("route",), buckets=BOUNDS, registry=self.registry
        )
        self.in_flight = Gauge("dish_in_flight", "Requests under way.", registry=self.registry)
        ProcessCollector(registry=self.registry)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """A gauge that is read whenever the counters are."""
        Gauge(name, about, registry=self.registry).set_function(value)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One finished request."""
        self.requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self.registry)
