"""The tables of docs/deep-results.md on codewords.

They come from deep_codewords.json, deep_rates.json, deep_rivals.json, carried.json, runs/cifar10_images, and
deep_recipe.json. The last one was put together from the groups "recipe" and "net_recipe" of several commits. Its
notes say which: parts that lost are no longer in the code. deep_rivals.json is the group "rivals" of
deep_codewords.py at 48 bits.

python benchmarks/deep_tables.py      # rewrites what lies between the markers of the page
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
from deep_codewords import BITS
from dish.experiments.tables import cell, markdown_grid

HERE = Path(__file__).parent
RESULTS = HERE / "results"
RIVALS = {  # label → group and name of the runs
    "CNNH+": ("rivals", "cnnh"),
    "DISH-D (the paper's)": ("rivals", "dish_d"),
    "OrthoHash": ("rivals", "orthohash"),
    "OrthoHash with the mixup of DeepDISH": ("rivals", "orthohash, mixup 0.5"),
    "GreedyHash": ("rivals", "greedyhash"),
    "HashNet": ("rivals", "hashnet"),
    "DTSH": ("rivals", "dtsh"),
    "CSQ": ("rivals", "csq"),
    "DPN": ("rivals", "dpn"),
    "ADSH, database hashed": ("rivals", "adsh"),
}
NETS = {
    "AlexNet": ("alexnet", "batch_size=64_epochs=20_lr=0.02"),
    "VGG-16": ("vgg16", "batch_size=64_epochs=12_lr=0.02"),
    "EfficientNet-Lite0": ("efficientnet_lite0", "batch_size=128_epochs=8_lr=0.3"),
    "EfficientNet-Lite2": ("efficientnet_lite2", ""),
}
WORDS = {  # in the names of runs → in the tables
    "passes": "epochs",
    "errors carried": "error diffusion",
    "a frame": "a projection",
    "plain frame": "projection not refined",
    "no mixed images": "no mixup",
    "batch norm's averages as training left them": "batch norm not recalibrated",
    "sampled by straight lines": "linear interpolation",
    "sampled by cubics": "cubic interpolation",
    "in the same step by cubics": "in one step, cubic interpolation",
    "in the same step": "in one step",
    "begins afresh": "starts over",
    "sharpness-aware steps": "sharpness-aware minimisation",
    "neither mixup nor holes": "no mixup and no erased squares",
    "holes of": "erased squares of",
    "zooms and turns": "zoom and rotation",
    "zooms": "zoom",
    "half the change of light": "half the brightness change",
    "settled": "recalibrated",
    "without care": "body not preserved",
    "with care": "body preserved",
    "gradients clipped at": "clipping at",
    "clipped at": "clipping at",
    "clipped by steps": "clipping by steps",
    "its convolutions averaged": "averaged convolutions",
}
ABLATION = (  # groups of runs of the same recipe, but for the part that their name says
    *("main", "main with a frame", "main, errors carried unasked", "alone", "alone with a frame"),
    *("ablation", "ablation with a frame"),
)
Runs = list[dict[str, Any]]


def read(name: str) -> Runs:
    """The finished runs of a file."""
    runs = json.loads((RESULTS / name).read_text())["runs"].values()
    return [run for run in runs if "map" in run]


def older(method: str, bits: int, params: str) -> list[float]:
    """MAP of the trials of the paper's table."""
    files = (RESULTS / "runs" / "cifar10_images").glob(f"{method}_{bits}bits_train5000_trial?{params}.json")
    return [json.loads(path.read_text())["map"] for path in sorted(files)]


def plain(name: str) -> str:
    """The name of a run in standard terms."""
    for former, word in WORDS.items():
        name = name.replace(former, word)
    return name


def values(runs: Runs, group: str, name: str, bits: int, key: str = "map") -> list[float]:
    """One number from each trial."""
    return [
        run[key] for run in runs if (run["group"], run["name"], run["bits"]) == (group, name, bits) and key in run
    ]


