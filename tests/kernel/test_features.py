"""The feature map and K."""

import time

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics.pairwise import rbf_kernel

from dish import DISHK
from dish.encoder import FeatureMap
from dish.errors import InputError
from dish.io.rows import RowSource, scratch
from dish.kernel import features

RNG = np.random.default_rng(5)
CPU = torch.device("cpu")


def rbf(X, A, gamma):
    return features.rbf(torch.from_numpy(X), features.prepare_rbf(torch.from_numpy(A), gamma), gamma)


def test_rbf_equals_scikit_learn():
    X, A = RNG.standard_normal((30, 4)), RNG.standard_normal((7, 4))
    np.testing.assert_allclose(rbf(X, A, 0.7), rbf_kernel(X, A, gamma=0.7), atol=1e-12)


def test_rbf_in_float32_survives_an_offset():
    """Squared distances come from norms; far from the origin that would cancel, so both are centred first."""
    X, A = RNG.standard_normal((30, 4)) + 1000, RNG.standard_normal((7, 4)) + 1000
    X, A = X.astype(np.float32), A.astype(np.float32)
    exact = rbf_kernel(X.astype(np.float64), A.astype(np.float64), gamma=0.7)
    np.testing.assert_allclose(rbf(X, A, 0.7), exact, atol=1e-5)


@pytest.mark.parametrize("name", ["rbf", "linear", "function"])
def test_features_are_centred_and_blocks_do_not_matter(name, monkeypatch):
    X = torch.from_numpy(RNG.standard_normal((100, 5)))
    phi = (lambda X, A: (X @ A.T + 1) ** 2) if name == "function" else name
    whole = features.FeatureMap(phi, X[:9], 0.3)
    K = whole.fit_rows(RowSource(X), CPU)
    np.testing.assert_allclose(K.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(whole(X), K, atol=1e-12)
    monkeypatch.setattr(features, "ROWS_IN_CACHE", 7)
    monkeypatch.setattr(features.row_blocks, "__defaults__", (7,))
    np.testing.assert_allclose(features.FeatureMap(phi, X[:9], 0.3).fit_rows(RowSource(X), CPU), K, atol=1e-12)


def test_a_kernel_function_of_the_wrong_shape_is_named():
    X = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="kernel must return"):
        features.FeatureMap(lambda X, A: np.zeros(3), X, 1.0).raw(X)


# --- K that does not fit in memory ---


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 9, 2000)
    return (rng.standard_normal((2000, 12)) + 1.3 * rng.standard_normal((9, 12))[y]).astype(np.float32), y


@pytest.mark.parametrize("where", ["scratch", "recomputed"])
@pytest.mark.parametrize("loss", ["ridge", "hinge"])
def test_fits_without_room_for_the_features_give_the_same_codes(where, loss, rows, monkeypatch):
    X, y = rows
    decided = []

    def decide(self):
        decided.append(where)
        if where == "scratch":
            self.file = scratch(*self.shape, np.float32)

    monkeypatch.setattr(features.KernelRows, "choose_storage", decide)
    params = {"n_bits": 20, "n_anchors": 70, "n_iter": 3, "loss": loss}
    hasher = DISHK(**params, memory_budget="100KB").fit(X, y)
    assert decided == [where]
    monkeypatch.undo()
    whole = DISHK(**params).fit(X, y)
    np.testing.assert_array_equal(hasher.codes_, whole.codes_)
    F, F_whole = hasher.decision_function(X), whole.decision_function(X)
    np.testing.assert_allclose(F, F_whole, atol=5e-4 * abs(F_whole).max())


@pytest.mark.parametrize(("compute", "disk", "stored"), [(0.3, 0.0, True), (0.0, 0.3, False)])
def test_the_faster_storage_is_chosen(rows, monkeypatch, compute, disk, stored):
    """Features that are slow to compute go to a scratch file, unless the disk is slower."""
    X, _ = rows
    monkeypatch.setattr(features, "release", lambda _: time.sleep(disk))

    def function(X, A):
        time.sleep(compute)
        return np.ones((len(X), len(A)), np.float32)

    A = torch.from_numpy(X[:200])
    K = features.KernelRows(RowSource(X), FeatureMap(function, A, 1.0, A.mean(0)), CPU)
    K.choose_storage()
    assert (K.file is not None) == stored


def test_a_full_disk_means_that_features_are_recomputed(rows, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    params = {"n_bits": 20, "n_anchors": 70, "n_iter": 3}
    whole = DISHK(**params).fit(*rows)
    monkeypatch.setattr(features, "scratch", full)
    with pytest.warns(UserWarning, match="scratch file in .*No space left"):
        hasher = DISHK(**params, memory_budget=1).fit(*rows)
    np.testing.assert_array_equal(hasher.codes_, whole.codes_)


def test_a_classifier_needs_its_features_in_memory(rows):
    with pytest.raises(InputError, match=r"loss: a classifier .* all kernel features"):
        DISHK(n_bits=8, n_anchors=70, loss=RidgeClassifier(), memory_budget=1000).fit(*rows)
