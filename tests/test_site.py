"""Links of the pages work, every page is in the navigation, and MkDocs builds the site without warnings."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)\s]+)\)|<img[^>]+src=\"([^\"]+)\"")
FENCED = re.compile(r"^```.*?^```$", re.S | re.M)


def anchors_of(page):
    """The anchors of the headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page):
    """Relative links of a page without a file, or without a heading in it."""
    text = FENCED.sub("", page.read_text())
    for target in (a or b for a, b in LINK.findall(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors_of(found)):
            yield target


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda p: p.stem)
def test_links_work(page):
    assert list(broken_links(page)) == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](page.md#one) [c](none.md) [d](#two)\n```\n[e](no)\n```\n![f](no.png)\n")
    assert list(broken_links(page)) == ["none.md", "#two", "no.png"]


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement of the theme
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=180, env=quiet)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    page = (tmp_path / "site" / "api.html").read_text()
    assert "similar_weight" in page  # from the docstring of DISHK
    head = (tmp_path / "site" / "photos.html").read_text().partition("<body")[0]
    assert not re.search(r'<(script|link)[^>]+(src|href)="https?:', head)  # nothing is loaded from other sites
