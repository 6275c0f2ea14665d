"""Metrics of a running server in the Prometheus text format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's variable: the workers of one server count there


class ServerMetrics:
    """Requests by method, route and status, their duration, the number in progress, saved items, and the process.

    Routes are path templates, not the paths that clients send, so that their number is bounded. Every app has its
    own registry. With several workers, each of them reports the sums over all; process statistics have the label
    ``worker``, the process id.
    """

    def __init__(self) -> None:
        own, self.registry = CollectorRegistry(), CollectorRegistry()
        self.requests = Counter("dish_requests", "Requests answered.", ("method", "route", "status"), registry=own)
        self.seconds = Histogram("dish_request_seconds", "Time to answer.", ("route",), buckets=BUCKETS, registry=own)
        self.items = Counter("dish_items_saved", "Items saved, by kind of label.", ("label",), registry=own)
        self.in_flight = Gauge("dish_in_flight", "Requests in progress.", registry=own, multiprocess_mode="livesum")
        if METRICS_FOLDER in os.environ:
            MultiProcessCollector(self.registry)
            self.registry.register(_WorkerProcesses())
        else:
            self.registry.register(own)
            ProcessCollector(registry=self.registry)

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when the metrics are read."""
        self.registry.register(_ComputedGauge(name, description, value))

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one finished request."""
        self.requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def count_items(self, labels: Sequence[Any], n_known: int) -> None:
        """Count saved items: ``n_known`` of their labels are classes of the model; None stands for no label."""
        n_none = sum(label is None for label in labels)
        for kind, n in (("known", n_known), ("unknown", len(labels) - n_none - n_known), ("none", n_none)):
            self.items.labels(kind).inc(n)

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self.registry)


def living_workers() -> list[int]:
    """The process ids of the workers of this server: each living one has a file of gauges."""
    files = Path(os.environ[METRICS_FOLDER]).glob("gauge_livesum_*.db")
    return sorted(int(file.stem.rpartition("_")[2]) for file in files)


def forget_worker(pid: int) -> None:
    """Delete the gauges of a dead worker: its requests are no longer in progress. Its counters stay."""
    mark_process_dead(pid)


class _ComputedGauge:
    """A gauge that is not stored: it is the same for all workers."""

    def __init__(self, name: str, description: str, value: Callable[[], float]) -> None:
        self.name, self.description, self.value = name, description, value

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(self.name, self.description, value=self.value())


class _WorkerProcesses:
    """Memory, processor time and other statistics of every living worker."""

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for pid in map(str, living_workers()):
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                merged = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    merged.add_sample(sample.name, {**sample.labels, "worker": pid}, sample.value)
        yield from found.values()
