import json
from pathlib import Path

import numpy as np
import pytest

from dish import datasets, metrics, registry
from dish.experiments import bench, paper
from dish.experiments.definition import Run
from dish.io.rows import RowSource


@pytest.fixture(scope="module")
def data():
    return {"digits": datasets.digits()}


def test_a_run_measures_what_it_says(data):
    run = Run("digits", "dish", 16, None, 0, (("n_anchors", 50),))
    result = bench.execute(run, data["digits"])
    split = data["digits"].split(0)
    X, y = bench.unit_rows(data["digits"].rows()), data["digits"].y
    hasher = bench.make_method(run).fit(X[split.train], y[split.train])
    q, b = hasher.transform(X[split.query]), hasher.transform(X[split.database])
    yq, yb = y[split.query], y[split.database]
    assert result["map"] == pytest.approx(metrics.mean_average_precision(q, yq, b, yb))
    learned = metrics.mean_average_precision(q, yq, hasher.codes_, y[split.train])
    assert result["map_learned_codes"] == pytest.approx(learned)
    assert result["n_database"] == len(split.database)
    assert result["fit_s"] > 0
    assert set(result["precision_at"]) == {"1", "2", "5", "10", "20", "50", "100", "200", "500", "1000"}


def test_finished_runs_are_skipped_and_failures_recorded(data, tmp_path, monkeypatch):
    good = Run("digits", "lsh", 8)
    bad = Run("digits", "lsh", 8, params=(("n_bits_typo", 3),))
    said = []
    results = bench.run_all([bad, good], tmp_path, opened=data, report=said.append)
    assert not any("reused" in line for line in said)
    assert "n_bits_typo" in results[bad]["failed"]
    assert results[good]["map"] > 0.1
    assert {"cpu", "versions", "commit"} <= set(results[good]["environment"])
    definition = json.loads(good.path(tmp_path).read_text())["definition"]
    assert (definition["data"], definition["method"], definition["synthetic"]) == ("digits", "lsh", False)

    def never(*_):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(bench, "execute", never)
    assert bench.run_all([good], tmp_path, opened=data, report=said.append) == {good: results[good]}
    assert said[-1] == "1 finished runs reused (--force to run again)"
    retried = bench.run_all([bad, good], tmp_path, opened=data)
    assert "a finished run was run again" in retried[bad]["failed"]  # not finished: failed runs are tried again
    assert retried[good] == results[good]
    again = bench.run_all([good], tmp_path, opened=data, force=True)
    assert "a finished run was run again" in again[good]["failed"]


