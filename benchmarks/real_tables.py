"""Markdown tables (mean ± standard deviation over trials) from results/real/*.json: docs/real.md.

python benchmarks/real_tables.py
python benchmarks/real_tables.py results/clinc150_use.json --output tables.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from dish.experiments import figures, paper
from dish.experiments.tables import cell, markdown_grid
from dish.io.atomic import write_atomically

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "real", HERE.parent / "docs" / "real.md"
LABELS = {
    "cosine": "cosine of the floats",
    "ceiling": "float ceiling: product of the posteriors",
    "dish": "**DISH**",
    "dish_k": "DISH-K (the paper's)",
    "dish_k_2": "DISH-K, w = 2",
    "dish_k_auto": "DISH-K, w = auto",  # in results from before "auto" became the default of DISH-K
    "cosdish_1000": "`cosdish`, 1,000 columns",
}
SETS = {
    "cifar10_gist_int8": "CIFAR-10, 512-d GIST (rounded to int8)",
    "clinc150_use": "CLINC150, sentence embeddings",
    "corel16k001": "Corel16k, bags of words",
    "mediamill": "MediaMill, video features",
    "mirflickr20k_vgg16": "MIRFlickr, VGG-16 features",
    "tinyimagenet_lite0": "Tiny ImageNet, EfficientNet-Lite0 features",
}
BESIDE = {  # the paper's table → what is compared, and our sets of the same kind
    "table2": (
        "Several labels per row, MAP@5000: the paper's results on NUS-WIDE, ours on three other real data sets",
        ("mediamill", "mirflickr20k_vgg16", "corel16k001"),
    ),
    "table7": (
        "Many classes: the paper's results on ImageNet (1,000 classes, 4096-d), ours on Tiny ImageNet (200 classes)",
        ("tinyimagenet_lite0",),
    ),
}
PROTOCOLS = ("trained on", "disjoint", "few rows", "unseen classes")
FLOATS = ("cosine", "ceiling")
FIRST = (*FLOATS, "dish", "dish_k", "dish_k_2", "dish_k_auto")
DRAWN = 3  # rivals with a labelled line, per protocol
INTRO = """# Real data

`DISH` has the highest MAP of all codes in most tables on this page. The exceptions are Corel16k if the database
rows were not used for training, where DISH-K is better, and unseen classes, where the cosine of the float vectors
is better than all codes.

The data are features of real images, videos and texts. There are four protocols:

- **trained on**: the training rows are the database. This usual protocol rewards overfitting.
- **disjoint**: one half of the rows is for training, the other half is the database.
- **few rows**: the same with 3,000 training rows.
- **unseen classes**: a quarter of the classes is kept out of training; queries and database are rows of these
  classes.

The tables show MAP, and in brackets the precision within radius 2: mean ± standard deviation over trials. The best
codes of a column are bold. The first two lines rank by real numbers: by the cosine of the rows, and by the product
of the class probabilities that `DISH` learned, which its codes approximate. Methods are described in
[baselines.md](baselines.md).

`benchmarks/real_tables.py` writes this page from `benchmarks/results/real/`, which `benchmarks/real.py` makes.
Every run records its commit.

