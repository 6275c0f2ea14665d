"""The contract, checked for our four estimators and for every rival."""

import contextlib
import copy
import functools
import pickle
import re
import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

import dish
from dish import DISH, machine, metrics, registry
from dish.baselines import REGISTRY
from dish.deep.deep_hasher import DeepHasher
from dish.errors import DishError, InputError
from dish.kernel.kernel_hasher import KernelHasher

HASHERS = {name: registry.find(name) for name in ("dish", "dish_k", "deep_dish", "dish_d", *REGISTRY)}
QUICK = {  # fewer iterations: the contract says nothing about quality
    **{name: {"epochs": 1} for name, kind in HASHERS.items() if issubclass(kind, DeepHasher)},
    "deep_dish": {"epochs": 1, "n_iter": 1},
    "dish_d": {"epochs": 1, "n_iter": 1},
    "mlh": {"n_iter": 1, "pairs_per_row": 5},
    "bre": {"n_iter": 1, "pairs_per_row": 5},
    "ksh": {"n_steps": 5},
    "lfh": {"n_iter": 3},
    "dgh": {"n_iter": 3},
    "isoh": {"n_iter": 20},
}
IGNORES_SEED = {"sh", "sign"}
CHECKED = (  # by all checks of scikit-learn in make test: our four, and a rival of each base class and kind of output
    *("dish", "dish_k", "deep_dish", "dish_d", "lsh", "minhash", "sh", "agh", "cca_itq", "fasth", "csq"),
    "logistic_lsh",
)
N_BITS = 12  # not a multiple of 8


def make(name, n_anchors=30, **params):
    """An unfitted hasher with few anchors and iterations."""
    if "n_anchors" in HASHERS[name]().get_params():
        params["n_anchors"] = n_anchors
    return HASHERS[name](**{"n_bits": N_BITS, **QUICK.get(name, {}), **params})


@functools.cache
def rows():
    """(X, y, Xq): 120 training rows and 50 queries of the digits."""
    X, y = load_digits(return_X_y=True)
    return X[:120], y[:120], X[120:170]


@functools.cache
def fitted(name):
    """A hasher fitted once for all tests that only read it."""
    X, y, _ = rows()
    return make(name, random_state=3).fit(X, y)


