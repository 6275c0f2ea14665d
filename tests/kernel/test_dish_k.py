"""DISHK and Algorithm 2: the objective, losses, starts, similarities and parameters."""

import subprocess
import sys
from copy import deepcopy

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import dish
from dish import DISHK, codes, metrics, similarity
from dish.baselines.lsh import LSH
from dish.encoder import Classifiers, Linear
from dish.errors import InputError, UnsupportedError
from dish.kernel.dish_k import alternate
from dish.kernel.fit_data import FitData
from dish.kernel.fit_state import KernelState
from dish.similarity import from_labels


def score(hasher, X, y, Xq, yq, base=None):
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X) if base is None else base, y)


def fit_data(y, n=None, m=15, seed=0):
    """Features of rows that depend on their labels."""
    rng = np.random.default_rng(seed)
    Y = np.eye(y.max() + 1)[y] if y.ndim == 1 else y
    K = Y @ rng.standard_normal((Y.shape[1], m)) + 0.7 * rng.standard_normal((len(y), m))
    return FitData.of(from_labels(y), torch.from_numpy(K - K.mean(0)))


CLASSES = np.random.default_rng(1).integers(0, 5, 300)
SETS = (np.random.default_rng(1).random((300, 5)) < 0.3).astype(int)


# --- alternate ---


@pytest.mark.parametrize("loss", ["ridge", "hinge", "logistic", GaussianNB()], ids=str)
@pytest.mark.parametrize("y", [CLASSES, SETS], ids=["classes", "sets"])
def test_alternate_changes_none_of_its_inputs_and_repeats(y, loss):
    data = fit_data(y)
    K, rows = data.K.clone(), data.S.row_group.clone()
    first, second = (alternate(data, 6, loss=loss, n_iter=3) for _ in range(2))
    assert data.K.numpy().tobytes() == K.numpy().tobytes()
    assert torch.equal(data.S.row_group, rows)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[2], second[2])
    np.testing.assert_array_equal(first[1].numpy()(K.numpy()), second[1].numpy()(K.numpy()))


def test_alternate_does_not_change_given_codes():
    data = fit_data(CLASSES)
    init = np.random.default_rng(0).integers(0, 256, (300, 1), np.uint8)
    before = init.copy()
    H, _, _ = alternate(data, 8, init=init, n_iter=2)
    np.testing.assert_array_equal(init, before)
    assert (init != H).any()


def test_alternate_returns_codes_hash_function_and_objective():
    H, function, objective = alternate(fit_data(CLASSES), 11, n_iter=2)
    assert H.shape == (300, 2)
    assert H.dtype == np.uint8
    assert isinstance(function, Linear)
    assert function.W.shape == (15, 11)
    assert objective.shape == (2,)


@pytest.mark.parametrize("loss", ["ridge", "hinge", "logistic"])
def test_the_objective_is_the_papers(loss):
    """Q = ‖rS − HHᵀ‖² + nν Σ l(h, f) with the F that the H-step saw, evaluated with the explicit n×n S."""
    literal = {
        "ridge": lambda h, f: (h - f) ** 2,
        "hinge": lambda h, f: np.maximum(0, 1 - h * f) ** 2,
        "logistic": lambda h, f: np.log1p(np.exp(-h * f)),
    }[loss]
    r, nu, data = 6, 1e-2, fit_data(CLASSES)
    data.ridge = 1e-12  # the penalty on W is part of the objective
    _, start, _ = alternate(data, r, loss=loss, nu=nu, n_iter=0)
    packed, _, objective = alternate(data, r, loss=loss, nu=nu, n_iter=1)
    H, F = codes.unpack(packed, r).astype(float), (data.K @ start.W).numpy()
    expected = ((r * data.S.dense() - H @ H.T) ** 2).sum() + len(H) * nu * literal(H, F).sum()
    assert objective[0] == pytest.approx(expected, rel=1e-9)


def test_the_objective_falls_until_it_converges():
    _, _, objective = alternate(fit_data(SETS), 10, n_iter=50, nu=1e-2)
    assert 2 < len(objective) < 50
    assert (np.diff(objective) < 0).all()


def test_without_taking_back_all_iterations_are_run_and_the_last_one_stands():
    """The objective rises here; a sweep is not discarded for that."""
    data, r = fit_data(CLASSES), 4
    params = {"init": "random", "nu": 0.0, "n_iter": 6}
    H, _, objective = alternate(data, r, **params, take_back=False)
    assert len(objective) == 6
    assert (np.diff(objective) > 0).any()
    H = codes.unpack(H, r).astype(float)
    assert objective[-1] == pytest.approx(((r * data.S.dense() - H @ H.T) ** 2).sum(), rel=1e-12)