def methods_table(runs: Runs) -> str:
    """Ours and the others, 6conv, at every length."""
    rows = [[label, *(cell(values(runs, *named, r)) for r in BITS)] for label, named in RIVALS.items()]
    name = "dish_d codewords"
    rows.append(["**DeepDISH**", *(cell(values(runs, "main", name, r)) for r in BITS)])
    rows.append(["difference from the best other method, by trial", *(leads(runs, name, r) for r in BITS)])
    framed, within = (lambda r: values(runs, "main with a frame", name, r)), "precision_within_2"
    rows.append(["DeepDISH without error diffusion", *(cell(framed(r)) for r in BITS)])
    rows.append(["DeepDISH, precision within radius 2", *(cell(values(runs, "main", name, r, within)) for r in BITS)])
    rows.append(
        ["DeepDISH, float scores p(x)·p(x′)", *(cell(values(runs, "main", name, r, "map_floats")) for r in BITS)]
    )
    return markdown_grid(["6conv", *(f"{r} bits" for r in BITS)], rows)


def rates_table(runs: Runs) -> str:
    """MAP of every rival at every learning rate, on held-out training images."""
    labels = {name: label for label, (_, name) in RIVALS.items()} | {"adsh": "ADSH"}
    rates = sorted({run["lr"] for run in runs})
    rows = []
    for name in dict.fromkeys(run["method"] for run in runs):
        of = {run["lr"]: run["map"] for run in runs if run["method"] == name}
        if len(of) == 1:  # nothing to choose from
            continue
        best = max(of.values())
        cells = [("–" if r not in of else f"**{of[r]:.3f}**" if of[r] == best else f"{of[r]:.3f}") for r in rates]
        rows.append([labels.get(name, name.upper()), *cells])
    return markdown_grid(["held-out training images, 48 bits", *(f"rate {r:g}" for r in rates)], rows)


def tuned_table(runs: Runs, ours: Runs) -> str:
    """The rivals at these rates, and DeepDISH, in the first trial."""
    labels = {name: label for label, (_, name) in RIVALS.items()}
    rows = [[labels[run["name"]], f"{run['params'].get('lr', 0.1):g}", *scores_of(run)] for run in runs]
    rows.sort(key=lambda row: -float(row[2]))
    first = next(r for r in ours if (r["group"], r["bits"], r["trial"]) == ("main", 48, 0))
    rows.insert(0, ["DeepDISH, earlier version", "0.05", *scores_of(first)])
    return markdown_grid(["6conv, 48 bits, first trial", "learning rate", "MAP", "precision within radius 2"], rows)


def scores_of(run: dict[str, Any]) -> list[str]:
    """MAP and precision within radius 2 of one run."""
    return [f"{run[key]:.3f}" for key in ("map", "precision_within_2")]


def leads(runs: Runs, name: str, bits: int) -> str:
    """Ours less the best of the others, of each trial."""
    of_bits = [run for run in runs if run["bits"] == bits]
    found = []
    for run in of_bits:
        if (run["group"], run["name"]) == ("main", name):
            others = [each["map"] for each in of_bits if each["group"] == "rivals" and each["trial"] == run["trial"]]
            found.append((run["trial"], run["map"] - max(others)))
    return ", ".join(f"{lead:.3f}" for _, lead in sorted(found))


def nets_table(runs: Runs) -> str:
    """Pre-trained networks, 48 bits."""
    rows = []
    for label, (net, params) in NETS.items():
        paper = older("dish_d", 48, f"_{params}_net={net}_weights=imagenet") if params else []
        found = next((run for run in runs if run["group"] == "nets" and run["name"] == net), None)
        trained = 4 * found["params"]["epochs"] if found else "–"
        epochs = re.findall(r"epochs=(\d+)", params)
        former = f"{cell(paper)} ({4 * int(epochs[0])} epochs)" if paper else "–"
        within = values(runs, "nets", net, 48, "precision_within_2")
        rows.append([label, former, f"{cell(values(runs, 'nets', net, 48))} ({trained} epochs)", cell(within)])
    head = ["48 bits, ImageNet weights", "DISH-D", "DeepDISH", "DeepDISH, precision within radius 2"]
    return markdown_grid(head, rows)


