"""Kernel fits that were stopped: what identifies them, and how they resume."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from dish import DISHK, load
from dish.errors import DataFileError, InputError
from dish.io import modelfile
from dish.io.checkpoint import Checkpoint
from dish.kernel import fstep

PARAMS = {"n_bits": 12, "n_anchors": 40, "init": "random", "device": "cpu"}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 400)
    return rng.standard_normal((400, 6)) + 1.5 * rng.standard_normal((5, 6))[y], y


# --- Which fits resume from a checkpoint ---


def cubic(X, A):
    return (X @ A.T + 1) ** 3


def make_cubic():
    return lambda X, A: (X @ A.T + 1) ** 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: {"random_state": np.random.RandomState(3)}, lambda: {"random_state": np.random.RandomState(3)}),
        (lambda: {"kernel": cubic}, lambda: {"kernel": make_cubic()}),
        (lambda: {"nu": np.float64(1e-4)}, lambda: {"nu": 1e-4}),
        (lambda: {"lam": np.float32(0.5)}, lambda: {"lam": 0.5}),
    ],
    ids=["generator", "function", "scalar", "float32"],
)
def test_equal_parameters_resume(first, second, rows, tmp_path, capsys):
    kept = first(), second()  # alive together, so that they cannot have the same address
    alone = DISHK(**PARAMS, n_iter=4, **second()).fit(*rows)
    DISHK(**PARAMS, n_iter=1, checkpoint=tmp_path / "state", **first()).fit(*rows)
    again = DISHK(**PARAMS, n_iter=4, checkpoint=tmp_path / "state", verbose=1, **second()).fit(*rows)
    np.testing.assert_array_equal(again.codes_, alone.codes_)
    assert "resumes after 1 iteration" in capsys.readouterr().err
    del kept


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"random_state": np.random.RandomState(3)}, {"random_state": np.random.RandomState(4)}),
        ({"kernel": cubic}, {"kernel": lambda X, A: (X @ A.T + 1) ** 2}),
        ({"nu": 1e-4}, {"nu": 2e-4}),
    ],
    ids=["generator", "function", "number"],
)
def test_other_parameters_are_refused(first, second, rows, tmp_path):
    DISHK(**PARAMS, n_iter=1, checkpoint=tmp_path / "state", **first).fit(*rows)
    with pytest.raises(DataFileError, match="other parameters or labels"):
        DISHK(**PARAMS, n_iter=1, checkpoint=tmp_path / "state", **second).fit(*rows)


def test_other_labels_rows_and_initial_codes_are_refused(rows, tmp_path):
    X, y = rows
    params = {**PARAMS, "n_iter": 1}
    DISHK(**params, checkpoint=tmp_path / "a").fit(X, y)
    with pytest.raises(DataFileError, match="other parameters or labels"):
        DISHK(**params, checkpoint=tmp_path / "a").fit(X, np.roll(y, 1))
    with pytest.raises(DataFileError, match="other training rows"):
        DISHK(**params, checkpoint=tmp_path / "a").fit(X + 1, y)
    Y = np.eye(4, dtype=int)[np.arange(len(X)) % 4]
    other = Y.copy()
    other[:, 0] |= other[:, 1]  # the same pairs of rows are similar, but not equally so
    DISHK(**params, checkpoint=tmp_path / "b").fit(X, Y)
    with pytest.raises(DataFileError, match="other parameters or labels"):
        DISHK(**params, checkpoint=tmp_path / "b").fit(X, other)
    codes = [np.packbits(np.random.default_rng(i).random((len(X), 12)) < 0.5, axis=1) for i in range(2)]
    DISHK(**{**params, "init": codes[0]}, checkpoint=tmp_path / "c").fit(X, Y)
    with pytest.raises(DataFileError, match="other parameters or labels"):
        DISHK(**{**params, "init": codes[1]}, checkpoint=tmp_path / "c").fit(X, Y)


def test_resume_false_replaces_the_state(rows, tmp_path, capsys):
    hasher = DISHK(**PARAMS, n_iter=2, checkpoint=tmp_path / "state", verbose=1)
    codes = hasher.fit(*rows).codes_
    capsys.readouterr()
    np.testing.assert_array_equal(hasher.fit(*rows, resume=False).codes_, codes)
    assert "resumes" not in capsys.readouterr().err
    hasher.fit(*rows)
    assert "resumes after 2" in capsys.readouterr().err


def test_fits_that_cannot_be_resumed_take_no_checkpoint(rows, tmp_path):
    with pytest.raises(InputError, match=r"checkpoint .*GaussianNB"):
        DISHK(**PARAMS, loss=GaussianNB(), checkpoint=tmp_path / "a").fit(*rows)
    with pytest.raises(InputError, match="checkpoint needs a random_state that a later fit can repeat"):
        DISHK(**PARAMS, random_state=None, checkpoint=tmp_path / "b").fit(*rows)
    assert not any(tmp_path.iterdir())


def test_a_saved_model_does_not_keep_the_path_of_its_checkpoint(rows, tmp_path):
    hasher = DISHK(**PARAMS, n_iter=1, checkpoint=tmp_path / "state").fit(*rows)
    hasher.save(tmp_path / "m.dish")
    assert load(tmp_path / "m.dish").checkpoint is None


# --- Interrupted fits ---


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_stopped_fit_resumes_to_the_same_codes(after, tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    y = rng.integers(0, 9, 3000)
    rows = rng.standard_normal((3000, 12)) + 1.3 * rng.standard_normal((9, 12))[y], y
    params = {**PARAMS, "n_bits": 20, "n_anchors": 70, "n_iter": 5}
    whole = DISHK(**params).fit(*rows)
    assert whole.n_iter_ > 3
    save = Checkpoint.save

    def stop(self, state):
        save(self, state)
        if state.step == after:
            raise Stopped

    monkeypatch.setattr(Checkpoint, "save", stop)
    with pytest.raises(Stopped):
        DISHK(**params, checkpoint=tmp_path / "state").fit(*rows)
    monkeypatch.undo()
    calls = []
    fit = fstep.LinearStep.fit
    monkeypatch.setattr(fstep.LinearStep, "fit", lambda self, H: (calls.append(1), fit(self, H))[1])
    resumed = DISHK(**params, checkpoint=tmp_path / "state").fit(*rows)
    assert len(calls) == whole.n_iter_ - after  # it did not start over
    np.testing.assert_array_equal(resumed.codes_, whole.codes_)
    np.testing.assert_array_equal(resumed.hash_function_.W, whole.hash_function_.W)
    np.testing.assert_array_equal(resumed.objective_, whole.objective_)


FIT = """
import sys, numpy as np
from pathlib import Path
from dish import DISHK
folder, name, checkpoint = Path(sys.argv[1]), sys.argv[2], sys.argv[3] or None
hasher = DISHK(n_bits=48, n_anchors=300, n_iter=12, init="random", checkpoint=checkpoint)
hasher.fit(folder / "X.npy", folder / "y.npy").save(folder / name)
"""


@pytest.mark.long
def test_a_fit_killed_at_random_moments_ends_with_the_same_codes(tmp_path):
    """The process is killed again and again, until one gets through."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 20, 40_000)
    np.save(tmp_path / "X.npy", (rng.standard_normal((40_000, 16)) + rng.standard_normal((20, 16))[y]).astype("f4"))
    np.save(tmp_path / "y.npy", y)
    command = [sys.executable, "-c", FIT, str(tmp_path)]
    start = time.perf_counter()
    subprocess.run([*command, "whole.dish", ""], check=True)
    seconds = time.perf_counter() - start
    kills = 0
    while not (tmp_path / "m.dish").exists():
        process = subprocess.Popen([*command, "m.dish", str(tmp_path / "state")])
        share = (0.4, 0.6, 0.8)[kills] if kills < 3 else 20.0  # the fourth process is not killed
        try:
            assert process.wait(timeout=share * seconds) == 0
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills > 0
    found, whole = load(tmp_path / "m.dish"), load(tmp_path / "whole.dish")
    np.testing.assert_array_equal(found.codes_, whole.codes_)
    np.testing.assert_array_equal(found.hash_function_.W, whole.hash_function_.W)


def test_fewer_iterations_than_the_checkpoint_are_refused(rows, tmp_path):
    DISHK(**PARAMS, n_iter=2, checkpoint=tmp_path / "state").fit(*rows)
    with pytest.raises(InputError, match="more than n_iter=0"):
        DISHK(**PARAMS, n_iter=0, checkpoint=tmp_path / "state").fit(*rows)


def test_arrays_that_do_not_match_are_refused(rows, tmp_path):
    DISHK(**PARAMS, checkpoint=tmp_path / "state").fit(*rows)
    path = tmp_path / "state" / "state.dish"
    kind, content, arrays = modelfile.read(path)
    for change in ({"W": arrays["W"][:-1]}, {"mean": arrays["mean"].astype(int)}, {"random": arrays["random"][:5]}):
        modelfile.save(path, kind, content, {**arrays, **change})
        with pytest.raises(ValueError, match=r"its arrays do not match .* to start over"):
            DISHK(**PARAMS, checkpoint=tmp_path / "state").fit(*rows)
