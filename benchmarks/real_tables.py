"""Markdown tables (mean ± standard deviation over trials) from results/real/*.json.

They are docs/real.md, a page in docs/real/ for every data set, and tables of the README and of docs/results.md.

python benchmarks/real_tables.py
python benchmarks/real_tables.py results/clinc150_use.json --output folder
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ablation
import pages
from dish.experiments import paper, style
from dish.experiments.significance import interval
from dish.experiments.tables import cell, markdown_grid
from dish.io.atomic import write_atomically
from real_protocols import PROTOCOLS

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "real"
LABELS = {
    "cosine": "cosine of the floats",
    "ceiling": "float ceiling: product of the posteriors",
    "rabitq": "RaBitQ",
    "rabitq_rescored": "RaBitQ, rescored",
    "dish": "**DISH**",
    "dish_0": "DISH, `geometry=0`",
    "dish_k": "DISH-K (the paper's)",
    "dish_k_2": "DISH-K, w = 2",
    "cosdish_1000": "`cosdish`, 1,000 columns",
}
SETS = {
    "clinc150_use": "CLINC150, sentence embeddings",
    "corel16k001": "Corel16k, bags of words",
    "mediamill": "MediaMill, video features",
    "mirflickr20k_vgg16": "MIRFlickr, VGG-16 features",
    "newsgroups_tfidf": "20 Newsgroups, TF-IDF",
    "r52_tfidf": "Reuters R52, TF-IDF",
    "tinyimagenet_lite0": "Tiny ImageNet, EfficientNet-Lite0 features",
}
CHOSEN = {  # marks of the data sets on which constants of DISH were chosen (docs/method.md)
    **dict.fromkeys(("clinc150_use", "mediamill", "mirflickr20k_vgg16", "tinyimagenet_lite0"), "†"),
    **dict.fromkeys(("corel16k001", "newsgroups_tfidf", "r52_tfidf"), "‡"),
}
CHOSEN_LEGEND = (
    "† Constants of `DISH` were chosen on this data set. ‡ Only older constants were "
    "([which](method.md#dish-fit_to_labels))."
)
BESIDE = {  # the paper's table → what is compared, and our sets of the same kind
    "table2": (
        "Several labels per row, MAP@5000: the paper's results on NUS-WIDE, ours on three other real data sets",
        ("mediamill", "mirflickr20k_vgg16", "corel16k001"),
    ),
    "table5": (
        "Networks for several labels per row, MAP@5000: the paper's results on the images of NUS-WIDE (AlexNet; FTDE "
        "and SFHC with VGG-16), ours of a small perceptron on features, one trial",
        ("mediamill", "mirflickr20k_vgg16", "corel16k001"),
    ),
    "table7": (
        "Many classes: the paper's results on ImageNet (1,000 classes, 4096-d), ours on Tiny ImageNet (200 classes)",
        ("tinyimagenet_lite0",),
    ),
}
NAMES = {"l2": "cosine"}  # of the same ranking, in the paper's tables and here
FLOATS = ("cosine", "ceiling", "rabitq", "rabitq_rescored")
OURS = ("dish", "dish_0", "dish_k", "dish_k_2")
FIRST = (*FLOATS, *OURS)
VARIANT_OF = {  # in figures: method, number of the setting, and what follows the name of the method
    "cosine": ("l2", 0, ""),
    "dish_0": ("dish", 1, ", geometry=0"),
    "dish_k_2": ("dish_k", 1, ", w = 2"),
    "cosdish_1000": ("cosdish", 1, ", 1,000 columns"),
}
VARIANTS = ("dish_0",)  # another setting of DISH: shown, but not ranked against it
BITS = 64  # of the summary
DRAWN = 3  # rivals in each panel of a figure
Cases = dict[str, dict[str, dict[str, float]]]  # protocol → data set → method → mean over trials
INTRO = """# Real data

