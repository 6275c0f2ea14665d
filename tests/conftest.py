"""Data shared by the tests."""

import numpy as np
import pytest

from dish import compiled
from helpers.cli import run

compiled.ENOUGH = 0  # small data go through the kernels here; test_compiled.py has what NumPy does in their place


@pytest.fixture(scope="session")
def digits():
    """Real handwritten digits: (X, y, Xq, yq)."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order[200:]], y[order[200:]], X[order[:200]], y[order[:200]]


@pytest.fixture
def blobs():
    """Three well separated groups of 40 rows."""
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1, 2], 40)
    X = rng.standard_normal((120, 6)) + 6 * np.eye(3, 6)[y]
    return X, y


@pytest.fixture
def cli(capsys, monkeypatch):
    """Exit code, output and errors of a command line."""
    return lambda *args: run(capsys, monkeypatch, *args)
