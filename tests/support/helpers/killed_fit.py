"""A fit with a checkpoint, in this process or in one that is killed: ``python killed_fit.py METHOD FOLDER``."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from dish import registry
from dish.machine import torch_threads


def fit(method, folder=None):
    """A fit of four to eight iterations or rounds, with one thread: sums come in the same order in every fit."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 12, 3000)
    X = (rng.standard_normal((3000, 16)) + rng.standard_normal((12, 16))[y]).astype(np.float32)
    params = {"n_bits": 16, "checkpoint": folder, "device": "cpu"}
    if method in ("deep_dish", "dish_d"):
        X, y, params = X[:600], y[:600], {**params, "net": "mlp", "epochs": 2, "n_iter": 4}
    else:
        params |= {"n_anchors": 200, "n_iter": 8}
    with torch_threads(1):
        hasher = registry.find(method)(**params).fit(X, y)
        return hasher.codes_, hasher.decision_function(X)


def kill_after_state(method, folder, seed):
    """Start a fit, and kill it within 0.2 s after it has written a state."""
    state = Path(folder) / "state.dish"
    before = state.stat().st_mtime_ns if state.exists() else None
    process = subprocess.Popen([sys.executable, __file__, method, str(folder)])
    try:
        while process.poll() is None and (not state.exists() or state.stat().st_mtime_ns == before):
            time.sleep(0.002)
        time.sleep(random.Random(seed).random() * 0.2)
    finally:
        process.kill()
    process.wait()


if __name__ == "__main__":
    torch.set_num_threads(1)
    fit(*sys.argv[1:])
