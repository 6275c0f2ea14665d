"""
Your own method in 30 lines
===========================

Random projections of the class means, compared with other methods by::

    PYTHONPATH=examples dish bench --data digits --methods dish,lsh,own_method:MeanHash --bits 32

The command works in the root of the repository and in this folder: ``dish`` finds modules in the current folder and
on Python's path. Nothing else is needed: ``Hasher`` provides transform, save, checks, and scikit-learn's interface.
"""

import numpy as np
from sklearn.utils import check_random_state

from dish.hasher import Hasher


class MeanHash(Hasher):
    """Each bit is the sign of a random combination of the centred class means, and so separates some classes."""

    _needs_y = True
    _state = ("mean_", "W_")  # the content of a model file

    def __init__(self, n_bits=64, random_state=0):  # every method has these two
        self.n_bits = n_bits
        self.random_state = random_state

    def fit(self, X, y=None):
        """Learn from rows X (n, d) and classes y (n,)."""
        r = self._check_n_bits()
        self._require_y(y)
        X = self._check_X(X, reset=True)
        means = np.stack([X[np.asarray(y) == c].mean(0) for c in np.unique(y)])  # (c, d)
        self.mean_ = means.mean(0)
        weights = check_random_state(self.random_state).standard_normal((len(means), r))
        self.W_ = (means - self.mean_).T @ weights  # (d, r)
        return self

    def _decision_values(self, X):
        return (X - self.mean_) @ self.W_


if __name__ == "__main__":  # compared with random projections, on digits
    import matplotlib.pyplot as plt
    from sklearn.datasets import load_digits

    from dish import metrics
    from dish.baselines import REGISTRY

    X, y = load_digits(return_X_y=True)
    query = np.arange(len(X)) % 6 == 0
    scores = {}
    for name, kind in {"MeanHash": MeanHash, "LSH": REGISTRY["lsh"]}.items():
        scores[name] = []
        for r in (8, 16, 32, 64):
            hasher = kind(n_bits=r).fit(X[~query], y[~query])
            codes = hasher.transform(X[query]), hasher.transform(X[~query])
            scores[name].append(metrics.mean_average_precision(codes[0], y[query], codes[1], y[~query]))
        plt.plot((8, 16, 32, 64), scores[name], "o-", label=name)
    plt.xlabel("bits")
    plt.ylabel("MAP")
    plt.legend()
    plt.show()
