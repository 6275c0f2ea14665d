"""benchmarks/grids.py: the grids of the rivals, the choice, and the table in docs/baselines.md."""

import inspect
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from dish import metrics, registry

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import grids
import pages
from real_protocols import Part


def test_grids_begin_with_the_defaults_and_have_two_to_six_settings_of_known_parameters():
    for method, settings in grids.GRIDS.items():
        defaults = inspect.signature(registry.find(method)).parameters
        assert 2 <= len(settings) <= 6
        assert all(defaults[name].default == value for name, value in settings[0].items()), method
        assert all(name in defaults and name not in ("n_anchors", "gamma") for s in settings for name in s) or (
            method == "dgh"  # its anchors are not those of the kernel
        )


def test_page_equals_the_code():
    assert pages.block("grids", grids.table()) in pages.page("grids").read_text()
    for line in grids.table().splitlines()[2 : 2 + sum(map(len, grids.SHOWN.values()))]:
        method, parameter, default, *_ = (cell.strip("` ") for cell in line.strip("|").split("|"))
        assert default == grids.shown(inspect.signature(registry.find(method)).parameters[parameter].default)


@pytest.fixture
def train(digits):
    X, y, *_ = digits
    return Part(X[:200], y[:200])


def test_held_out_rows_are_a_fifth_and_are_not_learned_from(train):
    queries, rows = grids.held_out(train)
    assert (len(queries.X), len(rows.X)) == (40, 160)
    assert not (queries.X[:, None] == rows.X[None]).all(2).any()


def test_best_setting_by_the_map_of_held_out_rows_is_chosen(train, monkeypatch):
    monkeypatch.setitem(grids.GRIDS, "whitened_itq", [{"shrinkage": 1e9}, {"shrinkage": 1.0}, {"shrinkage": -1.0}])

    def make(setting):
        return registry.find("whitened_itq")(16, **setting)

    done = grids.tune("whitened_itq", train, make, nullcontext)
    queries, rows = grids.held_out(train)
    expected = []
    for shrinkage in (1e9, 1.0):
        hasher = make({"shrinkage": shrinkage}).fit(rows.X, rows.y)
        codes = hasher.transform(queries.X), hasher.transform(rows.X)
        expected.append(metrics.mean_average_precision(codes[0], queries.y, codes[1], rows.y))
    assert [score["map"] for score in done.scores[:2]] == pytest.approx(expected)
    assert "shrinkage" in done.scores[2]["not_run"]
    assert done.chosen == {"shrinkage": (1e9, 1.0)[np.argmax(expected)]}
    assert (done.record()["rows"], done.record()["queries"]) == (160, 40)


def test_method_without_a_score_keeps_its_defaults(train):
    def late():
        raise TimeoutError

    assert grids.tune("sdh", train, lambda setting: None, late).chosen == {}
