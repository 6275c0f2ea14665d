"""The package imports and writes files on systems without POSIX-only modules and functions, such as Windows."""

import json
import subprocess
import sys

import pytest

# Third-party packages are imported first: they may use what this system has. Only imports by dish itself fail then.
POSIX_FREE = """
import builtins, importlib, json, mmap, os, pkgutil, signal, sys
for name in ("asyncio", "numba", "pandas", "pyarrow", "rich", "scipy.stats", "sklearn.utils", "torch", "typer"):
    importlib.import_module(name)
for name in ("fastapi", "granian", "httptools", "uvicorn", "psycopg", "PIL.Image", "matplotlib.pyplot"):
    try: importlib.import_module(name)
    except ImportError: pass

MODULES = {"fcntl", "grp", "posix", "pwd", "resource", "termios"}
FUNCTIONS = {
    os: ("fork", "getuid", "mkfifo", "posix_fallocate", "register_at_fork", "sched_getaffinity", "O_NOFOLLOW"),
    mmap: ("MADV_DONTNEED",),
    signal: ("SIGHUP", "SIGKILL"),
}
for module, names in FUNCTIONS.items():
    for name in names:
        if hasattr(module, name): delattr(module, name)

def of_dish(name, globals=None, *rest):
    if name.partition(".")[0] in MODULES and (globals or {}).get("__name__", "").startswith("dish"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return real(name, globals, *rest)
real, builtins.__import__ = builtins.__import__, of_dish

try: exec("import fcntl", {"__name__": "dish.of_a_test"})
except ModuleNotFoundError: pass
else: raise AssertionError("imports of dish are not intercepted")

import dish
def fail(name): raise
found = [m.name for m in pkgutil.walk_packages(dish.__path__, "dish.", onerror=fail) if m.name != "dish.__main__"]
for name in found:
    try: importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("sentence_transformers",): raise  # an extra that need not be installed
print(json.dumps(found))
"""
WRITES = """
import numpy as np
from pathlib import Path
from dish.io import atomic, modelfile, rows
assert atomic.fcntl is None
folder = Path(sys.argv[1])
atomic.write_atomically(folder / "m", b"old")
atomic.write_atomically(folder / "m", b"new")
assert (folder / "m").read_bytes() == b"new"
try:
    with atomic.replacing(folder / "m") as temporary:
        temporary.write_bytes(b"half")
        raise KeyError
except KeyError: pass
assert (folder / "m").read_bytes() == b"new"
with atomic.replacing(folder / "set", folder=True) as new: (new / "a").write_text("a")
young, old = (folder / f".m.{2**22 + 1}.{n}.tmp" for n in ("0123abcd", "4567abcd"))
for file in (young, old): file.write_text("half")
os.utime(old, (0, 0))
atomic.write_atomically(folder / "m", b"new")
assert young.exists() and not old.exists()
modelfile.save(folder / "model", "Kind", {"a": 1}, {"x": np.arange(3)})
assert modelfile.read(folder / "model")[1] == {"a": 1}
np.save(folder / "X.npy", np.ones((100, 3)))
assert sum(b.sum() for b in rows.blocks_of(np.load(folder / "X.npy", mmap_mode="r"), 10)) == 300
assert rows.scratch(4, 2, np.float32).shape == (4, 2)
rows.allocate_npy(folder / "codes.npy", (5, 2))
"""


@pytest.mark.slow
def test_every_module_imports_and_files_are_written_without_posix(tmp_path):
    program = [sys.executable, "-c", POSIX_FREE + WRITES, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {"dish.hasher", "dish.io.atomic", "dish.cli.fit"} <= set(json.loads(done.stdout))
