"""A process forked from one that has used threads: without care it waits for them without end."""

import multiprocessing
import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, warnings
import numpy as np, torch
torch.set_num_threads(4)
from dish import DISH
rng = np.random.default_rng(0)
y = rng.integers(0, 5, 6000)
X = (rng.standard_normal((6000, 32)) + 2 * rng.standard_normal((5, 32))[y]).astype(np.float32)
Y = np.eye(5, dtype=int)[y] | np.eye(5, dtype=int)[(y * 2) % 5]
params = dict(n_bits=16, n_anchors=200, device="cpu", n_iter=1)
hasher = DISH(**params).fit(X, y)
DISH(**params).fit(X, Y)  # also numba's threads
codes = hasher.transform(X)

def child(queue):
    again, several = DISH(**params).fit(X, y), DISH(**params).fit(X, Y)
    queue.put((float((hasher.transform(X) == codes).mean()), len(again.codes_), len(several.codes_)))

context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
try:
    same, *fitted = queue.get(timeout=120)
finally:
    process.kill()
assert same > 0.999 and fitted == [6000, 6000], (same, fitted)
"""


@pytest.mark.slow
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
def test_fit_and_transform_work_in_a_forked_process_and_say_how_to_do_better():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "get_context('spawn')" in done.stderr
