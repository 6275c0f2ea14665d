"""benchmarks/real.py and the tables made from its results, on a few digits."""

import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dish.experiments import style

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name):
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))  # scripts import each other
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def real():
    return script("real")


@pytest.fixture(scope="module")
def protocols(real):
    return sys.modules["real_protocols"]


@pytest.fixture
def file(digits, tmp_path):
    X, y, Xq, yq = digits
    path = tmp_path / "some_digits.npz"
    split = np.repeat([0, 2], [300, 40])
    np.savez(path, X=np.concatenate([X[:300], Xq[:40]]), y=np.concatenate([y[:300], yq[:40]]), split=split)
    return path


def data_page(path):
    return script("real_tables").data_page(json.loads(path.read_text()))


def options(real, methods, **changed):
    asked = {"bits": [8], "protocols": ["disjoint"], "trials": 1, "device": "cpu", "limit": 60.0, "again": set()}
    asked["tuned"] = False
    return real.Options(methods=methods, deadline=time.monotonic() + 100, **{**asked, **changed})


def runs_of(path):
    return {(run["method"], run["bits"]): run for run in json.loads(path.read_text())["runs"]}


def by_protocol(path):
    return {(run["protocol"], run["method"]): run for run in json.loads(path.read_text())["runs"]}


def test_second_call_adds_missing_runs_and_its_environment(real, file, tmp_path):
    out = tmp_path / "out"
    real.measure(file, options(real, ["cosine", "lsh"]), out, out)
    first = runs_of(out / "some_digits.json")
    real.measure(file, options(real, ["lsh", "pca_itq"], bits=[8, 12]), out, out)
    content = json.loads((out / "some_digits.json").read_text())
    found = runs_of(out / "some_digits.json")
    assert set(found) == {("cosine", None), ("lsh", 8), ("lsh", 12), ("pca_itq", 8), ("pca_itq", 12)}
    assert found["lsh", 8] == first["lsh", 8]  # not run again
    assert [found[key]["environment"] for key in (("lsh", 8), ("lsh", 12))] == [0, 1]
    assert len(content["environments"]) == 2
    assert content["environments"][1]["versions"]
    assert 0.1 < found["lsh", 8]["map"] < found["cosine", None]["map"] < 1


def test_results_of_another_folder_are_resumed_or_repeated(real, file, tmp_path):
    real.measure(file, options(real, ["lsh"]), tmp_path / "a", tmp_path / "a")
    real.measure(file, options(real, ["lsh", "sh"], again={"lsh"}), tmp_path / "b", tmp_path / "a")
    found = runs_of(tmp_path / "b" / "some_digits.json")
    assert {key: run["environment"] for key, run in found.items()} == {("lsh", 8): 1, ("sh", 8): 1}


def test_method_over_its_limit_is_stopped_and_recorded(real, file, tmp_path, monkeypatch):
    monkeypatch.setattr(real, "warm_up", lambda *_: None)
    slow = real.registry.find("lsh")
    monkeypatch.setattr(slow, "fit", lambda self, X, y: time.sleep(5))
    start = time.monotonic()
    real.measure(file, options(real, ["lsh"], bits=[8, 16], limit=0.1), tmp_path, tmp_path)
    assert time.monotonic() - start < 3
    found = runs_of(tmp_path / "some_digits.json")
    assert found["lsh", 8]["not_run"] == "over 0.1 s"
    assert found["lsh", 16]["not_run"] == "over 0.1 s with 8 bits in trial 0"
    text = data_page(tmp_path / "some_digits.json")
    assert "| `lsh` | – | over 0.1 s | over 0.1 s |" in text


def test_no_run_starts_after_the_deadline_and_failures_are_recorded(real, file, tmp_path):
    late = options(real, ["lsh"])
    late.deadline = time.monotonic() - 1
    real.measure(file, late, tmp_path, tmp_path)
    assert not (tmp_path / "some_digits.json").exists()
    real.measure(file, options(real, ["agh"], bits=[10_000]), tmp_path, tmp_path)
    assert "n_bits" in runs_of(tmp_path / "some_digits.json")["agh", 10_000]["failed"]