@pytest.fixture(params=HASHERS)
def name(request):
    return request.param


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """One thread: sums come in the same order in every fit, and tiny fits do not wait for other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(before)


def smallest(names):
    """Hashers for the checks of scikit-learn."""
    return [make(name, n_bits=2, n_anchors=5) for name in names]


@parametrize_with_checks(smallest(CHECKED))
def test_passes_all_checks_of_scikit_learn(estimator, check):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_anchors=5 is more")  # some checks have very few rows
        check(estimator)


@pytest.mark.long
@parametrize_with_checks(smallest(name for name in HASHERS if name not in CHECKED))
def test_every_rival_passes_all_checks_of_scikit_learn(estimator, check):
    test_passes_all_checks_of_scikit_learn(estimator, check)


def test_codes_are_the_packed_signs_of_F(name):
    Xq = rows()[2]
    F, packed = fitted(name).decision_function(Xq), fitted(name).transform(Xq)
    assert F.shape == (len(Xq), N_BITS)
    assert F.dtype == np.float32
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, np.packbits(F >= 0, axis=1))
    prefix = fitted(name).transform(Xq, n_bits=5)
    np.testing.assert_array_equal(prefix, np.packbits(F[:, :5] >= 0, axis=1))


def test_one_bit_is_enough(name):
    X, y, Xq = rows()
    assert make(name, n_bits=1).fit(X, y).transform(Xq).shape == (len(Xq), 1)


def test_no_rows_give_no_codes(name):
    X = rows()[0]
    assert fitted(name).transform(X[:0]).shape == (0, 2)
    assert fitted(name).decision_function(X[:0]).shape == (0, N_BITS)
    with pytest.raises(ValueError, match="features"):
        fitted(name).transform(np.zeros((0, 3)))


def test_same_seed_gives_the_same_codes(name):
    X, y, Xq = rows()
    same, other = (make(name, random_state=seed).fit(X, y).transform(Xq) for seed in (3, 4))
    np.testing.assert_array_equal(same, fitted(name).transform(Xq))
    assert (same == other).all() == (name in IGNORES_SEED)


def test_clone_has_the_same_parameters_and_is_not_fitted(name):
    fresh = clone(fitted(name))
    assert fresh.get_params() == fitted(name).get_params()
    with pytest.raises(NotFittedError, match="not fitted"):
        fresh.transform(rows()[0])


OTHER_VALUES = {
    "n_bits": 20,
    "random_state": 77,
    "n_anchors": 31,
    "n_neighbors": 2,
    "kernel": "rbf+linear",
    "mirror": False,
}


def test_a_parameter_changed_after_fit_is_noticed(name):
    Xq = rows()[2]
    hasher = copy.copy(fitted(name))
    expected = hasher.transform(Xq)
    params = hasher.get_params(deep=False)
    for param in OTHER_VALUES.keys() & params:
        hasher.set_params(**{param: OTHER_VALUES[param]})
        for use in (hasher.transform, hasher.decision_function, lambda _: hasher.fingerprint_, hasher.save):
            with pytest.raises(InputError, match=f"{param} changed after fit, which had {param}=.*: call fit again"):
                use(Xq)
        hasher.set_params(**{param: params[param]})
    for param, value in {"device": "cpu", "verbose": 1, "checkpoint": "folder", "memory_budget": "1GB"}.items():
        if param in params:
            hasher.set_params(**{param: value})
    np.testing.assert_array_equal(hasher.transform(Xq), expected)


def test_a_changed_parameter_holds_from_the_next_fit_on(name):
    X, y, Xq = rows()
    hasher = make(name, random_state=3).fit(X, y).set_params(n_bits=9)
    np.testing.assert_array_equal(
        hasher.fit(X, y).transform(Xq), make(name, random_state=3, n_bits=9).fit(X, y).transform(Xq)
    )


def test_a_fit_that_fails_leaves_the_hasher_as_it_was(name):
    X, y, Xq = rows()
    hasher = copy.copy(fitted(name))
    before = dict(vars(hasher))
    bad = X[:, :9].copy()
    bad[3] = np.nan
    for given, message in ((bad, "X contains"), (X[:0], "0 sample|empty")):
        with pytest.raises(ValueError, match=message):
            hasher.fit(given, y[: len(given)])
        assert vars(hasher) == before
    np.testing.assert_array_equal(hasher.transform(Xq), fitted(name).transform(Xq))


def test_values_beyond_the_number_type_of_the_model_are_refused(name):
    """A finite float64 would become infinite in float32, F not a number, and the code all zeros."""
    X, y, _ = rows()
    model = make(name).fit(X.astype(np.float32), y)
    huge = X[:5].copy()
    huge[3, 4] = 1e39
    if not issubclass(HASHERS[name], KernelHasher | DeepHasher):  # the others encode in float64
        with contextlib.suppress(InputError):  # outputs beyond float32
            assert np.isfinite(model.decision_function(huge)).all()
        return
    for given in (huge, iter([huge[:2], huge[2:]])):
        with pytest.raises(InputError, match=r"X: row 3 has values up to 1e\+39, too large .*: scale X"):
            model.transform(given)
    F = model.decision_function(np.clip(huge, None, 1e30).astype(np.float32))
    assert np.isfinite(F).all()


def test_save_and_load_restore_the_hasher(name, tmp_path):
    Xq = rows()[2]
    fitted(name).save(tmp_path / "m.dish")
    loaded = dish.load(tmp_path / "m.dish")
    assert type(loaded) is HASHERS[name]
    assert loaded.get_params() == fitted(name).get_params()
    assert loaded.fingerprint_ == fitted(name).fingerprint_
    np.testing.assert_array_equal(loaded.decision_function(Xq), fitted(name).decision_function(Xq))


def test_copies_give_the_same_codes(name, tmp_path):
    Xq = rows()[2]
    joblib.dump(fitted(name), tmp_path / "m.joblib")
    pickled = pickle.loads(pickle.dumps(fitted(name)))
    for twin in (copy.copy(fitted(name)), copy.deepcopy(fitted(name)), pickled, joblib.load(tmp_path / "m.joblib")):
        assert twin.fingerprint_ == fitted(name).fingerprint_
        np.testing.assert_array_equal(twin.transform(Xq), fitted(name).transform(Xq))


def test_fingerprint_identifies_the_hash_function(name):
    X, y, _ = rows()
    hasher = make(name, random_state=4)
    with pytest.raises(NotFittedError):
        _ = hasher.fingerprint_
    assert re.fullmatch("[0-9a-f]{16}", fitted(name).fingerprint_)
    assert hasher.fit(X[20:], y[20:]).fingerprint_ != fitted(name).fingerprint_


@pytest.mark.slow
def test_float32_and_float64_agree(name, digits):
    """Learning: equal MAP up to 0.01 (a few bits may differ, see docs/method.md). Encoding: 99.9 % of the bits.

    Rounding can send an iterative method to another local optimum, no worse on average. So if one seed disagrees, the
    mean of five must agree.
    """
    X, y, Xq, yq = digits
    X, y = X[:400], y[:400]

    def fit(dtype, seed):
        hasher = make(name, n_anchors=60, n_bits=24, random_state=seed).fit(X.astype(dtype), y)
        q, b = hasher.transform(Xq.astype(dtype)), hasher.transform(X.astype(dtype))
        return hasher, metrics.mean_average_precision(q, yq, b, y)

    (_, single), (hasher, double) = fit(np.float32, 0), fit(np.float64, 0)
    if abs(single - double) > 0.01:
        single, double = (np.mean([fit(dtype, seed)[1] for seed in range(5)]) for dtype in (np.float32, np.float64))
    assert single == pytest.approx(double, abs=0.01)
    bits = [np.unpackbits(hasher.transform((X / 7).astype(dtype))) for dtype in (np.float32, np.float64)]
    assert (bits[0] == bits[1]).mean() > 0.999


def test_all_kinds_of_rows_give_the_same_codes(name, tmp_path):
    X, y, _ = rows()
    expected = fitted(name).transform(X)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for given in (mapped, torch.from_numpy(X), iter([X[:50], X[50:]]), [X[:50], X[50:]], X.tolist()):
        np.testing.assert_array_equal(fitted(name).transform(given), expected)
    for given in (mapped, iter([X[:50], X[50:]])):
        np.testing.assert_array_equal(make(name, random_state=3).fit(given, y).transform(X), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rejects_nan_and_infinity(name, value):
    X, y, _ = rows()
    bad = X.copy()
    bad[3, 4] = value
    with pytest.raises(ValueError, match="X contains"):
        make(name).fit(bad, y)
    with pytest.raises(ValueError, match="X contains"):
        fitted(name).transform(bad)


@pytest.mark.parametrize("n_bits", [0, -3, 2.5, "64", None, True])
def test_rejects_bad_n_bits(name, n_bits):
    X, y, _ = rows()
    with pytest.raises(ValueError, match="n_bits"):
        make(name, n_bits=n_bits).fit(X, y)


def test_rejects_rows_of_the_wrong_shape(name):
    X, y, _ = rows()
    with pytest.raises(ValueError, match=r"0 sample|empty"):
        make(name).fit(X[:0], y[:0])
    with pytest.raises(ValueError, match="63 features"):
        fitted(name).transform(X[:, :63])
    with pytest.raises(ValueError, match="2D"):
        fitted(name).transform(X[0])
    with pytest.raises(ValueError, match="blocks"):
        fitted(name).transform(iter([X[:2], X[2:4, :5]]))


def odd_data():
    """Rows and labels that are legal but unusual: name → (X, y)."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 60)
    X = rng.standard_normal((60, 6)) + 2 * rng.standard_normal((4, 6))[y]
    sets = np.eye(4, dtype=int)[y]
    return {
        **{dtype: ((5 * abs(X)).astype(dtype), y) for dtype in ("float16", "float32", "int8", "int64", "uint8")},
        "bool": (X > 0, y),
        "a constant feature": (np.c_[X, np.full(60, 7.0)], y),
        "equal rows": (np.full((60, 6), 3.0), y),
        "zeros": (np.zeros((60, 6)), y),
        "duplicates": (np.repeat(X[:10], 6, 0), np.repeat(y[:10], 6)),
        "duplicates with other labels": (np.repeat(X[:10], 6, 0), y),
        **{f"{n} rows": (X[:n], np.arange(n) % 2) for n in (1, 2, 3, 5)},
        "one class": (X, np.zeros(60, int)),
        "one row of a class": (X, (np.arange(60) == 7).astype(int)),
        "as many classes as rows": (X, np.arange(60)),
        "text labels": (X, np.array(list("abcd"))[y]),
        "label sets": (X, sets | np.roll(sets, 1, axis=1)),
        "empty label sets": (X, sets * (np.arange(60) % 3 > 0)[:, None]),
        "a label of no row": (X, np.c_[sets, np.zeros(60, int)]),
        "one feature": (X[:, :1], y),
        "more features than rows": (rng.standard_normal((20, 90)), y[:20]),
        **{f"scale {scale:g}": ((scale * X).astype(np.float32), y) for scale in (1e-25, 1e18, 1e37)},
        "far from zero": ((X + 1e6).astype(np.float32), y),
        "an outlier": (np.r_[X, np.full((1, 6), 1e8)], np.r_[y, 0]),
    }


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("n_bits", [1, 40])
def test_odd_data_are_learned_or_refused(name, n_bits, tmp_path):
    """Finite outputs, the same again from the same seed and from a file, or an error that dish raises on purpose."""
    refused = set()
    for case, (X, y) in odd_data().items():
        try:
            model, again = (make(name, n_bits=n_bits, random_state=1).fit(X, y) for _ in range(2))
            F = model.decision_function(X)
        except DishError:
            refused.add(case)
            continue
        assert F.shape == (len(X), n_bits), case
        np.testing.assert_array_equal(again.transform(X), model.transform(X), case)
        model.save(tmp_path / "m.dish")
        np.testing.assert_array_equal(dish.load(tmp_path / "m.dish").transform(X), model.transform(X), case)
    usual = {
        "float16",
        "float32",
        "int8",
        "int64",
        "uint8",
        "bool",
        "a constant feature",
        "text labels",
    }
    assert not usual & refused


