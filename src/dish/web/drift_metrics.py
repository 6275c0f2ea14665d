"""Drift of a running server: a sample of its queries, counted in the bins of the model's profile."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dish.evaluation.drift import Drift
from dish.metrics.profile import Counts, Profile
from dish.web.prometheus_metrics import METRICS_FOLDER, living_workers

ROWS_PER_SECOND = 20.0  # that are counted, at most: a larger sample would slow the service down
BURST = 100  # rows that may be counted at once after a pause
PARTS, ROWS_PER_PART = 8, 250  # of the window: the oldest part is dropped as a whole


class DriftMonitor:
    """Counts of the last 2,000 rows, or a little less, of a sample of the queries. No row is kept.

    Several workers of one server write their counts to files, and each of them reports the sum.
    """

    def __init__(self, hasher: Any) -> None:
        self.hasher = hasher
        self.profile: Profile | None = getattr(hasher, "profile_", None)
        self.lock = threading.Lock()
        self.parts: deque[Counts] = deque(maxlen=PARTS)
        self.allowed, self.last = float(BURST), time.monotonic()

    def observe(self, rows: Any) -> None:
        """Count a sample of rows (n, d), as the hasher takes them."""
        if self.profile is None:
            return
        with self.lock:
            now = time.monotonic()
            self.allowed = min(BURST, self.allowed + (now - self.last) * ROWS_PER_SECOND)
            self.last = now
            n = min(len(rows), int(self.allowed))
            self.allowed -= n
        if n == 0:
            return
        found = self.profile.nothing
        for traits in self.hasher.row_traits(rows[np.arange(n) * len(rows) // n]):
            found = found + self.profile.count(traits)
        self._add(self.profile, found)

    def _add(self, profile: Profile, found: Counts) -> None:
        with self.lock:
            if not self.parts or profile.n_rows(self.parts[-1]) >= ROWS_PER_PART:
                self.parts.append(profile.nothing)
            self.parts[-1] += found
            if METRICS_FOLDER in os.environ:
                self._publish(sum(self.parts, profile.nothing))

    def _publish(self, counts: Counts) -> None:
        """Write the counts where other workers find them. They need not survive a crash, so it does not wait."""
        file = self._file(os.getpid())
        temporary = file.with_suffix(".new")
        temporary.write_bytes(counts.tobytes())
        temporary.replace(file)

    def _file(self, pid: int) -> Path:
        return Path(os.environ[METRICS_FOLDER]) / f"drift_{self.hasher.fingerprint_}_{pid}.counts"

    def drift(self) -> Drift | None:
        """The drift of the queries in the windows of all workers; None if there were none yet, or no profile."""
        profile = self.profile
        if profile is None:
            return None
        if METRICS_FOLDER in os.environ:
            files = [file for pid in living_workers() if (file := self._file(pid)).exists()]
            parts = [np.frombuffer(file.read_bytes(), np.int64) for file in files]
        else:
            with self.lock:
                parts = [part.copy() for part in self.parts]
        counts = sum(parts, profile.nothing)
        return Drift.of(profile, counts) if profile.n_rows(counts) else None


class DriftGauges:
    """The numbers of ``dish drift --json`` as gauges. Before the first query there are no gauges."""

    def __init__(self, monitor: Callable[[], DriftMonitor]) -> None:
        self.monitor = monitor

    def collect(self) -> Iterator[Metric]:
        """Compute all gauges. The label ``of`` names what was compared, such as "entropy"."""
        found = self.monitor().drift()
        if found is None:
            return
        yield GaugeMetricFamily("dish_drift_n", "Queries in the window.", value=found.n)
        score = "At least this share of the queries is unlike the rows of the model's profile."
        yield GaugeMetricFamily("dish_drift_score", score, value=found.score)
        if found.unknown is not None:
            share = "Share of the queries that belong to no known class."
            yield GaugeMetricFamily("dish_drift_unknown", share, value=found.unknown)
        distance = GaugeMetricFamily("dish_drift_distance", "Distance from the profile, 0 to 1.", labels=("of",))
        beyond = GaugeMetricFamily(
            "dish_drift_beyond_chance", "The same beyond what chance explains.", labels=("of",)
        )
        for name, change in found.changes.items():
            distance.add_metric((name,), change.distance)
            beyond.add_metric((name,), change.beyond_chance)
        yield from (distance, beyond)
