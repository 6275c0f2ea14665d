import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from dish.kernel.defaults import ROUGH
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dish
from dish import DISH, codes, metrics, similarity
from dish.baselines.lsh import LSH


def score(hasher, X, y, Xq, yq, base=None):
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X) if base is None else base, y)


def test_beats_the_vectors_it_replaces(digits):
    X, y, Xq, yq = digits
    hasher = DISH(n_bits=32, n_anchors=300).fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.97
    assert score(hasher, X, y, Xq, yq, base=hasher.codes_) > 0.97  # learned codes as the database
    assert metrics.l2_mean_average_precision(Xq, yq, X, y) < 0.75


CLASSIFIERS = [
    pytest.param(kind, marks=pytest.mark.slow) for kind in (LogisticRegression(C=10), KNeighborsClassifier(5))
]


@pytest.mark.parametrize("loss", ["ridge", "hinge", "logistic", *CLASSIFIERS])
@pytest.mark.parametrize("init", ["spectral", "random"])
def test_objective_never_rises(digits, loss, init):
    X, y, Xq, yq = digits
    hasher = DISH(n_bits=10, n_anchors=80, loss=loss, init=init, nu=1e-2, n_iter=6).fit(X[:600], y[:600])
    assert hasher.n_iter_ == len(hasher.objective_) >= 1
    assert (np.diff(hasher.objective_) <= 0).all()
    assert score(hasher, X[:600], y[:600], Xq, yq) > (0.75 if init == "spectral" else 0.6)


def test_objective_is_the_papers(digits):
    """Q after the last H-step, evaluated with the explicit n×n S."""
    X, y, _, _ = digits
    X, y = X[:150], y[:150]
    r, nu = 6, 1e-3
    hasher = DISH(n_bits=r, n_anchors=20, nu=nu, n_iter=1, ridge=1e-9, loss="ridge").fit(X, y)
    start = DISH(n_bits=r, n_anchors=20, nu=nu, n_iter=0, ridge=1e-9, loss="ridge").fit(X, y)
    H = codes.unpack(hasher.codes_, r).astype(float)
    S = 2.0 * (y[:, None] == y[None]) - 1
    F = start.decision_function(X).astype(float)  # the F that the only H-step saw
    expected = ((r * S - H @ H.T) ** 2).sum() + len(X) * nu * ((H - F) ** 2).sum()
    assert hasher.objective_[0] == pytest.approx(expected, rel=1e-6)


def test_learned_codes_are_balanced(digits):
    X, y, _, _ = digits
    for n in (400, 401):
        H = codes.unpack(DISH(n_bits=16, n_anchors=50).fit(X[:n], y[:n]).codes_, 16)
        np.testing.assert_array_equal(H.sum(0), n % 2)


def test_linear_classifiers_become_weights_and_others_do_not(digits, tmp_path):
    X, y, Xq, _ = digits
    X, y = X[:200], y[:200]
    linear = DISH(n_bits=5, n_anchors=30, loss=LogisticRegression()).fit(X, y)
    assert linear.classifiers_ is None
    linear.save(tmp_path / "m.dish")
    np.testing.assert_array_equal(dish.load(tmp_path / "m.dish").transform(Xq), linear.transform(Xq))
    forest = DISH(n_bits=5, n_anchors=30, loss=RandomForestClassifier(5, random_state=0), n_iter=0).fit(X, y)
    assert len(forest.classifiers_) == 5
    assert forest.transform(Xq).shape == (200, 1)
    with pytest.raises(TypeError, match="RandomForestClassifier"):
        forest.save(tmp_path / "f.dish")
    assert not (tmp_path / "f.dish").exists()


@pytest.mark.parametrize("kernel", ["linear", "function"])
@pytest.mark.parametrize("anchors", ["kmeans", "given"])
def test_other_kernels_and_anchors(digits, tmp_path, kernel, anchors):
    X, y, Xq, yq = digits
    hasher = DISH(
        n_bits=32,
        n_anchors=100,
        kernel=(lambda X, A: (X @ A.T / 100) ** 2) if kernel == "function" else kernel,
        anchors=X[:100] if anchors == "given" else anchors,
    ).fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.8
    if kernel == "function":
        with pytest.raises(TypeError, match="kernel"):
            hasher.save(tmp_path / "m.dish")


def test_a_kernel_that_returns_its_input_does_not_change_it(digits):
    X, y, _, _ = digits
    X, y = X[:100].copy(), y[:100]
    before = X.copy()
    DISH(n_bits=8, anchors=np.eye(64), kernel=lambda A, B: A).fit(X, y).transform(X)
    np.testing.assert_array_equal(X, before)