LARGE = {  # rows, features, classes
    "5,000 classes": (10_000, 16, 5000),
    "50,000 features": (64, 50_000, 4),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("size", LARGE)
def test_many_classes_and_features_take_bounded_memory_or_are_refused(name, size, monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 16 * 2**30)
    n, d, c = LARGE[size]
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(n) % c)
    X = rng.standard_normal((n, d), dtype=np.float32)
    X += 2 * rng.standard_normal((c, d), dtype=np.float32)[y]
    peak, refused = machine.PeakMemory(), None
    try:
        codes = make(name, n_bits=16, n_anchors=100, random_state=1).fit(X, y).transform(X[:50])
    except InputError as error:
        refused = str(error)
    assert refused or len(np.unique(codes, axis=0)) > 1
    assert not refused or re.search("GB are free|at most 4,096", refused)
    assert peak.bytes() < 3 * 2**30


def test_a_column_of_vectors_is_a_matrix():
    pd = pytest.importorskip("pandas")
    X, y, Xq = rows()
    hasher = DISH(8, n_anchors=20).fit(X, y)
    column = pd.DataFrame({"embedding": list(Xq)})["embedding"]
    np.testing.assert_array_equal(hasher.transform(column), hasher.transform(Xq))
    by_column = DISH(8, n_anchors=20).fit(pd.Series(list(X)), y)
    np.testing.assert_array_equal(by_column.codes_, hasher.codes_)
    with pytest.raises(ValueError, match=r"the same length; row 0 has 64 numbers, row 1 has shape \(3,\)"):
        hasher.transform(pd.Series([Xq[0], Xq[1][:3]]))


def test_rejects_missing_labels_of_pandas():
    pd = pytest.importorskip("pandas")
    X, y, _ = rows()
    labels = pd.Series([f"digit {v}" for v in y], dtype="string")
    labels[7] = pd.NA
    with pytest.raises(ValueError, match=r"no label .*row 7"):
        DISH(8, n_anchors=20).fit(X, labels)
