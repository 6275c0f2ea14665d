"""Deep fits that were stopped, and resume from their checkpoint or refuse to."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dish import DeepDISH
from dish.deep import checkpoint as checkpoints
from dish.parallel import ALONE
from helpers.deep import Tiny, patches, tiny

CHILD = """
import sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads({threads})
from dish.deep.checkpoint import Checkpoint
from helpers.deep import patches, tiny
X, y = patches(200, 0)
write = Checkpoint.write
def slow(checkpoint, state, model):
    write(checkpoint, state, model)
    if state.round == 1:
        print("ready", flush=True)
        import time
        time.sleep(60)
Checkpoint.write = slow
tiny(epochs=2, n_iter=3, checkpoint={checkpoint!r}, augment=True).fit(X, y)
"""


@pytest.mark.slow
def test_a_fit_that_was_killed_resumes_to_the_same_codes(tmp_path):
    X, y = patches(200, 0)
    whole = tiny(epochs=2, n_iter=3, augment=True).fit(X, y)
    path = tmp_path / "c.dish"
    script = CHILD.format(tests=str(Path(__file__).parents[1]), checkpoint=str(path), threads=torch.get_num_threads())
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    resumed = tiny(epochs=2, n_iter=3, checkpoint=path, augment=True).fit(X, y)
    assert [h["round"] for h in resumed.history_] == [h["round"] for h in whole.history_]
    assert set(resumed.timings_) >= {"round 2", "round 3"}
    assert not {"round 0", "round 1"} & set(resumed.timings_)  # these were not done again
    assert resumed.agreement_ == whole.agreement_
    np.testing.assert_array_equal(resumed.codes_, whole.codes_)
    np.testing.assert_array_equal(resumed.transform(X), whole.transform(X))


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    X, y = patches(60, 0)
    path = tmp_path / "c.dish"
    tiny(epochs=1, n_iter=0, checkpoint=path).fit(X, y)
    tiny(epochs=1, n_iter=0, checkpoint=path).fit(X, y)
    for params, (A, b) in {
        "data": ({}, patches(60, 1)),
        "labels": ({}, (X, 3 - y)),
        "epochs": ({"epochs": 2}, (X, y)),
        "seed": ({"random_state": 7}, (X, y)),
    }.values():
        with pytest.raises(ValueError, match="other data or parameters"):
            tiny(**{"epochs": 1, "n_iter": 0, "checkpoint": path, **params}).fit(A, b)
    path.write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"c\.dish is not a dish model"):
        tiny(epochs=1, n_iter=0, checkpoint=path).fit(X, y)


class Odd(Tiny):
    """A module whose text differs in every process, and does not tell its width."""

    def __init__(self, width=8):
        super().__init__()
        self.layers[0] = torch.nn.Conv2d(3, width, 3, padding=1)
        self.layers[1] = torch.nn.BatchNorm2d(width)
        self.layers[4] = torch.nn.Conv2d(width, 16, 3, padding=1)

    def __repr__(self):
        return f"Odd({object()!r})"


def test_a_module_is_known_by_class_and_shapes_not_by_its_address_or_values(tmp_path):
    X, y = patches(60, 0)
    path = tmp_path / "c.dish"
    torch.manual_seed(1)
    first = tiny(net=Odd(), epochs=1, n_iter=1, checkpoint=path).fit(X, y)
    torch.manual_seed(2)  # another start: it does not matter to a fit that has gone past it
    second = tiny(net=Odd(), epochs=1, n_iter=1, checkpoint=path).fit(X, y)
    assert not any(name.startswith("round") for name in second.timings_)
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
    for other in (Odd(12), type("Other", (Odd,), {})()):
        with pytest.raises(ValueError, match="other data or parameters"):
            tiny(net=other, epochs=1, n_iter=1, checkpoint=path).fit(X, y)


def test_without_a_seed_a_fit_resumes_with_that_of_its_checkpoint(tmp_path):
    X, y = patches(60, 0)
    first, second = (
        tiny(epochs=1, n_iter=1, checkpoint=tmp_path / "c.dish", random_state=None).fit(X, y) for _ in range(2)
    )
    np.testing.assert_array_equal(first.decision_function(X), second.decision_function(X))


def test_the_fingerprint_of_plain_parameters_is_that_of_version_0_1():
    """Checkpoints written then resume now: JSON of the parameters' texts and the seed, then the rows and targets."""
    X, y = patches(20, 0)
    hasher = DeepDISH(8, head="paper", random_state=4)
    old = {k: repr(v) for k, v in hasher.get_params().items()}
    for name in (
        "checkpoint",
        "verbose",
        "device",
        "random_state",
        "head",
        "freeze",
        "accumulate",
        "patience",
        "carry",
    ):
        del old[name]
    problem, _ = hasher._prepare(X, y, ALONE)
    wanted = hashlib.sha256(json.dumps({**old, "seed": problem.seed}, sort_keys=True).encode())
    wanted.update(X.tobytes() + y.astype(np.int64).tobytes())
    assert checkpoints.fingerprint(hasher._params_of(problem), problem) == wanted.hexdigest()


def test_the_rows_are_hashed_once_per_fit(tmp_path, monkeypatch):
    X, y = patches(60, 0)
    calls = []
    fingerprint = checkpoints.fingerprint
    monkeypatch.setattr(checkpoints, "fingerprint", lambda *given: calls.append(given) or fingerprint(*given))
    tiny(epochs=1, n_iter=2, stop_agreement=2).fit(X, y)
    assert len(calls) == 0  # nothing to compare with
    tiny(epochs=1, n_iter=2, stop_agreement=2, checkpoint=tmp_path / "c.dish").fit(X, y)
    assert len(calls) == 1