def test_tiny_imagenet_is_split_by_the_names_of_its_files(real, tmp_path):
    """The first 2,000 rows of val are queries."""
    n_val = 2003
    names = [*(f"train/n1/images/{i}.JPEG" for i in range(5)), *(f"val/images/{i}.JPEG" for i in range(n_val))]
    np.save(tmp_path / "X.npy", np.random.default_rng(0).standard_normal((len(names), 3)))
    np.save(tmp_path / "X_labels.npy", np.array(["n1", "n2"])[np.arange(len(names)) % 2])
    rows, queries = real.read(tmp_path / "X.npy")
    assert queries is None
    np.save(tmp_path / "X.ids.npy", names)
    rows, queries = real.read(tmp_path / "X.npy")
    assert (len(rows.X), len(queries.X)) == (5, 2000)
    assert rows.y.tolist() == ["n1", "n2", "n1", "n2", "n1"]
    (tmp_path / "X_labels.npy").unlink()
    with pytest.raises(ValueError, match=r"X_labels\.npy must be next to it"):
        real.read(tmp_path / "X.npy")


def test_multilabel_rows_without_labels_are_dropped(real, tmp_path):
    Y = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], np.uint8)
    np.savez(tmp_path / "sets.npz", X=np.eye(3, 4, dtype=np.int8), Y=np.packbits(Y, axis=1), n_labels=3)
    rows, queries = real.read(tmp_path / "sets.npz")
    assert queries is None
    np.testing.assert_array_equal(rows.y, Y[[0, 2]])
    np.testing.assert_array_equal(rows.X, np.eye(3, 4)[[0, 2]])


def test_protocols_separate_training_rows_database_and_queries(protocols, file):
    rows, queries = protocols.read(file)
    np.testing.assert_allclose(np.linalg.norm(rows.X, axis=1), 1, atol=1e-6)
    on, apart, five, ten, twenty, seen = (protocols.split(rows, queries, name, 3) for name in protocols.TRAININGS)
    np.testing.assert_array_equal(on.train.X, on.base.X)
    assert len(apart.train.X) == len(apart.base.X) == 150
    assert not common(apart.train, apart.base)
    for few, k in ((five, 5), (ten, 10), (twenty, 20)):
        np.testing.assert_array_equal(few.base.X, apart.base.X)
        for c in range(10):
            np.testing.assert_array_equal(few.train.X[few.train.y == c], apart.train.X[apart.train.y == c][:k])
    unseen = seen.of("unseen classes")
    assert len(seen.train.X) + len(seen.base.X) == 300
    assert not common(seen.train, seen.base)
    assert set(seen.base.y) == set(range(10))
    assert not set(seen.train.y) & set(unseen.base.y)
    assert set(unseen.queries.y) <= set(unseen.base.y)
    assert len(set(unseen.base.y)) == 3
    assert (unseen.base.y.size, seen.queries.y.size) == (np.isin(rows.y, unseen.base.y).sum(), 40)


def test_rows_that_settings_are_chosen_by_are_no_queries(protocols):
    rows = protocols.Part(np.arange(2600)[:, None], np.arange(2600) % 10)
    for training in ("half", "5 rows per class"):
        found = protocols.tuning_rows(rows, None, training, 3)
        train = protocols.split(rows, None, training, 0).train
        assert set(found.X.ravel()) < set(train.X.ravel())
        np.testing.assert_array_equal(found.y, found.X.ravel() % 10)
        for trial in range(3):
            assert not common(found, protocols.split(rows, None, training, trial).queries)
    own = protocols.tuning_rows(rows, rows, "half", 3)
    assert len(own.X) == 1300  # queries of the file are not among the rows


def common(a, b):
    return (a.X[:, None] == b.X[None]).all(2).any()


