"""The tables that scripts write into README.md and docs/: on which page each is, and how it is replaced there.

A table stands between two marks that name it: ``<!-- table: NAME -->`` and ``<!-- end of table: NAME -->``.
"""

from __future__ import annotations

from pathlib import Path

from dish.io.atomic import write_atomically

ROOT = Path(__file__).parents[1]
TABLES = {  # name → page
    "billions": "docs/billions.md",
    "busy": "docs/scale-results.md",
    "gpu": "docs/scale-results.md",
    "grids": "docs/baselines.md",
    "index": "docs/searching.md",
    "load": "docs/serve.md",
    "readme": "README.md",
    "reload": "docs/serve.md",
    "stores": "docs/engines.md",
    "unseen": "docs/results.md",
    "updates": "docs/updates-results.md",
    **dict.fromkeys(("methods", "rates", "tuned rivals", "ablation", "nets"), "docs/deep-results.md"),
    **dict.fromkeys(("carried", "recipe", "net recipe"), "docs/deep-results.md"),
}
REAL, ROBUSTNESS = ROOT / "docs/real.md", ROOT / "docs/robustness.md"  # pages that a script writes as a whole


def page(name: str) -> Path:
    """The page of a table."""
    return ROOT / TABLES[name]


def block(name: str, table: str) -> str:
    """A table between its marks."""
    return f"<!-- table: {name} -->\n{table.rstrip()}\n<!-- end of table: {name} -->"


def write(name: str, table: str) -> None:
    """Replace a table on its page."""
    first, last = block(name, "").split("\n\n")
    before, found, rest = page(name).read_text().partition(f"{first}\n")
    _, ends, after = rest.partition(last)
    if not (found and ends):
        raise ValueError(f"{page(name)} must have the lines {first} and {last}")
    write_atomically(page(name), f"{before}{block(name, table)}{after}".encode())
