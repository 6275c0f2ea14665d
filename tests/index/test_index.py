"""HammingIndex against brute force; its ids, labels and filters; errors and costs."""

import numpy as np
import pytest

from dish import HammingIndex, codes, threads
from dish.index import merge
from helpers.codes import KINDS, assert_radius, brute_nearest, make, queries_of, settled, view_of

# --- exactness --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bits", [1, 8, 13, 16, 30, 32, 33, 64, 70, 128, 200, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_search_equals_brute_force(kind, n_bits):
    B = make(kind, 6000, n_bits)
    Q = queries_of(B, 60, n_bits)
    fresh, ready = HammingIndex(n_bits), settled(B[:5500], n_bits)
    fresh.add(B)
    ready.add(B[5500:])  # behind the view
    assert view_of(fresh) is None
    assert view_of(ready).n == 5500
    for k in (1, 10, 300):
        D, N = brute_nearest(Q, B, k)
        for ix in (fresh, ready):
            found = ix.search(Q, k)
            np.testing.assert_array_equal(found[0], D)
            np.testing.assert_array_equal(found[1], N)
            assert found[0].dtype == np.int32
    for radius in (0, 2, 3, n_bits // 4):
        for ix in (fresh, ready):
            assert_radius(ix.radius_search(Q, radius), Q, B, radius)


@pytest.mark.parametrize("n_bits", [16, 64, 128, 192])
@pytest.mark.parametrize("kind", KINDS)
def test_one_query_at_a_time_shared_between_threads(kind, n_bits, monkeypatch):
    monkeypatch.setattr(merge, "ROWS", 500)
    monkeypatch.setattr(merge, "pays", lambda *_: True)
    monkeypatch.setattr(threads, "size", lambda most: max(1, min(3, most)))
    B = make(kind, 3001, n_bits)
    Q = queries_of(B, 6, n_bits)
    ix = HammingIndex(n_bits)
    ix.add(B)
    for k in (1, 10, 1700):  # the last: more than a thread has rows
        D, N = brute_nearest(Q, B, k)
        for i in range(len(Q)):
            found = ix.search(Q[i : i + 1], k)
            np.testing.assert_array_equal(found[0], D[i : i + 1])
            np.testing.assert_array_equal(found[1], N[i : i + 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_cuts_radius_search_off_and_counts_say_where(kind):
    B = make(kind, 6000, 64)
    Q = queries_of(B, 40, 64)
    ix = settled(B[:5500], 64)
    ix.add(B[5500:])  # behind the view
    for removed in ([], [1, 7, 5700]):
        ix.remove(removed)
        for some in (None, np.arange(0, 6000, 3)):
            for radius in (0, 3, 20):
                lims, D, N = ix.radius_search(Q, radius, some)
                np.testing.assert_array_equal(ix.radius_count(Q, radius, some), np.diff(lims))
                for limit in (1, 5, 6000):
                    first = np.arange(len(D)) - np.repeat(lims[:-1], np.diff(lims)) < limit
                    cut = ix.radius_search(Q, radius, some, limit=limit)
                    np.testing.assert_array_equal(np.diff(cut[0]), np.minimum(np.diff(lims), limit))
                    np.testing.assert_array_equal(cut[1], D[first])
                    np.testing.assert_array_equal(cut[2], N[first])
    with pytest.raises(ValueError, match="limit"):
        ix.radius_search(Q, 2, limit=0)


def test_learned_codes_are_grouped_and_random_ones_are_not():
    grouped, flat = settled(make("duplicates", 6000, 64), 64), settled(make("random", 6000, 64), 64)
    assert len(view_of(grouped).codes) == 60
    assert view_of(flat).members is None


@pytest.mark.parametrize("n_bits", [64, 128, 256])
@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_radius_search_by_bits_of_words(kind, n_bits):
    """Large enough for the buckets to be used, and radii on both sides of where a scan takes over."""
    B = make(kind, 20_000, n_bits)
    Q = queries_of(B, 80, n_bits)
    ix = settled(B, n_bits)
    assert view_of(ix).tables
    for radius in (0, 1, 2, 4, 5, 9, n_bits):
        some = Q if radius < n_bits else Q[:2]
        assert_radius(ix.radius_search(some, radius), some, B, radius)


def test_the_buckets_are_used_and_not_only_the_scan(monkeypatch):
    from dish.index import scan

    ix = settled(make("random", 60_000, 64), 64)
    Q = queries_of(ix.get(ix.ids), 10, 64)
    want = ix.radius_search(Q, 2)
    monkeypatch.setattr(scan, "within", None)
    found = ix.radius_search(Q, 2)
    for a, b in zip(want, found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_small_indexes_and_k_beyond_them(n):
    B, Q = make("random", 3, 20)[:n], make("random", 5, 20, seed=2)
    ix = HammingIndex(20)
    ix.add(B)
    D, N = ix.search(Q, 10)
    assert D.shape == N.shape == (5, n)
    assert (N >= 0).all()
    lims, D, N = ix.radius_search(Q, 20)
    assert lims[-1] == 5 * n
    assert ix.search(Q[:0], 4)[0].shape == (0, n and min(4, n))
    assert len(ix.radius_search(Q[:0], 4)[0]) == 1
    assert len(ix) == n
    assert ix.search(np.ones((5, 20)), 10, mode="asymmetric")[0].shape == (5, n)
    assert ix.search(np.ones((5, 20)), 10, mode="rerank")[0].shape == (5, n)


def test_k_as_large_as_the_index():
    B = make("duplicates", 5000, 32)
    ix = settled(B, 32)
    D, N = ix.search(B[:3], 10**9)
    want = brute_nearest(B[:3], B, 5000)
    np.testing.assert_array_equal(D, want[0])
    np.testing.assert_array_equal(N, want[1])


@pytest.mark.parametrize("n_bits", [9, 64, 100])
@pytest.mark.parametrize("kind", ["random", "duplicates"])
def test_asymmetric_search_equals_sorting_all_products(kind, n_bits):
    B = make(kind, 5000, n_bits)
    F = np.random.default_rng(3).standard_normal((20, n_bits)).astype(np.float32)
    S = F.astype(float) @ codes.unpack(B, n_bits).T.astype(float)
    for ix in (HammingIndex(n_bits), settled(B, n_bits)):
        if not len(ix):
            ix.add(B)
        D, N = ix.search(F, 40, mode="asymmetric")
        np.testing.assert_allclose(D, -np.sort(-S, axis=1)[:, :40], rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(np.take_along_axis(S, N, 1), D, rtol=1e-5, atol=1e-4)
        equal = (B[N[:, 1:]] == B[N[:, :-1]]).all(axis=2)  # equal codes in the order of insertion
        assert (N[:, 1:] > N[:, :-1])[equal].all()


def test_rerank_orders_the_shortlist_by_products():
    B = make("random", 3000, 64)
    F = np.random.default_rng(3).standard_normal((10, 64))
    ix = HammingIndex(64)
    ix.add(B)
    S = F @ codes.unpack(B, 64).T.astype(float)
    _, short = ix.search(codes.pack(F), 200)
    D, N = ix.search(F, 10, mode="rerank", shortlist=200)
    for i in range(10):
        want = short[i][np.argsort(-S[i][short[i]], kind="stable")[:10]]
        np.testing.assert_allclose(S[i][N[i]], S[i][want])
        np.testing.assert_allclose(D[i], S[i][N[i]], rtol=1e-5)
    D, _ = ix.search(F, 10, mode="rerank", shortlist=3000)
    np.testing.assert_allclose(D, ix.search(F, 10, mode="asymmetric")[0])


# --- ids, labels, filters ---------------------------------------------------------------------------------


def test_string_ids_labels_and_filters():
    B = make("clustered", 500, 24)
    names = np.array([f"row {i} é" for i in range(500)])
    ix = HammingIndex(24)
    ix.add(B, ids=names, labels=[f"class {i % 3}" for i in range(500)])
    D, N = ix.search(B[:7], 5)
    np.testing.assert_array_equal(N, names[brute_nearest(B[:7], B, 5)[1]])
    assert "row 3 é" in ix
    assert "row 3" not in ix
    assert 3 not in ix
    np.testing.assert_array_equal(ix.get(["row 9 é", "row 2 é"]), B[[9, 2]])
    assert ix.labels_of(["row 4 é", "row 3 é"]).tolist() == ["class 1", "class 0"]
    some = np.array([400, 3, 77, 250])
    D, N = ix.search(B[:7], 10, ids={*names[some], "nobody"})
    want = brute_nearest(B[:7], B[np.sort(some)], 4)
    np.testing.assert_array_equal(D, want[0])
    np.testing.assert_array_equal(N, names[np.sort(some)[want[1]]])
    assert_radius(ix.radius_search(B[:7], 6, ids=names[some]), B[:7], B[np.sort(some)], 6, names[np.sort(some)])
    assert ix.search(B[:7], 10, ids=["nobody"])[0].shape == (7, 0)


@pytest.mark.parametrize("start", [0, 5], ids=["nothing", "five rows"])
def test_labels_may_be_missing(start):
    B = make("random", 8, 16)
    ix = HammingIndex(16)
    ix.add(B[:start])
    ix.add(B[start:], labels=np.arange(start, 8) * 10)
    assert ix.labels_of([7, 6]).tolist() == [70, 60]
    assert ix.labels_of([7, 6]).dtype.kind == "i"
    assert ix.labels_of(ix.ids).tolist() == [None] * start + [10 * i for i in range(start, 8)]
    ix.upsert(B[:1], [7])
    assert ix.labels_of([7]).tolist() == [None]


def test_default_ids_run_on_and_are_never_given_twice():
    B = make("random", 10, 8)
    ix = HammingIndex(8)
    ix.add(B[:3])
    assert ix.remove([2]) == 1
    ix.add(B[3:5])
    assert ix.ids.tolist() == [0, 1, 3, 4]
    ix.add(B[5:6], ids=[100])
    ix.add(B[6:7])
    assert ix.ids.tolist() == [0, 1, 3, 4, 100, 101]


def test_ids_in_no_order():
    B = make("random", 3000, 64)
    ids = np.random.default_rng(0).permutation(10**6)[:3000] - 5 * 10**5
    ix = HammingIndex(64)
    for i in range(0, 3000, 500):
        ix.add(B[i : i + 500], ids[i : i + 500])
    np.testing.assert_array_equal(ix.get(ids[::-1]), B[::-1])
    np.testing.assert_array_equal(ix.search(B[:50], 1)[1][:, 0], ids[:50])
    assert ix.remove(ids[:1000]) == 1000
    assert ids[5] not in ix
    assert ids[2005] in ix
    np.testing.assert_array_equal(ix.get(ids[1000:]), B[1000:])


def test_ties_come_in_the_order_of_insertion_and_an_upserted_row_is_the_last():
    B = make("one code", 5000, 64)
    ix = settled(B, 64)
    ix.upsert(B[:1], [2])
    assert ix.search(B[:1], 4)[1].tolist() == [[0, 1, 3, 4]]
    assert ix.search(B[:1], 5000)[1][0, -1] == 2


# --- errors and costs -------------------------------------------------------------------------------------


def bad_calls():
    B = make("random", 4, 12)
    wide = B.copy()
    wide[0, -1] |= 1
    return {
        "n_bits must be": lambda ix: HammingIndex(0),
        "mode must be one of 'exact'": lambda ix: HammingIndex(8, mode="fast"),
        "n_probe must be": lambda ix: HammingIndex(8, mode="approximate", n_probe=0),
        "codes must be packed": lambda ix: ix.add(B.astype(int)),
        "3 bytes per row": lambda ix: ix.add(make("random", 2, 24)),
        "codes have bits set beyond the first 12": lambda ix: ix.add(wide),
        "queries have bits set beyond": lambda ix: ix.search(wide),
        "ids has 3 entries for 4 codes": lambda ix: ix.add(B, [7, 8, 9]),
        "id 7 is given twice": lambda ix: ix.add(B, [7, 8, 9, 7]),
        "id 2 is in the index already": lambda ix: ix.add(B, [7, 8, 2, 9]),
        "whole numbers or strings": lambda ix: ix.add(B, [1.5, 2.5, 3.5, 4.5]),
        "must be whole numbers as": lambda ix: ix.add(B, list("abcd")),
        "all of one kind": lambda ix: ix.add(B, [1, "a", 2, 3]),
        "a list of ids": lambda ix: ix.remove("abc"),
        "fit into 64 bits": lambda ix: ix.add(B, [2**63, 1, 2, 3]),
        "labels must be one per row": lambda ix: ix.add(B, labels=[1, 2]),
        "labels must be numbers or strings": lambda ix: ix.add(B, labels=[(), 1, 2, 3]),
        "k must be": lambda ix: ix.search(B, 0),
        "radius must be": lambda ix: ix.radius_search(B, -1),
        "mode must be one of 'hamming'": lambda ix: ix.search(B, mode="cosine"),
        "real outputs of shape": lambda ix: ix.search(B, mode="asymmetric"),
        "must be finite": lambda ix: ix.search(np.full((1, 12), np.nan), mode="asymmetric"),
        "shortlist must be": lambda ix: ix.search(np.ones((1, 12)), 10, mode="rerank", shortlist=5),
        "id 99 is not in the index": lambda ix: ix.get([99]),
    }


@pytest.mark.parametrize("message", bad_calls())
def test_errors_name_what_is_wrong_and_change_nothing(message):
    ix = HammingIndex(12)
    ix.add(make("random", 4, 12))
    with pytest.raises((ValueError, KeyError), match=message):
        bad_calls()[message](ix)
    assert ix.ids.tolist() == [0, 1, 2, 3]


def test_an_index_of_strings_needs_ids():
    ix = HammingIndex(12)
    ix.add(make("random", 4, 12), list("abcd"))
    with pytest.raises(ValueError, match="ids must be given"):
        ix.add(make("random", 4, 12))


@pytest.mark.parametrize("kind", ["random", "duplicates", "a fifth distinct"])
@pytest.mark.parametrize("n_bits", [64, 128])
def test_memory_is_at_most_twice_the_codes_and_the_ids(kind, n_bits):
    n = 50_000
    B = make(kind, n, n_bits)
    if kind == "a fifth distinct":  # about as many as are still grouped
        B = B[np.random.default_rng(0).integers(0, n * 23 // 100, n)]
    ix = settled(B, n_bits)
    assert (view_of(ix).members is None) == (kind == "random")
    held = ix.nbytes()
    assert held["search"] > 0
    assert held["codes"] + held["search"] <= 2 * n * n_bits // 8
    assert held["ids"] == 8 * n
    assert held["labels"] == 0


def test_small_adds_do_not_group_again():
    B = make("duplicates", 20_000, 64)
    ix = settled(B, 64)
    view = view_of(ix)
    for i in range(200):
        ix.add(B[i : i + 1])
        ix.search(B[:1], 1)
    assert view_of(ix) is view
    ix.search(B[:6000], 1)  # by now scanning the new rows has cost more than grouping
    assert view_of(ix).n == 20_200


# --- the command line -------------------------------------------------------------------------------------


@pytest.fixture
def cli(capsys, monkeypatch):
    from helpers.cli import run

    return lambda *args: run(capsys, monkeypatch, *args)


def test_index_and_search_from_the_command_line(cli, tmp_path):
    import json

    B = make("clustered", 300, 24)
    names = np.array([f"n{i}" for i in range(300)])
    for name, array in {"B": B, "ids": names, "y": np.arange(300) % 4, "Q": B[:3]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    made = cli(
        "index", tmp_path / "B.npy", "-o", tmp_path / "ix.dish", "--ids", tmp_path / "ids.npy",
        "--labels", tmp_path / "y.npy",
    )  # fmt: skip
    assert made == (0, f"{tmp_path / 'ix.dish'}: 300 codes of 24 bits\n", "")
    code, out, _ = cli("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--k", 4, "--json")
    assert code == 0
    D, rows = brute_nearest(B[:3], B, 4)
    for i, line in enumerate(out.splitlines()):
        hits = json.loads(line)["hits"]
        assert [hit["id"] for hit in hits] == names[rows[i]].tolist()
        assert [hit["distance"] for hit in hits] == D[i].tolist()
        assert [hit["label"] for hit in hits] == (rows[i] % 4).tolist()
    code, out, _ = cli("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--radius", 0)
    assert out.splitlines()[0].startswith("query 0: n0 (0, 0)")
    code, out, _ = cli("info", tmp_path / "ix.dish")
    assert "HammingIndex" in out
    np.save(tmp_path / "floats.npy", np.ones((2, 3)))
    for message, call in {
        "packed codes are uint8": ("index", tmp_path / "floats.npy", "-o", tmp_path / "no.dish"),
        "3 bytes per row": ("index", tmp_path / "B.npy", "-o", tmp_path / "no.dish", "--bits", 64),
        "one of the inputs": ("index", tmp_path / "B.npy", "-o", tmp_path / "B.npy"),
        "no model file": ("search", tmp_path / "none.dish", "--codes", tmp_path / "Q.npy"),
        "k must be": ("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--k", 0),
    }.items():
        code, _, err = cli(*call)
        assert (code, len(err.strip().splitlines())) == (2, 1)
        assert message in err
    assert not (tmp_path / "no.dish").exists()
