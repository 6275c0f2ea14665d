"""Every figure of README.md and docs/, with the results file that contains it, its commit and its age.

    python benchmarks/evidence.py                 # lists what is wrong; ends with 1 if anything is
    python benchmarks/evidence.py --all           # lists every figure
    python benchmarks/evidence.py --allow-stale   # results of older code are listed, but are no failure

A figure is a number with a decimal point, or one with a unit (%, s, GB, times, ...). Not: code, headings, heads and
first cells of tables, versions, and settings (`= 0.5`, "rate 0.05"; the words are SETTINGS).

- Tables that a script writes must equal what it writes now (WRITERS, TABLES).
- Every other figure must be in a results file that its section, or a section around it, links. It may be rounded; a
  mean, deviation or extreme over trials; the difference or ratio of two figures of its section; or in the paper.
- `<!-- no results file: REASON -->` exempts a block, or below a heading its section. `<!-- outdated -->` lists
  figures as outdated; the section must also tell its reader so.

Results are stale if the code that made them has changed, or was not committed, or was not noted (older files). Code
of methods counts only if the method of the run imports it. SAME_RESULTS lists changes that cannot change the results
of finished runs, each with its reason.
For a figure, only those numbers of a file count whose method, data and code length its context names, if it does.
The tool finds figures that nothing supports. It cannot prove that a number stands beside the right words: a wrong
figure of a section that links a large file may find its like there.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dish import provenance, registry
from dish.experiments import paper
from pages import block as table_block
from pages import page as page_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TABLES = ("billions", "busy", "gpu", "index", "load", "reload", "stores", "updates")  # scripts: RESULTS, table()
WRITERS = ("real_tables", "robustness_page")  # scripts with written() → page, text, results

UNITS = {
    "%": 100,
    "ms": 1e3,
    "µs": 1e6,
    "GB": 1e-9,
    "MB": 1e-6,
    "kB": 1e-3,
    "TB": 1e-12,
    "min": 1 / 60,
    "hours": 1 / 3600,
}
NUMBER = re.compile(
    r"(?<![\w.,^⁻/])(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?![\w.,]*\d)(?! ?(?:M|million)\b)"
    r"(?P<unit>\s?(?:%|µs\b|ms\b|s\b|GB\b|MB\b|kB\b|TB\b|min\b|hours\b|times\b|×(?!\s?\d)))?"
)
SETTINGS = re.compile(
    r"([=≤≥<>^]|\b(rates?|factors?|decay|margins?|mixup|level|threshold|at (most|least)|torch"
    r"|version|NumPy|faiss|numba|pgvector|Milvus Lite|Ray|Granian)) ?$"
)
SKIPPED = (
    "environment",
    "environments",
    "code",
    "average_precisions",
    "curve_precision",
    "curve_recall",
)
NOT_TEXT = re.compile(
    r"\b\d{4}\.\d{4,5}\b|Python [\d.–]+|`[^`]*`|\]\([^)\s]*\)|<!--.*?-->|<[^>]*>|https?://\S+|\d{4}-\d\d-\d\d"
)
COMPARES = re.compile(
    r"\b(ahead|behind|than|gains?|loses?|lost|more|less|lower|higher|better|worse|lead|differ|times)\b|×"
)
UNIT = re.compile(r"(?<=[ (])(%|µs|ms|[GMTk]B|min)(?![\w])")  # in the head of a table
LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")
HEADING = re.compile(r"^(#+) ")
EXEMPT, OUTDATED = re.compile(r"<!-- no results file: .+ -->"), re.compile(r"<!-- outdated -->")
VARYING = ("commit", "date", "gpu", "cpu", "device", "what")  # texts that may differ between trials of one thing
SAME_RESULTS = {  # file, its hash in results and now: why both give the same results
    ("benchmarks/deep_rates.py", "5f8e41674c97", "14ffba224f74"): "runs were filed under the key of the run before",
    (
        "benchmarks/deep_codewords.py",
        "c4018e0dd973",
        "565f9edbd32c",
    ): "only several lengths of one network failed",
    (
        "src/dish/posterior/selection.py",
        "2eae97548c52",
        "a6a7ac40817c",
    ): "only networks were measured in between; what changed is ρ of DISH on vectors with more than 16,384 rows",
}
SHOW = ("src/dish/experiments/coverage.py", "benchmarks/real_tables.py")  # they show results and change none
METHODS = ("kernel", "posterior", "nets", "deep", "baselines")  # packages of dish with the code of methods
METHOD_OF = {"literal.json": "dish_k"}  # results of one method that their runs do not name
IN_ITS_TEXT = (0.724, 0.637, 0.618, 0.676)  # figures of the paper that its tables of MAP do not contain
SIZES = ("bits", "n_bits", "classes", "n_train", "n_anchors", "rows", "labels", "cut")  # numbers that may not


@dataclass
class Figure:
    """A number in the docs: where it is, what supports it, and what is wrong with it ("" if nothing is)."""

    page: Path
    line: int
    text: str
    source: Path | None = None
    reason: str = ""
    kind: str = "ok"  # ok, exempt, outdated, stale, wrong


@dataclass
class Section:
    """The part of a page below a heading, without the sections inside it."""

    level: int
    parent: Section | None = None
    links: list[Path] = field(default_factory=list)
    pages: list[Path] = field(default_factory=list)
    text: str = ""
    mark: str = ""

    def around(self) -> Iterator[Section]:
        """This section and those around it."""
        section: Section | None = self
        while section is not None:
            yield section
            section = section.parent

    def kind(self) -> str:
        """The mark of this section or of one around it."""
        return next((section.mark for section in self.around() if section.mark), "")


# --- Results files ---


@cache
def load(path: Path) -> Any:
    """The content of a results file."""
    return json.loads(path.read_text())


@cache
def state_of(path: Path) -> tuple[str, str, str]:
    """Commits, the day and what is stale about a results file."""
    found = list(_environments(load(path)))
    needed = needed_by(METHOD_OF.get(path.name) or load(path).get("definition", {}).get("method", ""))
    reasons = [] if found else ["its commit is unknown"]
    code = {each["commit"]: each["code"] for each in found if "code" in each}  # runs may name their commit alone
    for each in found:
        reasons += [f"commit {each['commit']} with changes"] if each["commit"].endswith("+") else []
        changed = _changed(code[each["commit"]], needed) if each["commit"] in code else None
        reasons += ["its code is unknown"] if changed is None else [f"changed since: {changed}"] if changed else []
    commits, days = ({str(each.get(key, ""))[:n] for each in found} for key, n in (("commit", 13), ("date", 10)))
    return ", ".join(sorted(commits)), min(days, default=""), "; ".join(dict.fromkeys(reasons))


def _environments(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        if isinstance(content.get("commit"), str):
            yield content
        content = list(content.values())
    for each in content if isinstance(content, list) else ():
        yield from _environments(each)


def _changed(code: dict[str, str], needed: set[str] | None) -> str:
    """Files whose code is not the one that a result notes. ``needed``: the only files of methods that count."""
    changed = [name for name in code if name not in SHOW and not _is_same(name, code[name])]
    if needed is not None:
        changed = [name for name in changed if name in needed or not _is_of_method(name)]
    return ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")


def _is_same(name: str, before: str) -> bool:
    """Whether a file gives the results that it gave when its hash was ``before``."""
    file = ROOT / name
    now = provenance.hash_of(file) if file.exists() else ""
    return now == before or (name, before, now) in SAME_RESULTS


def _is_of_method(name: str) -> bool:
    return name.startswith(tuple(f"src/dish/{package}/" for package in METHODS))


@cache
def needed_by(method: str) -> set[str] | None:
    """The files that the class of a method imports, directly or not; None if it has none."""
    if method not in registry.NAMES:  # rankings by floats, results of several methods
        return None
    todo, found = [f"src/{registry.find(method).__module__.replace('.', '/')}.py"], set[str]()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += _imports(ROOT / name)
    return found


def _imports(file: Path) -> list[str]:
    """The files of dish that a file imports, also inside functions. dish itself imports them on first use only."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = [name.split(".") for name in names if name.startswith("dish.")]
    modules = {"/".join(each[:i]) for each in parts for i in range(2, len(each) + 1)}
    files = [f"src/{module}{end}" for module in modules for end in (".py", "/__init__.py")]
    return [name for name in files if (ROOT / name).exists()]


