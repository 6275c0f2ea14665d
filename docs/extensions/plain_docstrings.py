"""Docstrings as they are written here: plain text, in which |x| and W_ are not markup.

Members that come from other packages are left out.
"""

from __future__ import annotations

import re
from typing import Any

LITERAL = re.compile(r"(``.+?``)")
MARKUP = re.compile(r"(?<!\\)\||(?<=\w)_(?![\w`])")
AFTER_NUMPYDOC = 900


def escape(app: Any, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Escape what would be a substitution or a link. Examples stay as they are."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", "..")):
            parts = LITERAL.split(line)
            lines[i] = "".join(p if p.startswith("``") else MARKUP.sub(r"\\\g<0>", p) for p in parts)


def skip(app: Any, what: str, name: str, item: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what a class inherits from scikit-learn or torch."""
    item = getattr(item, "fget", None) or getattr(item, "__func__", item)
    module = getattr(item, "__module__", None) or ""
    return True if module.partition(".")[0] in ("sklearn", "torch", "builtins") and callable(item) else None


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", escape, priority=AFTER_NUMPYDOC)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
