"""The package as a whole: what imports load, its version, its container, its lowest dependencies."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

import dish
from dish.cli import app

ROOT = Path(__file__).parents[1]


def output(program):
    """The output of a program in another process."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_import_loads_no_large_package():
    program = (
        "import sys, dish; "
        "heavy = {'torch', 'faiss', 'matplotlib', 'numba', 'sklearn', 'scipy', 'numpy'} & set(sys.modules); "
        "print(sorted(heavy))"
    )
    assert output(program).strip() == "[]"


def test_help_does_not_load_torch():
    program = "import sys; from dish.cli import main; sys.argv = ['dish', '--help']\n"
    program += "try: main()\nexcept SystemExit: print('torch' in sys.modules)"
    assert output(program).strip().endswith("False")


def test_scikit_learn_is_imported_whole():
    """No package is replaced by a stand-in while dish is imported."""
    program = (
        "import gc, sys; from dish import DISH; DISH(n_bits=8).get_params(); import pandas, scipy.stats; "
        "print(all(type(m) is type(sys) for m in (pandas, scipy.stats)), gc.isenabled())"
    )
    assert output(program).split() == ["True", "True"]


def test_public_names():
    for name in dish.__all__:
        assert getattr(dish, name) is not None
        assert name in dir(dish)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dish.nothing


def test_scoring_and_search_do_not_load_torch():
    program = "import sys, dish.metrics, dish.index, dish.labels, dish.codes; print('torch' in sys.modules)"
    assert output(program).strip() == "False"


def test_command_of_the_container_can_be_parsed(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda _: True)  # of the files in the container
    words = json.loads(re.search(r"^CMD (.*)$", (ROOT / "Dockerfile").read_text(), re.M)[1])
    command = typer.main.get_command(app).commands[words[0]]
    assert command.make_context("dish", words[1:]).params["host"] == "0.0.0.0"


def test_version_is_the_same_everywhere():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert declared == dish.__version__
    assert f"version: {declared}" in (ROOT / "CITATION.cff").read_text()


def test_floors_are_the_lowest_versions_in_pyproject():
    path = ROOT / ".ci" / "floors.py"
    spec = importlib.util.spec_from_file_location("floors", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pyproject = """
[project]
dependencies = ["numpy>=2.0", "torch>=2.8", "some.thing>=1.2; sys_platform != 'win32'"]
[project.optional-dependencies]
plot = ["matplotlib>=3.9", "free"]
dev = ["dish[plot]", "pytest>=8", "pandas>=2.2.2"]
"""
    lines = module.floors(pyproject, "torch==2.13.0\nnumpy==2.4.6\npytest==9.2\nSome_Thing==4\n")
    wanted = ["matplotlib==3.9", "numpy==2.0", "pandas==2.2.2", "pytest==9.2", "some.thing==1.2", "torch==2.13.0"]
    assert lines == wanted
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert all(">=" in line for line in declared)
