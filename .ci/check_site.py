"""Check the built pages: links and anchors exist, nothing comes from other sites, and the search finds names.

python .ci/check_site.py site
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SOUGHT = ("dish_k", "dishk", "deepdish", "hammingindex")  # in lower case, as the search compares words
IN_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)")


class Page(HTMLParser):
    """The anchors, links and files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.files: list[str] = []  # loaded with the page
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes that name places."""
        found = {name: value for name, value in attrs if value}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon", "shortcut icon"):
            self.files.append(found.get("href", ""))
        elif "src" in found:
            self.files.append(found["src"])


@cache
def read(path: Path) -> Page:
    """A page, read once."""
    return Page(path)


def problems_of(folder: Path) -> list[str]:
    """What is wrong with the pages in a folder."""
    found = []
    pages = [
        path for path in folder.rglob("*.html") if "_static" not in path.parts
    ]  # those have templates of the theme
    for path in sorted(pages):
        page, name = read(path), path.relative_to(folder).as_posix()
        for address in [*page.links, *page.files]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                found += [f"{name} loads {address}"] if address in page.files and parts.scheme != "data" else []
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{name} links {address}: there is no such file")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in read(target).anchors:
                found.append(f"{name} links {address}: there is no such anchor")
    for path in folder.rglob("*.css"):
        found += [
            f"{path.relative_to(folder)} loads {url}" for url in IN_CSS.findall(path.read_text(encoding="utf-8"))
        ]
    return found + [f"the search does not find {word}" for word in SOUGHT if word not in words(folder)]


def words(folder: Path) -> set[str]:
    """The words of the search index."""
    text = (folder / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
    return set(index["terms"]) | set(index["titleterms"])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    problems = problems_of(folder)
    pages = len(list(folder.rglob("*.html")))
    print(*problems[:50], f"{pages} pages, {len(problems)} problems", sep="\n")
    sys.exit(bool(problems) or not pages)