def ablation_table(runs: Runs) -> str:
    """What each part is worth, in the first trial: means over trainings, and MAP of codes by what they have."""
    whole = ("dish_d codewords", "one run alone", "a frame, no errors carried")
    first = [run for run in runs if run["trial"] == 0 and run["bits"] == 48 and run["group"] in ABLATION]
    parts = dict.fromkeys(run["name"] for run in first if run["group"] == "ablation with a frame")
    kinds = {"all parts": whole, **{name: (name,) for name in parts}}
    rows = []
    for label, names in kinds.items():
        of_kind = [run for run in first if run["name"] in names]
        maps = [[run["map"] for run in of_kind if run.get("carries_errors", False) == it] for it in (False, True)]
        others = [cell([run[key] for run in of_kind]) for key in ("map_floats", "accuracy")]
        rows.append([plain(label), str(len(of_kind)), *(cell(found) for found in maps), *others])
    head = [
        "6conv, 48 bits, first trial",
        "trainings",
        "MAP, projection",
        "MAP, error diffusion",
        "MAP of float scores",
        "accuracy",
    ]
    return markdown_grid(head, rows)


def carried_table() -> str:
    """A projection and error diffusion by classes and bits: MAP and precision within radius 2."""
    found = json.loads((RESULTS / "carried.json").read_text())["runs"]
    bits = sorted({run["bits"] for run in found})
    rows = []
    for n_classes in sorted({run["classes"] for run in found}):
        of_bits = [next(run for run in found if (run["classes"], run["bits"]) == (n_classes, r)) for r in bits]
        for label, name in (("projection", "frame"), ("error diffusion", "carried, 0.5")):
            scores = [f"{run[name]['map']:.3f} ({run[name]['precision_within_2']:.3f})" for run in of_bits]
            rows.append([f"{n_classes} classes, {label}", *scores])
    return markdown_grid(["held-out training rows", *(f"{r} bits" for r in bits)], rows)


def recipe_table(runs: Runs) -> str:
    """Settings of training, compared on held-out training images."""
    start = "rate 0.05, a quarter of the rounds"
    rows = [[f"{start}, mixup 0.3", cell(values(runs, "recipe3", start, 48))]]
    for name in dict.fromkeys(run["name"] for run in runs if run["group"] == "recipe4"):
        rows.append([plain(name), cell(values(runs, "recipe4", name, 48))])
    return markdown_grid(["held-out training images", "48 bits"], rows)


def net_recipe_table(runs: Runs) -> str:
    """The same for networks with weights."""
    keys = ("map", "map_floats", "accuracy")
    groups = {"recipe5": ", weight decay", "recipe6": ""}
    named = dict.fromkeys((run["group"], run["name"]) for run in runs if run["group"] in groups)
    rows = [
        [plain(name) + groups[group], *(cell(values(runs, group, name, 48, key)) for key in keys)]
        for group, name in named
    ]
    return markdown_grid(["held-out training images", "48 bits", "float scores", "accuracy"], rows)


def tables() -> Iterator[tuple[str, str, list[Path]]]:
    """The name of every table, the table, and the results that it is made from."""
    runs, recipes = read("deep_codewords.json"), read("deep_recipe.json")
    found = {
        "methods": (methods_table(runs), "deep_codewords.json"),
        "rates": (rates_table(read("deep_rates.json")), "deep_rates.json"),
        "tuned rivals": (tuned_table(read("deep_rivals.json"), runs), "deep_rivals.json"),
        "ablation": (ablation_table(runs), "deep_codewords.json"),
        "nets": (nets_table(runs), "deep_codewords.json"),
        "carried": (carried_table(), "carried.json"),
        "recipe": (recipe_table(recipes), "deep_recipe.json"),
        "net recipe": (net_recipe_table(recipes), "deep_recipe.json"),
    }
    for name, (table, results) in found.items():
        yield name, table, [RESULTS / results]


def main() -> None:
    """Put the tables into their pages."""
    for name, table, _ in tables():
        pages.write(name, table)


if __name__ == "__main__":
    main()