Key = tuple[tuple[str, str], ...]  # what a number is: (field, value) of every field and name on the way to it


@cache
def numbers_of(path: Path) -> tuple[list[tuple[dict[str, str], Any, list[Path]]], dict[str, set[str]]]:
    """(What, numbers of all trials with their mean, deviations and median, files); and field → all its values."""
    groups, files = defaultdict[Key, list[float]](list), defaultdict[Key, dict[Path, None]](dict)
    for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
        for key, value in _leaves(load(file), ()):
            groups[key].append(value)
            files[key][file] = None
    found, fields = [], defaultdict[str, set[str]](set)
    for key, of in groups.items():
        more = [np.mean(of), np.std(of), np.std(of, ddof=1), np.median(of)] if len(of) > 1 else []
        found.append((dict(key), np.array([*of, *more]), list(files[key])))
        for name, value in key:
            fields[name].add(value)
    return found, fields


def _leaves(content: Any, key: Key) -> Iterator[tuple[Key, float]]:
    """All numbers, each with a key that is the same for trials of the same thing."""
    if isinstance(content, int | float) and not isinstance(content, bool):
        yield key, float(content)
    elif isinstance(content, list):
        for each in content:
            yield from _leaves(each, key)
    elif isinstance(content, dict):
        about = content.get("definition", content)
        key += tuple(
            (k, "|".join(map(words, v.split(",", 1))))
            for k, v in about.items()
            if isinstance(v, str) and k not in VARYING and len(v) < 60
        )
        key += tuple((k, f"{v} {k.removeprefix('n_')}") for k, v in about.items() if k in SIZES and v is not None)
        key += (("params", json.dumps(about["params"], sort_keys=True)),) if "params" in about else ()
        for name, value in content.items():
            if name not in SKIPPED:
                yield from _leaves(value, (*key, (f"name {len(key)}", words(re.sub(r"trial \d+|/\d+$", "", name)))))


