"""Counters of a running server, in Prometheus' text format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # the folder where the workers of one server count; prometheus_client looks there


class Meters:
    """Requests by method, route and status; how long they took; how many are under way; the process.

    Routes are the templates of the API, not the paths that clients send, so their number is bounded. Each app has a
    registry of its own: two apps in one process do not add up. The workers of one server do, whichever of them is
    asked; what is said of a process has its number as the label ``worker`` then.
    """

    def __init__(self) -> None:
        own, self.registry = CollectorRegistry(), CollectorRegistry()
        self.requests = Counter("dish_requests", "Requests answered.", ("method", "route", "status"), registry=own)
        self.seconds = Histogram("dish_request_seconds", "Time to answer.", ("route",), buckets=BOUNDS, registry=own)
        self.in_flight = Gauge("dish_in_flight", "Requests under way.", registry=own, multiprocess_mode="livesum")
        if SHARED in os.environ:
            MultiProcessCollector(self.registry)
            self.registry.register(_Workers(Path(os.environ[SHARED])))
        else:
            self.registry.register(own)
            ProcessCollector(registry=self.registry)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """A gauge that is read whenever the counters are."""
        self.registry.register(_Watched(name, about, value))

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One finished request."""
        self.requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self.registry)


class _Watched:
    """A gauge that is not kept anywhere: with several workers it is the same for all of them."""

    def __init__(self, name: str, about: str, value: Callable[[], float]) -> None:
        self.name, self.about, self.value = name, about, value

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(self.name, self.about, value=self.value())


class _Workers:
    """Memory, processor time and the like of every worker that lives, by its number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # a file per worker and kind of metric; that of gauges goes with the worker

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for file in sorted(self.folder.glob("gauge_livesum_*.db")):
            number = file.stem.rpartition("_")[2]
            for metric in ProcessCollector(pid=partial(int, number), registry=None).collect():
                merged = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    merged.add_sample(sample.name, {**sample.labels, "worker": number}, sample.value)
        yield from found.values()
