"""Rescored searches against plain NumPy: outputs and float vectors, with deletes, upserts, string ids and filters."""

import copy

import numpy as np
import pytest

from dish import HammingIndex, codes
from dish.errors import InputError
from dish.index import rescore
from helpers.codes import all_distances, make_codes

N_BITS, D = 20, 6


def similarity(V, q, metric):
    V, q = V.astype(float), q.astype(float)
    if metric == "dot":
        return V @ q
    if metric == "l2":
        return -np.linalg.norm(V - q, axis=1)
    norms = np.linalg.norm(V, axis=1) * np.linalg.norm(q)
    return np.where(norms > 0, V @ q / np.maximum(norms, 1e-300), 0)


def reference(Q, vectors_of_queries, B, V, k, shortlist, metric):
    """Rows of B are in insertion order. Return the positions of the k best of each shortlist."""
    found = []
    for v, d in zip(vectors_of_queries, all_distances(Q, B), strict=True):
        short = sorted(range(len(B)), key=lambda row, d=d: (d[row], row))[:shortlist]
        S = dict(zip(short, similarity(V[short], v, metric).round(5), strict=True))
        found.append(sorted(short, key=lambda row, S=S, d=d: (-S[row], d[row], row))[:k])
    return np.array(found).reshape(len(Q), -1)


@pytest.fixture
def data():
    """Repeated codes with small whole vectors, so that distances and similarities tie."""
    rng = np.random.default_rng(5)
    B = make_codes("duplicates", 400, N_BITS)
    V = rng.integers(-1, 2, (400, D)).astype(np.float32)
    Q, W = make_codes("duplicates", 12, N_BITS, seed=9), rng.integers(-1, 2, (12, D)).astype(np.float32)
    return B, V, Q, W


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("shortlist", [10, 60, 1000])
def test_float_rescoring_equals_sorting(data, metric, shortlist, kernels):
    B, V, Q, W = data
    ix = HammingIndex(N_BITS)
    ix.add(B)
    ix.attach_vectors(V, metric=metric)
    S, found = ix.search(Q, 10, rescore="float", query_vectors=W, shortlist=shortlist)
    np.testing.assert_array_equal(found, reference(Q, W, B, V, 10, shortlist, metric))
    assert S.dtype == np.float32
    for i in range(len(Q)):
        np.testing.assert_allclose(S[i], similarity(V[found[i]], W[i], metric), atol=1e-6)


@pytest.mark.parametrize("kind", ["integers", "strings"])
def test_vectors_belong_to_ids(data, kind, tmp_path):
    """Deletes, upserts, compaction and filters; vectors in another order than the rows, in a file."""
    B, V, Q, W = data
    rng = np.random.default_rng(1)
    ids = rng.permutation(10**6)[:400] if kind == "integers" else np.array([f"row {i}" for i in range(400)], object)
    labels = rng.integers(0, 3, 400)
    order = rng.permutation(400)
    np.save(tmp_path / "v.npy", V[order])
    ix = HammingIndex(N_BITS)
    ix.add(B[:300], ids[:300], labels[:300])
    ix.attach_vectors(tmp_path / "v.npy", ids=ids[order])
    attached = ix.snapshot().vectors.rows
    assert isinstance(attached, np.memmap)
    before = ix.snapshot()
    ix.add(B[300:], ids[300:], labels[300:])
    ix.remove(ids[:100])  # enough for a compaction
    ix.remove(ids[100:105])  # marked
    B[200:204] = B[7]
    ix.upsert(B[200:204], ids[200:204], labels[200:204])
    assert ix.snapshot().vectors.rows is attached
    assert len(ix.snapshot().deleted) > 0
    rows = np.concatenate([np.arange(105, 200), np.arange(204, 400), np.arange(200, 204)])
    some = np.sort(rng.permutation(400)[:200])
    for among, chosen in ((None, None), (some, None), (None, [2, 0]), (some, [1])):
        kept = rows[np.isin(rows, some if among is not None else rows)]
        kept = kept[np.isin(labels[kept], [0, 1, 2] if chosen is None else chosen)]
        options = {"ids": None if among is None else ids[among], "labels": chosen, "shortlist": 50}
        _, found = ix.search(Q, 7, rescore="float", query_vectors=W, **options)
        np.testing.assert_array_equal(found, ids[kept[reference(Q, W, B[kept], V[kept], 7, 50, "cosine")]])
    _, found = before.search(Q, 7, rescore="float", query_vectors=W, shortlist=50)
    B = data[0].copy()
    B[200:204] = make_codes("duplicates", 400, N_BITS)[200:204]
    np.testing.assert_array_equal(found, ids[reference(Q, W, B[:300], V[:300], 7, 50, "cosine")])


def test_without_ids_row_i_belongs_to_id_i(data):
    B, V, Q, W = data
    ix = HammingIndex(N_BITS)
    ix.add(B)
    ix.upsert(B[:5], range(5))  # insertion order is no longer the order of ids
    ix.remove([17])
    ix.attach_vectors(V)
    rows = np.array([*range(5, 17), *range(18, 400), *range(5)])
    _, found = ix.search(Q, 9, rescore="float", query_vectors=W)
    np.testing.assert_array_equal(found, rows[reference(Q, W, B[rows], V[rows], 9, 100, "cosine")])


