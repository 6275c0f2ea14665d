"""The examples in docstrings are correct, and every parameter of a public class is documented."""

import ast
import doctest
import importlib
import inspect
from pathlib import Path

import pytest

from dish import DISH, DISHD, DISHK, DeepDISH, HammingIndex

SRC = Path(__file__).parents[1] / "src"
EXAMPLES = sorted(
    ".".join(file.relative_to(SRC).with_suffix("").parts)
    for file in SRC.rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_are_correct(module):
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0


def test_the_classes_of_the_front_page_have_examples():
    assert {"dish.posterior.dish", "dish.kernel.dish_k", "dish.index.hamming", "dish.registry"} <= set(EXAMPLES)


@pytest.mark.parametrize("kind", [DISH, DISHK, DeepDISH, DISHD, HammingIndex])
def test_every_parameter_is_documented(kind):
    text = "".join(inspect.getdoc(base) or "" for base in kind.__mro__ if base.__module__.startswith("dish"))
    documented = {name for line in text.splitlines() for name in line.split(" :")[0].split(", ")}
    assert set(inspect.signature(kind).parameters) <= documented


@pytest.mark.parametrize("kind", [DISH, DISHK, DeepDISH, DISHD])
def test_documented_defaults_are_the_defaults(kind):
    for name, parameter in inspect.signature(kind).parameters.items():
        for base in kind.__mro__:
            for line in (inspect.getdoc(base) or "").splitlines():
                if line.startswith(f"{name} :") and ", default=" in line:
                    assert ast.literal_eval(line.rpartition("default=")[2]) == parameter.default, line
