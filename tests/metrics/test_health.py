"""Code health against loops over all pairs."""

from itertools import combinations

import numpy as np
import pytest

from dish import codes, metrics

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("multi", [False, True])
def test_code_health_equals_counting(multi):
    r = 11
    H = np.where(RNG.random((30, r)) < 0.4, 1, -1)
    H[:, 3] = 1  # a constant bit
    H[7] = H[8]
    B = codes.pack(H)
    y = (RNG.random((30, 5)) < 0.2).astype(int) if multi else RNG.integers(0, 3, 30)
    health = metrics.code_health(B, y, n_bits=r)
    keys = [row.tobytes() for row in B]
    assert health.n_distinct == len(set(keys))
    assert health.largest_group == max(keys.count(key) for key in keys)
    assert health.imbalance == pytest.approx(np.abs(H.mean(0)).mean())
    assert health.constant_bits == 1
    moving = np.delete(H, 3, axis=1)
    correlations = [abs(np.corrcoef(moving[:, a], moving[:, b])[0, 1]) for a, b in combinations(range(r - 1), 2)]
    assert health.correlation == pytest.approx(np.mean(correlations))
    distance = {(a, b): (H[a] != H[b]).sum() for a, b in combinations(range(30), 2)}
    share = {(a, b): (y[a] & y[b]).any() if multi else y[a] == y[b] for a, b in distance}
    assert health.within == pytest.approx(np.mean([d for pair, d in distance.items() if share[pair]]))
    assert health.between == pytest.approx(np.mean([d for pair, d in distance.items() if not share[pair]]))
    if multi:
        assert health.codeword_distance is None
    else:
        words = [np.where(H[y == c].sum(0) >= 0, 1, -1) for c in range(3)]
        assert health.codeword_distance == min((a != b).sum() for a, b in combinations(words, 2))
    assert "codeword distance" in str(health) or multi
    assert health.to_dict()["n"] == 30


def test_a_sample_of_rows_estimates_the_distances_of_all():
    B, y = codes.pack(RNG.standard_normal((3000, 32))), RNG.integers(0, 4, 3000)
    whole, some = metrics.code_health(B, y, pairs_of=3000), metrics.code_health(B, y, pairs_of=300)
    assert some.within == pytest.approx(whole.within, rel=0.02)
    assert some.within != whole.within


def test_rejects_bad_codes_and_labels():
    B = codes.pack(RNG.standard_normal((5, 8)))
    with pytest.raises(ValueError, match="labels has 3 rows for 5 codes"):
        metrics.code_health(B, [0, 1, 2])
    with pytest.raises(ValueError, match="at least two rows"):
        metrics.code_health(B[:1])
    assert metrics.code_health(B, np.zeros(5, int)).between is None
