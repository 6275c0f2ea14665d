"""What a GPU does without waiting for the host, in tensors on the CPU: the same as what the CPU does."""

import numpy as np
import pytest
import torch

from dish.cuda import tf32
from dish.kernel import features, spectral
from dish.kernel.fit_data import Problem
from dish.posterior import multilabel, projection
from dish.similarity import from_labels


@pytest.mark.parametrize("shape", [(100, 16), (16, 100), (24, 24), (5, 1)])
def test_polar_factors_are_those_of_the_singular_values(shape):
    rng = np.random.default_rng(0)
    V = rng.standard_normal(shape) * np.logspace(0, -2, shape[1])
    left, _, right = np.linalg.svd(V, full_matrices=False)
    np.testing.assert_allclose(projection.polar_factor(torch.from_numpy(V)), left @ right, atol=1e-9)


def test_a_polar_factor_without_full_rank_has_no_more():
    V = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 3)) @ np.ones((3, 6)))
    found = torch.linalg.svdvals(projection.polar_factor(V))
    np.testing.assert_allclose(found, [1, 0, 0, 0, 0, 0], atol=1e-6)


@pytest.mark.parametrize("shape", [(60, 16), (10, 32)])
def test_signed_frames_are_the_same(shape):
    C = np.where(np.random.default_rng(0).random(shape) < 0.5, -1.0, 1.0)
    V = torch.from_numpy(C * np.abs(np.random.RandomState(3).standard_normal(shape)))
    found = projection._signed_on_device(V, torch.from_numpy(C))
    np.testing.assert_allclose(found, projection.frame(C, np.random.RandomState(3)), atol=1e-7)


def test_rotations_are_the_same():
    V = torch.from_numpy(np.random.default_rng(0).standard_normal((300, 6)) * np.linspace(1, 3, 6))
    R, loss = projection.rotation(V, 10, 8, np.random.RandomState(0))
    start = torch.from_numpy(np.linalg.qr(np.random.RandomState(0).standard_normal((10, 10)))[0][:6].copy())
    on_device, its_loss = projection._rotation_on_device(V, start, 8)
    np.testing.assert_allclose(on_device, R, atol=1e-8)
    np.testing.assert_allclose(its_loss, loss)


@pytest.mark.parametrize("many", [False, True])
def test_held_out_maps_are_the_same(many):
    rng = np.random.default_rng(0)
    held, seen = (torch.from_numpy(rng.random((n, 7))) for n in (60, 40))
    V, offset = torch.from_numpy(rng.standard_normal((7, 12))), torch.zeros(12, dtype=torch.float64)
    sets = (rng.random((9, 7)) < 0.3).astype(np.uint8)
    groups = [torch.from_numpy(rng.integers(0, 9, len(p))) for p in (held, seen)]
    scored = list(zip((held, seen), groups, strict=True))

    def labels(group, as_tensor=False):
        found = sets[group.numpy()] if many else group.numpy()
        return torch.from_numpy(found).double() if as_tensor else found

    expected = multilabel.held_out_map(labels, V, offset, *scored)
    found = multilabel.held_out_map(lambda group: labels(group, as_tensor=True), V, offset, *scored)
    assert 0.1 < expected < 0.9
    assert found == pytest.approx(expected, abs=1e-12)


def test_the_spectral_start_by_rows_is_the_same():
    rng = np.random.default_rng(0)
    Y = (rng.random((2000, 9)) < 0.2).astype(int)
    K = torch.from_numpy(Y @ rng.standard_normal((9, 30)) + rng.standard_normal((2000, 30)))
    problem = Problem.of(from_labels(Y), K - K.mean(0))
    some, weight = spectral._sample_rows(problem)
    W = spectral._start_by_rows(spectral.Relaxation(problem, 8), problem, 8)
    found = spectral._start_by_rows_on_device(spectral.Relaxation(problem, 8), some, weight, 8)
    np.testing.assert_allclose(found, W, atol=1e-3 * W.abs().max())


def test_features_in_parts_are_those_in_one(monkeypatch):
    rng = np.random.default_rng(0)
    X, A = (torch.from_numpy(rng.standard_normal((n, 20)).astype(np.float32)) for n in (50, 7))
    plain = features.rbf(X, features.prepare_rbf(A, 0.05), 0.05)
    monkeypatch.setattr(features, "worth_splitting", lambda X: True)
    out = torch.empty(50, 7)
    found = features.rbf(X, features.prepare_rbf(A, 0.05), 0.05, out)
    assert found is out
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(features.rbf(X, features.prepare_rbf(A, 0.05), 0.05), plain, rtol=1e-5, atol=1e-6)


def test_parts_of_a_matrix_add_up_to_it():
    X = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    high, low = tf32.split(X)
    assert torch.equal(high + low, X)
    assert not (high.view(torch.int32) & 0x1FFF).any()
    assert (low.abs() <= X.abs() / 1024).all()
