"""``DISHK.partial_fit``: batches equal one call, what equals ``fit``, memory, classes that come later, refusals."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import dish
from dish import DISHK, metrics
from dish.errors import InputError, UnsupportedError
from dish.kernel import class_sums
from dish.kernel.class_sums import h_steps, stand_ins

OPTIONS = {"n_bits": 8, "gamma": 5e-4, "scale": None}


@pytest.fixture(scope="module")
def data(digits):
    X, y, *_ = digits
    return X[:400].astype(np.float64), y[:400]


@pytest.fixture(scope="module")
def options(data):
    return OPTIONS | {"anchors": data[0][:60]}


def in_batches(hasher, X, y, parts, **first):
    for i, rows in enumerate(parts):
        hasher.partial_fit(X[rows], y[rows], **(first if i == 0 else {}))
    return hasher


def assert_same_function(a, b, tolerance=1e-9):
    A, B = a.hash_function_.W, b.hash_function_.W
    assert abs(A - B).max() <= tolerance * abs(B).max()


@pytest.mark.parametrize("order", ["random", "sorted by class", "uneven"])
def test_ten_batches_equal_one_call(order, data, options):
    X, y = data
    rows = np.argsort(y, kind="stable") if order == "sorted by class" else np.arange(len(y))
    cuts = [3, 17, 200, 201, 399] if order == "uneven" else 10
    one = DISHK(**options).partial_fit(X, y)
    ten = in_batches(DISHK(**options), X, y, np.array_split(rows, cuts), classes=np.arange(10))
    assert_same_function(ten, one)
    F = one.decision_function(X)
    clear = abs(F) > 1e-5
    assert clear.mean() > 0.999
    np.testing.assert_array_equal((ten.decision_function(X) >= 0)[clear], (F >= 0)[clear])
    assert ten.n_samples_seen_ == one.n_samples_seen_ == len(X)
    np.testing.assert_array_equal(ten.classes_, np.arange(10))


def test_without_h_steps_it_equals_fit(data, options):
    X, y = data
    fitted = DISHK(**options, n_iter=0).fit(X, y)
    batched = in_batches(DISHK(**options, n_iter=0), X, y, np.array_split(np.arange(len(y)), 4))
    assert_same_function(batched, fitted)
    np.testing.assert_array_equal(batched.transform(X), fitted.transform(X))


def test_where_classes_keep_one_code_it_equals_fit():
    """Two classes of equal size: every bit is balanced, so that no class is split."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 60)
    X = rng.standard_normal((120, 4)) + 3 * y[:, None]
    options = {"n_bits": 4, "anchors": X[::6], "gamma": 0.1, "scale": None, "nu": 0.0}
    fitted = DISHK(**options).fit(X, y)
    assert len(np.unique(np.c_[fitted.codes_, y], axis=0)) == 2  # H is constant on classes
    assert_same_function(
        in_batches(DISHK(**options), X, y, np.array_split(np.arange(120), 3), classes=[0, 1]), fitted
    )


def test_it_ranks_as_well_as_fit(data, options, digits):
    X, y = data
    *_, Xq, yq = digits
    scores = [
        metrics.mean_average_precision(h.transform(Xq), yq, h.transform(X), y)
        for h in (DISHK(**options).fit(X, y), in_batches(DISHK(**options), X, y, np.array_split(np.arange(400), 5)))
    ]
    assert scores[1] >= 0.98 * scores[0]


