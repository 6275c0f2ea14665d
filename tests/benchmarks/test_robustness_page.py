"""The page on bad data, from a few runs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # scripts import each other
import robustness_page


def runs_of(method, clean, damaged, warned):
    about = {"data": "two classes", "method": method, "seed": 0}
    return [
        {**about, "damage": "clean", "map": clean, "warned": []},
        {**about, "damage": "heavy tails", "map": damaged, "warned": warned},
    ]


def test_page_names_the_method_that_loses_least_often_and_marks_warnings():
    runs = runs_of("DISH", 0.9, 0.89, []) + runs_of("SDH", 0.9, 0.5, []) + runs_of("DISHK", 0.9, 0.8, ["outliers"])
    text = robustness_page.page({"runs": runs, "bits": 32, "environment": {"cpu": "a", "commit": "0123456789ab"}})
    assert "DISH loses more than 0.02 MAP least often: in 0 of 1 fits with damaged training rows." in text
    lines = text.splitlines()
    assert "| SDH | 1 | 1 | 1 |" in lines
    assert "| DISHK | 1 | 1 | 0 |" in lines
    assert "## Two classes" in lines
    assert "| heavy tails | 0.890 | 0.500 | 0.800 **w** |" in lines


def test_page_is_the_one_of_the_committed_results():
    ((path, text, _),) = robustness_page.written()
    assert path.read_text() == text