def test_without_taking_back_it_ends_when_no_bit_changes():
    data = fit_data(CLASSES)
    _, _, objective = alternate(data, 3, nu=0.0, lam=1e6, n_iter=9, take_back=False)
    assert len(objective) == 1  # so large a λ moves no row of a balanced bit


def test_a_state_resumes_where_it_was_written():
    data, seen = fit_data(CLASSES), []

    def after_sweep(H, function, objective, sweep):
        W = function.numpy().W
        seen.append(KernelState(H.copy(), W, np.array(objective), np.zeros(0), np.zeros(0), ()))
        assert sweep.flips >= 0

    whole = alternate(data, 6, init="random", n_iter=4, after_sweep=after_sweep)
    assert [len(state.objective) for state in seen] == list(range(1, len(whole[2]) + 1))
    np.testing.assert_array_equal(seen[-1].codes, whole[0])
    before = deepcopy(seen[0])
    resumed = alternate(data, 6, init="random", n_iter=4, state=seen[0])
    np.testing.assert_array_equal(resumed[0], whole[0])
    np.testing.assert_allclose(resumed[2], whole[2], rtol=1e-12)
    np.testing.assert_array_equal(seen[0].codes, before.codes)


def test_no_iterations_keep_the_start():
    data = fit_data(CLASSES)
    init = codes.pack(np.random.default_rng(0).standard_normal((300, 5)))
    H, function, objective = alternate(data, 5, init=init, n_iter=0)
    np.testing.assert_array_equal(H, init)
    assert len(objective) == 0
    assert function.W.abs().max() > 0


# --- The estimator ---


def test_codes_rank_better_than_the_rows_themselves(digits):
    X, y, Xq, yq = digits
    hasher = DISHK(n_bits=32, n_anchors=300).fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.97
    assert score(hasher, X, y, Xq, yq, base=hasher.codes_) > 0.97  # learned codes as the database
    assert metrics.l2_mean_average_precision(Xq, yq, X, y) < 0.75


@pytest.mark.parametrize("loss", ["ridge", "hinge", "logistic", RidgeClassifier(), KNeighborsClassifier(5)])
@pytest.mark.parametrize("init", ["spectral", "random"])
def test_the_objective_never_rises(digits, loss, init):
    X, y, Xq, yq = digits
    X, y = X[:300], y[:300]
    hasher = DISHK(n_bits=6, n_anchors=40, loss=loss, init=init, nu=1e-2, n_iter=3).fit(X, y)
    assert hasher.n_iter_ == len(hasher.objective_) >= 1
    assert (np.diff(hasher.objective_) <= 0).all()
    assert score(hasher, X, y, Xq, yq) > (0.55 if init == "spectral" else 0.4)


def test_learned_codes_are_balanced(digits):
    X, y, _, _ = digits
    for n in (400, 401):
        H = codes.unpack(DISHK(n_bits=16, n_anchors=50).fit(X[:n], y[:n]).codes_, 16)
        np.testing.assert_array_equal(H.sum(0), n % 2)


@pytest.mark.parametrize("loss", ["ridge", "hinge", "logistic", LinearSVC(C=0.1)])
def test_built_in_losses_and_linear_classifiers_give_a_linear_function(digits, loss, tmp_path):
    X, y, Xq, _ = digits
    hasher = DISHK(n_bits=5, n_anchors=30, loss=loss).fit(X[:200], y[:200])
    assert type(hasher.hash_function_) is Linear
    hasher.save(tmp_path / "m.dish")
    np.testing.assert_array_equal(dish.load(tmp_path / "m.dish").transform(Xq), hasher.transform(Xq))


def test_other_classifiers_are_kept_as_they_are(digits, tmp_path):
    X, y, Xq, _ = digits
    forest = RandomForestClassifier(5, random_state=0)
    hasher = DISHK(n_bits=5, n_anchors=30, loss=forest, n_iter=0).fit(X[:200], y[:200])
    assert type(hasher.hash_function_) is Classifiers
    assert len(hasher.hash_function_.models) == 5
    assert hasher.transform(Xq).shape == (200, 1)
    with pytest.raises(UnsupportedError, match="RandomForestClassifier"):
        hasher.save(tmp_path / "f.dish")
    assert not (tmp_path / "f.dish").exists()


@pytest.mark.parametrize("kernel", ["linear", "rbf+linear", lambda X, A: (X @ A.T / 100) ** 2])
@pytest.mark.parametrize("anchors", ["kmeans", "given"])
def test_other_kernels_and_anchors(digits, kernel, anchors):
    X, y, Xq, yq = digits
    given = X[:100] if anchors == "given" else anchors
    hasher = DISHK(n_bits=32, n_anchors=100, kernel=kernel, anchors=given).fit(X, y)
    assert hasher.kernel_ is kernel or hasher.kernel_ == kernel
    assert score(hasher, X, y, Xq, yq) > 0.8


