"""A self-contained HTML page of tables and figures."""

from __future__ import annotations

import html

from dish.experiments import tables
from dish.experiments.bench import Results
from dish.experiments.paper import PaperTable


def page(parts: list[str], results: Results) -> str:
    """The page with these tables and figures. It ends with the machines that produced the numbers."""
    return _PAGE.format(body="\n".join(parts), environment=_environments(results))


def html_table(table: PaperTable, results: Results, trials: int, data: str | None, figure: str = "") -> str:
    """A table with its main finding, figure and notes. Synthetic data are marked."""

    def row(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(
        row(cells, "td").replace("<tr>", '<tr class="ours">' if cells[0].startswith("DISH") else "<tr>")
        for cells in tables.table_rows(table, results, trials, data)
    )
    notes = "".join(f"<li>{html.escape(text)}</li>" for text in tables.notes(table, results, trials, data))
    heading = tables.title(table, results)
    mark = " <mark>synthetic data</mark>" if heading != table.title else ""
    return (
        f"<section><h2>{html.escape(heading)}{mark}</h2>"
        f"<p>{html.escape(tables.finding(table, results, trials, data))}</p>{figure}"
        f"<div class='scroll'><table><thead>{row(tables.header(table), 'th')}</thead>"
        f"<tbody>{body}</tbody></table></div>"
        f"<ul class='note'>{notes}</ul></section>"
    )


def _environments(results: Results) -> str:
    """The machines and commits that produced the numbers."""
    lines = {
        f"{e['cpu']}, {e['cores']} cores, Python {e['python']}, torch {e['versions']['torch']}, commit {e['commit']}"
        for e in (result["environment"] for result in results.values())
    }
    return "<br>".join(html.escape(line) for line in sorted(lines))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>DISH: the paper's tables and figures</title>
<style>
:root {{ color-scheme: light dark; --line: #8885; --ours: #2a9d5c22; }}
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.15rem; margin-top: 2.5rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; font-size: .85rem; }}
td, th {{ padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
.ours {{ background: var(--ours); font-weight: 600; }}
mark {{ background: #f4a26166; color: inherit; border-radius: 4px; padding: 0 .4em; font-size: .8em; }}
.note {{ font-size: .85rem; opacity: .8; }}
figure {{ margin: 1rem 0; background: white; border-radius: 8px; padding: .5rem; }}
figure svg {{ width: 100%; height: auto; }}
footer {{ margin-top: 3rem; font-size: .8rem; opacity: .75; }}
</style></head><body>
<h1>DISH: the paper's tables and figures, measured again</h1>
{body}
<footer><details><summary>Machines and commits that produced the numbers</summary>{environment}</details></footer>
</body></html>
"""
