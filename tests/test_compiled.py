"""Kernels compile on machines that keep no cache, and loading them changes nothing for the rest of the process."""

import os
import subprocess
import sys

import numba
import pytest

from dish.compiled import njit

EVERYTHING = """
import numpy as np
from dish import DISH, HammingIndex, metrics
X = np.random.default_rng(0).standard_normal((60, 4)); y = np.arange(60) % 3
hasher = DISH(n_bits=8, n_anchors=10, device="cpu").fit(X, y)
codes = hasher.transform(X)
index = HammingIndex(8); index.add(codes); index.search(codes, 3)
print(metrics.mean_average_precision(codes, y, codes, y))
"""
NO_CACHE = "import numba.core.caching as c; c.CacheImpl._locator_classes = []"


def python(code, **environment):
    kept = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "NUMBA_CACHE_DIR")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**kept, **environment}, capture_output=True, text=True, timeout=280
    )


@pytest.mark.slow
def test_nothing_fails_where_no_cache_can_be_kept():
    """A read-only installation without a writable home: numba finds no folder for its cache."""
    done = python(NO_CACHE + EVERYTHING)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) > 0


def test_only_a_missing_cache_folder_is_forgiven(monkeypatch):
    def broken(**options):
        raise RuntimeError("cannot cache function 'f': " + reason)

    monkeypatch.setattr(numba, "njit", broken)
    for reason in ("the disk burns", "no locator available for file"):
        with pytest.raises(RuntimeError, match=reason):
            njit(cache="burns" in reason)(abs)


def test_importing_dish_leaves_the_environment_alone():
    done = python("import os; before = dict(os.environ); import dish.codes; assert dict(os.environ) == before")
    assert done.returncode == 0, done.stderr[-2000:]


def test_threads_of_kernels_do_not_spin_unless_asked_to():
    shown = python("import dish.codes", OMP_DISPLAY_ENV="VERBOSE").stderr
    assert "GOMP_SPINCOUNT = '0'" in shown or "GOMP" not in shown
    chosen = python("import dish.codes", OMP_DISPLAY_ENV="VERBOSE", OMP_WAIT_POLICY="ACTIVE").stderr
    assert "GOMP_SPINCOUNT = '0'" not in chosen