def test_unused_bits_of_given_codes_are_cleared(digits):
    X, y, _, _ = digits
    init = np.full((100, 1), 255, np.uint8)
    hasher = DISH(n_bits=7, n_anchors=20, init=init, n_iter=1).fit(X[:100], y[:100])
    assert (hasher.codes_ & 1 == 0).all()


def test_given_codes_are_where_it_starts(digits):
    X, y, _, _ = digits
    first = DISH(n_bits=16, n_anchors=50, n_iter=5).fit(X, y)
    again = DISH(n_bits=16, n_anchors=50, n_iter=5, init=first.codes_).fit(X, y)
    assert again.objective_[0] <= first.objective_[-1]
    kept = DISH(n_bits=16, n_anchors=50, n_iter=0, init=first.codes_).fit(X, y)
    np.testing.assert_array_equal(kept.codes_, first.codes_)
    assert kept.n_iter_ == 0


@pytest.mark.parametrize("multilabel", ["count", "share_one", "jaccard"])
@pytest.mark.parametrize("sparse", [False, True])
def test_multi_label(multilabel, sparse):
    rng = np.random.default_rng(0)
    Y = (rng.random((600, 6)) < 0.25).astype(int)
    X = Y @ rng.standard_normal((6, 20)) + 0.3 * rng.standard_normal((600, 20))
    hasher = DISH(n_bits=24, n_anchors=200, multilabel=multilabel, loss="ridge")
    hasher.fit(X[:500], sp.csr_matrix(Y[:500]) if sparse else Y[:500])
    random = LSH(n_bits=24).fit(X[:500])
    found, chance = (score(h, X[:500], Y[:500], X[500:], Y[500:]) for h in (hasher, random))
    assert found > chance + 0.1


@pytest.mark.parametrize("make", [similarity.nystroem, similarity.anchor_graph])
def test_unlabelled_rows_through_a_similarity(digits, make):
    X, y, Xq, yq = digits
    hasher = DISH(n_bits=32, n_anchors=200).fit(X, make(X))
    assert score(hasher, X, y, Xq, yq) > score(LSH(n_bits=32).fit(X), X, y, Xq, yq)


def test_pipeline_and_grid_search(digits):
    X, y, Xq, yq = digits
    X, y = X[:400], y[:400]
    pipe = make_pipeline(StandardScaler(), DISH(n_bits=16, n_anchors=50), KNeighborsClassifier(3, metric="hamming"))
    grid = GridSearchCV(pipe, {"dish__n_anchors": [5, 80]}, cv=2).fit(X, y)
    assert grid.best_params_ == {"dish__n_anchors": 80}
    assert grid.score(Xq, yq) > 0.85


def test_grid_search_with_a_retrieval_score(digits):
    X, y, _, _ = digits

    def own_map(hasher, X, y):
        packed = hasher.transform(X)
        return metrics.mean_average_precision(packed, y, packed, y)

    grid = GridSearchCV(DISH(n_bits=16), {"n_anchors": [3, 60]}, scoring=own_map, cv=2).fit(X[:300], y[:300])
    assert grid.best_params_ == {"n_anchors": 60}


def test_parameters_are_not_changed_by_fit(digits):
    X, y, _, _ = digits
    hasher = DISH(n_bits=8, n_anchors=20)
    before = clone(hasher).get_params()
    hasher.fit(X[:100], y[:100])
    assert hasher.get_params() == before


@pytest.mark.slow
def test_loaded_in_another_process_gives_bit_identical_codes(digits, tmp_path):
    X, y, Xq, _ = digits
    hasher = DISH(n_bits=64, n_anchors=200).fit(X, y)
    hasher.save(tmp_path / "m.dish")
    np.save(tmp_path / "Xq.npy", Xq)
    program = "import sys, numpy as np, dish; p = sys.argv[1]; "
    program += "np.save(p + '/codes.npy', dish.load(p + '/m.dish').transform(np.load(p + '/Xq.npy')))"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), hasher.transform(Xq))


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"n_anchors": 0}, "n_anchors"),
        ({"n_anchors": 1.5}, "n_anchors"),
        ({"gamma": -1.0}, "gamma"),
        ({"gamma": "scale"}, "gamma"),
        ({"loss": "l1"}, "loss"),
        ({"loss": 3}, "loss"),
        ({"nu": -1}, "nu"),
        ({"nu": np.nan}, "nu"),
        ({"n_iter": -1}, "n_iter"),
        ({"similar_weight": 0.5}, "similar_weight"),
        ({"multilabel": "all"}, "multilabel"),
        ({"init": "zeros"}, "init"),
        ({"init": np.zeros((3, 8), np.uint8)}, "init"),
        ({"init": np.zeros((100, 3), np.uint8)}, "init"),
        ({"kernel": "poly"}, "kernel"),
        ({"anchors": "first"}, "anchors"),
        ({"anchors": np.zeros((5, 3))}, "anchors"),
        ({"ridge": -1}, "ridge"),
        ({"lam": -1}, "lam"),
        ({"device": "tpu9"}, "device"),
        ({"device": "meta"}, "device"),
        ({"anchors": np.zeros((0, 64))}, "anchors"),
        ({"similar_weight": np.inf}, "similar_weight"),
        ({"kernel": lambda X, A: np.full((len(X), len(A)), np.nan)}, "kernel"),
    ],
)
def test_bad_parameters_are_named(digits, params, name):
    X, y, _, _ = digits
    with pytest.raises(ValueError, match=name):
        DISH(**{"n_bits": 64, "n_anchors": 20, **params}).fit(X[:100], y[:100])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_said(digits):
    X, y, _, _ = digits
    with pytest.raises(ValueError, match="no GPU"):
        DISH(device="cuda").fit(X, y)


