"""The examples in the docstrings of public names say what happens."""

import doctest
import importlib

import pytest

MODULES = ("kernel.dish", "index.hamming", "metrics.scores", "registry", "experiments.tune")


@pytest.mark.parametrize("module", MODULES)
def test_examples_are_true(module):
    found = doctest.testmod(importlib.import_module(f"dish.{module}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_every_public_class_and_parameter_is_documented():
    import inspect

    from dish import DISH, DeepDISH, HammingIndex

    for kind in (DISH, HammingIndex, DeepDISH):
        text = "".join(inspect.getdoc(base) or "" for base in kind.__mro__ if base.__module__.startswith("dish"))
        for name in inspect.signature(kind).parameters:
            assert any(name in line.split(" :")[0].split(", ") for line in text.splitlines()), (kind, name)
