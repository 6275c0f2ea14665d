"""Networks as hash functions: ``DeepDISH``, and ``DeepHasher``, which the deep rivals share.

A fit goes through ``data`` (what it learns from), ``model`` (the network), ``training`` (rounds of SGD, by one or
several processes) and ``checkpoint``; ``hasher`` is the contract, ``dish`` the method, with ``codewords``, ``cycles``
and ``top`` for training towards codewords and ``kernel_top`` for frozen networks. ``features`` are those of a network
that is not trained.
"""

from dish.deep.deep_dish import DeepDISH
from dish.deep.deep_hasher import DeepHasher

__all__ = ["DeepDISH", "DeepHasher"]
