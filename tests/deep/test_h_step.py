"""Initial codes, and the H-step against the objective that it lowers."""

import itertools

import numpy as np
import pytest
import torch

from dish import codes
from dish.deep.codewords import codewords, least_distance, width
from dish.deep.data import one_hot
from dish.deep.h_step import bit_agreement, h_step, start_codes
from dish.similarity import LowRank, from_labels


def test_initial_codes_separate_classes_and_are_balanced():
    y = np.arange(80) % 4
    H = codes.unpack(start_codes(from_labels(y), 16, 0), 16)
    np.testing.assert_array_equal(H.sum(0), 0)
    C = codewords(codes.pack(H), 16, one_hot(torch.from_numpy(y), 4)).numpy()
    np.testing.assert_array_equal(C[y], H)
    assert (C @ C.T - 16 * np.eye(4)).max() <= 4  # a distance of 6 bits or more


@pytest.mark.parametrize("sizes", [(180, 10, 10), (500, 100, 50, 50), (199, 1)])
def test_rare_classes_have_codewords_of_their_own(sizes):
    y = np.repeat(np.arange(len(sizes)), sizes)
    C = codewords(start_codes(from_labels(y), 64, 0), 64, one_hot(torch.from_numpy(y), len(sizes)))
    assert least_distance(C) >= 32
    brute = min(int((a != b).sum()) for a, b in itertools.combinations(C, 2))
    assert least_distance(C) == brute


def test_codewords_of_many_classes_are_far_apart():
    y = np.arange(150)
    C = codewords(start_codes(from_labels(y), width(64, 150), 0), 150, one_hot(torch.from_numpy(y), 150))
    assert least_distance(C) >= 45  # of 150 bits; with 64 bits some would be only 10 apart


def test_initial_codes_reproduce_any_similarity():
    """Two groups of 20 rows, known only by S = vvᵀ."""
    v = np.random.default_rng(0).permutation(np.repeat([1.0, -1.0], 20))
    H = codes.unpack(start_codes(LowRank(v[:, None], v[:, None]), 8, 0), 8).astype(int)
    distance = (8 - H @ H.T) / 2
    assert distance[np.outer(v, v) > 0].mean() < 1.5
    assert distance[np.outer(v, v) < 0].mean() > 6


def objective(H, S, F, nu):
    """‖S·r − HHᵀ‖² with the squared hinge of F, from the definition."""
    n, r = H.shape
    hinge = np.square(np.maximum(0, 1 - H * F)).sum()
    return np.square(r * S.dense() - H @ H.T).sum() / r + n * nu * hinge


@pytest.mark.parametrize("nu", [0.0, 1.0])
def test_the_h_step_lowers_the_objective_and_counts_its_flips(nu):
    rng = np.random.default_rng(0)
    S, F = from_labels(rng.integers(3, size=60)), rng.standard_normal((60, 8)).astype(np.float32)
    before = codes.pack(rng.standard_normal((60, 8)))
    after, flips = h_step(S, torch.from_numpy(F), before, nu)
    H, H_after = (codes.unpack(each, 8).astype(float) for each in (before, after))
    assert flips >= (H_after != H).sum() > 0
    assert objective(H_after, S, F, nu) < objective(H, S, F, nu)


def test_a_large_weight_brings_codes_close_to_the_signs_of_F():
    rng = np.random.default_rng(0)
    F = torch.from_numpy(rng.standard_normal((60, 8))).float()
    packed = codes.pack(rng.standard_normal((60, 8)))
    for _ in range(3):
        packed, _ = h_step(from_labels(np.arange(60) % 3), F, packed, 1e3)
    assert bit_agreement(F, packed) > 0.9  # not 1: half of the rows have +1 in every bit


def test_bit_agreement():
    packed = codes.pack(np.array([[1, -1], [1, 1]]))
    assert bit_agreement(torch.tensor([[2.0, -1.0], [-0.5, 0.0]]), packed) == 0.75
