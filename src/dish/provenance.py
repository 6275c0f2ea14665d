"""Which code produced a result: a hash of every source file that was imported, and its commit.

A results file stores both. ``benchmarks/evidence.py`` compares the hashes with the files of today.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from dish.errors import InputError

PACKAGE = Path(__file__).parent
ROOT = PACKAGE.parents[1]  # of a checkout
RESULTS = ROOT / "benchmarks" / "results"  # what the docs cite
CODE = ("src", ":(glob)benchmarks/*.py", "tests/torture")  # what results depend on, as git's patterns
SHOW = ("cli", *(f"experiments/{name}.py" for name in ("figures", "paper", "report", "reproduce", "tables")))
"""Modules that choose runs and show results. They do not change a result: its file has its definition."""


def code(*packages: str) -> dict[str, str]:
    """File → hash, for all files of this repository that are imported now, and for the CUDA code next to them.

    ``packages`` (``"web"``) names packages of dish that other processes used for the result.
    """
    files = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    files = {file for file in files if not _shows(file)}
    files |= {file for name in packages for file in (PACKAGE / name).rglob("*.py")}
    files |= {cuda for folder in {file.parent for file in files} if _name(folder) for cuda in folder.glob("*.cu")}
    named = {name: file for file in files if (name := _name(file)) and file.suffix in (".py", ".cu")}
    return {name: hash_of(named[name]) for name in sorted(named)}


def _shows(file: Path) -> bool:
    return _name(file) == "benchmarks/pages.py" or any(file.is_relative_to(PACKAGE / name) for name in SHOW)


def _name(file: Path) -> str:
    """The path of our own file in the repository, also where dish is installed; "" for all others."""
    if file.is_relative_to(PACKAGE):
        return f"src/dish/{file.relative_to(PACKAGE).as_posix()}"
    ours = file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[:-1] in (("benchmarks",), ("tests", "torture"))
    return file.relative_to(ROOT).as_posix() if ours else ""


def hash_of(file: Path) -> str:
    """Twelve digits that change with the code of a file, but not with its comments, docstrings and line breaks."""
    return _hash(file, file.stat().st_mtime_ns)


@cache
def _hash(file: Path, changed: int) -> str:
    text = file.read_bytes()
    if file.suffix == ".py":
        text = "".join(_tokens(ast.parse(text))).encode()
    return hashlib.blake2b(text, digest_size=6).hexdigest()


def _tokens(node: Any) -> Iterator[str]:
    """A syntax tree without docstrings and empty fields, the same with every version of Python (ast.dump is not)."""
    if isinstance(node, list):
        for each in node:
            yield from _tokens(each)
            yield ","
    elif isinstance(node, ast.AST):
        yield f"{type(node).__name__}("
        for name, value in ast.iter_fields(node):
            if value is None or value == []:
                continue
            if name == "body" and isinstance(value, list):
                value = [each for each in value if not _is_docstring(each)]
            if isinstance(node, ast.JoinedStr):  # some versions of Python add empty parts
                value = [each for each in value if getattr(each, "value", None) != ""]
            yield f"{name}="
            yield from _tokens(value)
        yield ")"
    else:
        yield repr(node)


def _is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a text alone: also the docstring of an attribute."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def commit() -> str:
    """The commit of this checkout, with "+" if code was changed since; $DISH_COMMIT outside a checkout."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head + ("+" if changed_files() else "") if head else os.environ.get("DISH_COMMIT", "")


def changed_files() -> list[str]:
    """Tracked files of code that differ from the commit; none outside a checkout."""
    return [line[3:] for line in _git("status", "--porcelain", "-uno", "--", *CODE).splitlines()]


def _git(*arguments: str) -> str:
    """The output of git; "" without git, and where dish is installed inside of somebody else's repository."""
    if not (ROOT / ".git").exists():
        return ""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.rstrip()


def require_clean(path: Path) -> None:
    """Refuse to write a published result, one in ``benchmarks/results/``, while code differs from its commit."""
    if path.resolve().is_relative_to(RESULTS) and (changed := changed_files()):
        raise InputError(
            f"{path} is a published result, and code was changed since the commit: {', '.join(changed)}. "
            "Commit the code first, or write to another folder (--output; --results of dish bench)"
        )