def words(text: str) -> str:
    """A text in lower case, its words between single spaces; "DISH-K", `DISHK` and dish_k are one word."""
    lists = re.sub(
        r"\d+(?:(?:, | and | or | to | / )\d+)+ bits", lambda m: re.sub(r"(\d+)\b", r"\1 bits", m[0]), text
    )
    lists = re.sub(r"\(\w+=(\w+)\)", r"_\1", lists)  # DISH(geometry=0) is dish_0
    return " ".join(re.findall(r"[\w.]+", re.sub(r"(?<=\w)[-_](?=\w)", "", lists.replace("**", "").lower())))


def mentioned(fields: dict[str, set[str]], context: str) -> dict[str, set[str]]:
    """Those values of texts and sizes that a context mentions. Rankings by floats have no length."""
    around = f" {words(context)} "
    sizes = () if re.search("cosine|float|l2", around) else SIZES
    every = {
        name: {value for value in values if f" {value.partition('|')[0]} " in around}
        for name, values in fields.items()
        if name in sizes or (name not in SIZES and not name.startswith("name "))
    }
    return {name: values for name, values in every.items() if values}


@cache
def papers() -> Any:
    """The numbers of the paper."""
    lines = [line for table in paper.TABLES.values() for line in table.lines]
    return np.array([*IN_ITS_TEXT, *(x for line in lines for x in (*line.map, line.seconds) if x is not None)])


def contains(values: Any, figure: str, unit: str) -> bool:
    """Whether one of the values is printed like this, at this precision and in this unit."""
    shown = figure.replace(",", "")
    half = 0.5 * 10.0 ** -len(shown.partition(".")[2]) * (1 + 1e-6)
    scales = {1.0, UNITS.get(unit, 1.0)}
    return any(bool((np.abs(np.abs(values) * scale - float(shown)) <= half).any()) for scale in scales)


# --- Pages ---


def figures_of(line: str, table: bool = False) -> list[tuple[str, str, int]]:
    """Number, unit and place of every figure in a line of Markdown."""
    text = NOT_TEXT.sub(lambda found: ("`" if found[0].startswith("`") else "").center(len(found[0])), line)
    if table:  # the first cell says what the row is
        first = text.find("|", 1)
        text = " " * first + text[first:]
    found = []
    for match in NUMBER.finditer(text):
        unit, before = (match["unit"] or "").strip(), text[: match.start()].rstrip("*")
        if ("." in match["number"] or unit) and not SETTINGS.search(before):
            found.append((match["number"], unit, match.start()))
    return found


def blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """First line number (from 0) and lines of every block of text; code is left out."""
    start, code = 0, False
    for i, line in enumerate([*lines, ""]):
        fence = line.lstrip().startswith(("```", "~~~"))
        if fence or code or not line.strip() or HEADING.match(line):
            if start < i and not code:
                yield start, lines[start:i]
            if not code and HEADING.match(line):
                yield i, [line]
            start = i + 1
        code ^= fence


