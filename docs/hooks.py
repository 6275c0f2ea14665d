"""What the site does beyond MkDocs: files of the repository that pages speak of are part of it.

A link to a results file is kept, and the file comes along; one to a script, a folder or a source becomes its name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?:\.\./)+((?:benchmarks|src|tests|examples)/[^)#\s]*|[A-Z]+\.(?:md|cff))\)")
KEPT = (".json", ".png", ".svg", ".csv")  # goes onto the site
PAGES = {"CHANGELOG.md": "changes.md", "README.md": "index.md"}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links out of docs/ to what the site has."""
    folder = os.path.dirname(page.file.src_uri)

    def replace(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        if target in PAGES:
            return f"[{text}]({os.path.relpath(PAGES[target], folder or '.')})"
        if not (ROOT / target).exists():
            return found[0]  # MkDocs names it as broken
        if not target.endswith(KEPT):
            return f"{text} (`{target}`)" if text.strip("`") != target else f"`{target}`"
        if files.get_file_from_path(target) is None:
            files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
        return f"{picture}[{text}]({os.path.relpath(target, folder or '.')})"

    return LINK.sub(replace, markdown)
