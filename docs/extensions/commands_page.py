"""The page of the command line: every command with its arguments, options and examples, from the program itself.

A line ``<!-- generated: commands -->`` of a page becomes the sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MARK = "<!-- generated: commands -->"
METHODS = {  # whose options are listed → a note
    "dish": ", the default for rows of features",
    "dish_k": "",
    "deep_dish": ", the default for a folder of images",
    "dish_d": "",
}
NAMES = {"Path": "path", "str": "text", "int": "integer", "float": "number"}


def commands_text() -> str:
    """Markdown with a section for each command."""
    import typer

    from dish.cli import app

    commands = _commands("dish", typer.main.get_command(app))
    return "\n".join(line for name, command in commands for line in _section(name, command))


def _commands(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    for key, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(f"{name} {key}", command)
        else:
            yield f"{name} {key}", command


def _section(name: str, command: Any) -> Iterator[str]:
    shown = [p for p in command.params if not p.hidden and p.name != "settings"]  # settings: of the method, below
    arguments, options = [p for p in shown if not _is_option(p)], [p for p in shown if _is_option(p)]
    yield f"## {name}\n\n{escaped(command.help)}\n"
    yield f"```sh\n{' '.join([name, *map(_metavar, arguments), '[OPTIONS]'])}\n```\n"
    yield from _table("argument", [(_metavar(p), p) for p in arguments])
    yield from _table("option", [(_flags(p), p) for p in options])
    if name == "dish fit":
        yield from _options_of_methods(command, {p.name for p in command.params})
    examples = [line.removeprefix("Example: ") for line in (command.epilog or "").split("\n\n") if line]
    if examples:
        yield "\n".join(["```sh", *examples, "```\n"])


def _options_of_methods(command: Any, common: set[str]) -> Iterator[str]:
    for method, note in METHODS.items():
        net = ["--net", "6conv"] if method in ("deep_dish", "dish_d") else []
        context = command.make_context("fit", ["X.npy", "-o", "model.dish", "--method", method, *net])
        own = [p for p in context.command.params if p.name not in common and _is_option(p) and not p.hidden]
        yield f"### --method {method}\n\nOptions of `--method {method}`{note}:\n"
        yield from _table("option", [(_flags(p), p) for p in own])


def _table(first: str, rows: list[tuple[str, Any]]) -> Iterator[str]:
    if rows:
        yield f"| {first} | value | default | |\n|---|---|---|---|"
        for shown, p in rows:
            yield f"| {shown} | {_type(p)} | {_default(p)} | {' '.join(escaped(p.help or '').split())} |"
        yield ""


def _is_option(p: Any) -> bool:
    return bool(p.opts) and p.opts[0].startswith("-")


def _metavar(p: Any) -> str:
    name = (p.metavar or p.name).strip("[]").upper()
    return (name if p.required else f"[{name}]") + " …" * (p.nargs != 1)


def _flags(p: Any) -> str:
    return ", ".join(f"`{flag}`" for flag in [*p.opts, *p.secondary_opts])


def _type(p: Any) -> str:
    if getattr(p, "is_flag", False):
        return ""
    annotation = p.type_descriptor.annotation
    if choices := getattr(annotation, "__members__", None):
        return ", ".join(f"`{choice.value}`" for choice in choices.values())
    return NAMES.get(getattr(annotation, "__name__", ""), "text")


def _default(p: Any) -> str:
    if p.required:
        return "required"
    shown = p.default is not None and not callable(p.default) and not getattr(p, "is_flag", False)
    return f"`{p.default}`" if shown else ""


def escaped(text: str) -> str:
    """Plain text as Markdown: nothing is markup but `code`."""
    pieces = re.split(r"(`[^`]*`)", text.replace("``", "`"))
    return "".join(p if p.startswith("`") else re.sub(r"([<*_\[\]$|\\])", r"\\\1", p) for p in pieces)


def insert(app: Any, name: str, source: list[str]) -> None:
    """Replace the mark on a page."""
    if MARK in source[0]:
        source[0] = source[0].replace(MARK, commands_text())


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