def test_bad_labels_are_named(digits):
    X, y, _, _ = digits
    X, y = X[:100], y[:100]
    with pytest.raises(ValueError, match="y is None"):
        DISH().fit(X)
    with pytest.raises(ValueError, match="1 class"):
        DISH().fit(X, np.zeros(100))
    with pytest.raises(ValueError, match="X has 100 rows but y has 99"):
        DISH().fit(X, y[:99])
    with pytest.raises(ValueError, match="NaN"):
        DISH().fit(X, np.full(100, np.nan))
    with pytest.raises(ValueError, match="X has 100 rows but y has 50"):
        DISH().fit(X, similarity.from_labels(y[:50]))


def test_more_anchors_than_rows_takes_all_rows_and_says_so(digits):
    X, y, _, _ = digits
    with pytest.warns(UserWarning, match=r"n_anchors=1000 is more than the 50 rows") as told:
        hasher = DISH(n_bits=8).fit(X[:50], y[:50])
    assert len(hasher.anchors_) == 50
    assert told[0].filename == __file__  # the line that called fit


def test_rows_that_are_all_alike_are_refused():
    X, y = np.ones((20, 3)), np.arange(20) % 2
    with pytest.raises(ValueError, match="all alike"):
        DISH(n_bits=4, n_anchors=5).fit(X, y)


def test_verbose_reports_every_iteration(digits, capsys):
    X, y, _, _ = digits
    hasher = DISH(n_bits=8, n_anchors=20, verbose=1).fit(X[:200], y[:200])
    assert capsys.readouterr().err.count("objective") == hasher.n_iter_
    DISH(n_bits=8, n_anchors=20).fit(X[:200], y[:200])
    assert capsys.readouterr() == ("", "")


def test_polish_changes_the_hash_function_and_leaves_the_learned_codes(digits):
    X, y, _, _ = digits
    plain, polished = (DISH(16, n_anchors=100, loss="ridge", polish=steps).fit(X, y) for steps in (0, 10))
    np.testing.assert_array_equal(plain.codes_, polished.codes_)
    assert "polish" in polished.timings_
    assert "polish" not in plain.timings_
    S = similarity.from_labels(y)
    losses = []
    for hasher in (plain, polished):
        H = torch.from_numpy(codes.unpack(hasher.transform(X), 16).astype(np.float64))
        losses.append(float((16 * torch.from_numpy(S.dense()) - H @ H.T).square().sum()))
    assert losses[1] < losses[0]  # what it is for: codes whose products are nearer to rS


def test_polish_is_for_linear_hash_functions(blobs):
    from sklearn.tree import DecisionTreeClassifier

    X, y = blobs
    with pytest.raises(ValueError, match="polish needs"):
        DISH(4, loss=DecisionTreeClassifier(), polish=5).fit(X, y)
    with pytest.raises(ValueError, match="polish must be"):
        DISH(4, polish=-1).fit(X, y)


def test_the_posterior_of_several_labels_takes_no_more_sweeps_than_it_needs():
    rng = np.random.default_rng(0)
    Y = (rng.random((2000, 12)) < 0.3).astype(int)
    X = Y @ rng.standard_normal((12, 8)) + rng.standard_normal((2000, 8))
    fits = {loss: DISH(16, n_anchors=100, n_iter=20, loss=loss).fit(X, Y) for loss in ("posterior", "ridge")}
    assert 1 < fits["posterior"].n_iter_ < fits["ridge"].n_iter_
    objective = fits["posterior"].objective_
    assert objective[-1] > (1 - ROUGH.gain) * objective[-2]
    assert (objective[1:-1] <= (1 - ROUGH.gain) * objective[:-2]).all()
    assert objective[-1] < 1.05 * fits["ridge"].objective_[-1]
