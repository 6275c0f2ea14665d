"""Links of the pages work, every page is in the navigation, and Sphinx builds the site without warnings."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dish.baselines import CLASS_NAMES
from dish.cli import ALIAS_COMMANDS, COMMANDS, DATASETS_COMMANDS, STORE_COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = {"examples/index"}  # pages that sphinx-gallery writes
LINK = re.compile(r"\]\(([^)\s]+)\)|<img[^>]+src=\"([^\"]+)\"")
FENCED = re.compile(r"^```.*?^```$", re.S | re.M)
TOCTREE = re.compile(r"^:::\{toctree\}\n(.*?)^:::$", re.S | re.M)
NO_SPHINX = importlib.util.find_spec("sphinx") is None


def anchors_of(page):
    """The anchors of the headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page):
    """Relative links of a page without a file, or without a heading in it."""
    text = FENCED.sub("", page.read_text())
    for target in (a or b for a, b in LINK.findall(text)):
        if re.match(r"[a-z]+:", target) or target.removesuffix(".rst") in MADE:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors_of(found)):
            yield target


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *DOCS.rglob("*.md")], ids=lambda p: p.stem)
def test_links_work(page):
    assert list(broken_links(page)) == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](page.md#one) [c](none.md) [d](#two)\n```\n[e](no)\n```\n![f](no.png)\n")
    assert list(broken_links(page)) == ["none.md", "#two", "no.png"]


def entries_of(page):
    """The pages that the navigation lists below a page."""
    for block in TOCTREE.findall(page.read_text()):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                yield re.sub(r"^.*<(.*)>$", r"\1", line)


def test_every_page_is_in_the_navigation_once():
    pages = [*DOCS.glob("*.md"), *DOCS.glob("start/*.md"), *DOCS.glob("real/*.md"), DOCS / "api.rst"]
    listed = [name for page in pages for name in entries_of(page)]
    assert len(listed) == len(set(listed))
    names = {page.relative_to(DOCS).with_suffix("").as_posix() for page in pages}
    assert set(listed) == (names - {"index"}) | MADE
    assert list(entries_of(DOCS / "index.md"))[:4] == ["tutorials", "howto", "reference", "explanation"]


def test_every_rival_and_public_class_has_a_page():
    listed = set(re.findall(r"^   ([\w.]+)$", (DOCS / "api.rst").read_text(), re.M))
    assert {f"baselines.{name}.{kind}" for name, kind in CLASS_NAMES.items()} <= listed
    assert {"DISH", "DISHK", "DeepDISH", "DISHD", "HammingIndex", "load", "recommend", "metrics"} <= listed


@pytest.fixture
def from_extensions(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "extensions")


@pytest.mark.slow  # it imports the classes of all methods
def test_the_page_of_the_command_line_has_every_command_and_option(from_extensions):
    from commands_page import commands_text

    text = commands_text()
    groups = {"alias": ALIAS_COMMANDS, "datasets": DATASETS_COMMANDS, "store": STORE_COMMANDS}
    names = [*COMMANDS, *(f"{group} {name}" for group, commands in groups.items() for name in commands)]
    assert sorted(re.findall(r"^## dish (.+)$", text, re.M)) == sorted(names)
    fit = text.partition("## dish fit\n")[2].partition("\n## ")[0]
    for option in ("--bits", "--similar-weight", "--epochs", "--alpha", "--compatible-with"):
        assert f"`{option}`" in fit
    assert "dish fit X.npy y.npy -o model.dish --bits 64 --anchors 2000\n" in fit
    assert "settings" not in fit.lower()


def test_the_page_of_the_service_has_every_route(from_extensions):
    pytest.importorskip("fastapi")
    from routes_page import routes_text, schema

    api = schema()
    text = routes_text(api)
    routes = [f"{method.upper()} {path}" for path, methods in api["paths"].items() for method in methods]
    assert re.findall(r"^## (.+)$", text, re.M) == routes
    search = text.partition("## POST /search\n")[2].partition("\n## ")[0]
    assert "| `vector` | list of number or null |" in search
    assert "Number of hits" in search


def checker():
    """The module .ci/check_site.py."""
    spec = importlib.util.spec_from_file_location("check_site", ROOT / ".ci/check_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_check_of_the_site_finds_what_is_wrong(tmp_path):
    (tmp_path / "searchindex.js").write_text(
        'Search.setIndex({"terms": {"dish_k": 1, "dishk": 1}, "titleterms": {}})'
    )
    (tmp_path / "other.html").write_text('<h1 id="there">')
    (tmp_path / "page.html").write_text(
        '<a href="other.html#there"><a href="other.html#gone"><a href="none.html"><a href="https://example.org/">'
        '<script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "page.css").write_text("@import url(https://example.org/font.css); a {background: url(data:x)}")
    found = "\n".join(checker().problems_of(tmp_path))
    assert re.findall(r"(other\.html#gone|none\.html|example\.org/x\.js|font\.css|finds? \w+)", found) == [
        "other.html#gone", "none.html", "example.org/x.js", "font.css", "find deepdish", "find hammingindex",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif(NO_SPHINX, reason="Sphinx is not installed")
def test_site_builds_without_warnings(tmp_path):
    site = tmp_path / "site"
    call = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        tmp_path / "trees",
        DOCS,
        site,
    ]
    done = subprocess.run(
        [*map(str, call), "-D", "plot_gallery=0"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "similar_weight" in (site / "generated/dish.DISHK.html").read_text()  # from the docstring
    assert checker().problems_of(site) == []
