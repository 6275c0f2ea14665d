"""No search compiles anything after the warm-up."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dish.index.hamming import HammingIndex
from dish.index.warmup import build_accelerator

PROGRAM = """
import json, sys
import numpy as np
from dish import HammingIndex
from dish.index import grouping, hashtable, multiindex, scan
from dish.index.warmup import compile_kernels

bits, integers, small = json.loads(sys.argv[1])


def compiled():
    found = {}
    for module in (grouping, hashtable, multiindex, scan):
        for name, kernel in vars(module).items():
            found[name] = {str(one) for one in getattr(kernel, "signatures", ())}
    return found


def search(index, B):
    for i in range(60):
        index.search(B[i : i + 1], 10)
        index.snapshot().within(B[i : i + 1], 2, limit=10)
        index.get(index.ids[i : i + 1])
    index.search(B[:300], 100)
    F = np.linspace(-1, 1, 30 * bits).reshape(30, bits)
    index.search(F, 5, rescore="asymmetric")
    index.search(F, 5, rescore="asymmetric", labels=["even"])
    index.search(B[:300], 5, labels=["even"])
    index.search(B[:300], 5, index.ids[:500])
    index.snapshot().within(B[:30], 3, labels=["even"], limit=10)
    for radius in (0, 2, bits):
        index.snapshot().within(B[:30], radius, limit=10)


compile_kernels(bits, integer_ids=integers, n_rows=4000 if small else None)
before = compiled()
assert len(before["nearest"]) == 1
for n, distinct in ((600, 600), (4000, 300)) if small else ((600, 600), (9000, 9000), (9000, 300)):
    rng = np.random.default_rng(n)
    B = rng.integers(0, 256, (distinct, (bits + 7) // 8), np.uint8)[np.arange(n) % distinct]
    B[:, -1] &= 0xFF << (-bits % 8) & 0xFF
    index = HammingIndex(bits)
    index.add(B, ids=rng.permutation(n) if integers else [f"item {i}" for i in range(n)],
              labels=["even" if i % 2 == 0 else "odd" for i in range(n)])
    index.save("index")
    for mmap in (False, True):
        index = HammingIndex.load("index", mmap=mmap)
        search(index, B)
        index.upsert(B[:5], index.ids[:5])
        search(index, B)
        index.remove(index.ids[:3])
        search(index, B)
new = {name: sorted(found - before[name]) for name, found in compiled().items() if found - before[name]}
assert not new, new
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", [(64, False, False), (12, True, False), (200, False, False), (64, True, True)])
def test_searches_compile_nothing_new(tmp_path, case):
    call = [sys.executable, "-c", PROGRAM, json.dumps(case)]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("n", [0, 3, 9000])
def test_large_index_is_grouped_before_its_first_search(n):
    index = HammingIndex(16)
    index.add((np.arange(2 * n).reshape(n, 2) % 7).astype(np.uint8))
    build_accelerator(index)
    assert (index.nbytes()["search"] > 0) == (n > 5000)