def test_interrupting_loses_nothing(data, tmp_path, monkeypatch):
    runs = [Run("digits", "lsh", 8, trial=t) for t in range(3)]
    real, calls = bench.execute, []

    def stop_at_the_second(run, dataset):
        calls.append(run)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(run, dataset)

    monkeypatch.setattr(bench, "execute", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        bench.run_all(runs, tmp_path, opened=data)
    assert [run.path(tmp_path).exists() for run in runs] == [True, False, False]
    monkeypatch.setattr(bench, "execute", lambda run, dataset: (calls.append(run), real(run, dataset))[1])
    bench.run_all(runs, tmp_path, opened=data)
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
    """Two files called features.npy: the second used to show the first one's MAP."""
    paths = [write_features(tmp_path / "a", 3.0), write_features(tmp_path / "b", 0.05)]
    runs = [Run(path, "lsh", 16) for path in paths]
    shared = bench.run_all(runs, tmp_path / "runs")
    own = [bench.run_all([run], tmp_path / run.data.replace("/", "_"))[run]["map"] for run in runs]
    assert [shared[run]["map"] for run in runs] == own
    assert own[0] > own[1] + 0.2
    said = []
    copy = write_features(tmp_path / "c", 3.0)  # the same content elsewhere is the same data
    assert bench.run_all([Run(copy, "lsh", 16)], tmp_path / "runs", report=said.append)
    assert said == ["1 finished runs reused (--force to run again)"]
    np.save(tmp_path / "c" / "features_labels.npy", np.random.default_rng(1).integers(0, 3, 600))
    assert bench.data_key(copy, {}) != bench.data_key(paths[0], {})
    assert set(bench.finished(runs, tmp_path / "runs")) == set(runs)


def test_every_committed_run_is_found_under_its_key():
    folder = Path(__file__).parents[2] / "benchmarks" / "results" / "runs"
    files = list(folder.glob("*/*.json"))
    assert len(files) > 300
    for file in files:
        of = json.loads(file.read_text())["definition"]
        known = {name: of.get(name) for name in ("cut", "n_queries", "n_database")}
        params = tuple(of["params"].items())
        run = Run(of["data"], of["method"], of["bits"], of["n_train"], of["trial"], params, **known)
        assert run.path(folder) == file


def test_a_plan_counts_runs_and_tells_the_time_by_finished_ones(data, tmp_path):
    done = [Run("digits", "lsh", r) for r in (8, 64)]
    found = bench.run_all(done, tmp_path, opened=data)
    runs = [*done, Run("digits", "lsh", 48), Run("digits", "lsh", 56), Run("digits", "sh", 8)]
    plan = bench.plan(runs, tmp_path)
    assert (plan.missing, plan.n_reused, plan.n_unknown) == (runs[2:], 2, 1)
    nearest = found[done[1]]
    assert plan.seconds == pytest.approx(2 * (nearest["fit_s"] + nearest["encode_s"] + nearest["score_s"]))
    assert "3 runs to do, 2 finished runs reused" in str(plan)
    assert "the other 1" in str(plan)
    assert len(bench.plan(runs, tmp_path, force=True).missing) == 5


def test_a_class_of_ones_own_is_benchmarked(data, tmp_path, monkeypatch):
    (tmp_path / "my_methods.py").write_text(
        "from dish.baselines.lsh import LSH\nclass MyHasher(LSH): pass\nclass Half:\n    def fit(self, X, y): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine, lsh = Run("digits", "my_methods:MyHasher", 16), Run("digits", "lsh", 16)
    found = bench.run_all([mine, lsh], tmp_path / "runs", opened=data)
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


def test_l2_and_unknown_names(data):
    assert 0.5 < bench.execute(Run("digits", "l2", 8), data["digits"])["map"] < 0.8
    with pytest.raises(ValueError, match="method must be one of dish"):
        bench.make_method(Run("digits", "magic", 8))
    with pytest.raises(ValueError, match="data must be"):
        bench.load_data("nothing-here")


def test_the_float_ceiling_is_above_the_codes_of_the_same_posterior(data):
    params = (("n_anchors", 60),)
    ceiling, codes = (
        bench.execute(Run("digits", m, 16, 600, 0, params), data["digits"]) for m in ("ceiling", "dish")
    )
    assert codes["map"] - 0.005 < ceiling["map"] <= 1
    assert ceiling["fit_s"] > 0


def test_floats_beside_runs_are_one_of_each_a_trial_on_the_most_rows():
    runs = [Run("digits", m, r, n, t) for m in ("lsh", "sdh") for r in (8, 16) for n in (100, 500) for t in (0, 1)]
    floats = bench.float_runs(runs)
    assert [(run.method, run.n_train, run.trial) for run in floats] == [
        *(("l2", 500, 0), ("l2", 500, 1), ("ceiling", 500, 0), ("ceiling", 500, 1))
    ]
    assert bench.float_runs([*runs, floats[0]]) == []


def test_floats_open_no_data_and_rank_no_crowd_unasked(data, tmp_path, monkeypatch):
    runs = [Run("digits", "lsh", 8, 300)]
    assert bench.float_lines(runs, tmp_path, opened={}) == {}
    monkeypatch.setattr(bench, "MOST_FLOATS", 1000)
    assert bench.float_lines(runs, tmp_path, opened=data) == {}
    monkeypatch.setattr(bench, "MOST_FLOATS", 2000)
    found = bench.float_lines(runs, tmp_path, opened=data)
    assert [run.method for run in found] == ["l2", "ceiling"]
    assert bench.float_lines(runs, tmp_path, opened={}) == found  # finished ones need no data


def test_unit_rows():
    np.testing.assert_allclose(bench.unit_rows(np.array([[3.0, 4.0], [0, 0]])), [[0.6, 0.8], [0, 0]])


def test_part_of_the_database(data):
    whole, part = (bench.execute(Run("digits", "lsh", 16, n_database=n), data["digits"]) for n in (None, 300))
    assert whole["map"] != part["map"]
    assert Run("digits", "lsh", 16, n_database=300).path(Path("x")).stem.endswith("database300")


def test_methods_by_kind_of_data_and_the_papers_training_sizes():
    vectors, images = bench.method_names(), bench.method_names(images=True)
    assert {"dish", "ksh", "l2"} <= set(vectors)
    assert {"dish_d", "cnnbh", "ftde"} <= set(images)
    assert not set(vectors) & set(images)
    assert paper.training_sizes("cifar10", "ksh") == [5000, None]
    assert paper.training_sizes("cifar10", "minhash") == [None]


def test_rows_that_would_fill_the_memory_are_streamed(data, monkeypatch):
    run = Run("digits", "dish", 16, None, 0, (("n_anchors", 50),))
    whole = bench.execute(run, data["digits"])
    monkeypatch.setattr("dish.machine.free_memory", lambda: 1000)
    monkeypatch.setattr("dish.machine.memory_budget", lambda _: 10**9)
    split = data["digits"].split(0)
    assert isinstance(bench.training_rows(run, data["digits"], split.train), RowSource)
    streamed = bench.execute(run, data["digits"])
    assert streamed["map"] == pytest.approx(whole["map"], abs=1e-9)
