"""TSH: losses, quadratic forms and bits against brute force."""

import numpy as np
import pytest

from dish.baselines import tsh
from dish.baselines._pairs import sample_pairs
from dish.baselines.tsh import TSH
from dish.similarity import from_labels
from helpers.rivals import all_signs, map_of


def pairs_for(loss, n, rng):
    S = from_labels(rng.integers(0, 3, n))
    if loss == "ksh":
        return tsh.AllPairs(S)
    return tsh.SampledPairs(n, *sample_pairs(S, 4, np.random.RandomState(0)), tsh.LOSSES[loss])


@pytest.mark.parametrize("loss", ["ksh", *tsh.LOSSES])
def test_quadratic_form_is_the_loss_up_to_a_constant(loss):
    rng = np.random.default_rng(5)
    pairs = pairs_for(loss, 20, rng)
    H = rng.choice((-1.0, 1.0), (20, 5))
    product = pairs.product(H)
    factor = 2.0 if loss == "ksh" else 0.5  # sampled pairs: A holds each pair twice, as ij and as ji
    offsets = []
    for z in rng.choice((-1.0, 1.0), (8, 20)):
        offsets.append(pairs.loss(np.column_stack([H, z])) - factor * (z @ product(z)))
    np.testing.assert_allclose(offsets, offsets[0])


def test_losses_equal_hand_computed_values():
    """One similar and one dissimilar pair, three bits: d = 1 and d = 2."""
    H = np.array([[1.0, 1, 1], [1, 1, -1], [1, -1, 1], [-1, -1, -1]])
    i, j, similar = np.array([0, 2]), np.array([1, 3]), np.array([True, False])
    value = {name: tsh.SampledPairs(4, i, j, similar, loss).loss(H) for name, loss in tsh.LOSSES.items()}
    assert value["hinge"] == 1 + 0
    assert value["bre"] == 1 + 1
    assert value["ee"] == pytest.approx(1 + 100 * np.exp(-2 / 3))
    S = from_labels(np.array([0, 0, 1, 2]))
    assert tsh.AllPairs(S).loss(H) == pytest.approx(((3 * S.dense() - H @ H.T) ** 2).sum())


@pytest.mark.parametrize("loss", ["ksh", *tsh.LOSSES])
def test_bits_are_near_the_optimum_and_sweeps_never_raise_the_loss(loss):
    rng = np.random.default_rng(6)
    pairs = pairs_for(loss, 12, rng)
    product = pairs.product(rng.choice((-1.0, 1.0), (12, 3)))
    A = np.stack([product(e) for e in np.eye(12)])
    Z = all_signs(12)
    values = np.einsum("zi,ij,zj->z", Z, A, Z)
    start = rng.choice((-1.0, 1.0), 12)
    z = tsh.solve_bit(product, 12, [start], np.random.RandomState(0))
    assert z @ A @ z <= start @ A @ start
    assert z @ A @ z <= values.min() + 0.1 * (values.max() - values.min())
    _, losses = tsh.infer_codes(pairs, 6, 4, np.random.RandomState(0))
    assert (np.diff(losses) <= 1e-9 * losses[0]).all()


@pytest.mark.parametrize("params", [{"loss": "hinge"}, {"loss": "bre"}, {"loss": "ee"}, {"classifier": "svm"}])
def test_every_loss_and_classifier_learns(groups, params):
    assert map_of(TSH(n_bits=16, n_anchors=100, **params).fit(*groups[:2]), *groups) > 0.95


@pytest.mark.parametrize("bad", [{"loss": "l2"}, {"classifier": "tree"}, {"n_sweeps": 0}, {"C": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        TSH(n_anchors=60, **bad).fit(*blobs)
