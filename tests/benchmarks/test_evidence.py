"""benchmarks/evidence.py: which figures of the docs it accepts."""

import json
import sys
from pathlib import Path

import pytest

from dish import provenance

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CODE = '"""One."""\nX = 1\n'
PAGE = """# Results

MAP of two methods ([results](../benchmarks/results/a.json)):

| method | 32 bits | 64 bits |
|---|---:|---:|
| DISH-K | 0.512 | 0.632 ± 0.010 |
| SDH | 0.401 | 0.587 |

With 64 bits, DISH-K is 0.045 ahead of SDH. A fit of SDH takes 1.7 s, with `rate=0.3` and a rate of 0.3.
"""


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """The tool on a small repository: one module, one results file, one page."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "evidence", raising=False)
    import evidence

    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "RESULTS", tmp_path / "benchmarks" / "results")
    monkeypatch.setattr(evidence, "TABLES", ())
    monkeypatch.setattr(evidence, "WRITERS", ())
    for name, text in {"README.md": "# One\n", "src/dish/one.py": CODE, "docs/page.md": PAGE}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    publish(tmp_path)
    return evidence


def publish(root, commit="0123456789ab", method=None, files=("src/dish/one.py",), **environment):
    """Write the results file; ``method`` is that of all its runs."""
    scores = {
        ("dish_k", 32): (0.512, 0.512),
        ("dish_k", 64): (0.642, 0.622),
        ("sdh", 32): (0.401,),
        ("sdh", 64): (0.587,),
    }
    runs = [
        {"method": method, "bits": bits, "trial": trial, "map": score, "fit_s": 1.7}
        for (method, bits), of in scores.items()
        for trial, score in enumerate(of)
    ]
    code = {file: provenance.hash_of(root / file) for file in files}
    about = {"commit": commit, "date": "2026-01-01T00:00:00+00:00", "code": code} | environment
    file = root / "benchmarks" / "results" / "a.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    environment = {k: v for k, v in about.items() if v is not None}
    file.write_text(json.dumps({"runs": runs, "environment": environment, "definition": {"method": method}}))


def edit(root, old, new, name="docs/page.md"):
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new, 1))


def test_page_whose_figures_are_in_its_results_passes(evidence, capsys):
    assert evidence.main(["--all"]) == 0
    out = capsys.readouterr().out
    assert "docs/page.md:7  0.632  ok  benchmarks/results/a.json  0123456789ab, " in out
    assert "8 ok, 0 stale, 0 outdated, 0 exempt, 0 wrong" in out


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("0.512 |", "0.513 |", "docs/page.md:7  0.513  wrong  no linked file contains it"),
        ("0.587 |", "0.632 |", "docs/page.md:8  0.632  wrong"),  # of the other method
        ("0.401 |", "0.587 |", "docs/page.md:8  0.587  wrong"),  # of the other length
        ("0.045", "0.055", "docs/page.md:10  0.055  wrong"),
        ("1.7 s", "1.8 s", "docs/page.md:10  1.8 s  wrong"),
        (
            "([results](../benchmarks/results/a.json))",
            "",
            "docs/page.md:7  0.512  wrong  its section links no results",
        ),
        ("results/a.json", "results/b.json", "wrong  benchmarks/results/b.json does not exist"),
        ("# Results", "# Results\n\n![x](figures/x.png)\n", "docs/page.md:3  figures/x.png  wrong  no script makes"),
    ],
)
def test_planted_figure_fails(evidence, old, new, line, tmp_path, capsys):
    edit(tmp_path, old, new)
    assert evidence.main(["--allow-stale"]) == 1
    assert line in capsys.readouterr().out


def test_changed_code_makes_figures_stale_and_a_changed_docstring_does_not(evidence, tmp_path, capsys):
    edit(tmp_path, '"""One."""', '"""Two."""  # why', "src/dish/one.py")
    assert evidence.main([]) == 0
    edit(tmp_path, "X = 1", "X = 2", "src/dish/one.py")
    evidence.state_of.cache_clear()
    assert evidence.main([]) == 1
    assert "0.512  stale  benchmarks/results/a.json  0123456789ab" in (out := capsys.readouterr().out)
    assert "changed since: src/dish/one.py" in out
    assert evidence.main(["--allow-stale"]) == 0


@pytest.mark.parametrize(("method", "is_stale"), [("dish_k", False), ("dish", True), (None, True)])
def test_code_of_methods_counts_for_runs_of_methods_that_import_it(evidence, method, is_stale, tmp_path, capsys):
    files = {
        "src/dish/posterior/regression.py": CODE,
        "src/dish/posterior/dish.py": "def fit():\n    from dish.posterior.regression import X\n",
        "src/dish/kernel/dish_k.py": "from dish.one import X\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    publish(tmp_path, method=method, files=("src/dish/one.py", *files))
    edit(tmp_path, "X = 1", "X = 2", "src/dish/posterior/regression.py")
    assert evidence.main([]) == int(is_stale)
    assert ("changed since: src/dish/posterior/regression.py" in capsys.readouterr().out) == is_stale
    edit(tmp_path, "X = 1", "X = 2", "src/dish/one.py")  # all runs depend on it
    evidence.state_of.cache_clear()
    assert evidence.main([]) == 1


@pytest.mark.parametrize(
    ("about", "reason"),
    [({"commit": "abc+"}, "commit abc+ with changes"), ({"code": None}, "its code is unknown")],
)
def test_results_of_a_dirty_tree_and_of_unknown_code_are_stale(evidence, about, reason, tmp_path, capsys):
    publish(tmp_path, **about)
    assert evidence.main([]) == 1
    assert reason in capsys.readouterr().out


def test_outdated_figures_do_not_fail_if_the_reader_is_told(evidence, tmp_path, capsys):
    edit(tmp_path, "0.512 |", "0.513 |")
    edit(tmp_path, "# Results\n", "# Results\n\n<!-- outdated -->\n")
    assert evidence.main([]) == 1
    assert "marked as outdated, but the text does not say so" in capsys.readouterr().out
    edit(tmp_path, "MAP of two", "Outdated: MAP of two")
    assert evidence.main([]) == 0
    assert "8 outdated" in capsys.readouterr().out


def test_exemption_holds_for_one_block_or_for_a_section(evidence, tmp_path, capsys):
    edit(tmp_path, "With 64 bits", "<!-- no results file: a limit -->\nAt 9.99 s it ends.\n\nWith 64 bits")
    assert evidence.main([]) == 0
    edit(
        tmp_path,
        "With 64 bits",
        "At 7.77 s it ends.\n\n## Limits\n\n<!-- no results file: limits -->\n\nAt 9.97 s.\n\n8.8 s",
    )
    assert evidence.main([]) == 1
    out = capsys.readouterr().out
    assert "7.77 s  wrong" in out
    assert not {"9.97", "8.8"} & set(out.split())


def test_written_table_must_be_the_one_of_its_script(evidence, tmp_path):
    page, results = tmp_path / "docs" / "page.md", tmp_path / "benchmarks" / "results" / "a.json"
    written = "| SDH | 0.401 | 0.587 |"
    assert evidence.compared([("one", page, written, [results])])[1] == []
    (wrong,) = evidence.compared([("one", page, written + "\n| LSH |", [results])])[1]
    assert (wrong.line, wrong.reason) == (8, "not what one.py writes from benchmarks/results/a.json")


@pytest.mark.slow
def test_tables_of_the_docs_are_those_that_scripts_write(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "evidence", raising=False)
    import evidence

    assert [evidence.shown(figure) for figure in evidence.compared(evidence.tables())[1]] == []