def sections_of(page: Path, lines: list[str]) -> list[tuple[int, list[str], Section, str]]:
    """All blocks of a page, with their section and the mark above them."""
    section, found, mark, after_heading = Section(0), [], "", True
    for start, block in blocks(lines):
        text = "\n".join(block)
        if heading := HEADING.match(block[0]):
            level = len(heading[1])
            section = Section(level, next((each for each in section.around() if each.level < level), None))
            mark, after_heading = "", True
            continue
        seen = "exempt" if EXEMPT.search(text) else "outdated" if OUTDATED.search(text) else ""
        if seen and after_heading:
            section.mark = seen
        else:
            mark = seen or mark
        if all(line.startswith("<!--") for line in block):
            continue  # a mark alone: it speaks of the next block
        section.text += f"\n{text}"
        for link in LINK.findall(text):
            path = (page.parent / link).resolve()
            if path.is_relative_to(RESULTS) and path.suffix in ("", ".json"):
                section.links.append(path)
            elif path.suffix == ".md":
                section.pages.append(path)
        found.append((start, block, section, mark))
        mark, after_heading = "", False
    return found


@cache
def linked(page: Path) -> tuple[Path, ...]:
    """The results files that a page links."""
    every = [(page.parent / link).resolve() for link in LINK.findall(page.read_text())] if page.exists() else []
    return tuple(path for path in every if path.is_relative_to(RESULTS) and path.suffix in ("", ".json"))


def sources_of(section: Section) -> list[Path]:
    """The results that a section and those around it link; without any, those of the pages that it links."""
    direct = [path for each in section.around() for path in each.links]
    return list(dict.fromkeys(direct or [path for page in section.pages for path in linked(page)]))


def check(
    figure: Figure, number: str, unit: str, section: Section, context: str, table: bool, bracket: bool
) -> Figure:
    """Find what supports a figure. ``context`` is its paragraph, or the row and the head of its cell."""
    sources = sources_of(section)
    missing = [path for path in sources if not path.exists()]
    if missing:
        figure.kind, figure.reason = "wrong", f"{missing[0].relative_to(ROOT)} does not exist"
        return figure
    holds = [file for path in sources for file in holding(path, number, unit, context)]
    best = min(holds, key=lambda file: bool(state_of(file)[2])) if holds else None
    if best is not None and not state_of(best)[2]:
        return judged(figure, best)
    if "paper" in (context if not bracket else section.text) and contains(papers(), number, unit):
        figure.source = Path(paper.__file__)
        return figure
    if best is not None:
        return judged(figure, best)
    if sources and not table and COMPARES.search(context) and derived(number, section):
        return judged(figure, sources[0])
    figure.kind, figure.reason = "wrong", "no linked file contains it" if sources else "its section links no results"
    return figure


def holding(path: Path, number: str, unit: str, context: str) -> list[Path]:
    """The files that contain a figure, for the methods, lengths and data that its context mentions, if it does."""
    found, fields = numbers_of(path)
    only = mentioned(fields, context)
    groups = [of for key, *of in found if all(key.get(name) in (None, *values) for name, values in only.items())]
    return [file for values, files in groups if contains(values, number, unit) for file in files]


def derived(number: str, section: Section) -> bool:
    """Whether a number is the difference or the ratio of two figures that its section shows."""
    lines = section.text.splitlines()
    shown = {text for line in lines for text, *_ in figures_of(line, line.startswith("|")) if text != number}
    values = np.array(sorted({float(text.replace(",", "")) for text in shown}))
    if not values.size:
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        return contains(values[:, None] - values, number, "") or contains(values[:, None] / values, number, "")


def judged(figure: Figure, source: Path, kind: str = "stale") -> Figure:
    """A figure with its source, and what is stale about it."""
    if source.is_dir():
        source = next(source.rglob("*.json"), source)
    figure.source, figure.reason = source, state_of(source)[2]
    figure.kind = kind if figure.reason else "ok"
    return figure


def read(page: Path, written: dict[int, list[Path]]) -> list[Figure]:
    """All figures of a page. ``written``: line → results, of tables that equal what their script writes."""
    lines, found, head = page.read_text().splitlines(), [], [""]
    for start, block, section, mark in sections_of(page, lines):
        for i, line in enumerate(block):
            table = line.startswith("|")
            if table and (i == 0 or not block[i - 1].startswith("|")):
                head = line.split("|")
                continue
            for number, unit, at in figures_of(line, table):
                row, column = line.split("|"), line[:at].count("|")
                context = f"{row[1]} {head[column] if column < len(head) else ''}" if table else "\n".join(block)
                measure = UNIT.search(context) if table and not unit else None
                unit = measure[0] if measure else unit
                figure = Figure(page, start + i + 1, f"{number}{' ' if unit.isalpha() else ''}{unit}")
                kind = mark or section.kind()
                if kind:
                    figure.kind = kind
                    told = any("outdated" in re.sub("<!--.*?-->", "", each.text.lower()) for each in section.around())
                    if kind == "outdated" and not told:
                        figure.kind, figure.reason = "wrong", "marked as outdated, but the text does not say so"
                elif start + i in written:
                    figure = max((judged(figure, path) for path in written[start + i]), key=lambda f: bool(f.reason))
                else:
                    check(figure, number, unit, section, context, table, line[at - 1] == "(")
                found.append(figure)
    return found