def test_vectors_that_do_not_cover_the_ids(data):
    B, V, Q, W = data
    ix = HammingIndex(N_BITS)
    ix.add(B[:10], range(1, 11))
    with pytest.raises(InputError, match="vectors has 10 rows and the index has the id 10: give the id of each"):
        ix.attach_vectors(V[:10])
    ix.attach_vectors(V[:10], ids=range(10))
    with pytest.raises(InputError, match="id 10 has no vector"):
        ix.search(Q, 3, rescore="float", query_vectors=W)
    assert ix.search(Q, 3, labels=[None], ids=range(10), rescore="float", query_vectors=W)[0].shape == (12, 3)
    names = HammingIndex(N_BITS)
    names.add(B[:2], ["a", "b"])
    with pytest.raises(InputError, match="the index has the id 'a'"):
        names.attach_vectors(V[:10])
    names.attach_vectors(V[:2], ids=[0, 1])
    with pytest.raises(InputError, match="id 'a' has no vector"):
        names.search(Q, 1, rescore="float", query_vectors=W)


def test_vectors_may_be_attached_before_the_rows_and_are_not_copied_with_the_index(data, tmp_path):
    B, V, Q, W = data
    ix = HammingIndex(N_BITS)
    ix.attach_vectors(V[:2], ids=["a", "b"])
    ix.add(B[:2], ["a", "b"])
    assert ix.search(Q, 5, rescore="float", query_vectors=W)[1].shape == (12, 2)
    assert ix.search(Q[:0], 5, rescore="float", query_vectors=W[:0])[0].shape == (0, 2)
    ix.save(tmp_path / "ix.dish")
    for other in (copy.deepcopy(ix), HammingIndex.load(tmp_path / "ix.dish")):
        with pytest.raises(InputError, match="attach_vectors first"):
            other.search(Q, rescore="float", query_vectors=W)


def test_bad_vectors(data, tmp_path):
    B, V, Q, W = data
    ix = HammingIndex(N_BITS)
    ix.add(B)
    (tmp_path / "no.npy").write_bytes(b"not an array")
    bad = {
        "metric must be one of 'cosine', 'dot', 'l2'": lambda: ix.attach_vectors(V, metric="hamming"),
        r"matrix of numbers \(n, d\), got float32 of shape \(6,\)": lambda: ix.attach_vectors(V[0]),
        "ids has 3 entries for 400 vectors": lambda: ix.attach_vectors(V, ids=[1, 2, 3]),
        "distinct, but 3 occurs twice": lambda: ix.attach_vectors(V[:3], ids=[3, 1, 3]),
        "no.npy is not a": lambda: ix.attach_vectors(tmp_path / "no.npy"),
    }
    for message, call in bad.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert ix.snapshot().vectors is None
    V[30] = np.nan
    ix.attach_vectors(V)
    bad = {
        r"needs query_vectors: the float vectors of the queries, \(12, 6\)": None,
        r"of shape \(12, 6\): one row per query.*got float32 of shape \(12, 5\)": W[:, :5],
        "query_vectors must be finite": np.full((12, D), np.inf),
        "vector of id 30 has no finite similarity": W,
    }
    for message, vectors in bad.items():
        with pytest.raises(InputError, match=message):
            ix.search(Q, rescore="float", query_vectors=vectors, shortlist=400)


# --- outputs ---


def test_asymmetric_rescoring_sorts_the_shortlist_by_products(kernels):
    B = make_codes("random", 3000, 64)
    F = np.random.default_rng(3).standard_normal((10, 64))
    ix = HammingIndex(64)
    ix.add(B)
    S = F @ codes.unpack(B, 64).T.astype(float)
    _, short = ix.search(codes.pack(F), 200)
    scores, found = ix.search(F, 10, rescore="asymmetric", shortlist=200)
    for i in range(10):
        want = short[i][np.argsort(-S[i][short[i]], kind="stable")[:10]]
        np.testing.assert_allclose(S[i][found[i]], S[i][want])
        np.testing.assert_allclose(scores[i], S[i][found[i]], rtol=1e-5)
    scores, found = ix.search(F, 10, rescore="asymmetric", shortlist=3000)
    whole = ix.search(F, 10, method="asymmetric")
    np.testing.assert_array_equal(scores, whole[0])
    np.testing.assert_array_equal(found, whole[1])


def test_by_outputs_sorts_the_candidates_by_inner_product():
    B = make_codes("random", 50, 16)
    F = np.random.default_rng(0).standard_normal((3, 16))
    S = F @ codes.unpack(B, 16).T.astype(float)
    candidates = np.array([[4, 1, 30, 9], [5, 6, 7, 8], [49, 0, 2, 3]])
    scores, R = rescore.by_outputs(F, codes.to_words(B, 16), candidates, 3)
    for i in range(3):
        wanted = sorted(candidates[i], key=lambda row, i=i: -S[i, row])[:3]
        assert R[i].tolist() == wanted
        np.testing.assert_allclose(-scores[i], S[i, wanted])
    assert rescore.by_outputs(F, codes.to_words(B, 16), candidates[:, :0], 3)[0].shape == (3, 0)
