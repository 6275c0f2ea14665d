"""Codes of several kinds, and the results that a search over them must return."""

import numpy as np

from dish import HammingIndex, codes

KINDS = ("random", "clustered", "duplicates", "one code")


def make_codes(kind, n, n_bits, seed=0):
    rng = np.random.default_rng(seed)
    H = rng.standard_normal((n, n_bits))
    if kind == "clustered":
        H = 4 * rng.standard_normal((20, n_bits))[rng.integers(0, 20, n)] + H
    if kind == "duplicates":
        H = H[rng.integers(0, max(1, n // 100), n)]
    if kind == "one code":
        H[:] = H[:1]
    return codes.pack(H)


def make_queries(B, n, n_bits, seed=1):
    """Return queries of which half are rows of B with a few bits flipped, and half are random."""
    rng = np.random.default_rng(seed)
    near = codes.unpack(B[rng.integers(0, len(B), n // 2)], n_bits)
    near = near * np.where(rng.random(near.shape) < 2 / n_bits, -1, 1)
    return np.concatenate([codes.pack(near), make_codes("random", n - n // 2, n_bits, seed)])


def all_distances(Q, B):
    """Return the Hamming distances (n_queries, n) without the library's own functions."""
    D = np.zeros((len(Q), len(B)), np.int32)
    for q, b in zip(Q.T, B.T, strict=True):  # byte by byte
        D += np.bitwise_count(q[:, None] ^ b)
    return D


def brute_nearest(Q, B, k):
    """Return the k nearest rows from a stable sort of all distances: ties come in row order."""
    D = all_distances(Q, B)
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, 1), order


def brute_within(Q, B, radius):
    """Return (lims, distances, rows) of all rows within the radius, by distance, then by row."""
    W = all_distances(Q, B)
    rows = [np.argsort(w, kind="stable")[: (w <= radius).sum()] for w in W]
    lims = np.cumsum([0, *map(len, rows)])
    none = np.empty(0, np.int64)
    return lims, np.concatenate([none, *(w[r] for w, r in zip(W, rows, strict=True))]), np.concatenate([none, *rows])


def assert_radius(found, Q, B, radius, ids=None):
    lims, D, rows = brute_within(Q, B, radius)
    np.testing.assert_array_equal(found[0], lims)
    np.testing.assert_array_equal(found[1], D)
    np.testing.assert_array_equal(found[2], rows if ids is None else ids[rows])


def assert_same(found, wanted):
    """Check that two tuples of arrays are equal, including their types."""
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def accelerator_of(ix):
    return ix.snapshot().generation.accelerators.newest


def searched_index(B, n_bits, n_queries=200):
    """Return an index that has been searched often enough to have grouped its rows and listed them by bits."""
    ix = HammingIndex(n_bits)
    ix.add(B)
    ix.search(B[:n_queries], 1)
    ix.radius_search(B[:n_queries], 0)
    return ix
