"""Profiles: counts against loops, limits, distances against plain cumulative shares, and files."""

import numpy as np
import pytest
from scipy.stats import ks_2samp

from dish import codes
from dish.errors import ModelFileError
from dish.metrics import profile as profiles
from dish.metrics.profile import Profile, RowTraits, changes


def traits(n, seed=0, r=11, shift=0.0):
    """Traits of n random rows."""
    rng = np.random.default_rng(seed)
    packed = codes.pack(rng.standard_normal((n, r)) + shift)
    values = {
        "distance": rng.integers(0, 6, n),
        "entropy": rng.gamma(1.0, size=n) + shift,
        "ambiguity": rng.random(n),
    }
    return RowTraits(packed, values)


def test_counts_are_those_of_a_loop():
    profile, new = Profile.of(traits(300), 11, "given rows"), traits(50, seed=1)
    counts = profile.count(new)
    bits = codes.unpack(new.codes, 11) > 0
    assert profile.n_rows(counts) == 50
    np.testing.assert_allclose(profile.bit_shares(counts), bits.mean(0))
    for name, edges in profile.edges.items():
        bins = [sum(e <= v for e in edges) for v in new.values[name]]
        expected = [bins.count(i) / 50 for i in range(len(edges) + 1)]
        np.testing.assert_allclose(profile.shares(name, counts), expected)
    unknown = [any(new.values[name][i] >= limit for name, limit in profile.limits.items()) for i in range(50)]
    assert profile.unknown_share(counts) == np.mean(unknown)
    assert len(counts) == len(profile.nothing) == profile.n_counts


def test_counts_of_two_groups_add_up():
    profile, a, b = Profile.of(traits(300), 11, "given rows"), traits(20, seed=1), traits(30, seed=2)
    both = profile.count(RowTraits.joined([a, b]))
    np.testing.assert_array_equal(profile.count(a) + profile.count(b), both)


@pytest.mark.parametrize("seed", range(5))
def test_at_most_a_twentieth_of_the_reference_rows_is_unknown(seed):
    rng = np.random.default_rng(seed)
    for _ in range(100):
        n = int(rng.integers(1, 80))
        judges = {
            str(i): rng.integers(0, rng.integers(1, 8), n) if rng.random() < 0.5 else rng.normal(size=n)
            for i in range(rng.integers(1, 4))
        }
        limits = profiles.joint_limits(judges)
        unknown = np.any([judges[name] >= limit for name, limit in limits.items()], axis=0)
        assert unknown.mean() <= 0.05 + 1e-12


def test_without_ties_the_limits_flag_just_a_twentieth():
    rng = np.random.default_rng(0)
    judges = {name: rng.normal(size=1000) for name in "ab"}
    limits = profiles.joint_limits(judges)
    shares = [(judges[name] >= limits[name]).mean() for name in "ab"]
    assert np.any([judges[name] >= limits[name] for name in "ab"], axis=0).mean() == 0.05
    assert 0.02 < min(shares) <= max(shares) < 0.03  # by about the same share each


def test_distances_are_kolmogorov_smirnov_distances():
    before, after = traits(400), traits(300, seed=1, shift=0.3)
    profile = Profile.of(before, 11, "given rows")
    found = changes(profile, profile.count(after))
    exact = ks_2samp(before.values["distance"], after.values["distance"]).statistic
    assert found["distance"].distance == pytest.approx(exact)  # whole numbers have bins of their own
    exact = ks_2samp(before.values["entropy"], after.values["entropy"]).statistic
    assert 0.8 * exact < found["entropy"].distance <= exact + 1e-12  # bins can only hide some of it
    bits = [(codes.unpack(each.codes, 11) > 0).mean(0) for each in (before, after)]
    assert found["bits"].distance == pytest.approx(np.abs(bits[0] - bits[1]).max())
    for name, change in found.items():
        tried = 4 * 11 if name == "bits" else 4
        rest = change.distance - profiles.chance(300, 400, tried)
        assert change.beyond_chance == pytest.approx(max(0.0, rest))


