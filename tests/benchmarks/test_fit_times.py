"""benchmarks/fit_times.py: what it times in new processes."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from dish import DISHK

PATH = Path(__file__).parents[2] / "benchmarks" / "fit_times.py"


@pytest.fixture(scope="module")
def fit_times():
    spec = importlib.util.spec_from_file_location("fit_times", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_the_readme_s(fit_times):
    code = fit_times.readme_example()
    compile(code, "README.md", "exec")
    assert "DISH(n_bits=64" in code
    assert "HammingIndex" in code


def test_a_new_process_encodes_and_reports_its_seconds(fit_times, tmp_path):
    X, y = fit_times.synthetic(400, 3)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, atol=1e-5)
    np.save(tmp_path / "X.npy", X)
    DISHK(16, n_anchors=50).fit(X, y).save(tmp_path / "m.dish")
    (seconds,) = fit_times.new_process(fit_times.ENCODE, str(tmp_path), "m.dish", OMP_NUM_THREADS="1")
    assert 0 < seconds < 60
