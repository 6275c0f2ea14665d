"""Data shared by the tests."""

import os
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest

from dish import machine, numba_lazy
from helpers.cli import run
from helpers.quick import ALL, few_steps

# Read when torch and numba load. Spinning threads make small fits several times slower on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(params=["compiled", "numpy"])
def kernels(request, monkeypatch):
    """Run a test twice: with compiled kernels, and with the NumPy code that replaces them for small data."""
    monkeypatch.setattr(numba_lazy, "pays", lambda kernel, work: request.param == "compiled")
    return request.param


# Folders and files with quality in every test, or that compare with a fit of another process.
SLOW_FITS = {
    *("parallel", "test_checkpoint", "test_deep_hasher", "test_golden"),
    *("test_machine", "test_regression", "test_training"),
}


@pytest.fixture(scope="module", autouse=True)
def quick_fits(request):
    """Fits of DISH take few steps."""
    with nullcontext() if {request.path.parent.name, request.path.stem} & SLOW_FITS else few_steps():
        yield


@pytest.fixture
def all_steps():
    """Fits of DISH take all steps, for a test of the quality of codes."""
    with few_steps(ALL):
        yield


@pytest.fixture(scope="session", autouse=True)
def sources_hashed_once():
    """Results files of tests have the hashes of the modules that were imported at the first of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "code", cache(machine.code))
        yield


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


@pytest.fixture(scope="session")
def dsn(tmp_path_factory):
    """The connection string of a PostgreSQL database; all workers of a run share one server."""
    postgres = pytest.importorskip("helpers.postgres", reason="PostgresStore is NOT tested: psycopg is not installed")
    folder = tmp_path_factory.getbasetemp()
    try:
        with postgres.database(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as dsn:
            yield dsn
    except postgres.NoServer as error:
        pytest.skip(f"PostgresStore is NOT tested: {error}")


@pytest.fixture
def feature_network(monkeypatch):
    """Replace the network that computes image features by a cheap function."""
    from dish.deep import image_features
    from helpers.photos import Patches

    patches = Patches()
    monkeypatch.setattr(image_features, "extractor", lambda net=image_features.NET: patches)
    return patches


@pytest.fixture
def photo_folder(tmp_path):
    """A folder of twelve small pictures."""
    from helpers.photos import draw

    for i in range(12):
        draw(tmp_path / "Summer 2024" / f"IMG_{i:03}.png", i)
    return tmp_path / "Summer 2024"


@pytest.fixture
def cli(capsys, monkeypatch):
    """Exit code, output and errors of a command line."""
    return lambda *args: run(capsys, monkeypatch, *args)


@pytest.fixture(scope="session")
def ray():
    """The package ray, connected to a Ray of this machine that all tests of a session share."""
    from dish.ray import cluster

    with cluster(cpus=4) as ray:
        yield ray
