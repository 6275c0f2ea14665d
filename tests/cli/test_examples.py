"""Every command's help ends with examples, and these are commands that the parser takes."""

import shlex

import pytest
import typer

from dish.cli import app


def commands(command, path=()):
    """Every command below this one: its words, and itself."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, below in command.commands.items():
        yield from commands(below, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_command_is_there():
    assert {("fit",), ("encode",), ("eval",), ("search",), ("store", "push"), ("bench",)} <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_examples_of_a_command_are_understood(words):
    """An option that was renamed, or an argument that went away, is an error of the parser."""
    examples = [line for line in (COMMANDS[words].epilog or "").split("\n") if line.startswith("Example:")]
    assert examples
    for line in examples:
        for text in line.removeprefix("Example:").split(";"):
            given = shlex.split(text.replace("…", "some-dsn"))
            given = given[given.index("dish") :]  # after torchrun … -m, where there are several processes
            assert given[: len(words) + 1] == ["dish", *words]
            COMMANDS[words].make_context("dish", given[len(words) + 1 :])
