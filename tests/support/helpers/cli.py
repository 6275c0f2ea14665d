"""The command line, called in this process."""

import sys

import pytest

from dish.cli import main


def run(capsys, monkeypatch, *args):
    """Exit code, output and errors of `dish args…`."""
    monkeypatch.setattr(sys, "argv", ["dish", *map(str, args)])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr()
    return end.value.code or 0, out.out, out.err
