"""Which numbers of the paper are measured: on its data, on other real data, on a stand-in, or not yet."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from dish.experiments import bench, paper
from dish.experiments.bench import Results
from dish.experiments.paper import Line, PaperTable
from dish.experiments.tables import markdown_grid, size

PLACES = ("the paper's data", "other real data", "a stand-in", "missing")
NAMES = {
    **{"mirflickr20k_vgg16": "MIRFlickr", "mediamill": "MediaMill", "corel16k001": "Corel16k"},
    "tinyimagenet_lite0": "Tiny ImageNet",
}
KEYS = {"precision_within_2": "precision", "map_learned_codes": "learned codes", "fit_s": "time"}
TRIALS = 5
Cell = tuple[str, int]  # key in a run file, code length
Measured = set[tuple[str, int | None, str]]  # method, code length, key


def markdown(folder: Path) -> str:
    """Counts by table, then every line that is not complete on the paper's data; ``folder`` has the run files."""
    counts: Counter[tuple[str, str]] = Counter()
    details = []
    for table in paper.TABLES.values():
        name = table.title.split(".")[0]
        results = bench.finished(table.runs([line.method for line in table.lines], TRIALS), folder)
        other = _elsewhere(table, folder.parent / "real")
        for line in table.lines:
            found: dict[str, list[Cell]] = {place: [] for place in PLACES}
            for cell in table.cells(line):
                found[_place(table, line, cell, results, other)].append(cell)
            counts += Counter({(name, place): len(cells) for place, cells in found.items()})
            if any(found[place] for place in PLACES[1:]):
                texts = [_text(line, cells) for cells in found.values()]
                texts[-1] += f": {_reason(table, line)}" if found["missing"] else ""
                details.append([name, f"{line.label}, {size(line)} rows", *(text or "–" for text in texts)])
    names = list(dict.fromkeys(table.title.split(".")[0] for table in paper.TABLES.values()))
    sums = {name: [counts[name, place] for place in PLACES] for name in names}
    sums["all"] = [sum(column) for column in zip(*sums.values(), strict=True)]
    rows = [[name, str(sum(of)), *map(str, of)] for name, of in sums.items()]
    return (
        f"{_INTRODUCTION} {_other_sets(folder.parent / 'real')}\n\n{markdown_grid(['', 'numbers', *PLACES], rows)}\n"
        f"Lines that are not complete on the paper's data:\n\n"
        f"{markdown_grid(['table', 'method, training rows', *PLACES], details)}"
    )


_INTRODUCTION = (
    "Numbers in the paper's tables: MAP, precision, MAP with learned codes, and times. Each is counted once, in the "
    "first column that applies. The images of CIFAR-10 are the paper's; the GIST features are our own."
)


def _other_sets(folder: Path) -> str:
    """On which other real data sets methods of which tables are measured."""
    parts = [
        f"{table.title.split('.')[0]}: {', '.join(NAMES[name] for name in table.elsewhere)}"
        + (", features and a small network instead of images" if table.deep else "")
        for table in paper.TABLES.values()
        if {method for method, *_ in _elsewhere(table, folder)} & {line.method for line in table.lines}
    ]
    return f"Other real data: {'; '.join(parts)}." if parts else ""


def _elsewhere(table: PaperTable, folder: Path) -> Measured:
    """What is measured on the other real data sets of a table, with codes of rows that were trained on."""
    files = [folder / f"{name}.json" for name in table.elsewhere]
    runs = [run for file in files if file.exists() for run in json.loads(file.read_text())["runs"]]
    return {(run["method"], run["bits"], key) for run in runs if run["protocol"] == "trained on" for key in run}


def _place(table: PaperTable, line: Line, cell: Cell, results: Results, other: Measured) -> str:
    """Where a number of the paper was measured."""
    key, r = cell
    runs = [table.run(line, r, trial) for trial in range(TRIALS)]
    found = [results[run] for run in runs if key in results.get(run, {})]
    if any(not result["definition"]["synthetic"] for result in found):
        return PLACES[0]
    if ((line.method, r, key) if line.method != "l2" else ("cosine", None, key)) in other:
        return PLACES[1]
    return PLACES[2] if found else PLACES[3]


def _text(line: Line, cells: list[Cell]) -> str:
    """Cells in words: code lengths of the MAP, then the other numbers."""
    lengths = ", ".join(str(r) for key, r in cells if key == "map")
    maps = [("MAP" if line.method in bench.FLOATS else f"{lengths} bits")] if lengths else []
    return ", ".join([*maps, *(KEYS[key] for key, _ in cells if key != "map")])


def _reason(table: PaperTable, line: Line) -> str:
    """Why cells of a line are missing."""
    unavailable = paper.UNAVAILABLE.get(line.data or table.data)
    return unavailable or line.missing or ("not run yet, needs a GPU" if table.deep else "not run yet")
