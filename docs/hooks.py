"""Hooks for MkDocs: links from pages to files outside docs/.

A results file or picture is copied to the site. A link to a script, a folder or a source file becomes its name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?:\.\./)+((?:benchmarks|src|tests|examples)/[^)#\s]*|[A-Z]+\.(?:md|cff))\)")
COPIED = (".json", ".png", ".svg", ".csv")
PAGES = {"CHANGELOG.md": "changes.md", "README.md": "index.md"}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace the links that lead out of docs/."""
    folder = os.path.dirname(page.file.src_uri)

    def replace(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        if target in PAGES:
            return f"[{text}]({os.path.relpath(PAGES[target], folder or '.')})"
        if not (ROOT / target).exists():
            return found[0]  # MkDocs reports it as broken
        if not target.endswith(COPIED):
            return f"{text} (`{target}`)" if text.strip("`") != target else f"`{target}`"
        if files.get_file_from_path(target) is None:
            files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
        return f"{picture}[{text}]({os.path.relpath(target, folder or '.')})"

    return LINK.sub(replace, markdown)
