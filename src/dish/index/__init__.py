"""Exact search over packed codes: ``HammingIndex``, which publishes an immutable ``Snapshot`` after every write.

A snapshot searches by ``scan`` or, faster, by ``accelerators``: ``grouping`` of equal codes, ``multiindex`` hashing.
``merge`` combines partial results; ``rescore`` orders a shortlist; ``ids``, ``hashtable`` and ``label_table`` hold
ids and labels; ``files`` saves.
"""

from dish.index.hamming import HammingIndex
from dish.index.snapshot import Snapshot

__all__ = ["HammingIndex", "Snapshot"]