Measured before `DISHK` chose `similar_weight` by the number of classes; will be regenerated. The row "DISH-K (the
paper's)" has w = 2 for all data sets. The row "DISH-K, w = auto" is what `DISHK()` does now. All
runs of `DISH` are outdated: they predate codewords of classes, cross-validated probabilities and geometry bits.
"""


def values(runs: list[dict[str, Any]], key: str) -> list[float]:
    """The value of ``key`` in every run that has it."""
    return [run[key] for run in runs if key in run]


def scores(runs: list[dict[str, Any]], best: float | None) -> str:
    """MAP and precision within radius 2 of some runs, or why there are none."""
    found = values(runs, "map")
    if not found:
        return next((f"over {run['limit_s']:g} s" for run in runs if "not_run" in run), "failed" if runs else "–")
    text = cell(found)
    text = f"**{text}**" if best is not None and np.mean(found) >= best else text
    inside = values(runs, "precision_within_2")
    return f"{text} ({cell(inside)})" if inside else text


def protocol_table(runs: list[dict[str, Any]]) -> str:
    """One line per method, one column per code length."""
    lengths = sorted({run["bits"] for run in runs if run["bits"] is not None})
    order = dict.fromkeys([*FIRST, *(run["method"] for run in runs)])
    by_method = {name: [run for run in runs if run["method"] == name] for name in order}
    best = {r: _best(list(by_method.values()), r) for r in lengths}
    rows = []
    for name, of in by_method.items():
        if not of:
            continue
        floats = [run for run in of if run["bits"] is None]
        at = {r: floats or [run for run in of if run["bits"] == r] for r in lengths}
        cells = [scores(at[r], None if floats else best[r]) for r in lengths]
        rows.append([LABELS.get(name, f"`{name}`"), *cells, cell(values(at[lengths[len(lengths) // 2]], "fit_s"), 2)])
    names = ["method", *(f"{r} bits" for r in lengths), f"fit, s ({lengths[len(lengths) // 2]} bits)"]
    return markdown_grid(names, rows)


def _best(by_method: list[list[dict[str, Any]]], bits: int) -> float:
    """The highest mean MAP of codes of this length."""
    found = [values([run for run in of if run["bits"] == bits], "map") for of in by_method]
    return max((float(np.mean(maps)) for maps in found if maps), default=float("inf"))


def seen_table(runs: list[dict[str, Any]]) -> str:
    """MAP of seen and unseen queries in both databases, at the middle code length."""
    lengths = sorted({run["bits"] for run in runs if run["bits"] is not None})
    bits = lengths[len(lengths) // 2]
    keys = ("map_seen_to_seen", "map_seen_to_all", "map", "map_unseen_to_all")
    of = [run for run in runs if run["bits"] == bits and "map_seen_to_all" in run]
    names = list(dict.fromkeys(run["method"] for run in of))
    rows = [
        [
            LABELS.get(name, f"`{name}`"),
            *(cell(values([run for run in of if run["method"] == name], k)) for k in keys),
        ]
        for name in names
    ]
    heads = ["seen → seen", "seen → all", "unseen → unseen", "unseen → all"]
    return f"MAP by kind of query → kind of database, {bits} bits:\n\n" + markdown_grid(["method", *heads], rows)


def machines(content: dict[str, Any]) -> str:
    """The machines and versions of the runs."""
    used = {run["environment"] for run in content["runs"]}
    found = []
    for i in sorted(used):
        e = content["environments"][i]
        on = e.get("gpu") or e["cpu"]
        versions = ", ".join(f"{name} {e['versions'][name]}" for name in ("torch", "numba", "numpy"))
        found.append(f"{e['date'][:10]}, {on}, {e['cores']} cores, {versions}, commit {e['commit'] or 'unknown'}")
    return "Measured: " + "; ".join(dict.fromkeys(found)) + "."


def section(content: dict[str, Any]) -> str:
    """The tables of one set."""
    runs = content["runs"]
    several = f"{content['labels']} labels, several per row" if content["several_labels"] else None
    about = (
        f"{content['rows']:,} rows, {content['features']} features, {several or str(content['labels']) + ' classes'}"
    )
    trials = 1 + max(run["trial"] for run in runs)
    cut = f", MAP@{content['cut']}" if content["cut"] else ""
    repeated = f"up to {trials} trials" if trials > 1 else "one trial"
    name = SETS.get(content["data"], content["data"])
    lines = [f"## {name}", f"`{content['data']}`: {about}{cut}, {repeated}. {machines(content)}"]
    lines.append(f"![{name}](figures/real_{content['data']}.png)")
    for protocol in dict.fromkeys(run["protocol"] for run in runs):
        of = [run for run in runs if run["protocol"] == protocol]
        lines += [f"### {name}: {protocol}", protocol_table(of).rstrip()]
        if any("map_seen_to_all" in run for run in of):
            lines.append(seen_table(of).rstrip())
    return "\n\n".join(lines) + "\n"


def picture(content: dict[str, Any]) -> Any:
    """MAP against bits, a panel per protocol."""
    runs = [run for run in content["runs"] if "map" in run]
    protocols = list(dict.fromkeys(run["protocol"] for run in runs))
    figure, axes = figures.panels(len(protocols), SETS.get(content["data"], content["data"]), height=5.0)
    looks = _looks(runs)
    for axis, protocol in zip(axes, protocols, strict=True):
        of = [run for run in runs if run["protocol"] == protocol]
        for name, style in looks.items():
            mine = [run for run in of if run["method"] == name]
            lengths = sorted({run["bits"] for run in mine} - {None})
            if name in FLOATS and mine:
                axis.axhline(np.mean(values(mine, "map")), **style)
            elif lengths:
                found = [values([run for run in mine if run["bits"] == r], "map") for r in lengths]
                axis.errorbar(lengths, [np.mean(m) for m in found], [np.std(m) for m in found], **style)
        axis.set(xlabel="bits", ylabel="MAP", title=protocol, xticks=sorted({run["bits"] for run in of} - {None}))
    named = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=5, fontsize="small")
    return figure


def _looks(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The line style of each method."""
    names = dict.fromkeys(run["method"] for run in runs)
    rivals = [name for name in names if name not in FIRST]
    best = list(dict.fromkeys(name for protocol in PROTOCOLS for name in _best_rivals(runs, protocol)))
    ours, others = figures.styles(figures.OURS, 2.4), figures.styles(figures.COLOURS, 1.3)
    looks: dict[str, dict[str, Any]] = {
        name: {"color": "#bbbbbb", "linewidth": 0.7, "zorder": 1} for name in rivals if name not in best
    }
    looks |= {name: {**next(others), "label": name} for name in best}
    looks |= {
        name: {**next(ours), "label": LABELS[name].strip("*"), "zorder": 3} for name in FIRST[2:] if name in names
    }
    for name, dashes in zip(FLOATS, (":", "--"), strict=True):
        looks[name] = {"color": "black", "linestyle": dashes, "linewidth": 1.5, "label": LABELS[name]}
    return looks


