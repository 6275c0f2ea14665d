"""Exact search over packed codes: ``HammingIndex``.

``hamming`` writes and publishes ``snapshot``s, which answer. ``views`` make them fast (``grouping``, ``multiindex``)
where ``scan`` would go through all rows; ``ids``, ``vocabulary`` and ``words`` hold what a row is.
"""

from dish.index.hamming import HammingIndex
from dish.index.snapshot import Snapshot

__all__ = ["HammingIndex", "Snapshot"]