def test_one_fit_serves_all_protocols_of_a_training_set(real, file, tmp_path, monkeypatch, capsys):
    fits = []
    monkeypatch.setattr(real, "warm_up", lambda *_: None)
    kind = real.registry.find("dish_k")
    fit = kind.fit
    monkeypatch.setattr(kind, "fit", lambda self, X, y: fits.append(len(X)) or fit(self, X, y))
    asked = options(real, ["dish_k"], bits=[16], protocols=real.PROTOCOLS)
    real.measure(file, asked, tmp_path, tmp_path)
    assert capsys.readouterr().out.startswith("some_digits: 6 fits for 9 runs\n")
    assert len(fits) == 6
    found = by_protocol(tmp_path / "some_digits.json")
    assert {protocol for protocol, _ in found} == set(real.PROTOCOLS)
    assert found["labelled", "dish_k"]["map"] >= found["trained on", "dish_k"]["map"]
    seen = found["open set", "dish_k"]
    assert seen["map_unseen"] < seen["map"] < seen["map_seen"]
    assert seen["map_unseen"] < found["unseen classes", "dish_k"]["map"]  # the same queries among fewer rows
    assert {run["bytes"] for run in found.values()} == {2}


def test_labelled_database_has_the_codes_of_its_labels(real, file):
    rows, queries = real.read(file)
    parts = real.split(rows, queries, "all rows", 0)
    fitted = real.fit("dish_0", 16, 0, parts, options(real, []))
    assert fitted.hasher.geometry == 0
    ((by, b),) = real.labelled_codes(fitted, parts).items()
    assert by == "labels"
    np.testing.assert_array_equal(b, fitted.hasher.codes_)
    assert len(np.unique(b, axis=0)) == 10  # one code per class


def test_labelled_database_of_a_rival_has_its_better_codes(real, file):
    rows, queries = real.read(file)
    parts = real.split(rows, queries, "all rows", 0)
    fitted = real.fit("sdh", 16, 0, parts, options(real, []))
    by_transform = real.metrics.mean_average_precision(fitted.q, queries.y, fitted.b, parts.base.y)
    fitted.hasher.codes_ = np.zeros_like(fitted.b)
    found = real.score_codes(fitted, parts, "labelled", None)
    assert (found["database"], found["map"]) == ("transform", pytest.approx(by_transform))
    codewords = np.random.default_rng(0).integers(0, 256, (10, 2)).astype(np.uint8)
    fitted.q, fitted.hasher.codes_ = codewords[queries.y], codewords[parts.base.y]
    found = real.score_codes(fitted, parts, "labelled", None)
    assert (found["database"], found["map"]) == ("codes_", pytest.approx(1))


def test_rival_has_the_setting_that_is_best_on_held_out_training_rows(real, file, tmp_path, monkeypatch):
    monkeypatch.setitem(real.GRIDS, "whitened_itq", [{"shrinkage": 1e6}, {"shrinkage": 1.0}])
    asked = options(real, ["whitened_itq", "pca_itq", "dish_k"], trials=2, tuned=True, bits=[64])
    real.measure(file, asked, tmp_path, tmp_path)
    content = json.loads((tmp_path / "some_digits.json").read_text())
    chosen = content["tuning"]["half"]["whitened_itq"]
    assert [score["params"]["shrinkage"] for score in chosen["settings"]] == [1e6, 1.0]
    assert chosen["chosen"] == max(chosen["settings"], key=lambda score: score["map"])["params"]
    assert (chosen["rows"], chosen["queries"]) == (120, 30)
    params = [run.get("params") for run in content["runs"] if run["method"] == "whitened_itq"]
    assert params == [chosen["chosen"]] * 2  # of both trials
    assert not any("params" in run for run in content["runs"] if run["method"] == "pca_itq")
    monkeypatch.setattr(real, "tune", None)  # a second call chooses nothing
    data = real.read(file)
    again = real.Results(tmp_path / "some_digits.json", "some_digits", data[0])
    assert real.setting_of("whitened_itq", "half", again, data, asked) == chosen["chosen"]
    path = tmp_path / "some_digits.json"
    text = script("real_tables").page([path]) + data_page(path)
    assert f"| half | `whitened_itq` | shrinkage={chosen['chosen']['shrinkage']} |" in text
    assert "Outdated" not in text