def test_the_kernel_may_be_the_papers_with_the_distance_not_squared(digits):
    X, y, Xq, yq = digits

    def kernel(X, A):
        return np.exp(-np.linalg.norm(X[:, None] - A[None], axis=2) / (2 * 5.0**2))

    hasher = DISHK(n_bits=24, anchors=X[:60], kernel=kernel).fit(X, y)
    K = kernel(X.astype(float), X[:60].astype(float))
    expected = (kernel(Xq, X[:60]) - K.mean(0)) @ hasher.hash_function_.W
    np.testing.assert_allclose(hasher.decision_function(Xq), expected, atol=1e-6)
    assert score(hasher, X, y, Xq, yq) > 0.8


@pytest.mark.filterwarnings("ignore:the codes of 400 held-out rows")  # of the start alone
def test_the_literal_settings_learn(digits):
    X, y, Xq, yq = digits
    literal = DISHK(n_bits=24, n_anchors=100, init="spectral-literal", take_back=False, ridge=0, similar_weight=2)
    assert score(literal.fit(X, y), X, y, Xq, yq) > 0.9
    start = clone(literal).set_params(n_iter=0).fit(X, y)
    np.testing.assert_array_equal(start.codes_, start.transform(X))  # H = sgn(KW), row by row


def test_a_kernel_that_returns_its_input_does_not_change_it(digits):
    X, y, _, _ = digits
    X, y = X[:100].copy(), y[:100]
    before = X.copy()
    DISHK(n_bits=8, anchors=np.eye(64), kernel=lambda A, B: A).fit(X, y).transform(X)
    np.testing.assert_array_equal(X, before)


def test_unused_bits_of_given_codes_are_cleared(digits):
    X, y, _, _ = digits
    init = np.full((100, 1), 255, np.uint8)
    hasher = DISHK(n_bits=7, n_anchors=20, init=init, n_iter=1).fit(X[:100], y[:100])
    assert (hasher.codes_ & 1 == 0).all()


def test_given_codes_are_the_start(digits):
    X, y, _, _ = digits
    first = DISHK(n_bits=16, n_anchors=50, n_iter=5).fit(X, y)
    again = DISHK(n_bits=16, n_anchors=50, n_iter=5, init=first.codes_).fit(X, y)
    assert again.objective_[0] <= first.objective_[-1]
    kept = DISHK(n_bits=16, n_anchors=50, n_iter=0, init=first.codes_).fit(X, y)
    np.testing.assert_array_equal(kept.codes_, first.codes_)
    assert kept.n_iter_ == 0


@pytest.mark.parametrize("multilabel", ["count", "share_one", "jaccard"])
@pytest.mark.parametrize("sparse", [False, True])
def test_multi_label_data(multilabel, sparse):
    rng = np.random.default_rng(0)
    Y = (rng.random((600, 6)) < 0.25).astype(int)
    X = Y @ rng.standard_normal((6, 20)) + 0.3 * rng.standard_normal((600, 20))
    hasher = DISHK(n_bits=24, n_anchors=200, multilabel=multilabel)
    hasher.fit(X[:500], sp.csr_matrix(Y[:500]) if sparse else Y[:500])
    random = LSH(n_bits=24).fit(X[:500])
    found, chance = (score(h, X[:500], Y[:500], X[500:], Y[500:]) for h in (hasher, random))
    assert found > chance + 0.1


@pytest.mark.parametrize("make", [similarity.nystroem, similarity.anchor_graph])
def test_learns_from_a_similarity_without_labels(digits, make):
    X, y, Xq, yq = digits
    X, y = X[:500], y[:500]
    hasher = DISHK(n_bits=24, n_anchors=100).fit(X, make(X, 100))
    assert score(hasher, X, y, Xq, yq) > score(LSH(n_bits=24).fit(X), X, y, Xq, yq)


def test_the_similarity_of_labels_gives_the_codes_of_the_labels(digits):
    X, y, _, _ = digits
    X, y = X[:200], y[:200]
    hasher = DISHK(n_bits=8, n_anchors=40)
    np.testing.assert_array_equal(clone(hasher).fit(X, from_labels(y)).codes_, hasher.fit(X, y).codes_)


@pytest.mark.parametrize(("n_classes", "w"), [(12, 2.0), (36, 2.0), (400, 400**0.5 / 3), (900, 10.0), (1200, 10.0)])
def test_auto_chooses_the_weight_of_similar_pairs_by_the_number_of_classes(n_classes, w):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(n_classes), 2)
    X = rng.standard_normal((n_classes, 4))[y] + 0.1 * rng.standard_normal((len(y), 4))
    params = {"n_bits": 4, "n_anchors": 20, "n_iter": 1}
    automatic, given = (DISHK(**params, similar_weight=s).fit(X, y) for s in ("auto", w))
    np.testing.assert_array_equal(automatic.objective_, given.objective_)
    np.testing.assert_array_equal(automatic.codes_, given.codes_)


