"""Codes of several kinds, and what a search over them must find."""

import numpy as np

from dish import HammingIndex, codes

KINDS = ("random", "clustered", "duplicates", "one code")


def make(kind, n, n_bits, seed=0):
    rng = np.random.default_rng(seed)
    H = rng.standard_normal((n, n_bits))
    if kind == "clustered":
        H = 4 * rng.standard_normal((20, n_bits))[rng.integers(0, 20, n)] + H
    if kind == "duplicates":
        H = H[rng.integers(0, max(1, n // 100), n)]
    if kind == "one code":
        H[:] = H[:1]
    return codes.pack(H)


def queries_of(B, n, n_bits, seed=1):
    """Half of them rows with a few bits turned, half random."""
    rng = np.random.default_rng(seed)
    near = codes.unpack(B[rng.integers(0, len(B), n // 2)], n_bits)
    near = near * np.where(rng.random(near.shape) < 2 / n_bits, -1, 1)
    return np.concatenate([codes.pack(near), make("random", n - n // 2, n_bits, seed)])


def brute_nearest(Q, B, k):
    """All distances, stable sort: equal distances in the order of rows."""
    D = codes.hamming(Q, B)
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, 1), order


def assert_radius(found, Q, B, radius, ids=None):
    lims, D, N = found
    W = codes.hamming(Q, B)
    assert lims[0] == 0
    assert lims[-1] == len(D) == len(N)
    for i in range(len(Q)):
        rows = np.flatnonzero(W[i] <= radius)
        rows = rows[np.argsort(W[i][rows], kind="stable")]
        np.testing.assert_array_equal(D[lims[i] : lims[i + 1]], W[i][rows])
        np.testing.assert_array_equal(N[lims[i] : lims[i + 1]], rows if ids is None else ids[rows])


def view_of(ix):
    return ix.snapshot().generation.views.newest


def settled(B, n_bits, n_queries=200):
    """An index that has been searched enough to have grouped its rows and listed them by bits."""
    ix = HammingIndex(n_bits)
    ix.add(B)
    ix.search(B[:n_queries], 1)
    ix.radius_search(B[:n_queries], 0)
    return ix
