"""What a kernel fit works on."""

import numpy as np
import pytest
import torch

from dish.io.rows import RowSource
from dish.kernel import fit_data
from dish.kernel.fit_data import FitData, prepare, shared_random_state
from dish.parallel import Ranks
from dish.similarity import from_labels

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 4)), RNG.integers(0, 3, 60)


def prepared(**params):
    given = {"n_anchors": 10, "rng": np.random.RandomState(0), "device": CPU}
    return prepare(RowSource(X), from_labels(Y), **{**given, **params})


def test_prepare_computes_centred_features_of_all_rows():
    data = prepared(ridge=1e-3)
    assert data.K.shape == (60, 10)
    assert (data.n, data.first, data.device, data.ridge) == (60, 0, CPU, 1e-3)
    np.testing.assert_allclose(data.K.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(data.features(torch.from_numpy(X)), data.K, atol=1e-12)


def test_equal_seeds_give_equal_anchors_whatever_the_kernel():
    by_kernel = [prepared(kernel=kernel).features.anchors for kernel in ("rbf", "rbf+linear")]
    assert torch.equal(*by_kernel)
    other = prepared(rng=np.random.RandomState(1)).features.anchors
    assert not torch.equal(by_kernel[0], other)


def test_prepare_times_its_stages():
    from contextlib import contextmanager

    seen = []

    @contextmanager
    def stage(name):
        seen.append(name)
        yield

    data = prepared(stage=stage)
    assert seen == ["features"]
    _ = data.white
    assert seen == ["features", "gram", "factor"]


def test_the_gram_matrix_is_factored_once_and_K_is_not_changed(monkeypatch):
    data, calls = prepared(ridge=1e-2), []
    factor = fit_data.factor
    monkeypatch.setattr(fit_data, "factor", lambda *args: calls.append(1) or factor(*args))
    before = data.K.clone()
    G = data.K.T @ data.K
    rho = 1e-2 * float(G.diagonal().mean())
    np.testing.assert_allclose(data.white.L @ data.white.L.T, G + rho * torch.eye(10), atol=1e-9)
    assert data.white.rho == pytest.approx(rho)
    assert calls == [1]
    assert torch.equal(data.K, before)


def test_features_from_elsewhere():
    K = torch.from_numpy(X - X.mean(0))
    data = FitData.of(from_labels(Y), K, ridge=1e-4, seed=3)
    assert data.K is K
    assert data.n == 60
    assert data.rng.randint(1000) == np.random.RandomState(3).randint(1000)


def test_a_random_state_of_one_process_is_that_of_its_seed():
    for seed in (5, np.int64(5)):
        assert shared_random_state(seed, Ranks(0, 1)).randint(2**31) == np.random.RandomState(5).randint(2**31)
    own = np.random.RandomState(0)
    assert shared_random_state(own, Ranks(0, 1)) is own


def test_processes_share_the_seed_that_the_first_one_draws():
    class Second(Ranks):
        """The second of two processes; the first drew 1234."""

        def gather(self, tensor):
            return torch.tensor([1234.0, float(tensor[0])])

    drawn = shared_random_state(np.random.RandomState(7), Second(1, 2))
    assert drawn.randint(2**31) == np.random.RandomState(1234).randint(2**31)
    assert shared_random_state(9, Second(1, 2)).randint(2**31) == np.random.RandomState(9).randint(2**31)
