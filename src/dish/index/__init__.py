"""Exact search over packed codes: ``HammingIndex``, its snapshots, groupings and scan kernels."""

from dish.index.hamming import HammingIndex

__all__ = ["HammingIndex"]