def test_sums_equal_those_of_all_rows(data, options):
    X, y = data
    hasher = in_batches(DISHK(**options), X, y, np.array_split(np.arange(400), 7))
    sums = hasher.batches_
    K = sums.features(X)
    np.testing.assert_allclose(sums.G, K.T @ K, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(sums.A, np.eye(10)[y].T @ K, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(sums.sizes, np.bincount(y))
    np.testing.assert_allclose(hasher.mean_, (K + sums.features.mean).mean(0), atol=1e-12)


def test_memory_does_not_depend_on_the_rows(data, options):
    X, y = data

    def size(hasher):
        return sum(a.nbytes for a in (hasher.batches_.G, hasher.batches_.A, hasher.batches_.sizes, hasher.codes_))

    once = DISHK(**options).partial_fit(X[:200], y[:200])
    often = in_batches(DISHK(**options), X, y, [slice(0, 200)] * 2)
    assert size(once) == size(often)
    assert often.n_samples_seen_ == len(X)


def test_it_goes_on_after_fit(data, options):
    X, y = data
    hasher = DISHK(**options).fit(X[:300], y[:300]).partial_fit(X[300:], y[300:])
    assert_same_function(hasher, DISHK(**options).partial_fit(X, y), 1e-8)


def test_classes_may_come_later(data, options):
    X, y = data
    hasher = DISHK(**options).partial_fit(X[y < 5], y[y < 5])
    np.testing.assert_array_equal(hasher.classes_, np.arange(5))
    hasher.partial_fit(X[y >= 5], y[y >= 5])
    np.testing.assert_array_equal(hasher.classes_, np.arange(10))
    assert_same_function(hasher, DISHK(**options).partial_fit(X, y))


def test_what_it_cannot_learn_is_refused_and_changes_nothing(data, options, tmp_path):
    X, y = data
    hasher = DISHK(**options).partial_fit(X, y)
    before = hasher.fingerprint_
    for bad_X, bad_y, message in [
        (X[:, :9], y, "9 features"),
        (X, y[:-1], "399"),
        (X, y.astype(str), "another type"),
        (X, np.eye(10, dtype=int)[y], "classes"),
        (np.full_like(X, np.nan), y, "NaN"),
        ("rows.npy", y, "path"),
    ]:
        with pytest.raises(InputError, match=message):
            hasher.partial_fit(bad_X, bad_y)
    assert hasher.fingerprint_ == before
    assert hasher.n_samples_seen_ == len(X)
    with pytest.raises(InputError, match="1 class"):
        DISHK(**options).partial_fit(X[:5], np.zeros(5, int))
    with pytest.raises(InputError, match="classes does not name"):
        DISHK(**options).partial_fit(X, y, classes=[0, 1])
    for change in ({"loss": "hinge"}, {"init": "random"}, {"loss": LogisticRegression()}):
        with pytest.raises(UnsupportedError, match="loss='ridge'"):
            DISHK(**options | change).partial_fit(X, y)
    hasher.save(tmp_path / "m.dish")
    with pytest.raises(UnsupportedError, match="cannot continue"):
        dish.load(tmp_path / "m.dish").partial_fit(X, y)
    with pytest.raises(InputError, match="changed after fit"):
        hasher.set_params(n_bits=16).partial_fit(X, y)


# --- stand-ins ---


def test_stand_ins_follow_the_sizes(monkeypatch):
    np.testing.assert_array_equal(stand_ins(np.array([3, 0, 5])), [3, 0, 5])
    monkeypatch.setattr(class_sums, "STAND_INS", 100)
    found = stand_ins(np.array([100_000, 50_000, 1, 0]))
    np.testing.assert_array_equal(found, [67, 33, 1, 0])


def test_every_h_step_may_stand():
    H, sizes = np.random.default_rng(0).integers(0, 256, (6, 2), np.uint8), np.array([30, 20, 10, 40, 7, 3])
    found = {keep: h_steps(H, sizes, 2.0, 16, 5, take_back=not keep)[1] for keep in (True, False)}
    assert found[True] != found[False]
    assert len(found[True]) == 5


def test_h_steps_never_raise_the_objective_and_return_means():
    rng = np.random.default_rng(0)
    H = np.packbits(rng.random((6, 16)) < 0.5, axis=1)
    means, objective = h_steps(H, np.array([30, 20, 10, 40, 7, 3]), 2.0, 16, 5, 0.0)
    assert all(np.diff(objective) <= 0)
    assert means.shape == (6, 16)
    assert abs(means).max() <= 1
    assert abs(np.array([30, 20, 10, 40, 7, 3]) @ means).max() <= 1  # every bit is balanced over the rows
