"""CUDA sources compiled for the CPU: threads take the place of CUDA's."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def compiled(folder, source, run, threads):
    """The library of a kernel's source and of a function ``run`` in C++ that launches it."""
    shim = Path(__file__).with_name("cuda_threads.h")
    (folder / "kernel.cpp").write_text(f'#define THREADS {threads}\n#include "{shim}"\n#include "{source}"\n{run}')
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-Wno-unknown-pragmas", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["g++", *options, "kernel.cpp", "-o", "kernel.so"], cwd=folder, check=True)
    return ctypes.CDLL(folder / "kernel.so")