{finding} The summary has the means of all data sets. [A page per data set](#all-tables) has all figures.{outdated}
"""
EXPLANATION = """## Protocols

The data are features of real images, videos and texts. Queries never have labels and are never trained on. The
protocols differ in the training rows and in the database:

| protocol | training rows | database |
|---|---|---|
| trained on | all rows | the training rows, encoded as if their labels were unknown. This usual protocol rewards overfitting |
| labelled | all rows | the training rows, encoded with their labels |
| disjoint | one half of the rows | the other half |
| 5, 10 and 20 rows per class | 5, 10 or 20 rows of each class | as in disjoint |
| open set | half of the rows of the seen classes; a quarter of the classes is unseen | all other rows, of seen and unseen classes. All queries count |
| unseen classes | as in the open set | rows of unseen classes; so are the queries |
| neighbours | as in the open set (for several labels per row: as in disjoint) | as in the open set, or in disjoint |

- **Labelled.** `DISH` encodes the database by `transform(X, labels=y)`. Other methods have no codes of labels. Their
  database is `transform(X)` or the codes that they learned for these rows (`codes_`), whichever has the higher MAP for
  the queries.
- **Neighbours.** The score is the share of a query's 10 nearest rows by the cosine of the floats that are among the
  first 100 by code. Rows at equal Hamming distance count by the chance that a random order has them among the first
  100.

## How to read the tables

The tables show MAP (MAP@5000 for several labels per row; the share that was found for neighbours), and in brackets the
precision within radius 2: mean ± standard deviation over trials. The best codes of a column are bold. The first lines
rank by real numbers instead of codes:

- **Cosine of the floats**: the rows themselves.
- **Float ceiling**: the probability that two rows share a label, by the class probabilities that `DISH` learned. Its
  codes approximate this ranking.
- **RaBitQ**: faiss's `IndexRaBitQ` with a random rotation and 8 bits per feature of a query. It stores one bit per
  feature and two numbers per row, and uses no labels. *Rescored*: its first 1,000 rows are sorted again by the cosine
  of the floats, which must be stored too.

[The rivals](baselines.md) describes the methods.

## How settings were chosen

{tuned}[How the constants of `DISH` were chosen](method.md#dish-fit_to_labels) names every data set that had a part in it.
Constants of this version were chosen on Tiny ImageNet, CLINC150, MIRFlickr and MediaMill, which all tables mark with †.
None was chosen on Corel16k, 20 Newsgroups and R52 (‡), but some older constants had been.
"""  # noqa: E501
MADE = """*Measured by `benchmarks/real.py` ([results](../benchmarks/results/real)), shown by
`benchmarks/real_tables.py`. {commits}*
"""


TUNED = (
    "Each rival has the setting of a small [grid](baselines.md#settings-and-grids) with the highest MAP on held-out "
    "rows of its training set. `DISH` makes such choices in `fit`. The setting is chosen once per data set and "
    "training set, with 64 bits. A fifth of the training rows of the first trial, at most 1,000, are queries; the "
    "others, at most 20,000, are the training rows and the database. No row that is a query in a table takes part. "
    "Later trials have other splits, so rows of their databases may have taken part, to the advantage of the rivals. "
    "Times of `fit` do not contain the choice.\n\n"
)
UNTUNED = (
    "\n\n**Outdated:** on {sets}, methods have their default parameters, because these runs are older than the "
    "[grids](baselines.md#settings-and-grids) of the rivals. They are also older than a change of `DISH` for more "
    "than 16,384 training rows."
)

OUTDATED = "**Outdated:** measured with an earlier version, and with the default parameters of all methods."


def name_of(data: str, short: bool = False) -> str:
    """The name of a data set in a table, with the mark of those on which constants were chosen."""
    name = SETS.get(data, data)
    mark = CHOSEN.get(data, "")
    return f"{name.split(',')[0] if short else name}{' ' if mark else ''}{mark}"


def values(runs: list[dict[str, Any]], key: str) -> list[float]:
    """The value of ``key`` in every run that has it."""
    return [run[key] for run in runs if key in run]


def main_scores(runs: list[dict[str, Any]]) -> list[float]:
    """The MAP of every run, or its share of neighbours found."""
    return values(runs, "map") or values(runs, "found")


def label(name: str) -> str:
    """A method's name in a table."""
    return LABELS.get(name, f"`{name}`")


def scores(runs: list[dict[str, Any]], best: float | None) -> str:
    """The score of some runs with their precision within radius 2, or why there are none."""
    found = main_scores(runs)
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
        size = "–".join(dict.fromkeys(f"{n:,}" for n in _ends([run["bytes"] for run in of if "bytes" in run])))
        rows.append([label(name), size or "–", *cells, cell(values(at[lengths[len(lengths) // 2]], "fit_s"), 2)])
    names = ["method", "bytes per row", *(f"{r} bits" for r in lengths)]
    return markdown_grid([*names, f"fit, s ({lengths[len(lengths) // 2]} bits)"], rows)


def _best(by_method: list[list[dict[str, Any]]], bits: int) -> float:
    """The highest mean MAP of codes of this length."""
    found = [main_scores([run for run in of if run["bits"] == bits]) for of in by_method]
    return max((float(np.mean(maps)) for maps in found if maps), default=float("inf"))


def seen_table(runs: list[dict[str, Any]]) -> str:
    """MAP of the queries of seen and of unseen classes in the open set."""
    of = [run for run in runs if "map_seen" in run and run["bits"] in (None, BITS)]
    rows = [
        [
            label(name),
            *(cell(values([run for run in of if run["method"] == name], k)) for k in ("map_seen", "map_unseen")),
        ]
        for name in dict.fromkeys(run["method"] for run in of)
    ]
    heads = ["method", "queries of seen classes", "queries of unseen classes"]
    return f"By kind of query, {BITS} bits:\n\n" + markdown_grid(heads, rows)


def protocols_of(runs: list[dict[str, Any]]) -> list[str]:
    """The protocols of some runs, in the order of the page."""
    return _in_order({run["protocol"] for run in runs})


def _in_order(protocols: Iterable[str]) -> list[str]:
    return sorted(protocols, key=lambda p: (PROTOCOLS.index(p) if p in PROTOCOLS else len(PROTOCOLS), p))


def _ends(sizes: list[int]) -> list[int]:
    """The smallest and the largest."""
    return [min(sizes), max(sizes)] if sizes else []


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


def about(content: dict[str, Any]) -> list[str]:
    """The size of a data set: rows, features, labels."""
    labels = f"{content['labels']}, several per row" if content["several_labels"] else f"{content['labels']} classes"
    return [f"{content['rows']:,}", str(content["features"]), labels]


def without_other_lengths(content: dict[str, Any]) -> dict[str, Any]:
    """The same with the code lengths of DISH only, if it was measured. Others stand beside the paper's."""
    lengths = {run["bits"] for run in content["runs"] if run["method"] == "dish"}
    runs = [run for run in content["runs"] if not lengths or run["bits"] in (None, *lengths)]
    return {**content, "runs": runs}


def data_page(content: dict[str, Any]) -> str:
    """The page of one data set."""
    content = without_other_lengths(content)
    runs, name = content["runs"], name_of(content["data"])
    rows, features, labels = about(content)
    trials = 1 + max(run["trial"] for run in runs)
    cut = f", MAP@{content['cut']}" if content["cut"] else ""
    repeated = f"up to {trials} trials" if trials > 1 else "one trial"
    back = "[Real data](../real.md) explains the protocols and how to read the tables."
    found = finding_of_set(cases_of([content]))
    parts = [f"# {name}", " ".join([*found, back])]
    file = f"[results](../../benchmarks/results/real/{content['data']}.json)"
    size = f"{rows} rows, {features} features, labels: {labels}{cut}, {repeated}"
    parts.append(f"`{content['data']}` ({file}): {size}.")
    parts += [CHOSEN_LEGEND.replace("](", "](../")] if content["data"] in CHOSEN else []
    parts += [OUTDATED] if not content.get("tuning") else []
    parts.append(f"![{name}](../figures/real_{content['data']}.svg)")
    for protocol in protocols_of(runs):
        of = [run for run in runs if run["protocol"] == protocol]
        parts += [f"## {protocol.capitalize()}", protocol_table(of).rstrip()]
        if any("map_seen" in run for run in of):
            parts.append(seen_table(of).rstrip())
    parts += [part.rstrip() for part in (paired_table(content), settings_table(content)) if part]
    return "\n\n".join([*parts, f"*{machines(content)}*"]) + "\n"


def finding_of_set(cases: Cases) -> list[str]:
    """In how many protocols DISH is first on one data set; nothing if it was not measured."""
    first = [ranked(found)[0] == "dish" for sets in cases.values() for found in sets.values()]
    text = f"With {BITS} bits, `DISH` has the best codes in {sum(first)} of {len(first)} protocols."
    return [text] if first else []


# --- paired differences ---


def queries_of(run: dict[str, Any]) -> NDArray[np.float64] | None:
    """The average precision of every query of a run, if it was kept."""
    text = run.get("average_precisions")
    return None if text is None else np.frombuffer(base64.b64decode(text), "<u2") / 65535


def differences(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> NDArray[np.float64] | None:
    """Differences between two methods for every query of their common trials; None if they were not kept."""
    theirs = {run["trial"]: queries_of(run) for run in others}
    pairs = [(queries_of(run), theirs.get(run["trial"])) for run in runs]
    known = [a - b for a, b in pairs if a is not None and b is not None]
    return np.concatenate(known) if known else None


def paired_table(content: dict[str, Any]) -> str:
    """DISH minus the best rival, by protocol, at ``BITS`` bits."""
    rows = []
    at = [run for run in content["runs"] if run["bits"] == BITS and "map" in run]
    for protocol in protocols_of(at):
        of = [run for run in at if run["protocol"] == protocol]
        by_method = {name: [run for run in of if run["method"] == name] for name in {run["method"] for run in of}}
        means = {name: float(np.mean(main_scores(each))) for name, each in by_method.items()}
        rivals = [name for name in ranked(means) if name != "dish"]
        if "dish" not in means or not rivals:
            continue
        best = rivals[0]
        found = differences(by_method["dish"], by_method[best])
        text = f"{means['dish'] - means[best]:+.3f} (outdated: no interval)"
        if found is not None:
            mean, low, high = interval(found, -1.0, 1.0)
            text = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
        rows.append([protocol, label(best), f"{means['dish']:.3f}", f"{means[best]:.3f}", text])
    if not rows:
        return ""
    explained = (
        f"`DISH` minus the best rival in MAP, {BITS} bits, with 95 % confidence intervals of paired differences over "
        "all queries of all trials. A query of several trials counts in each. The intervals ignore that the same "
        "queries chose the best rival."
    )
    heads = ["protocol", "best rival", "DISH", "rival", "DISH − rival"]
    return f"## Differences\n\n{explained}\n\n" + markdown_grid(heads, rows)


def settings_table(content: dict[str, Any]) -> str:
    """The settings that were chosen for the rivals, by training set."""
    rows = []
    for training, by_method in content.get("tuning", {}).items():
        for name, of in by_method.items():
            maps = [score["map"] for score in of["settings"] if "map" in score]
            chosen = ", ".join(f"{key}={value}" for key, value in of["chosen"].items()) or "defaults"
            spread = f"{min(maps):.3f} – {max(maps):.3f}" if maps else "–"
            rows.append([training, label(name), chosen, spread, f"{of['seconds']:.0f}"])
    if not rows:
        return ""
    heads = ["training rows", "method", "chosen", "held-out MAP of all settings", "seconds"]
    return "## Settings\n\n" + markdown_grid(heads, rows)


def outdated(contents: list[dict[str, Any]]) -> str:
    """Which data sets have runs that are older than the grids."""
    old = [name_of(content["data"], short=True) for content in contents if not content.get("tuning")]
    return UNTUNED.format(sets=", ".join(old)) if old else ""


# --- the README's table ---

README_SETS = {
    "tinyimagenet_lite0": "Tiny ImageNet, 200 classes",
    "clinc150_use": "CLINC150 text, 150 intents",
    "mirflickr20k_vgg16": "MIRFlickr, 38 labels, MAP@5000",
    "corel16k001": "Corel16k, 153 labels, MAP@5000",
    "mediamill": "MediaMill, 101 labels, MAP@5000",
}
COLUMNS = {"cosine": "cosine, float32", "sign": "sign bits", "pca_itq": "PCA-ITQ", "sdh": "SDH", "fssh": "FSSH"}
COLUMNS |= {"logistic_lsh": "logistic LSH", "dish_k": "DISH-K, the paper's", "dish": "**DISH**"}


def readme_table(contents: list[dict[str, Any]]) -> str:
    """Mean scores at ``BITS`` bits: MAP, and in brackets the precision within radius 2."""
    by_name = {content["data"]: content["runs"] for content in contents}
    rows = []
    for data, name in README_SETS.items():
        called = {"labelled": f"{name} {CHOSEN[data]}", "disjoint": "– disjoint"}
        for protocol, first in called.items():
            of = [run for run in by_name.get(data, []) if run["protocol"] == protocol]
            found = {m: [r for r in of if r["method"] == m and r["bits"] in (None, BITS)] for m in COLUMNS}
            if main_scores(found["dish"]):
                rows.append([first, *readme_cells(found)])
    lines = markdown_grid(["", *COLUMNS.values()], rows).rstrip().splitlines()
    lines[1] = "|---" + "|---:" * len(COLUMNS) + "|"
    return "\n".join(lines)


def readme_cells(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """One cell per method; the best codes are bold."""
    maps = {name: float(np.mean(main_scores(runs))) for name, runs in found.items() if main_scores(runs)}
    best = max(value for name, value in maps.items() if name not in FLOATS)
    cells = []
    for name, runs in found.items():
        near = values(runs, "precision_within_2")
        text = "–" if name not in maps else f"{maps[name]:.3f}" + (f" ({np.mean(near):.2f})" if near else "")
        cells.append(f"**{text}**" if maps.get(name) == best and name not in FLOATS else text)
    return cells


UNSEEN = ("tinyimagenet_lite0", "clinc150_use", "newsgroups_tfidf", "r52_tfidf")
UNSEEN_COLUMNS = {"cosine": "cosine of the float vectors", "dish": "`DISH`", "dish_0": "`DISH(geometry=0)`"}
UNSEEN_COLUMNS |= {"dish_k": "`DISHK`", "whitened_itq": "`whitened_itq`"}


def unseen_table(contents: list[dict[str, Any]]) -> str:
    """Mean scores at ``BITS`` bits for queries of unseen classes, and the share of neighbours found."""
    by_name = {content["data"]: content["runs"] for content in contents}
    rows = []
    for protocol, after in {"unseen classes": "", "neighbours": ": neighbours"}.items():
        for data in UNSEEN:
            of = [run for run in by_name.get(data, []) if run["protocol"] == protocol and run["bits"] in (None, BITS)]
            found = {name: main_scores([run for run in of if run["method"] == name]) for name in UNSEEN_COLUMNS}
            means = {name: float(np.mean(of)) if of else 0.0 for name, of in found.items()}
            best = max(value for name, value in means.items() if name not in FLOATS)
            texts = [f"{value:.3f}" if found[name] else "–" for name, value in means.items()]
            cells = [f"**{t}**" if value == best else t for t, value in zip(texts, means.values(), strict=True)]
            rows.append([f"{SETS[data].split(',')[0]}{after}", *cells])
    lines = markdown_grid(["", *UNSEEN_COLUMNS.values()], rows).rstrip().splitlines()
    lines[1] = "|---" + "|---:" * len(UNSEEN_COLUMNS) + "|"
    return "\n".join(lines)


TABLES = {"readme": readme_table, "unseen": unseen_table}  # name → table in a page that is written by hand


def picture(content: dict[str, Any]) -> Any:
    """MAP against bits, a panel per protocol: our methods, float rankings and the best rivals of the protocol."""
    runs = [run for run in without_other_lengths(content)["runs"] if main_scores([run])]
    protocols = protocols_of(runs)
    shown = (
        f"our methods, rankings by floats, and the {DRAWN} best rivals of each protocol; bars: standard deviations"
    )
    figure, axes = style.panels(len(protocols), f"{SETS.get(content['data'], content['data'])}\n{shown}")
    for axis, protocol in zip(axes, protocols, strict=True):
        of = [run for run in runs if run["protocol"] == protocol]
        for name in (*FIRST, *_best_rivals(runs, protocol)):
            _draw(axis, name, [run for run in of if run["method"] == name])
        axis.set(
            xlabel=f"bits ({protocol})",
            ylabel="found" if protocol == "neighbours" else "MAP",
            xticks=sorted({run["bits"] for run in of} - {None}),
        )
        style.name_lines(axis, axis.lines)
    return figure


def _draw(axis: Any, name: str, runs: list[dict[str, Any]]) -> None:
    """Draw the mean and standard deviation of a method by code length; a float ranking as a horizontal line."""
    method, variant, of_variant = VARIANT_OF.get(name, (name, 0, ""))
    look = {"label": style.name_of(method) + of_variant, **style.style(method, variant)}
    lengths = sorted({run["bits"] for run in runs} - {None})
    if name in FLOATS and runs:
        axis.axhline(np.mean(main_scores(runs)), **look)
    elif lengths:
        found = [main_scores([run for run in runs if run["bits"] == r]) for r in lengths]
        axis.plot(lengths, [np.mean(m) for m in found], **look)
        axis.errorbar(
            lengths, [np.mean(m) for m in found], [np.std(m) for m in found], fmt="none", ecolor=look["color"]
        )


def _best_rivals(runs: list[dict[str, Any]], protocol: str) -> list[str]:
    """The methods with the highest MAP at the middle code length."""
    of = [run for run in runs if run["protocol"] == protocol and run["method"] not in FIRST]
    lengths = sorted({run["bits"] for run in of})
    at = [run for run in of if run["bits"] == lengths[len(lengths) // 2]]
    maps = {name: main_scores([run for run in at if run["method"] == name]) for name in {r["method"] for r in at}}
    return sorted(maps, key=lambda name: (-np.mean(maps[name]), name))[:DRAWN]


def beside_paper(contents: list[dict[str, Any]]) -> str:
    """The paper's numbers on data sets that are not available here, next to ours on similar real data sets."""
    parts = []
    for name, (about, kind) in BESIDE.items():
        table = paper.TABLES[name]
        sets = [content for content in contents if content["data"] in kind]
        methods = {NAMES.get(line.method, line.method) for line in table.lines}
        lengths = [
            r
            for r in table.bits
            if any(run["bits"] == r and run["method"] in methods for content in sets for run in content["runs"])
        ]
        if not lengths:
            continue
        lines = [line for line in reversed(table.lines) if line.map]  # a method's first line wins
        theirs = {NAMES.get(line.method, line.method): dict(zip(table.bits, line.map, strict=True)) for line in lines}
        rows = [
            [label(method).strip("*"), *_cells(method, theirs.get(method, {}), sets, lengths)]
            for method in dict.fromkeys(("cosine", "ceiling", *reversed(theirs), "dish"))
        ]
        columns = ["the paper's", *(name_of(content["data"], short=True) for content in sets)]
        heads = ["method", *(f"{column}, {r} bits" for r in lengths for column in columns)]
        parts.append(f"**{about}**\n\n{markdown_grid(heads, rows)}")
    return "## Comparison with the paper's tables\n\n" + "\n".join(parts)


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


def cases_of(contents: list[dict[str, Any]]) -> Cases:
    """The mean scores of all methods, codes with ``BITS`` bits, where ``DISH`` was measured."""
    cases: Cases = {}
    for content in contents:
        runs = [run for run in content["runs"] if run["bits"] in (None, BITS) and main_scores([run])]
        for protocol in protocols_of(runs):
            of = [run for run in runs if run["protocol"] == protocol]
            means = {
                name: float(np.mean(main_scores([run for run in of if run["method"] == name])))
                for name in dict.fromkeys(run["method"] for run in of)
            }
            if "dish" in means:
                cases.setdefault(protocol, {})[content["data"]] = means
    return {protocol: cases[protocol] for protocol in _in_order(cases)}


def ranked(found: dict[str, float]) -> list[str]:
    """The methods that compete, the best first: codes of one length, DISH with its default parameters only."""
    return sorted((name for name in found if name not in (*FLOATS, *VARIANTS)), key=lambda name: -found[name])


def averages(sets: dict[str, dict[str, float]]) -> dict[str, float]:
    """The mean over data sets of every method that has a result on all of them."""
    methods = dict.fromkeys(name for found in sets.values() for name in found)
    return {
        name: float(np.mean([found[name] for found in sets.values()]))
        for name in methods
        if all(name in found for found in sets.values())
    }


def summary(cases: Cases) -> str:
    """One line per method, one column per protocol: the mean over data sets and the rank."""
    of = {protocol: averages(sets) for protocol, sets in cases.items()}
    places = {protocol: {name: i + 1 for i, name in enumerate(ranked(means))} for protocol, means in of.items()}

    def text(name: str, protocol: str) -> str:
        place = places[protocol].get(name)
        shown = f"{of[protocol][name]:.3f}" if name in of[protocol] else "–"
        return f"**{shown} (1)**" if place == 1 else shown if place is None else f"{shown} ({place})"

    names = dict.fromkeys([*FIRST, *(n for means in of.values() for n in means)])
    rows = [[label(n), *(text(n, p) for p in of)] for n in names if any(n in means for means in of.values())]
    heads = [f"{protocol} (data sets: {len(sets)})" for protocol, sets in cases.items()]
    return (
        f"## Summary\n\nMean MAP over data sets with {BITS} bits (for neighbours: the mean share found), and "
        "in brackets the rank among all codes. A method without a result on one of the data sets has no mean.\n\n"
        + markdown_grid(["method", *heads], rows)
    )


def exceptions(cases: Cases) -> str:
    """The cases in which other codes are better than those of DISH."""
    rows = []
    for protocol, sets in cases.items():
        for data, found in sets.items():
            best = ranked(found)[0]
            if best != "dish":
                ours, theirs = found["dish"], found[best]
                name = name_of(data, short=True)
                zero = f"{found['dish_0']:.3f}" if "dish_0" in found else "–"
                line = [f"{theirs:.3f}", f"{ours:.3f}", zero, f"{ours - theirs:.3f}"]
                rows.append([protocol, name, label(best), *line])
    if not rows:
        return ""
    heads = ["protocol", "data set", "best codes", "their score", "DISH", LABELS["dish_0"], "DISH − best"]
    return f"### Where DISH is not first\n\nWith {BITS} bits:\n\n" + markdown_grid(heads, rows)


def finding(cases: Cases) -> str:
    """The page's first sentence."""
    of = {protocol: ranked(averages(sets)) for protocol, sets in cases.items()}
    averaged = [order[0] == "dish" for order in of.values()]
    single = [ranked(found)[0] == "dish" for sets in cases.values() for found in sets.values()]
    return (
        f"With {BITS} bits, `DISH` is the best of all codes on average in {sum(averaged)} of {len(averaged)} "
        f"protocols, and in {sum(single)} of {len(single)} cases of one protocol and one data set."
    )


def commits(contents: list[dict[str, Any]]) -> str:
    """The commits of all runs."""
    used = {c["environments"][run["environment"]]["commit"] or "unknown" for c in contents for run in c["runs"]}
    if len(used) == 1:
        return f"All runs are of commit {used.pop()}."
    return f"The runs are of several commits, so not all are comparable: {', '.join(sorted(used))}."


def page(paths: list[Path]) -> str:
    """The first page: finding, summary, protocols, and links to the pages of the data sets."""
    contents = contents_of(paths)
    cases = cases_of(contents)
    known = [content for content in contents if content["data"] in SETS]
    intro = INTRO.format(finding=finding(cases), outdated=outdated(contents))
    tuned = TUNED if any(content.get("tuning") for content in contents) else ""
    parts = [intro, *([summary(cases), exceptions(cases)] if cases else [])]
    parts += [CHOSEN_LEGEND + "\n", EXPLANATION.format(tuned=tuned)]
    parts += [beside_paper(known), ablation.section(name_of)] if known else []
    parts += [index(contents), MADE.format(commits=commits(contents))]
    return "\n".join(part for part in parts if part)


def index(contents: list[dict[str, Any]]) -> str:
    """The data sets, with links to their pages."""
    rows = [[f"[{name_of(each['data'])}](real/{each['data']}.md)", *about(each)] for each in contents]
    grid = markdown_grid(["data set", "rows", "features", "labels"], rows)
    entries = "\n".join(
        f"{SETS.get(each['data'], each['data']).split(',')[0]} <real/{each['data']}>" for each in contents
    )
    return f"## All tables\n\n{grid}\n:::{{toctree}}\n:hidden:\n\n{entries}\n:::\n"


def contents_of(paths: list[Path]) -> list[dict[str, Any]]:
    """The content of a results file."""
    contents = [json.loads(path.read_text()) for path in paths]
    return [content for content in contents if content.get("environments")]


def texts(paths: list[Path], folder: Path) -> Iterator[tuple[Path, str, list[Path]]]:
    """Every page in a folder of the docs, its text, and the results that it is made from."""
    yield folder / pages.REAL.name, page(paths), paths
    for path in paths:
        for content in contents_of([path]):
            yield folder / "real" / f"{content['data']}.md", data_page(content), [path]


def written() -> list[tuple[Path, str, list[Path]]]:
    """All pages, what is written there, and the results that it is made from."""
    files = sorted(RESULTS.glob("*.json"))
    contents = contents_of(files)
    tables = [(pages.page(name), pages.block(name, table(contents)), files) for name, table in TABLES.items()]
    return [*texts(files, pages.REAL.parent), *tables]


def main() -> None:
    """Write the pages and their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(RESULTS.glob("*.json")))
    parser.add_argument("--output", type=Path, default=pages.REAL.parent, help="folder of the pages")
    given = parser.parse_args()
    for folder in (given.output / "figures", given.output / "real"):
        folder.mkdir(parents=True, exist_ok=True)
    for content in contents_of(given.files):
        style.write(picture(content), given.output / "figures" / f"real_{content['data']}.svg")
    for path, text, _ in texts(given.files, given.output):
        write_atomically(path, text.encode())
        print(f"written: {path}")
    if given.output == pages.REAL.parent:
        for name, table in TABLES.items():
            pages.write(name, table(contents_of(given.files)))


if __name__ == "__main__":
    main()