def _best_rivals(runs: list[dict[str, Any]], protocol: str) -> list[str]:
    """The methods with the highest MAP at the middle code length."""
    of = [run for run in runs if run["protocol"] == protocol and run["method"] not in FIRST]
    lengths = sorted({run["bits"] for run in of})
    at = [run for run in of if run["bits"] == lengths[len(lengths) // 2]]
    maps = {name: values([run for run in at if run["method"] == name], "map") for name in {r["method"] for r in at}}
    return sorted(maps, key=lambda name: (-np.mean(maps[name]), name))[:DRAWN]


def beside_paper(contents: list[dict[str, Any]]) -> str:
    """The paper's numbers on data sets that are not available here, next to ours on similar real data sets."""
    parts = []
    for name, (about, kind) in BESIDE.items():
        table = paper.TABLES[name]
        sets = [content for content in contents if content["data"] in kind]
        lengths = [r for r in table.bits if any(run["bits"] == r for content in sets for run in content["runs"])]
        lines = [line for line in reversed(table.lines) if line.map]  # a method's first line wins
        theirs = {line.method: dict(zip(table.bits, line.map, strict=True)) for line in lines}
        rows = [
            [LABELS.get(method, f"`{method}`").strip("*"), *_cells(method, theirs.get(method, {}), sets, lengths)]
            for method in ("cosine", "ceiling", *reversed(theirs), "dish_k_auto", "dish")
        ]
        columns = ["the paper's", *(SETS[content["data"]].split(",")[0] for content in sets)]
        heads = ["method", *(f"{column}, {r} bits" for r in lengths for column in columns)]
        parts.append(f"**{about}**\n\n{markdown_grid(heads, rows)}")
    return "## Comparison with the paper's Tables 2 and 7\n\n" + "\n".join(parts)


def _cells(method: str, theirs: dict[int, float | None], sets: list[dict[str, Any]], lengths: list[int]) -> list[str]:
    """The paper's MAP and ours on every set, at every length."""
    cells = []
    for r in lengths:
        known = theirs.get(r)
        cells.append("–" if known is None else f"{known:.3f}")
        for content in sets:
            of = [run for run in content["runs"] if (run["method"], run["protocol"]) == (method, PROTOCOLS[0])]
            cells.append(cell(values([run for run in of if run["bits"] in (None, r)], "map")))
    return cells


def page(paths: list[Path]) -> str:
    """The whole page."""
    contents = contents_of(paths)
    known = [content for content in contents if content["data"] in SETS]
    beside = [beside_paper(known)] if known else []
    return "\n".join([INTRO, *beside, *(section(content) for content in contents)])


def contents_of(paths: list[Path]) -> list[dict[str, Any]]:
    """The content of a results file."""
    contents = [json.loads(path.read_text()) for path in paths]
    return [content for content in contents if content.get("environments")]


def main() -> None:
    """Write the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(RESULTS.glob("*.json")))
    parser.add_argument("--output", type=Path, default=PAGE)
    given = parser.parse_args()
    for content in contents_of(given.files):
        folder = given.output.parent / "figures"
        folder.mkdir(exist_ok=True)
        figures.write(picture(content), folder / f"real_{content['data']}.png")
    write_atomically(given.output, page(given.files).encode())
    print(f"written: {given.output}")


if __name__ == "__main__":
    main()
