"""CUDA sources compiled for the CPU: threads take the place of CUDA's."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def compiled(folder, sources, run, threads):
    """The library of a kernel's sources and of a function ``run`` in C++ that launches it."""
    shim = Path(__file__).with_name("cuda_threads.h")
    parts = "".join(f'#include "{path}"\n' for path in (shim, *sources))
    (folder / "kernel.cpp").write_text(f"#define THREADS {threads}\n{parts}{run}")
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["g++", *options, "kernel.cpp", "-o", "kernel.so"], cwd=folder, check=True)
    return ctypes.CDLL(folder / "kernel.so")
