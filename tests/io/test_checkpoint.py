"""Checkpoints: what identifies a fit, resuming, damage, and folders that are not checkpoints."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from dish import DISHK, load, parallel
from dish.errors import DataFileError, InputError
from dish.io import checkpoint
from dish.io.checkpoint import checksum
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
    with pytest.raises(InputError, match="other rows X"):
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
    save = checkpoint.Checkpoint.save

    def stop(self, state):
        save(self, state)
        if len(state.objective) == after:
            raise Stopped

    monkeypatch.setattr(checkpoint.Checkpoint, "save", stop)
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


# --- Damage, and folders of other files ---


@pytest.mark.parametrize("damage", ["state", "zeros", "narrow", "gone", "fewer"])
def test_damaged_checkpoints_are_refused(damage, rows, tmp_path):
    params = {**PARAMS, "checkpoint": tmp_path / "state"}
    n_iter = DISHK(**params, n_iter=3).fit(*rows).n_iter_
    path = tmp_path / "state" / f"codes-{n_iter}.npy"
    codes = np.load(path)
    if damage == "state":
        (tmp_path / "state" / "state.dish").write_bytes(b"damaged")
    elif damage == "gone":
        path.unlink()
    elif damage != "fewer":
        np.save(path, np.zeros_like(codes) if damage == "zeros" else codes[:, :1])
    kind, message = (InputError, "more than n_iter=0") if damage == "fewer" else (DataFileError, "to start over")
    with pytest.raises(kind, match=message):
        DISHK(**params, n_iter=0 if damage == "fewer" else 3).fit(*rows)


def test_folders_of_other_files_are_never_changed(rows, tmp_path):
    params = {**PARAMS, "n_iter": 1}
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("codes-train.npy", "codes-1.npy", "state.dish", "notes.txt"):
        (mine / name).write_text(name)
    for folder in (mine, mine / "notes.txt"):
        with pytest.raises(InputError, match=r"holds other files|is a file"):
            DISHK(**params, checkpoint=folder).fit(*rows)
    assert sorted(f.name for f in mine.iterdir()) == ["codes-1.npy", "codes-train.npy", "notes.txt", "state.dish"]


def test_remove_leaves_files_of_others(rows, tmp_path):
    DISHK(**PARAMS, n_iter=1, checkpoint=tmp_path / "new").fit(*rows)
    (tmp_path / "new" / "codes-best.npy").write_text("kept")
    checkpoint.Checkpoint(tmp_path / "new", "", (0, 0), parallel.ALONE).remove()
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["codes-best.npy"]
    (tmp_path / "new" / "codes-best.npy").unlink()
    DISHK(**PARAMS, n_iter=1, checkpoint=tmp_path / "new").fit(*rows)
    checkpoint.Checkpoint(tmp_path / "new", "", (0, 0), parallel.ALONE).remove()
    assert not (tmp_path / "new").exists()


def test_the_checksum_does_not_depend_on_how_rows_are_shared():
    codes = np.random.default_rng(0).integers(0, 256, (100, 3)).astype(np.uint8)
    parts = sum(checksum(codes[a:b], a, parallel.ALONE) for a, b in ((0, 30), (30, 100))) % 2**40
    assert checksum(codes, 0, parallel.ALONE) == parts
    codes[50, 1] ^= 1
    assert checksum(codes, 0, parallel.ALONE) != parts
