"""Lazy compilation: without a cache folder, without side effects on the process, and only if it pays."""

import os
import re
import subprocess
import sys

import numba
import numpy as np
import pytest

from dish import numba_lazy
from dish.codes import popcount
from dish.numba_lazy import njit, pays

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


def test_a_kernel_is_compiled_without_a_cache_folder(monkeypatch):
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])

    def thrice(x):
        return 3 * x

    with pytest.raises(RuntimeError, match="cannot cache function"):
        numba.njit(cache=True)(thrice)
    assert njit(cache=True)(thrice)(14) == 42


@pytest.mark.long
def test_works_without_a_cache_folder():
    """A read-only installation for a user without a home."""
    done = python(NO_CACHE + EVERYTHING)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) > 0


def test_ignores_only_the_error_about_a_missing_cache_folder(monkeypatch):
    def broken(**options):
        raise RuntimeError("cannot cache function 'f': " + reason)

    monkeypatch.setattr(numba, "njit", broken)
    for reason in ("the disk burns", "no locator available for file"):
        with pytest.raises(RuntimeError, match=reason):
            njit(cache="burns" in reason)(outer)(1)


def test_import_does_not_change_the_environment():
    done = python("import os; before = dict(os.environ); import dish.codes; assert dict(os.environ) == before")
    assert done.returncode == 0, done.stderr[-2000:]


def test_numba_threads_sleep_unless_the_user_asks_otherwise():
    use = "from dish.lazy import numba; numba.njit"
    shown = python(use, OMP_DISPLAY_ENV="VERBOSE").stderr
    assert "GOMP_SPINCOUNT = '0'" in shown or "GOMP" not in shown
    chosen = python(use, OMP_DISPLAY_ENV="VERBOSE", OMP_WAIT_POLICY="ACTIVE").stderr
    assert "GOMP_SPINCOUNT = '0'" not in chosen


def outer(x):
    return inner(x) + 1


def inner(x):
    return popcount(np.uint64(x))


def test_kernel_finds_other_kernels_of_its_module():
    """Lazy objects in the module are replaced at the first call."""
    names = {"np": np, "popcount": popcount}
    for function in (inner, outer):
        kernel = type(function)(function.__code__, names, function.__name__)
        names[function.__name__] = njit()(kernel)
    later = names["outer"]
    assert (later.signatures, later(7), len(later.signatures)) == ([], 4, 1)
    assert not [name for name, one in names.items() if isinstance(one, numba_lazy.LazyObject)]


@pytest.mark.long  # starts processes that load torch
@pytest.mark.parametrize("names", ["DISH", "DISH, load"])
def test_torch_threads_sleep_if_dish_imports_torch(names):
    code = "import os; policy = lambda: os.environ.get('OMP_WAIT_POLICY'); before = policy(); "
    code += f"from dish import {names}; from dish.lazy import torch; torch.zeros(1); assert policy() == before"
    done = python(code, OMP_DISPLAY_ENV="VERBOSE")
    assert done.returncode == 0, done.stderr[-2000:]
    shown = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert set(shown) <= {"0"}
    chosen = python(code, OMP_DISPLAY_ENV="VERBOSE", OMP_WAIT_POLICY="ACTIVE").stderr
    assert "GOMP_SPINCOUNT = '0'" not in chosen


def test_kernels_are_cached_and_the_first_compilation_is_announced(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DISH_CACHE", str(tmp_path))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(numba_lazy._Announcer, "said", False)

    def twice(x):
        return 2 * x

    twice.__module__ = "dish.some"
    before = numba.config.CACHE_DIR
    doubled = njit(cache=True)(twice)
    assert (doubled(21), doubled(1.5)) == (42, 3.0)
    assert before == numba.config.CACHE_DIR
    assert list((tmp_path / "kernels").rglob("*.nbi"))
    assert capsys.readouterr().err.count("dish: compiling kernels, once") == 1


def test_pays_if_compiled_or_after_enough_work(monkeypatch):
    class Kernel:
        __qualname__ = "one of this test"
        signatures = ()

    monkeypatch.setattr(numba_lazy, "ENOUGH", 100)
    assert [pays(Kernel, 60) for _ in range(3)] == [False, True, True]
    Kernel.__qualname__, Kernel.signatures = "another of this test", ("compiled",)
    assert pays(Kernel, 1)


@pytest.mark.slow
def test_small_data_compiles_nothing():
    done = python("import numba.core.dispatcher as d; d.Dispatcher.compile = None\n" + EVERYTHING)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) > 0
