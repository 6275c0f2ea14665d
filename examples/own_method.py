"""A method of one's own beside the others, in 30 lines: random hyperplanes through the class means.

    dish bench --data digits --methods dish,lsh,own_method:MeanHash --bits 32        (from this folder)

The class is all that is needed: `Hasher` gives it transform, save, checks and scikit-learn's ways.
"""

import numpy as np
from sklearn.utils import check_random_state

from dish.hasher import Hasher


class MeanHash(Hasher):
    """Bits are signs of random mixtures of the centred class means: each separates some classes from others."""

    _needs_y = True
    _state = ("mean_", "W_")  # what a model file keeps

    def __init__(self, n_bits=64, random_state=0):  # every method takes these two
        self.n_bits = n_bits
        self.random_state = random_state

    def fit(self, X, y=None):
        """Learn from rows X (n, d) and classes y (n,)."""
        r = self._check_n_bits()
        self._require_y(y)
        X = self._check_X(X, reset=True)
        means = np.stack([X[np.asarray(y) == c].mean(0) for c in np.unique(y)])  # (c, d)
        self.mean_ = means.mean(0)
        mixture = check_random_state(self.random_state).standard_normal((len(means), r))
        self.W_ = (means - self.mean_).T @ mixture  # (d, r)
        return self

    def _decision_values(self, X):
        return (X - self.mean_) @ self.W_
