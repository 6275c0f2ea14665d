"""benchmarks/ablation.py on a few digits."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dish import DISH, codes, metrics
from dish.encoder import geometry_positions

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import ablation
from ablation import Sums
from dish.experiments.significance import interval
from real_protocols import Part, Split


@pytest.fixture(scope="module")
def parts(digits):
    X, y, Xq, yq = digits
    train = Part(X[:200], y[:200])
    return Split(train, train, Part(Xq[:40], yq[:40]))


@pytest.fixture(scope="module")
def hasher(parts):
    return DISH(ablation.BITS, n_anchors=50, device="cpu").fit(parts.train.X, parts.train.y)


def test_sums_give_the_interval_of_all_differences():
    a, b = np.random.default_rng(0).standard_normal((2, 30))
    assert (Sums.of(a) + Sums.of(b)).interval() == pytest.approx(interval(np.concatenate([a, b])))


def test_projections_keep_the_probabilities_and_the_geometry_bits(hasher, parts):
    X = parts.queries.X
    before = hasher.transform(X)
    found = ablation.projections(hasher, parts.train.X, 0)
    of_full = codes.unpack(before, ablation.BITS)
    at = geometry_positions(ablation.BITS, hasher.geometry_.n_bits)
    for changed in found.values():
        bits = codes.unpack(changed.transform(X), ablation.BITS)
        np.testing.assert_array_equal(changed.predict_proba(X), hasher.predict_proba(X))
        np.testing.assert_array_equal(bits[:, at], of_full[:, at])
        assert (bits != of_full).mean() > 0.2  # the class bits are others
    assert set(np.unique(found["codewords"].hash_function_.V)) == {-1, 1}
    np.testing.assert_array_equal(hasher.transform(X), before)


def test_random_codewords_replace_learned_ones(parts, monkeypatch):
    given = []
    learn = ablation.fit_to_labels
    monkeypatch.setattr(ablation, "fit_to_labels", lambda data, C, *more: given.append(C) or learn(data, C, *more))
    made = ablation.RandomCodewords(16, n_anchors=50, device="cpu").fit(parts.train.X, parts.train.y)
    assert given[0].shape == (10, 2)
    assert len(np.unique(given[0], axis=0)) == 10
    found = made.transform(parts.queries.X), made.transform(parts.base.X)
    assert metrics.mean_average_precision(found[0], parts.queries.y, found[1], parts.base.y) > 0.8


def test_trial_is_scored_against_the_full_method_and_shown(parts, hasher, tmp_path, monkeypatch):
    other = ablation.projections(hasher, parts.train.X, 0)["random projection"]
    found = {name: (h.transform(parts.queries.X), h.transform(parts.base.X)) for name, h in
             ((ablation.FULL, hasher), ("random projection", other))}  # fmt: skip
    monkeypatch.setattr(ablation, "variants", lambda *_: iter(found.items()))
    done = ablation.trial(parts, "disjoint", 0, "cpu")
    maps = [metrics.mean_average_precision(q, parts.queries.y, b, parts.base.y) for q, b in found.values()]
    assert [each["map"] for each in done.values()] == pytest.approx(maps)
    sums = done["random projection"]["minus_full"]["map"]
    assert sums["total"] / sums["n"] == pytest.approx(maps[1] - maps[0])
    run = {"data": "digits", "protocol": "disjoint", "trial": 0, "variants": done}
    (tmp_path / "ablation.json").write_text(json.dumps({"runs": [run, {**run, "trial": 1}]}))
    text = ablation.section(lambda data, short: data, tmp_path / "ablation.json")
    mean, low, high = (Sums(**sums) + Sums(**sums)).interval()
    line = f"| {ablation.VARIANTS['random projection']} | {mean:+.3f} [{low:+.3f}, {high:+.3f}] |"
    assert f"| `DISH` | {maps[0]:.3f} |" in text
    assert line in text
    assert ablation.section(lambda data, short: data, tmp_path / "none.json") == ""