def test_average_precisions_of_queries_are_kept_for_paired_differences(real, file, tmp_path):
    real.measure(file, options(real, ["pca_itq"], bits=[64], trials=2), tmp_path, tmp_path)
    tables = script("real_tables")
    for run in json.loads((tmp_path / "some_digits.json").read_text())["runs"]:
        assert tables.queries_of(run).mean() == pytest.approx(run["map"], abs=1e-5)
        assert len(tables.queries_of(run)) == 40


def test_neighbours_found_equals_the_library_s_recall(real, file):
    rows, queries = real.read(file)
    parts = real.split(rows, queries, "half of the seen classes", 0)
    fitted = real.fit("pca_itq", 12, 0, parts, options(real, []))
    nearest = real.nearest_floats(parts, "cpu")
    found = real.score_codes(fitted, parts, "neighbours", nearest)["found"]
    recall = real.metrics.neighbour_recall(parts.queries.X, fitted.q, parts.base.X, fitted.b, oversampling=(10,))
    assert found == pytest.approx(recall[10])
    assert 0.5 < found < 1


def test_float_rankings_score_like_the_library(real, file, tmp_path):
    asked = ["trained on", "labelled", "disjoint", "5 rows per class", "open set", "neighbours"]
    real.measure(file, options(real, ["cosine", "ceiling", "rabitq"], protocols=asked), tmp_path, tmp_path)
    found = by_protocol(tmp_path / "some_digits.json")
    rows, queries = real.read(file)
    parts = real.split(rows, queries, "half", 0)
    exact = real.metrics.product_mean_average_precision(queries.X, queries.y, parts.base.X, parts.base.y)
    assert found["disjoint", "cosine"]["map"] == pytest.approx(exact)
    assert found["5 rows per class", "cosine"]["map"] == found["disjoint", "cosine"]["map"]  # the same database
    assert found["disjoint", "rabitq_rescored"]["map"] == pytest.approx(exact)  # fewer than 1,000 rows
    assert abs(found["disjoint", "rabitq"]["map"] - exact) < 0.05
    assert found["disjoint", "rabitq"]["map"] != exact
    assert found["neighbours", "cosine"]["found"] == found["neighbours", "rabitq_rescored"]["found"] == 1
    assert 0.9 < found["neighbours", "rabitq"]["found"] <= 1
    hasher = real.make("dish", 64, 0, "cpu").fit(parts.train.X, parts.train.y)
    p, p_base = hasher.predict_proba(queries.X), hasher.predict_proba(parts.base.X)
    ceiling = real.metrics.product_mean_average_precision(p, queries.y, p_base, parts.base.y)
    assert found["disjoint", "ceiling"]["map"] == pytest.approx(ceiling, abs=1e-6)
    parts = real.split(rows, queries, "all rows", 0)
    p = real.make("dish", 64, 0, "cpu").fit(parts.train.X, parts.train.y).predict_proba(queries.X)
    by_label = real.metrics.product_mean_average_precision(p, queries.y, np.eye(10)[parts.base.y], parts.base.y)
    assert found["labelled", "ceiling"]["map"] == pytest.approx(by_label, abs=1e-6)
    bytes_ = {name: found["disjoint", name]["bytes"] for name in ("cosine", "ceiling", "rabitq", "rabitq_rescored")}
    assert bytes_ == {"cosine": 256, "ceiling": 40, "rabitq": 16, "rabitq_rescored": 272}


def test_multilabel_rows_have_the_protocols_that_need_no_classes(real, tmp_path):
    rng = np.random.default_rng(0)
    Y = (rng.random((1300, 6)) < 0.3).astype(np.uint8)
    Y[np.arange(1300), rng.integers(0, 6, 1300)] = 1
    X = Y @ rng.standard_normal((6, 12)) + 0.5 * rng.standard_normal((1300, 12))
    np.savez(tmp_path / "sets.npz", X=X, Y=Y)
    asked = options(real, ["cosine", "ceiling", "sdh"], protocols=real.PROTOCOLS)
    real.measure(tmp_path / "sets.npz", asked, tmp_path, tmp_path)
    found = by_protocol(tmp_path / "sets.json")
    assert {protocol for protocol, _ in found} == {"trained on", "labelled", "disjoint", "neighbours"}
    assert all(run.get("failed") is None for run in found.values())
    assert found["labelled", "ceiling"]["map"] > found["trained on", "ceiling"]["map"]


