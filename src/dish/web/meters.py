"""Counters of a running server, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

from dish.machine import resident

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class Meters:
    """Requests by method, route and status; how long they took; how many are under way.

    Used from the event loop only, so it needs no lock. Routes are the templates of the API, not the paths that
    clients send: their number is bounded.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.latency: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self.seconds: Counter[str] = Counter()
        self.in_flight = 0

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One finished request."""
        self.requests[method if method in METHODS else "other", route, status] += 1
        self.latency[route][bisect_left(BOUNDS, seconds)] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """All of it, with further gauges (name → (help, value))."""
        lines = ["# HELP dish_requests_total Requests answered.", "# TYPE dish_requests_total counter"]
        for (method, route, status), n in sorted(self.requests.items()):
            lines.append(f'dish_requests_total{{method="{method}",route="{route}",status="{status}"}} {n}')
        lines += ["# HELP dish_request_seconds Time to answer.", "# TYPE dish_request_seconds histogram"]
        for route, counts in sorted(self.latency.items()):
            total = 0
            for bound, n in zip([*map(str, BOUNDS), "+Inf"], counts, strict=True):
                total += n
                lines.append(f'dish_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}')
            lines.append(f'dish_request_seconds_sum{{route="{route}"}} {self.seconds[route]:.6f}')
            lines.append(f'dish_request_seconds_count{{route="{route}"}} {total}')
        own = {
            "dish_in_flight": ("Requests under way.", self.in_flight),
            "process_resident_memory_bytes": ("Resident memory.", resident("VmRSS")),
        }
        for name, (about, value) in {**own, **gauges}.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge", f"{name} {value:.15g}"]
        return "\n".join(lines) + "\n"
