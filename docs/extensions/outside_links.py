"""Links from pages to files outside docs/.

A results file or picture is copied to the site. A link to a script, a folder or a source file becomes its name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)+((?:benchmarks|src|tests|examples)/[^)#\s]*|[A-Z]+\.(?:md|cff))\)")
COPIED = (".json", ".png", ".svg", ".csv")
PAGES = {"CHANGELOG.md": "changes.md", "README.md": "index.md"}


def replace_links(app: Any, name: str, source: list[str]) -> None:
    """Replace the links of a page that lead out of docs/."""
    folder = os.path.dirname(name)

    def replace(found: re.Match[str]) -> str:
        text, target = found.groups()
        if target in PAGES:
            return f"[{text}]({os.path.relpath(PAGES[target], folder or '.')})"
        if target.endswith(COPIED) or not (ROOT / target).exists():
            return found[0]  # Sphinx copies the file, or reports that there is none
        if target.startswith("examples/") and target.endswith(".py"):
            page = f"examples/{Path(target).stem}.rst"
            return f"[{text}]({os.path.relpath(page, folder or '.')})"
        return f"{text} (`{target}`)" if text.strip("`") != target else f"`{target}`"

    source[0] = LINK.sub(replace, source[0])


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", replace_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
