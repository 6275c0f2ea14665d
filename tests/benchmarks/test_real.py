"""benchmarks/real.py and the tables made from its results, on a few digits."""

import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def real():
    return script("real")


@pytest.fixture
def file(digits, tmp_path):
    X, y, Xq, yq = digits
    path = tmp_path / "some_digits.npz"
    split = np.repeat([0, 2], [300, 40])
    np.savez(path, X=np.concatenate([X[:300], Xq[:40]]), y=np.concatenate([y[:300], yq[:40]]), split=split)
    return path


def options(real, methods, **changed):
    asked = {"bits": [8], "protocols": ["disjoint"], "trials": 1, "device": "cpu", "limit": 60.0, "again": set()}
    return real.Options(methods=methods, deadline=time.monotonic() + 100, **{**asked, **changed})


def runs_of(path):
    return {(run["method"], run["bits"]): run for run in json.loads(path.read_text())["runs"]}


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
    text = script("real_tables").page([tmp_path / "some_digits.json"])
    assert "| `lsh` | over 0.1 s | over 0.1 s |" in text


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


def test_protocols_separate_training_rows_database_and_queries(real, file, monkeypatch):
    monkeypatch.setattr(real, "FEW", 30)
    rows, queries = real.read(file)
    np.testing.assert_allclose(np.linalg.norm(rows.X, axis=1), 1, atol=1e-6)
    on, apart, few, unseen = (real.split(rows, queries, protocol, 3) for protocol in real.PROTOCOLS)
    np.testing.assert_array_equal(on.train.X, on.base.X)
    assert len(apart.train.X) == len(apart.base.X) == 150
    assert not (apart.train.X[:, None] == apart.base.X[None]).all(2).any()
    np.testing.assert_array_equal(few.train.X, apart.train.X[:30])
    np.testing.assert_array_equal(few.base.X, apart.base.X)
    assert not set(unseen.train.y) & set(unseen.base.y)
    assert set(unseen.queries.y) <= set(unseen.base.y)
    assert len(unseen.queries.y) + len(unseen.seen_queries.y) == 40


def test_unseen_classes_are_scored_in_all_combinations(real, file, tmp_path):
    real.measure(file, options(real, ["pca_itq"], protocols=["unseen classes"]), tmp_path, tmp_path)
    run = runs_of(tmp_path / "some_digits.json")["pca_itq", 8]
    assert run["map_unseen_to_all"] < run["map"]  # the same queries among more rows
    assert run["map_seen_to_all"] < run["map_seen_to_seen"]


def test_tables_have_means_and_deviations_with_the_best_in_bold(real, file, tmp_path):
    real.measure(file, options(real, ["cosine", "lsh", "pca_itq"], trials=2), tmp_path, tmp_path)
    text = script("real_tables").page([tmp_path / "some_digits.json"])
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert lines[0] == "| method | 8 bits | fit, s (8 bits) |"
    maps = [run["map"] for run in json.loads((tmp_path / "some_digits.json").read_text())["runs"]]
    cosine, lsh, itq = maps[0::3], maps[1::3], maps[2::3]
    assert f"| cosine of the floats | {np.mean(cosine):.3f} ± {np.std(cosine):.3f} | – |" in lines
    assert any(line.startswith(f"| `pca_itq` | **{np.mean(itq):.3f} ± {np.std(itq):.3f}** (") for line in lines)
    assert any(line.startswith(f"| `lsh` | {np.mean(lsh):.3f} ± {np.std(lsh):.3f} (") for line in lines)


def test_figure_labels_our_methods_floats_and_the_best_rivals(real, file, tmp_path):
    rivals = ["lsh", "sign", "pca_rr", "pca_itq"]
    real.measure(file, options(real, ["cosine", "dish_k", *rivals], bits=[8, 12]), tmp_path, tmp_path)
    figure = script("real_tables").picture(json.loads((tmp_path / "some_digits.json").read_text()))
    maps = {name: runs_of(tmp_path / "some_digits.json")[name, 12]["map"] for name in rivals}
    worst = min(maps, key=maps.get)
    named = {text.get_text() for text in figure.legends[0].get_texts()}
    assert named == {"cosine of the floats", "DISH-K (the paper's)", *(set(rivals) - {worst})}
    assert len(figure.axes[0].containers) == 5  # the worst has no label
