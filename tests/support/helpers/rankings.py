"""Random codes and labels, and their scores by sorting."""

import numpy as np

RNG = np.random.default_rng(0)


def make_codes(nq=9, nb=60, r=12, multi=False):
    """(q_codes, q_labels, db_codes, db_labels), all random; classes, or label sets if ``multi``."""
    q, b = (np.packbits(RNG.random((n, r)) < 0.5, axis=1) for n in (nq, nb))
    if multi:
        yq, yb = ((RNG.random((n, 70)) < 0.05).astype(int) for n in (nq, nb))
    else:
        yq, yb = RNG.integers(0, 3, nq), RNG.integers(0, 3, nb)
    return q, yq, b, yb


def relevance(yq, yb):
    """Which rows are relevant to which queries, (n_queries, n)."""
    return (yq @ yb.T) > 0 if yq.ndim == 2 else yq[:, None] == yb[None]


def sorted_ap(order, relevant, k=None):
    """Average precision of the first k places of an order of the rows."""
    hits = relevant[order][:k]
    ranks = np.flatnonzero(hits) + 1
    return (np.arange(1, len(ranks) + 1) / ranks).mean() if len(ranks) else 0.0