def test_pipeline_and_grid_search(digits):
    X, y, Xq, yq = digits
    X, y = X[:400], y[:400]
    pipe = make_pipeline(StandardScaler(), DISHK(n_bits=16, n_anchors=50), KNeighborsClassifier(3, metric="hamming"))
    grid = GridSearchCV(pipe, {"dishk__n_anchors": [5, 80]}, cv=2).fit(X, y)
    assert grid.best_params_ == {"dishk__n_anchors": 80}
    assert grid.score(Xq, yq) > 0.8


def test_grid_search_with_a_retrieval_score(digits):
    X, y, _, _ = digits

    def own_map(hasher, X, y):
        packed = hasher.transform(X)
        return metrics.mean_average_precision(packed, y, packed, y)

    grid = GridSearchCV(DISHK(n_bits=16), {"n_anchors": [3, 60]}, scoring=own_map, cv=2).fit(X[:300], y[:300])
    assert grid.best_params_ == {"n_anchors": 60}


def test_fit_does_not_change_the_parameters(digits):
    X, y, _, _ = digits
    hasher = DISHK(n_bits=8, n_anchors=20)
    before = clone(hasher).get_params()
    hasher.fit(X[:100], y[:100])
    assert hasher.get_params() == before


def test_everything_but_the_number_of_bits_is_keyword_only():
    assert DISHK(24).n_bits == 24
    with pytest.raises(TypeError, match="positional argument"):
        DISHK(24, 100)


@pytest.mark.long  # test_load_and_encode_in_a_process_without_torch does the same for DISH and others
def test_another_process_loads_the_model_and_gives_identical_codes(digits, tmp_path):
    X, y, Xq, _ = digits
    hasher = DISHK(n_bits=64, n_anchors=200).fit(X, y)
    hasher.save(tmp_path / "m.dish")
    np.save(tmp_path / "Xq.npy", Xq)
    program = "import sys, numpy as np, dish; p = sys.argv[1]; "
    program += "np.save(p + '/codes.npy', dish.load(p + '/m.dish').transform(np.load(p + '/Xq.npy')))"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), hasher.transform(Xq))


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"loss": "l1"}, "loss must be one of 'ridge', 'hinge', 'logistic' or a scikit-learn classifier, got 'l1'"),
        ({"loss": "posterior"}, "loss"),
        ({"loss": 3}, "loss"),
        ({"nu": -1}, "nu"),
        ({"nu": np.nan}, "nu"),
        ({"lam": -1}, "lam"),
        ({"n_iter": -1}, "n_iter"),
        ({"take_back": "no"}, "take_back must be True or False, got 'no'"),
        ({"ridge": 0, "anchors": np.ones((2, 64))}, "ridge=0, but KᵀK is singular"),
        ({"similar_weight": 0.5}, "similar_weight"),
        ({"similar_weight": np.inf}, "similar_weight"),
        ({"similar_weight": 1e300}, "similar_weight must be 'auto' or a number above 1 and at most 1e12"),
        ({"multilabel": "all"}, "multilabel"),
        ({"init": "zeros"}, "init"),
        ({"init": np.zeros((3, 8), np.uint8)}, "init has 3 codes, but X has 100 rows"),
        ({"init": np.zeros((100, 3), np.uint8)}, "init"),
    ],
)
def test_bad_parameters_are_named(digits, params, name):
    X, y, _, _ = digits
    with pytest.raises(InputError, match=name):
        DISHK(**{"n_bits": 64, "n_anchors": 20, **params}).fit(X[:100], y[:100])


def test_bad_labels_are_named(digits):
    X, y, _, _ = digits
    X, y = X[:100], y[:100]
    with pytest.raises(InputError, match=r"y is None: give \(n,\) classes, \(n, l\) labels .* or a similarity"):
        DISHK().fit(X)
    with pytest.raises(InputError, match="1 class"):
        DISHK().fit(X, np.zeros(100))
    with pytest.raises(InputError, match="X has 100 rows but y has 99"):
        DISHK().fit(X, y[:99])
    with pytest.raises(InputError, match="NaN"):
        DISHK().fit(X, np.full(100, np.nan))
    with pytest.raises(InputError, match="X has 100 rows but y has 50"):
        DISHK().fit(X, from_labels(y[:50]))


def test_verbose_reports_every_iteration(digits, capsys):
    X, y, _, _ = digits
    hasher = DISHK(n_bits=8, n_anchors=20, verbose=1).fit(X[:200], y[:200])
    assert capsys.readouterr().err.count("objective") == hasher.n_iter_
    DISHK(n_bits=8, n_anchors=20).fit(X[:200], y[:200])
    assert capsys.readouterr() == ("", "")