def test_runs_of_another_commit_are_refused_or_kept(real, file, tmp_path, monkeypatch):
    real.measure(file, options(real, ["lsh"]), tmp_path, tmp_path)
    monkeypatch.setattr(real.machine, "commit", lambda: "other")
    with pytest.raises(SystemExit, match="this is other: delete the file, or add to it with --keep"):
        real.measure(file, options(real, ["sh"]), tmp_path, tmp_path)
    real.measure(file, options(real, ["sh"], keep=True), tmp_path, tmp_path)
    assert set(runs_of(tmp_path / "some_digits.json")) == {("lsh", 8), ("sh", 8)}
    text = script("real_tables").page([tmp_path / "some_digits.json"])
    assert "of several commits, so not all are comparable" in text
    assert "other" in text


def test_tables_have_means_and_deviations_with_the_best_in_bold(real, file, tmp_path):
    real.measure(file, options(real, ["cosine", "lsh", "pca_itq"], trials=2), tmp_path, tmp_path)
    text = data_page(tmp_path / "some_digits.json")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert lines[0] == "| method | bytes per row | 8 bits | fit, s (8 bits) |"
    maps = [run["map"] for run in json.loads((tmp_path / "some_digits.json").read_text())["runs"]]
    cosine, lsh, itq = maps[0::3], maps[1::3], maps[2::3]
    assert f"| cosine of the floats | 256 | {np.mean(cosine):.3f} ± {np.std(cosine):.3f} | – |" in lines
    assert any(line.startswith(f"| `pca_itq` | 1 | **{np.mean(itq):.3f} ± {np.std(itq):.3f}** (") for line in lines)
    assert any(line.startswith(f"| `lsh` | 1 | {np.mean(lsh):.3f} ± {np.std(lsh):.3f} (") for line in lines)


def test_figure_names_our_methods_floats_and_the_best_rivals(real, file, tmp_path):
    rivals = ["lsh", "sign", "pca_rr", "pca_itq"]
    real.measure(file, options(real, ["cosine", "dish_k", *rivals], bits=[8, 12]), tmp_path, tmp_path)
    figure = script("real_tables").picture(json.loads((tmp_path / "some_digits.json").read_text()))
    maps = {name: runs_of(tmp_path / "some_digits.json")[name, 12]["map"] for name in rivals}
    worst = min(maps, key=maps.get)
    shown = ["l2", "dish_k", *(name for name in rivals if name != worst)]
    named = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
    assert named == {style.name_of(name): style.COLOURS[name] for name in shown}
    assert len(figure.axes[0].containers) == 4  # bars of the deviation; float rankings have no code length


def written(tmp_path, data, maps, protocol="disjoint"):
    runs = [
        {"protocol": protocol, "trial": 0, "method": name, "bits": None if name == "cosine" else 64, "map": value}
        for name, value in maps.items()
    ]
    versions = dict.fromkeys(("torch", "numba", "numpy"), "1")
    environment = {"date": "2026-01-01", "cpu": "a", "cores": 2, "commit": "c", "versions": versions}
    content = {"data": data, "rows": 1, "features": 1, "labels": 2, "several_labels": False, "cut": None}
    content |= {"runs": [run | {"environment": 0} for run in runs], "environments": [environment]}
    path = tmp_path / f"{data}.json"
    path.write_text(json.dumps(content))
    return path


