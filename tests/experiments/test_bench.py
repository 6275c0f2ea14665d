import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from dish import datasets, metrics, registry
from dish.experiments import bench, paper
from dish.experiments.bench import OpenDatasets, Run
from dish.io.rows import RowSource


@pytest.fixture(scope="module")
def digits_set():
    return datasets.digits()


@pytest.fixture
def data(digits_set):
    return OpenDatasets({"digits": digits_set})


def test_execute_scores_the_codes_of_the_method(digits_set):
    run = Run("digits", "dish", 16, None, 0, (("n_anchors", 50),))
    result = bench.execute(run, digits_set)
    split = digits_set.split(0)
    X, y = normalize(digits_set.rows()), digits_set.y
    hasher = bench.make_method(run).fit(X[split.train], y[split.train])
    q, b = hasher.transform(X[split.query]), hasher.transform(X[split.database])
    yq, yb = y[split.query], y[split.database]
    assert result["map"] == pytest.approx(metrics.mean_average_precision(q, yq, b, yb))
    learned = metrics.mean_average_precision(q, yq, hasher.codes_, y[split.train])
    assert result["map_learned_codes"] == pytest.approx(learned)
    assert result["n_database"] == len(split.database)
    assert result["fit_s"] > 0
    assert set(result["precision_at"]) == {"1", "2", "5", "10", "20", "50", "100", "200", "500", "1000"}


def test_finished_runs_are_skipped_and_failures_are_recorded(data, tmp_path, monkeypatch):
    good = Run("digits", "lsh", 8)
    bad = Run("digits", "lsh", 8, params=(("n_bits_typo", 3),))
    lines = []
    results = bench.run_all([bad, good], tmp_path, data=data, report=lines.append)
    assert not any("reused" in line for line in lines)
    assert "n_bits_typo" in results[bad]["failed"]
    assert results[good]["map"] > 0.1
    assert {"cpu", "versions", "commit"} <= set(results[good]["environment"])
    definition = json.loads(good.path(tmp_path).read_text())["definition"]
    assert (definition["data"], definition["method"], definition["synthetic"]) == ("digits", "lsh", False)

    def never(*_):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(bench, "execute", never)
    assert bench.run_all([good], tmp_path, data=data, report=lines.append) == {good: results[good]}
    assert lines[-1] == "1 finished runs reused (--force to run again)"
    retried = bench.run_all([bad, good], tmp_path, data=data)
    assert "a finished run was run again" in retried[bad]["failed"]  # not finished: failed runs are tried again
    assert retried[good] == results[good]
    again = bench.run_all([good], tmp_path, data=data, force=True)
    assert "a finished run was run again" in again[good]["failed"]


def test_plans_count_every_run_once(data, tmp_path):
    runs = [Run("digits", "lsh", 8), Run("digits", "lsh", 8), Run("digits", "lsh", 16)]
    assert str(bench.plan(runs, tmp_path, data=data)).startswith("2 runs to do, 0 finished runs reused")
    bench.run_all(runs, tmp_path, data=data)
    assert str(bench.plan(runs, tmp_path, data=data)) == "0 runs to do, 2 finished runs reused"


