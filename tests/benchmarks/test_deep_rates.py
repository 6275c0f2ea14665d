"""benchmarks/deep_rates.py on tiny images."""

import json
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from helpers.deep import Tiny, patches

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import deep_rates
from deep_rates import Run


def test_every_method_takes_a_rate_and_epochs():
    kinds = {method: deep_rates.registry.find(method) for method in deep_rates.METHODS}
    assert all({"lr", "epochs"} <= set(kind().get_params()) for kind in kinds.values())


@pytest.mark.slow
def test_run_scores_held_out_images(monkeypatch):
    parts = *patches(120, 0), *patches(40, 1)
    monkeypatch.setattr("torch.set_num_threads", lambda n: None)
    found = deep_rates.work(Run("cnnbh", 0.05, 6, 16), parts, net=Tiny(), batch_size=32, augment=False, device="cpu")
    assert (found["method"], found["lr"], found["epochs"]) == ("cnnbh", 0.05, 6)
    assert 0.5 < found["map"] <= 1


def finished(run, value):
    future = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result({"method": run.method, "lr": run.lr, "map": value})
    return future


def test_rate_is_chosen_once_a_method_has_all_of_them_and_failures_are_repeated(tmp_path):
    path, results = tmp_path / "rates.json", {"runs": {}}
    runs = deep_rates.missing(results, ["csq"], 3)
    assert [run.lr for run in runs] == list(deep_rates.RATES)
    for run, value in zip(runs, (0.1, 0.3, 0.2, ValueError("x")), strict=True):
        deep_rates.put(results, path, run, finished(run, value))
    assert json.loads(path.read_text())["chosen"] == {}
    assert results["runs"]["csq/0.2"]["failed"] == "ValueError: x"
    assert deep_rates.missing(results, ["csq"], 3) == [runs[-1]]
    deep_rates.put(results, path, runs[-1], finished(runs[-1], 0.25))
    assert json.loads(path.read_text())["chosen"] == {"csq": pytest.approx(0.05)}
