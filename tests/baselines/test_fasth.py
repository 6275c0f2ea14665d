"""FastH against brute force and explicit matrices."""

import numpy as np
import pytest

import dish
from dish.baselines.fasth import BitInference, FastH
from dish.similarity import from_labels
from helpers.rivals import all_signs, map_of


def pair_loss(z, y, H, r):
    """−zᵀ(rS − HHᵀ)z with explicit matrices."""
    S = np.where(y[:, None] == y, 1.0, -1.0)
    return -z @ (r * S - H @ H.T) @ z


@pytest.mark.parametrize("k", [0, 1, 4])
def test_inference_ends_where_no_flip_helps(k):
    rng = np.random.default_rng(k)
    y = rng.integers(4, size=50)
    H = rng.choice([-1, 1], (50, 6)).astype(np.int8)
    pairs = BitInference(from_labels(y), 6)
    z = rng.choice([-1.0, 1.0], 50)
    before = pair_loss(z, y, H[:, :k], 6)
    after = pairs.descend(z, np.ones(50), H, k, pairs.row_group)
    assert after == pytest.approx(pair_loss(z, y, H[:, :k], 6))
    assert after < before
    flipped = [pair_loss(z * (1 - 2 * e), y, H[:, :k], 6) for e in np.eye(50)]
    assert after <= min(flipped) + 1e-9


def test_blocks_with_equal_bits_are_solved_exactly():
    """A block's loss is the loss of its rows, and no other signs of its rows have a lower one."""
    rng = np.random.default_rng(7)
    y = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    H = rng.choice([-1, 1], (3, 5)).astype(np.int8)[y]  # equal within a block
    pairs, k = BitInference(from_labels(y), 5), 3
    H_g = np.stack([H[y == g].sum(0) for g in range(3)]).astype(float)
    x = np.array([1.0, 1.0, 1.0])
    loss = pairs.descend(x, pairs.size, H_g, k, np.arange(3))
    z = x[y]
    assert loss == pytest.approx(pair_loss(z, y, H[:, :k], 5))
    for g in range(3):
        others = []
        for part in all_signs((y == g).sum()):
            z_other = z.copy()
            z_other[y == g] = part
            others.append(pair_loss(z_other, y, H[:, :k], 5))
        assert loss == pytest.approx(min(others))


def test_first_bit_is_the_best_of_all():
    y = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
    pairs, none = BitInference(from_labels(y), 4), np.zeros((10, 4), np.int8)
    z = pairs.infer(none, 0, np.random.RandomState(0))
    best = min(pair_loss(other, y, none, 4) for other in all_signs(10))
    assert pair_loss(z, y, none, 4) == pytest.approx(best)


def test_loss_counts_shared_labels(label_sets):
    _, Y = label_sets
    rng = np.random.default_rng(8)
    H, z = rng.choice([-1, 1], (120, 4)).astype(np.int8), rng.choice([-1.0, 1.0], 120)
    pairs = BitInference(from_labels(Y), 4)
    loss = pairs.descend(z, np.ones(120), H, 2, pairs.row_group)
    explicit = 4 * (2 * Y @ Y.T - 1) - H[:, :2].astype(int) @ H[:, :2].T
    assert loss == pytest.approx(-z @ explicit @ z)


def test_boosted_trees_learn_and_can_be_saved(digits, tmp_path):
    X, y, Xq, _ = digits
    hasher = FastH(n_bits=12, classifier="trees", n_trees=10).fit(X, y)
    assert map_of(hasher, *digits) > 0.9
    hasher.save(tmp_path / "trees.dish")
    np.testing.assert_array_equal(dish.load(tmp_path / "trees.dish").transform(Xq), hasher.transform(Xq))


@pytest.mark.parametrize("bad", [{"classifier": "forest"}, {"n_trees": 0}, {"depth": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FastH(n_anchors=60, **bad).fit(*blobs)