@pytest.mark.parametrize(("n", "m"), [(40, 1000), (500, 500)])
def test_chance_rarely_reaches_the_bound(n, m):
    """500 pairs of samples of one distribution: a thousandth of them may exceed the bound, here 0 to 3."""
    rng = np.random.default_rng(0)
    distances = [ks_2samp(rng.random(n), rng.random(m), method="asymp").statistic for _ in range(500)]
    bound = profiles.chance(n, m)
    assert (np.array(distances) > bound).sum() <= 3
    assert max(distances) > 0.6 * bound  # it is not far too cautious either


def test_between_both_references_nothing_has_changed():
    before, surer = traits(400, shift=0.5), traits(400, shift=0.0)
    profile = Profile.of(before, 11, "held-out rows", surer)
    halfway = changes(profile, profile.count(traits(400, shift=0.25)))
    assert halfway["entropy"].distance < 0.01
    assert changes(Profile.of(before, 11, ""), profile.count(traits(400)))["entropy"].distance > 0.3
    below = changes(profile, profile.count(traits(400, shift=-0.5)))
    assert below["entropy"].distance > 0.3


def test_codeword_distances_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    A, C = (codes.pack(rng.standard_normal((n, 20))) for n in (30, 7))
    expected = [min(int(np.bitwise_count(a ^ c).sum()) for c in C) for a in A]
    np.testing.assert_array_equal(profiles.codeword_distances(A, C), expected)
    assert len(profiles.codeword_distances(A[:0], C)) == 0


def test_entropy_and_ambiguity_by_hand():
    p = np.array([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])
    expected = [0, np.log(4), -(0.7 * np.log(0.7) + 0.3 * np.log(0.1))]
    np.testing.assert_allclose(profiles.entropy(p, one_label=True), expected, atol=1e-12)
    both = [-sum(q * np.log(q) + (1 - q) * np.log(1 - q) for q in (0.7, 0.1, 0.1, 0.1))]
    np.testing.assert_allclose(profiles.entropy(p[2:], one_label=False), both)
    found = profiles.ambiguity(p, one_label=True)
    np.testing.assert_allclose(found[[0, 2]], 0, atol=1e-12)  # one label stands out, the others are equal
    assert found[1] == 1  # none stands out
    np.testing.assert_allclose(profiles.ambiguity(p, one_label=False), [0, 0.75, 0.3])


def test_ambiguity_does_not_depend_on_the_length_of_the_logits():
    z = np.random.default_rng(0).standard_normal((20, 6))
    p, sharper = (np.exp(a * z) / np.exp(a * z).sum(1, keepdims=True) for a in (1, 3))
    np.testing.assert_allclose(*(profiles.ambiguity(each, one_label=True) for each in (p, sharper)), atol=1e-12)
    centred = z - z.mean(1, keepdims=True)
    e = np.eye(6)[z.argmax(1)] - 1 / 6
    cosines = (centred * e).sum(1) / np.linalg.norm(centred, axis=1) / np.linalg.norm(e, axis=1)
    np.testing.assert_allclose(profiles.ambiguity(p, one_label=True), 1 - cosines, atol=1e-12)


def test_codewords_are_codes_that_rows_share():
    distinct = np.arange(10, dtype=np.uint8)[:, None]
    np.testing.assert_array_equal(profiles.shared_codes(np.repeat(distinct, 2, axis=0)), distinct)
    assert profiles.shared_codes(np.repeat(distinct, 2, axis=0)[1:]) is None


@pytest.mark.parametrize("surer", [None, traits(40, seed=3)])
def test_a_profile_survives_a_file(surer):
    profile = Profile.of(traits(200), 11, "held-out rows", surer)
    same, new = Profile.from_arrays(*profile.to_arrays()), traits(30, seed=1)
    np.testing.assert_array_equal(same.count(new), profile.count(new))
    assert changes(same, same.count(new)) == changes(profile, profile.count(new))
    assert (same.source, same.limits) == (profile.source, profile.limits)


def test_a_damaged_profile_is_refused():
    arrays, values = Profile.of(traits(200), 11, "held-out rows").to_arrays()
    with pytest.raises(ModelFileError, match="do not fit its histograms"):
        Profile.from_arrays({**arrays, "counts": arrays["counts"][:-1]}, values)
    with pytest.raises(ModelFileError, match="do not fit its histograms"):
        Profile.from_arrays(arrays, {**values, "limits": {"other": 1.0}})
