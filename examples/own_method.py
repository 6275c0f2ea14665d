"""Your own method in 30 lines: random projections of the class means.

    PYTHONPATH=examples dish bench --data digits --methods dish,lsh,own_method:MeanHash --bits 32

The command works in the root of the repository and in this folder: ``dish`` finds modules in the current folder and
on Python's path. Nothing else is needed: `Hasher` provides transform, save, checks, and scikit-learn's interface.
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
