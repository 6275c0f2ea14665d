"""Boosted trees as plain arrays against scikit-learn's."""

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from dish.baselines import _trees as trees


@pytest.fixture
def rows():
    """Rows, and a sign that depends on three of their features."""
    X = np.random.default_rng(9).standard_normal((300, 5)).astype(np.float32)
    return X, np.where(X[:, 0] + X[:, 1] - X[:, 2] >= 0, 1.0, -1.0)


def test_complete_tree_predicts_what_scikit_learns_tree_predicts(rows):
    X, z = rows
    tree = DecisionTreeRegressor(max_depth=4, min_samples_leaf=30, random_state=0).fit(X, z)  # some leaves early
    f = trees.evaluate(X, *(part[None, None] for part in trees._complete(tree.tree_, 4, 0.5)))[:, 0]
    np.testing.assert_allclose(f, np.where(tree.predict(X) >= 0, 0.5, -0.5))


def test_more_trees_lower_the_training_error(rows):
    X, z = rows
    errors = []
    for n_trees in (1, 50):
        boosted = trees.boost(X, z, n_trees, 2, np.random.RandomState(0))
        errors.append((np.sign(trees.evaluate(X, *(part[None] for part in boosted))[:, 0]) != z).mean())
    assert errors[1] < errors[0] / 2
