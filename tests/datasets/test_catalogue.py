"""The facts about data sets agree with the data, the results files and the page."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dish import datasets
from dish.datasets.catalogue import CATALOGUE, ENTRIES, markdown
from dish.datasets.make import digest

ROOT = Path(__file__).parents[2]


def test_names_are_unique_and_every_checksum_is_one():
    assert len(CATALOGUE) == len(ENTRIES)
    for entry in ENTRIES:
        assert bool(entry.package) == bool(entry.download), entry.name
        assert all(re.fullmatch("[0-9a-f]{64}", value) for value in entry.sha256.values()), entry.name


def test_every_set_with_results_is_listed_and_has_their_size():
    files = sorted((ROOT / "benchmarks/results/real").glob("*.json"))
    assert files
    for file in files:
        entry, found = CATALOGUE[file.stem], json.loads(file.read_text())
        assert entry.results == f"benchmarks/results/real/{file.name}"
        assert int(entry.features.split(",")[0]) == found["features"]
        assert int(re.match(r"\d+", entry.labels)[0]) == found["labels"]
        assert entry.rows >= found["rows"]  # without queries, and rows that are left out


def test_results_exist():
    assert all((ROOT / entry.results).exists() for entry in ENTRIES)


def test_digits_are_those_behind_the_results():
    digits = datasets.digits()
    assert (len(digits), str(digits.X.shape[1])) == (CATALOGUE["digits"].rows, CATALOGUE["digits"].features)
    assert digest(digits.X) == CATALOGUE["digits"].sha256["X"]


@pytest.mark.parametrize("name", ["synthetic_nuswide", "synthetic_imagenet"])
def test_stand_ins_have_the_size_of_their_defaults(name):
    made = datasets.DATASETS[name](n=5)
    assert made.synthetic
    assert "synthetic" in CATALOGUE[name].source
    assert CATALOGUE[name].rows == {"synthetic_nuswide": 190_000, "synthetic_imagenet": 1_280_000}[name]
    assert int(re.match(r"[\d,]+", CATALOGUE[name].features)[0].replace(",", "")) == np.shape(made.X)[1]


def test_the_page_has_the_tables():
    assert markdown() in (ROOT / "docs/datasets.md").read_text()