def pages() -> list[Path]:
    """README.md and all pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


# --- Tables and images that scripts make ---


def tables() -> Iterator[tuple[str, Path, str, list[Path]]]:
    """(script, page, text, results) of all tables that scripts write."""
    for name in TABLES:
        script = importlib.import_module(name)
        text = script.table(json.loads(script.RESULTS.read_text()))
        yield name, page_of(name), table_block(name, text), [script.RESULTS]
    for name, text, results in importlib.import_module("deep_tables").tables():
        yield "deep_tables", page_of(name), table_block(name, text), results
    for name in WRITERS:
        for page, text, results in importlib.import_module(name).written():
            yield name, page, text, results


def compared(
    every: Iterable[tuple[str, Path, str, list[Path]]],
) -> tuple[dict[Path, dict[int, list[Path]]], list[Figure]]:
    """Page → line → results of the tables that are as their script writes them, and the tables that are not."""
    lines, wrong = defaultdict[Path, dict[int, list[Path]]](dict), []
    for name, page, text, results in every:
        content = page.read_text()
        head = text.splitlines()[0]
        first = content[: max(0, content.find(head))].count("\n")
        if text not in content:
            reason = f"not what {name}.py writes from {results[0].relative_to(ROOT)}"
            wrong.append(Figure(page, first + 1, "table", results[0], reason, "wrong"))
        lines[page] |= {first + i: results for i in range(text.count("\n") + 1)}
    return lines, wrong


def images() -> Iterator[Figure]:
    """Images that no script makes."""
    scripts = [
        *ROOT.glob("benchmarks/*.py"),
        *ROOT.glob("docs/figures/*.py"),
        *ROOT.glob("src/dish/experiments/*.py"),
    ]
    sources = "\n".join(script.read_text() for script in scripts)
    for page in pages():
        for start, block in blocks(page.read_text().splitlines()):
            for link in re.findall(r"[(\"]([^(\"\s:]+\.(?:png|webp|svg))", re.sub("`[^`]*`", "", "\n".join(block))):
                name = Path(link).stem  # as a whole, or with a variable before or after - or _
                names = [f"{name[: m.end()]}{{" for m in re.finditer("[-_]", name)]
                names += [f"}}{name[m.start() :]}" for m in re.finditer("[-_]", name)]
                if not any(part in sources for part in (f"{name}.", f'"{name}"', *names)):
                    yield Figure(page, start + 1, link, None, "no script makes this image", "wrong")


# --- The report ---


def shown(figure: Figure) -> str:
    """One line about a figure."""
    about = [f"{figure.page.relative_to(ROOT)}:{figure.line}", figure.text, figure.kind]
    if figure.source is not None:
        about.append(str(figure.source.relative_to(ROOT)))
        if figure.source.suffix == ".json":
            commits, day, _ = state_of(figure.source)
            age = (datetime.now(UTC).date() - datetime.fromisoformat(day).date()).days if day else "?"
            about.append(f"{commits}, {age} days")
    return "  ".join([*about, figure.reason]).rstrip()


def main(arguments: list[str] | None = None) -> int:
    """List figures; 1 if any is wrong or stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="list every figure, not only what is wrong")
    parser.add_argument("--allow-stale", action="store_true", help="results of older code are no failure")
    given = parser.parse_args(arguments)
    lines, found = compared(tables())
    found += [figure for page in pages() for figure in read(page, lines[page])]
    found += images()
    failing = {"wrong"} if given.allow_stale else {"wrong", "stale"}
    for figure in found:
        if given.all or figure.kind in failing:
            print(shown(figure))
    counts = Counter(figure.kind for figure in found)
    stale = {figure.source for figure in found if figure.kind == "stale"}
    print(", ".join(f"{counts[kind]:,} {kind}" for kind in ("ok", "stale", "outdated", "exempt", "wrong")), end="; ")
    print(f"{len(stale)} results files are stale")
    return int(any(counts[kind] for kind in failing))


if __name__ == "__main__":
    sys.exit(main())
