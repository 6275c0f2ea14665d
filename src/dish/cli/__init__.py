"""The command line: parse, call one function, print."""

from dish.cli.app import app, main

__all__ = ["app", "main"]
