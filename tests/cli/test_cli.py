"""The command line as a whole: help, examples, usage errors and bad input."""

import contextlib
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

import dish
from dish import DISH
from dish.cli import app


def commands(command, path=()):
    """Yield the words and the object of every command."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, below in command.commands.items():
        yield from commands(below, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_command_is_there():
    assert {("fit",), ("encode",), ("eval",), ("search",), ("store", "push"), ("bench",)} <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_examples_in_the_help_can_be_parsed(words, monkeypatch):
    """Renamed options and removed arguments are errors of the parser."""
    monkeypatch.setattr(Path, "exists", lambda _: True)  # of files that the examples name
    examples = [line for line in (COMMANDS[words].epilog or "").split("\n") if line.startswith("Example:")]
    assert examples
    for line in examples:
        for text in line.removeprefix("Example:").split(";"):
            given = shlex.split(text.replace("…", "some-address"))
            given = given[given.index("dish") :]  # after torchrun … -m
            assert given[: len(words) + 1] == ["dish", *words]
            with contextlib.suppress(typer.Exit):  # of --help
                COMMANDS[words].make_context("dish", given[len(words) + 1 :])


def bad_calls(files):
    X, y, m = files / "X.npy", files / "y.npy", files / "m.dish"
    np.save(files / "short.npy", np.zeros(3))
    np.save(files / "flat.npy", np.zeros(500))
    np.save(files / "narrow.npy", np.zeros((5, 3)))
    np.save(files / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (files / "junk.npy").write_bytes(b"junk")
    (files / "junk.parquet").write_bytes(b"junk")
    (files / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (files / "bare.csv").write_text("1,2\n3,4\n")
    (files / "empty.csv").write_text("")
    (files / "words.csv").write_text("a,b\nc,d\n")
    np.savez(files / "many.npz", a=np.ones(2), b=np.ones(2))
    (files / "X.txt").write_text("1 2")
    (files / "folder").mkdir()
    out = files / "out.dish"
    return {
        "there is no file": ("fit", files / "none.npy", y, "-o", out),
        "y has 3": ("fit", X, files / "short.npy", "-o", out),
        "matrix": ("fit", files / "flat.npy", y, "-o", out),
        "junk.npy": ("fit", files / "junk.npy", y, "-o", out),
        "junk.parquet": ("fit", files / "junk.parquet", y, "-o", out),
        "--no-header": ("fit", files / "bare.csv", y, "-o", out),
        "ragged.csv": ("fit", files / "ragged.csv", y, "-o", out),
        "is empty": ("fit", files / "empty.csv", y, "-o", out),
        "is not a number": ("fit", files / "words.csv", y, "-o", out),
        "Python objects": ("fit", X, files / "objects.npy", "-o", out),
        "holds a, b": ("fit", files / "many.npz", y, "-o", out),
        "files of this kind": ("fit", files / "X.txt", y, "-o", out),
        "n_bits": ("fit", X, y, "-o", out, "--bits", 0),
        "loss must be": ("fit", X, y, "-o", out, "--method", "dish_k", "--loss", "l1"),
        "gamma must be": ("fit", X, y, "-o", out, "--gamma", "x"),
        "does not exist": ("fit", X, y, "-o", files / "nowhere" / "m.dish"),
        "it is a folder": ("fit", X, y, "-o", files),
        "no model file": ("encode", files / "none.dish", X, "-o", out),
        "not a dish model": ("info", X),
        "one of the inputs": ("encode", m, X, "-o", X),
        "device must be": ("fit", X, y, "-o", out, "--device", "meta"),
        "k must be": ("eval", m, "--db", X, y, "--queries", X, y, "--top", 0),
        "3 features": ("encode", m, files / "narrow.npy", "-o", out),
        "labels Y are missing": ("fit", X, "-o", out),
        "--net is not an option of DISH": ("fit", X, y, "-o", out, "--net", "6conv"),
        "net must be": ("fit", files / "folder", "-o", out, "--net", "resnet"),
        "has no images": ("fit", files / "folder", "-o", out, "--quiet"),
        "is a folder without shards": ("encode", m, files / "folder", "-o", out),
        "comes without labels": ("eval", m, "--db", X, "-", "--queries", X, y),
    }


def test_bad_input_prints_one_line_and_exits_with_2(cli, files):
    assert cli("fit", files / "X.npy", files / "y.npy", "-o", files / "m.dish", "--anchors", 20)[0] == 0
    for message, call in bad_calls(files).items():
        code, _, err = cli(*call)
        assert code == 2, (call, err)
        assert message in err, (call, err)
        assert "Traceback" not in err
        assert len(err.strip().splitlines()) == 1, err
    assert not (files / "out.dish").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("fit",), "Missing"),
        (("frobnicate",), "No such command"),
        (("fit", "a", "b", "-o", "c", "--bits", "x"), "--bits"),
    ],
)
def test_usage_errors_print_one_line_and_exit_with_2(cli, call, message):
    code, _, err = cli(*call)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_no_command_shows_the_help(cli):
    code, out, err = cli()
    assert "fit" in out + err
    assert code in (0, 2)


def test_control_c_prints_one_line_and_exits_with_130(cli, files, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(DISH, "fit", stop)
    code, _, err = cli("fit", files / "X.npy", files / "y.npy", "-o", files / "m.dish")
    assert (code, err.strip()) == (130, "dish: stopped")
    assert not (files / "m.dish").exists()


def test_version_and_module(cli):

    assert cli("--version")[1].strip() == f"dish {dish.__version__}"
    done = subprocess.run([sys.executable, "-m", "dish", "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == f"dish {dish.__version__}"