def test_summary_ranks_methods_that_have_all_data_sets_and_lists_exceptions(tmp_path):
    one = written(tmp_path, "one", {"cosine": 0.9, "dish": 0.5, "dish_0": 0.8, "sdh": 0.6, "lsh": 0.2})
    two = written(tmp_path, "two", {"cosine": 0.7, "dish": 0.8, "dish_0": 0.6, "sdh": 0.4})
    text = script("real_tables").page([one, two])
    assert "on average in 1 of 1 protocols, and in 1 of 2 cases" in text
    assert "All runs are of commit c." in text
    lines = text.splitlines()
    assert "| method | disjoint (data sets: 2) |" in lines
    assert "| cosine of the floats | 0.800 |" in lines
    assert "| **DISH** | **0.650 (1)** |" in lines
    assert "| DISH, `geometry=0` | 0.700 |" in lines
    assert "| `sdh` | 0.500 (2) |" in lines
    assert not any(line.startswith("| `lsh` |") for line in lines)
    assert "| disjoint | one | `sdh` | 0.600 | 0.500 | 0.800 | -0.100 |" in lines
    assert not any(line.startswith("| disjoint | two") for line in lines)
    assert "| [one](real/one.md) | 1 | 1 | 2 classes |" in lines


def test_every_data_set_has_a_page_with_its_finding_and_a_section_per_protocol(tmp_path):
    tables = script("real_tables")
    paths = [written(tmp_path, "one", {"dish": 0.5, "sdh": 0.6}), written(tmp_path, "two", {"dish": 0.8, "sdh": 0.4})]
    found = {path: (text, results) for path, text, results in tables.texts(paths, tmp_path)}
    assert list(found) == [tmp_path / name for name in ("real.md", "real/one.md", "real/two.md")]
    assert found[tmp_path / "real.md"][1] == paths
    text, results = found[tmp_path / "real/one.md"]
    assert results == [paths[0]]
    assert "`DISH` has the best codes in 0 of 1 protocols" in text
    assert "\n## Disjoint\n" in text
    assert "commit c.*" in text
    assert "in 1 of 1 protocols" in found[tmp_path / "real/two.md"][0]


def test_paired_differences_have_intervals_of_all_queries(real, tmp_path):
    tables, rng = script("real_tables"), np.random.default_rng(0)
    by_query = rng.random((2, 2, 50))  # method, trial, query
    runs = [
        {"protocol": "disjoint", "trial": t, "method": name, "bits": 64, "map": float(by_query[i, t].mean())}
        | {"average_precisions": real.packed(by_query[i, t])}
        for t in range(2)
        for i, name in enumerate(("dish", "sdh"))
    ]
    runs.append({"protocol": "disjoint", "trial": 0, "method": "lsh", "bits": 64, "map": 0.1})
    text = tables.paired_table({"data": "x", "runs": runs})
    mean, low, high = tables.interval((by_query[0] - by_query[1]).ravel())
    assert f"| {mean:+.3f} [{low:+.3f}, {high:+.3f}] |" in text
    assert "| disjoint | `sdh` |" in text
    old = [{name: value for name, value in run.items() if name != "average_precisions"} for run in runs]
    assert f"{mean:+.3f} (outdated: no interval)" in tables.paired_table({"data": "x", "runs": old})


def test_pages_mark_old_runs_and_the_data_sets_that_constants_were_chosen_on(tmp_path):
    tables = script("real_tables")
    path = written(tmp_path, "clinc150_use", {"cosine": 0.9, "dish": 0.5, "sdh": 0.6})
    text = tables.page([path])
    assert "**Outdated:** on CLINC150 †, methods have their default parameters" in text
    assert data_page(path).startswith("# CLINC150, sentence embeddings †\n")
    assert "(../method.md#dish-fit_to_labels)" in data_page(path)
    assert "| disjoint | CLINC150 † | `sdh` |" in text
    assert tables.CHOSEN_LEGEND in text


def test_tables_of_other_pages_equal_the_committed_results():
    tables = script("real_tables")
    contents = tables.contents_of(sorted(tables.RESULTS.glob("*.json")))
    for name, table in tables.TABLES.items():
        assert tables.pages.block(name, table(contents)) in tables.pages.page(name).read_text()
    assert set(tables.SETS) == set(tables.CHOSEN)
