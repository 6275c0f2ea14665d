"""The tables of docs/deep.md on codewords, from results: deep_codewords.json, deep_recipe.json, runs/cifar10_images.

python benchmarks/deep_tables.py      # rewrites what lies between the markers of the page
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from deep_codewords import BITS
from dish.experiments.tables import cell, markdown_grid
from dish.io.atomic import write_atomically

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "deep.md"
OLDER = {  # label → method and parameters in the names of the runs of the paper's table
    "CNNH+": ("cnnh", "_epochs=240"),
    "CNNBH": ("cnnbh", "_epochs=240"),
    "DISH-D, the paper's head": ("dish_d", ""),
}
RIVALS = {
    "OrthoHash": "orthohash",
    "OrthoHash, images mixed as in ours": "orthohash, mixup 0.3",
    "GreedyHash": "greedyhash",
    "CSQ": "csq",
    "DPN": "dpn",
    "HashNet": "hashnet",
    "DTSH": "dtsh",
    "ADSH": "adsh",
}
NETS = {
    "AlexNet": ("alexnet", "batch_size=64_epochs=20_lr=0.02"),
    "VGG-16": ("vgg16", "batch_size=64_epochs=12_lr=0.02"),
    "EfficientNet-Lite0": ("efficientnet_lite0", "batch_size=128_epochs=8_lr=0.3"),
    "EfficientNet-Lite2": ("efficientnet_lite2", ""),
}
Runs = list[dict[str, Any]]


def read(name: str) -> Runs:
    """The finished runs of a file."""
    runs = json.loads((RESULTS / name).read_text())["runs"].values()
    return [run for run in runs if "map" in run]


def older(method: str, bits: int, params: str) -> list[float]:
    """MAP of the trials of the paper's table."""
    files = (RESULTS / "runs" / "cifar10_images").glob(f"{method}_{bits}bits_train5000_trial?{params}.json")
    return [json.loads(path.read_text())["map"] for path in sorted(files)]


def values(runs: Runs, group: str, name: str, bits: int, key: str = "map") -> list[float]:
    """One number from each trial."""
    return [
        run[key] for run in runs if (run["group"], run["name"], run["bits"]) == (group, name, bits) and key in run
    ]


def methods_table(runs: Runs) -> str:
    """Ours and the others, 6conv, at every length."""
    rows = [[label, *(cell(older(method, r, params)) for r in BITS)] for label, (method, params) in OLDER.items()]
    rows += [[label, *(cell(values(runs, "rivals", name, r)) for r in BITS)] for label, name in RIVALS.items()]
    name = "dish_d codewords"
    rows.append(["**DISH-D, codewords**", *(cell(values(runs, "main", name, r)) for r in BITS)])
    rows.append(["its floats, p(x)·p(x′)", *(cell(values(runs, "main", name, r, "map_floats")) for r in BITS)])
    return markdown_grid(["6conv", *(f"{r} bits" for r in BITS)], rows)


def nets_table(runs: Runs) -> str:
    """Pre-trained networks, 48 bits."""
    rows = []
    for label, (net, params) in NETS.items():
        paper = older("dish_d", 48, f"_{params}_net={net}_weights=imagenet") if params else []
        found = next((run for run in runs if run["group"] == "nets" and run["name"] == net), None)
        passes = 4 * found["params"]["epochs"] if found else "–"
        epochs = re.findall(r"epochs=(\d+)", params)
        former = f"{cell(paper)} ({4 * int(epochs[0])} passes)" if paper else "–"
        rows.append([label, former, f"{cell(values(runs, 'nets', net, 48))} ({passes} passes)"])
    return markdown_grid(["48 bits, ImageNet weights", "the paper's head", "codewords"], rows)


def recipe_table(first: Runs, second: Runs) -> str:
    """What was chosen by held-out training images."""
    rows = []
    for group, runs in (("recipe", first), ("recipe2", second), ("recipe3", first)):
        for name in dict.fromkeys(run["name"] for run in runs if run["group"] == group):
            rows.append([name, *(cell(values(runs, group, name, r)) for r in (12, 48))])
    return markdown_grid(["held-out training images", "12 bits", "48 bits"], rows)


def main() -> None:
    """Put the tables into the page."""
    runs, first = read("deep_codewords.json"), read("deep_recipe.json")
    text = PAGE.read_text()
    tables = {"methods": methods_table(runs), "nets": nets_table(runs), "recipe": recipe_table(first, runs)}
    for name, table in tables.items():
        block = re.compile(rf"<!-- {name} -->\n.*?<!-- end of {name} -->\n", re.DOTALL)
        text, count = block.subn(
            lambda _, name=name, table=table: f"<!-- {name} -->\n{table}<!-- end of {name} -->\n", text
        )
        if count != 1:
            raise ValueError(f"{PAGE} must have one block <!-- {name} --> … <!-- end of {name} -->, it has {count}")
    write_atomically(PAGE, text.encode())


if __name__ == "__main__":
    main()
