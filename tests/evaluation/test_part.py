"""Rankings of a part of a database against a plain enumeration, for arrays, memory maps and shards."""

from functools import partial

import numpy as np
import pytest

from dish import HammingIndex, codes, metrics
from dish.evaluation import part as module
from dish.evaluation.part import Part
from dish.io.rows import RowSource, blocks_of

RNG = np.random.default_rng(0)
X, Xq = RNG.standard_normal((300, 7)).astype(np.float32), RNG.standard_normal((9, 7)).astype(np.float32)
Y, YQ = RNG.integers(0, 3, 300), RNG.integers(0, 3, 9)
MASK = RNG.random(300) < 0.7
B, Q = codes.pack(X[:, :4]), codes.pack(Xq[:, :4])  # four bits: many ties


def as_map(folder):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


KINDS = {"array": lambda _: X, "map": as_map, "shards": lambda _: RowSource.of(np.array_split(X, [70, 71])).array}


@pytest.fixture(params=list(KINDS))
def part(request, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "blocks_of", partial(blocks_of, size=64))
    monkeypatch.setattr(module, "BATCH", 4)
    return Part(Xq, YQ, KINDS[request.param](tmp_path), Y, MASK)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_ranking_by_cosine(part):
    found = part.score_cosine()
    S, rows, labels = unit(Xq) @ unit(X[MASK]).T, X[MASK], Y[MASK]
    for i, order in enumerate(np.argsort(-S, axis=1)):
        hit = labels[order] == YQ[i]
        precision = [hit[: j + 1].mean() for j in np.flatnonzero(hit)]
        assert found.ap[i] == pytest.approx(np.mean(precision))
        assert found.precision[10][i] == pytest.approx(hit[:10].mean())
        assert found.recall[100][i] == pytest.approx(hit[:100].sum() / hit.sum())
        assert found.rescored[i] == pytest.approx(hit[:10].mean())
        assert set(part.nearest[i]) == set(order[:10])
    assert part.n == len(rows)
    assert found.neighbours[10].min() == found.neighbours[100].min() == 1.0
    assert found.within is None


def test_neighbours_of_codes_and_a_rescored_shortlist(part):
    part.score_cosine()
    base = part.encode(lambda rows: codes.pack(rows[:, :4]))
    np.testing.assert_array_equal(base, B[MASK])
    found = part.score_codes(Q, base)
    expected = metrics.neighbour_recall(unit(Xq), Q, unit(X[MASK]), base, k=10, oversampling=(1, 10))
    assert found.neighbours[10].mean() == pytest.approx(expected[1])
    assert found.neighbours[100].mean() == pytest.approx(expected[10])
    index = HammingIndex(n_bits=4)
    index.add(base)
    _, ids = index.search(Q, k=100)
    S = unit(Xq) @ unit(X[MASK]).T
    for i, shortlist in enumerate(ids):
        best = shortlist[np.argsort(-S[i, shortlist])[:10]]
        assert found.rescored[i] == pytest.approx((Y[MASK][best] == YQ[i]).mean())
    own = metrics.evaluate(Q, YQ, base, Y[MASK], n_bits=8)
    means = found.means(np.ones(9, bool))
    assert means["map"] == pytest.approx(own.map)
    assert means["precision_within_2"] == pytest.approx(own.precision_within_2)
    assert means["recall_at"][100] == pytest.approx(own.recall_at[100])


def test_a_float_ranking_finds_fewer_neighbours_than_the_cosine(part):
    part.score_cosine()
    found = part.score_floats(unit(Xq)[:, :2], unit(X)[MASK][:, :2])
    order = np.argsort(-(unit(Xq)[:, :2] @ unit(X)[MASK][:, :2].T), axis=1)
    for k in (10, 100):
        share = [len(set(o[:k]) & set(nearest)) / 10 for o, nearest in zip(order, part.nearest, strict=True)]
        np.testing.assert_allclose(found.neighbours[k], share)
    assert 0 < found.neighbours[10].mean() < 0.9


def test_similarities_in_memory_are_bounded(part, monkeypatch):
    whole = part.score_cosine()
    monkeypatch.setattr(module, "CELLS", 2 * part.n)
    np.testing.assert_allclose(part.score_cosine().ap, whole.ap)
    sizes = [products.base.shape for products in part._products(Xq, lambda: iter([X[MASK]]))]
    assert set(sizes) == {(2, part.n), (1, part.n)}


def test_parts_smaller_than_a_shortlist():
    few = Part(Xq, YQ, X, Y, np.arange(300) < 4)
    found = few.score_cosine()
    assert found.neighbours[10].min() == 1.0
    assert few.score_codes(Q, B[:4]).neighbours[10].min() == 1.0
    assert list(found.precision) == [1]