def test_finished_runs_survive_an_interruption(data, tmp_path, monkeypatch):
    runs = [Run("digits", "lsh", 8, trial=t) for t in range(3)]
    real, calls = bench.execute, []

    def stop_at_the_second(run, dataset):
        calls.append(run)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(run, dataset)

    monkeypatch.setattr(bench, "execute", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        bench.run_all(runs, tmp_path, data=data)
    assert [run.path(tmp_path).exists() for run in runs] == [True, False, False]
    monkeypatch.setattr(bench, "execute", lambda run, dataset: (calls.append(run), real(run, dataset))[1])
    bench.run_all(runs, tmp_path, data=data)
    assert calls == [runs[0], runs[1], runs[1], runs[2]]


def test_different_definitions_have_different_files(tmp_path):
    runs = [
        Run("a", "dish", 8),
        Run("b", "dish", 8),
        Run("a", "lsh", 8),
        Run("a", "dish", 9),
        Run("a", "dish", 8, 100),
        Run("a", "dish", 8, trial=1),
        Run("a", "dish", 8, params=(("nu", 1e-3),)),
        Run("a", "dish", 8, params=(("nu", 1e-4),)),
        Run("a", "dish", 8, params=(("nu", 1.0000001e-4),)),
        Run("a", "dish", 8, params=(("nu", 1.0000002e-4),)),
        Run("a", "dish", 8, cut=5),
        Run("a", "dish", 8, n_queries=5),
    ]
    assert len({run.path(tmp_path) for run in runs}) == len(runs)


def write_features(folder, separation, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 600)
    folder.mkdir()
    np.save(folder / "features.npy", rng.standard_normal((600, 8)) + separation * rng.standard_normal((3, 8))[y])
    np.save(folder / "features_labels.npy", y)
    return str(folder / "features.npy")


def test_results_are_filed_by_content_not_by_file_name(tmp_path):
    """Both files are called features.npy."""
    paths = [write_features(tmp_path / "a", 3.0), write_features(tmp_path / "b", 0.05)]
    runs = [Run(path, "lsh", 16) for path in paths]
    shared = bench.run_all(runs, tmp_path / "runs")
    own = [bench.run_all([run], tmp_path / run.data.replace("/", "_"))[run]["map"] for run in runs]
    assert [shared[run]["map"] for run in runs] == own
    assert own[0] > own[1] + 0.2
    lines = []
    copy = write_features(tmp_path / "c", 3.0)  # the same content elsewhere is the same data
    assert bench.run_all([Run(copy, "lsh", 16)], tmp_path / "runs", report=lines.append)
    assert lines == ["1 finished runs reused (--force to run again)"]
    np.save(tmp_path / "c" / "features_labels.npy", np.random.default_rng(1).integers(0, 3, 600))
    assert OpenDatasets().key(copy) != OpenDatasets().key(paths[0])
    assert set(bench.finished(runs, tmp_path / "runs")) == set(runs)


def test_names_of_data_sets_and_their_result_folders():
    """The name "cifar10" means the images, as in ``datasets``; their run files are in the folder cifar10_images."""
    folder = Path(__file__).parents[2] / "benchmarks" / "results" / "runs"
    assert Run("cifar10_gist", "l2", 16).path(folder).parent == folder / "cifar10"
    assert Run("cifar10", "dish_d", 48).path(folder).parent == folder / "cifar10_images"
    for name, table in paper.TABLES.items():
        if table.data in paper.UNAVAILABLE:
            assert table.runs(bench.method_names(images=True), 1) == []
            continue
        assert table.data in bench.NAMES
        methods = [line.method for line in table.lines]
        assert bench.finished(table.runs(methods, 1), folder), f"no committed run of {name} is found"


def test_plan_counts_missing_runs_and_estimates_their_time(data, tmp_path):
    done = [Run("digits", "lsh", r) for r in (8, 64)]
    found = bench.run_all(done, tmp_path, data=data)
    runs = [*done, Run("digits", "lsh", 48), Run("digits", "lsh", 56), Run("digits", "sh", 8)]
    plan = bench.plan(runs, tmp_path)
    assert (plan.missing, plan.n_reused, plan.n_unknown) == (runs[2:], 2, 1)
    nearest = found[done[1]]
    assert plan.seconds == pytest.approx(2 * (nearest["fit_s"] + nearest["encode_s"] + nearest["score_s"]))
    assert "3 runs to do, 2 finished runs reused" in str(plan)
    assert "no estimate for the other 1" in str(plan)
    assert len(bench.plan(runs, tmp_path, force=True).missing) == 5


def test_own_class_is_benchmarked(data, tmp_path, monkeypatch):
    (tmp_path / "my_methods.py").write_text(
        "from dish.baselines.lsh import LSH\nclass MyHasher(LSH): pass\nclass Half:\n    def fit(self, X, y): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine, lsh = Run("digits", "my_methods:MyHasher", 16), Run("digits", "lsh", 16)
    found = bench.run_all([mine, lsh], tmp_path / "runs", data=data)
    assert found[mine]["map"] == found[lsh]["map"]
    assert mine.path(tmp_path) != lsh.path(tmp_path)
    for name, message in (
        ("my_methods:Nothing", "has no Nothing"),
        ("no_such_module_here:X", "PYTHONPATH"),
        ("my_methods:Half", "has no transform, decision_function"),
        ("my_methods:LSH.fit", "method must be one of dish"),
    ):
        with pytest.raises(ValueError, match=message):
            registry.find(name)


def test_l2_and_unknown_names(digits_set, monkeypatch):
    assert 0.5 < bench.execute(Run("digits", "l2", 8), digits_set)["map"] < 0.8
    split = digits_set.split()
    X, y = normalize(digits_set.rows()), digits_set.y
    parts = X[split.query], y[split.query], X[split.database], y[split.database]
    for cut in (None, 50):
        found = bench.execute(Run("digits", "l2", 8, cut=cut), digits_set)["map"]
        assert found == pytest.approx(metrics.l2_mean_average_precision(*parts, k=cut), abs=1e-5)
    monkeypatch.setattr("dish.machine.free_memory", lambda: 0)  # several passes, and small blocks
    monkeypatch.setattr(bench, "BLOCK_VALUES", 64 * 100)
    assert bench.execute(Run("digits", "l2", 8, cut=50), digits_set)["map"] == pytest.approx(found, abs=1e-5)
    with pytest.raises(ValueError, match="method must be one of dish"):
        bench.make_method(Run("digits", "magic", 8))
    with pytest.raises(ValueError, match="data must be"):
        bench.load_data("nothing-here")


def test_float_ceiling_is_above_the_codes_of_the_same_model(digits_set):
    params = (("n_anchors", 60),)
    ceiling, codes = (bench.execute(Run("digits", m, 16, 600, 0, params), digits_set) for m in ("ceiling", "dish"))
    assert codes["map"] - 0.005 < ceiling["map"] <= 1
    assert ceiling["fit_s"] > 0


def test_float_runs_are_one_per_trial_at_the_largest_training_size():
    runs = [Run("digits", m, r, n, t) for m in ("lsh", "sdh") for r in (8, 16) for n in (100, 500) for t in (0, 1)]
    floats = bench.float_runs(runs)
    assert [(run.method, run.n_train, run.trial) for run in floats] == [
        *(("l2", 500, 0), ("l2", 500, 1), ("ceiling", 500, 0), ("ceiling", 500, 1))
    ]
    assert bench.float_runs([*runs, floats[0]]) == []


def test_float_lines_load_no_data_and_skip_large_data(data, tmp_path, monkeypatch):
    runs = [Run("digits", "lsh", 8, 300)]
    assert bench.float_lines(runs, tmp_path, data=OpenDatasets()) == {}
    monkeypatch.setattr(bench, "MAX_FLOATS", 1000)
    assert bench.float_lines(runs, tmp_path, data=data) == {}
    monkeypatch.setattr(bench, "MAX_FLOATS", 2000)
    found = bench.float_lines(runs, tmp_path, data=data)
    assert [run.method for run in found] == ["l2", "ceiling"]
    assert bench.float_lines(runs, tmp_path, data=OpenDatasets()) == found  # finished ones need no data


def test_features_are_scaled_to_unit_length_and_images_are_not():
    features = datasets.Dataset("f", np.array([[3.0, 4.0], [0, 0]]), np.arange(2))
    np.testing.assert_allclose(bench.prepared(features, np.arange(2)), [[0.6, 0.8], [0, 0]])
    pixels = np.full((2, 4, 4, 3), 7, np.uint8)
    np.testing.assert_array_equal(bench.prepared(datasets.Dataset("i", pixels, np.arange(2)), np.arange(2)), pixels)


def test_n_database_uses_a_part_of_the_database(digits_set):
    whole, part = (bench.execute(Run("digits", "lsh", 16, n_database=n), digits_set) for n in (None, 300))
    assert whole["map"] != part["map"]
    assert Run("digits", "lsh", 16, n_database=300).path(Path("x")).stem.endswith("database300")


def test_methods_for_vectors_and_for_images():
    vectors, images = bench.method_names(), bench.method_names(images=True)
    assert {"dish", "ksh", "l2"} <= set(vectors)
    assert {"dish_d", "cnnbh", "ftde"} <= set(images)
    assert not set(vectors) & set(images)


def test_rows_that_would_fill_the_memory_are_streamed(digits_set, monkeypatch):
    run = Run("digits", "dish", 16, None, 0, (("n_anchors", 50),))
    whole = bench.execute(run, digits_set)
    monkeypatch.setattr("dish.machine.free_memory", lambda: 100_000)
    monkeypatch.setattr("dish.machine.memory_budget", lambda _: 10**9)
    split = digits_set.split(0)
    assert isinstance(bench.training_rows(run, digits_set, split.train), RowSource)
    streamed = bench.execute(run, digits_set)
    assert streamed["map"] == pytest.approx(whole["map"], abs=1e-9)
    with pytest.raises(ValueError, match=r"lsh needs all 1,597 training rows in memory.*in blocks: dish, dish_k"):
        bench.training_rows(Run("digits", "lsh", 16), digits_set, split.train)


def test_centred_runs_subtract_the_mean_and_have_their_own_files(digits_set):
    shifted = datasets.Dataset("digits", digits_set.X + np.float32(5), digits_set.y, queries=20)
    run = Run("digits", "l2", 8, centred=True)
    split, X = digits_set.split(), digits_set.X
    centred = datasets.Dataset("digits", X - X[split.train].mean(axis=0), digits_set.y, queries=20)
    plain = Run("digits", "l2", 8)
    assert bench.execute(run, shifted)["map"] == pytest.approx(bench.execute(plain, centred)["map"], abs=1e-4)
    assert run.path(Path("x")).stem == plain.path(Path("x")).stem + "_centred"


def test_map_at_more_than_the_whole_database_is_the_map(digits_set):
    few, all_rows = (bench.execute(Run("digits", "lsh", 8, cut=k), digits_set)["map"] for k in (5000, None))
    assert few == pytest.approx(all_rows)


def test_sparse_data_have_keys_by_content():
    X, Y = sp.random_array((30, 6), density=0.4, rng=0, format="csr"), sp.csr_array(np.eye(30, 4))
    keys = {bench._checksum(datasets.Dataset("d", *of)) for of in ((X, Y), (2 * X, Y), (X, Y[::-1]), (X.copy(), Y))}
    assert len(keys) == 3
