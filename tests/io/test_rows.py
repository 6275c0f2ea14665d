"""Rows that are not an array in memory, features that have no room, fits that are stopped."""

import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch

from dish import DISH, load, machine, parallel
from dish.io import checkpoint
from dish.io import rows as io_rows
from dish.io.rows import blocks_of
from dish.kernel import features, fstep
from dish.similarity import from_labels

PARAMS = {"n_bits": 20, "n_anchors": 70, "n_iter": 4}
CODES = {**PARAMS, "loss": "ridge", "kernel": "rbf+linear"}  # codes_ without what comes after them


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 9, 3000)
    X = (rng.standard_normal((3000, 12)) + 1.3 * rng.standard_normal((9, 12))[y]).astype(np.float32)
    return X, y


@pytest.fixture(scope="module")
def whole(rows):
    return DISH(**PARAMS).fit(*rows)


@pytest.fixture(scope="module")
def whole_codes(rows):
    return DISH(**CODES).fit(*rows).codes_


def assert_same(hasher, whole, X):
    np.testing.assert_array_equal(hasher.codes_, whole.codes_)
    F = whole.decision_function(X)
    np.testing.assert_allclose(hasher.decision_function(X), F, atol=1e-3 * abs(F).max())
    assert hasher.n_features_in_ == X.shape[1]


def pieces(X):
    return np.array_split(X, [100, 1700, 1701])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map", "list", "generator", "tensor", "tensors", "npy", "shards", "parquet"])
def test_rows_of_every_kind_give_the_same_codes(kind, rows, whole, tmp_path):
    X, y = rows
    np.save(tmp_path / "X.npy", X)
    folder = tmp_path / "folder"
    folder.mkdir()
    for i, part in enumerate(pieces(X)):
        if kind == "parquet":
            table = pytest.importorskip("pyarrow").table({"x": list(part)})
            pytest.importorskip("pyarrow.parquet").write_table(table, folder / f"{i}.parquet")
        else:
            np.save(folder / f"{i}.npy", part)
    given = {
        "map": lambda: np.load(tmp_path / "X.npy", mmap_mode="r"),
        "list": lambda: pieces(X),
        "generator": lambda: (part for part in pieces(X)),
        "tensor": lambda: torch.from_numpy(X),
        "tensors": lambda: (torch.from_numpy(part) for part in pieces(X)),
        "npy": lambda: tmp_path / "X.npy",
        "shards": lambda: str(folder),
        "parquet": lambda: folder,
    }[kind]
    hasher = DISH(**PARAMS).fit(given(), y)
    assert_same(hasher, whole, X)
    np.testing.assert_array_equal(hasher.transform(given()), hasher.transform(X))
    np.testing.assert_allclose(hasher.decision_function(given()), hasher.decision_function(X), atol=1e-5)


def test_half_precision_files_are_read_as_float32(rows, tmp_path):
    X, y = rows
    half = X.astype(np.float16)
    np.save(tmp_path / "X.npy", half)
    hasher = DISH(**CODES).fit(np.load(tmp_path / "X.npy", mmap_mode="r"), y)
    np.testing.assert_array_equal(hasher.codes_, DISH(**CODES).fit(half.astype(np.float32), y).codes_)


@pytest.mark.parametrize("where", ["scratch", "anew"])
@pytest.mark.parametrize("loss", ["ridge", "hinge"])
def test_features_without_room(where, loss, rows, monkeypatch):
    X, y = rows
    decided = []

    def decide(self):
        decided.append(where)
        if where == "scratch":
            self.file = io_rows.scratch(*self.shape, np.float32)

    monkeypatch.setattr(features.KernelRows, "choose_storage", decide)
    monkeypatch.setattr(features, "ROWS_IN_CACHE", 200)
    params = {**PARAMS, "loss": loss, "polish": 3}
    hasher = DISH(**params, memory_budget="100KB").fit(X, y)
    assert decided == [where]
    monkeypatch.undo()
    whole = DISH(**params).fit(X, y)
    np.testing.assert_array_equal(hasher.codes_, whole.codes_)
    F, F_whole = hasher.decision_function(X), whole.decision_function(X)  # W itself is at the mercy of rounding
    np.testing.assert_allclose(F, F_whole, atol=5e-4 * abs(F_whole).max())


def test_the_faster_of_file_and_anew_is_taken(rows, monkeypatch):
    """Features that are slow to make are read from a file; from a disk that is slow they are made anew."""
    X, _ = rows
    for slow, disk in ((0.3, 0.0), (0.0, 0.3)):
        anchors = torch.from_numpy(X[:200])
        monkeypatch.setattr(features, "release", lambda _, disk=disk: time.sleep(disk))

        def function(X, A, slow=slow):
            time.sleep(slow)
            return np.ones((len(X), len(A)), np.float32)

        K = features.KernelRows(
            io_rows.RowSource(X), features.FeatureMap(function, anchors, 1.0), torch.device("cpu")
        )
        K.choose_storage()
        assert (K.file is not None) == bool(slow)


def test_a_classifier_needs_its_features_in_memory(rows):
    from sklearn.linear_model import RidgeClassifier

    with pytest.raises(ValueError, match="loss: a classifier learns from all kernel features"):
        DISH(**PARAMS, loss=RidgeClassifier(), memory_budget=1000).fit(*rows)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1000, 1000),
        ("2GB", 2 * 10**9),
        ("1.5 gib", 3 * 2**29),
        ("100", 100),
        ("7kb", 7000),
        ("2G", 2 * 10**9),
        (np.int64(5), 5),
    ],
)
def test_budgets(given, expected):
    assert machine.memory_budget(given) == expected


@pytest.mark.parametrize("given", ["2 apples", "GB", -3, 0, "-2GB", float("nan"), True, [1], ""])
def test_bad_budgets_are_named(given, rows):
    with pytest.raises(ValueError, match="memory_budget must be"):
        DISH(**PARAMS, memory_budget=given).fit(*rows)


def test_by_itself_the_budget_is_half_of_what_is_free_shared_by_the_processes_of_a_machine(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 8000)
    assert machine.memory_budget(None) == 4000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert machine.memory_budget(None) == 1000


def test_bad_rows_are_named(rows, tmp_path):
    X, y = rows
    for i, part in enumerate(pieces(X)):
        part = part.copy()
        if i == 3:
            part[77] = np.nan
        np.save(tmp_path / f"{i}.npy", part)
    with pytest.raises(ValueError, match=r"X contains NaN or infinity in row 1,778 \(.*3\.npy\)"):
        DISH(**PARAMS).fit(tmp_path, y)
    with pytest.raises(ValueError, match="row blocks must have the same number of columns"):
        DISH(**PARAMS).fit(iter([X[:5], X[5:, :3]]), y)
    with pytest.raises(ValueError, match="no row blocks"):
        DISH(**PARAMS).fit(iter([]), y)
    with pytest.raises(ValueError, match="X has 3000 rows but y has 2999"):
        DISH(**PARAMS).fit(iter([X]), y[:-1])


@pytest.mark.slow
def test_reading_a_map_does_not_keep_it_in_memory(tmp_path):
    n, d = 60_000, 256  # 61 MB
    X = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float32, (n, d))
    X[:] = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    X.flush()
    code = (
        "import sys, numpy as np, torch; from dish import machine; from dish.io.rows import RowSource\n"
        "X = np.load(sys.argv[1], mmap_mode='r'); rows = RowSource(X); peak = machine.PeakMemory()\n"
        "for i in range(0, len(X), 512):\n"
        "    block = slice(i, min(len(X), i + 512))\n"
        "    rows.read(block, torch.device('cpu')).sum()\n"
        "print(peak.bytes())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "X.npy")], capture_output=True, text=True)
    assert int(done.stdout) < 30e6, done.stderr


def test_read_only_rows_are_copied_without_a_warning():
    X = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    assert io_rows.as_tensor(X).data_ptr() == X.ctypes.data  # writable memory is shared
    frozen = X.copy()
    frozen.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = io_rows.as_tensor(frozen)
        block = io_rows.RowSource(frozen).read(slice(3, 9), torch.device("cpu"))
    copy.zero_()
    block.zero_()
    np.testing.assert_array_equal(frozen, X)
    assert io_rows.as_tensor(np.broadcast_to(np.float32(3), (4,))).tolist() == [3.0] * 4  # a view of one number


def test_tensors_of_a_memory_map_are_copies(tmp_path):
    np.save(tmp_path / "X.npy", np.ones((10, 3), np.float32))
    for mode in ("r", "r+", "c"):
        rows = io_rows.RowSource(np.load(tmp_path / "X.npy", mmap_mode=mode))
        rows.read(slice(0, 5), torch.device("cpu")).zero_()
        rows.take(np.array([7, 8]), torch.device("cpu")).zero_()
        assert (np.asarray(rows.array) == 1).all()


def test_what_was_written_to_a_private_map_is_not_lost(tmp_path):
    np.save(tmp_path / "X.npy", np.zeros((1000, 4), np.float32))
    X = np.load(tmp_path / "X.npy", mmap_mode="c")
    X[:] = 1
    io_rows.release(X)
    assert (X == 1).all()


def test_blocks_of_shards_and_lists(rows):
    X, _ = rows
    matrix = io_rows.RowSource.of(pieces(X)).array
    np.testing.assert_array_equal(np.concatenate(list(blocks_of(matrix, 97))), X)
    np.testing.assert_array_equal(matrix[1650:1720], X[1650:1720])
    np.testing.assert_array_equal(matrix[[5, 2999, 101]], X[[5, 2999, 101]])
    assert matrix.where(1700) == "block 2"


# --- checkpoints ---


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_stopped_fit_goes_on_to_the_same_codes(after, rows, tmp_path, monkeypatch):
    X, y = rows
    params = {**PARAMS, "n_iter": 5, "init": "random", "polish": 2}
    whole = DISH(**params).fit(X, y)
    assert whole.n_iter_ > 3
    save = checkpoint.Checkpoint.save

    def stop(self, state):
        save(self, state)
        if len(state.objective) == after:
            raise Stopped

    monkeypatch.setattr(checkpoint.Checkpoint, "save", stop)
    with pytest.raises(Stopped):
        DISH(**params, checkpoint=tmp_path / "state").fit(X, y)
    monkeypatch.undo()
    calls = []
    sweep = fstep.LinearStep.fit
    monkeypatch.setattr(fstep.LinearStep, "fit", lambda self, H: (calls.append(1), sweep(self, H)))
    resumed = DISH(**params, checkpoint=tmp_path / "state").fit(X, y)
    assert len(calls) == whole.n_iter_ - after  # it did not begin again
    np.testing.assert_array_equal(resumed.codes_, whole.codes_)
    np.testing.assert_array_equal(resumed.W_, whole.W_)
    np.testing.assert_array_equal(resumed.objective_, whole.objective_)


def test_a_checkpoint_of_something_else_is_refused(rows, tmp_path):
    X, y = rows
    params = {**CODES, "checkpoint": tmp_path / "state"}
    DISH(**params).fit(X, y)
    with pytest.raises(ValueError, match="other parameters or labels"):
        DISH(**{**params, "nu": 0.5}).fit(X, y)
    with pytest.raises(ValueError, match="other parameters or labels"):
        DISH(**params).fit(X, np.roll(y, 1))
    with pytest.raises(ValueError, match="other rows X"):
        DISH(**params).fit(X + 1, y)
    (tmp_path / "state" / "state.dish").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"state\.dish"):
        DISH(**params).fit(X, y)


def test_a_folder_of_other_files_is_never_touched(rows, tmp_path):
    """Not by a fit, and not at its end: names such as codes-train.npy are the user's."""
    X, y = rows
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("codes-train.npy", "codes-1.npy", "state.dish", "notes.txt"):
        (mine / name).write_text(name)
    for folder in (mine, mine / "notes.txt"):
        with pytest.raises(ValueError, match=r"holds other files|is a file"):
            DISH(**CODES, checkpoint=folder).fit(X, y)
    assert sorted(f.name for f in mine.iterdir()) == ["codes-1.npy", "codes-train.npy", "notes.txt", "state.dish"]
    done = DISH(**CODES, checkpoint=tmp_path / "new").fit(X, y)
    (tmp_path / "new" / "codes-best.npy").write_text("kept")
    again = DISH(**CODES, checkpoint=tmp_path / "new").fit(X, y)
    np.testing.assert_array_equal(again.codes_, done.codes_)
    checkpoint.Checkpoint(tmp_path / "new", "", (0, 0), parallel.ALONE).remove()
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["codes-best.npy"]


@pytest.mark.parametrize("damage", ["zeros", "narrow", "gone", "fewer"])
def test_damaged_codes_of_a_checkpoint_are_found(damage, rows, tmp_path):
    X, y = rows
    params = {**CODES, "checkpoint": tmp_path / "state"}
    n_iter = DISH(**params).fit(X, y).n_iter_
    path = tmp_path / "state" / f"codes-{n_iter}.npy"
    whole = np.load(path)
    if damage == "gone":
        path.unlink()
    elif damage != "fewer":
        np.save(path, np.zeros_like(whole) if damage == "zeros" else whole[:, :2])
    message = "more than n_iter=0" if damage == "fewer" else "to start over"
    with pytest.raises(ValueError, match=message):
        DISH(**({**params, "n_iter": 0} if damage == "fewer" else params)).fit(X, y)


@pytest.mark.slow
def test_other_label_sets_or_another_start_are_not_taken_up(rows, tmp_path):
    X, _ = rows
    Y = np.eye(4, dtype=int)[np.arange(len(X)) % 4]
    other = Y.copy()
    other[:, 0] |= other[:, 1]  # the same rows are alike, but not to the same degree
    DISH(**PARAMS, checkpoint=tmp_path / "a").fit(X, Y)
    with pytest.raises(ValueError, match="other parameters or labels"):
        DISH(**PARAMS, checkpoint=tmp_path / "a").fit(X, other)
    codes = [np.packbits(np.random.default_rng(i).random((len(X), 20)) < 0.5, axis=1) for i in range(2)]
    DISH(**PARAMS, init=codes[0], checkpoint=tmp_path / "b").fit(X, Y)
    with pytest.raises(ValueError, match="other parameters or labels"):
        DISH(**PARAMS, init=codes[1], checkpoint=tmp_path / "b").fit(X, Y)


def test_no_room_for_a_scratch_file(rows, whole_codes, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(features, "scratch", full)
    with pytest.warns(UserWarning, match="no room for a scratch file"):
        hasher = DISH(**CODES, memory_budget=1).fit(*rows)
    np.testing.assert_array_equal(hasher.codes_, whole_codes)


def test_labels_and_similarities_with_a_path(rows, whole, whole_codes, tmp_path):
    X, y = rows
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    np.testing.assert_array_equal(DISH(**CODES).fit(tmp_path / "X.npy", tmp_path / "y.npy").codes_, whole_codes)
    np.testing.assert_array_equal(DISH(**CODES).fit(tmp_path / "X.npy", from_labels(y)).codes_, whole_codes)
    with pytest.raises(ValueError, match="X has 3000 rows but y has 1500"):
        DISH(**CODES).fit(tmp_path / "X.npy", y[:1500])
    bad = np.load(tmp_path / "X.npy", mmap_mode="r+")
    bad[2100] = np.nan
    with pytest.raises(ValueError, match=r"NaN or infinity in row 2,100$"):
        whole.transform(tmp_path / "X.npy")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [">f4", "longdouble", "uint16", "bfloat16", "grad"])
def test_numbers_that_torch_or_numpy_lack(kind, rows, tmp_path):
    X, y = rows
    X = np.round(X * 8) + 100  # whole numbers that all of these hold
    if kind in ("bfloat16", "grad"):
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        given = [torch.from_numpy(part).to(dtype).requires_grad_(kind == "grad") for part in pieces(X)]
        X = np.concatenate([part.detach().float().numpy() for part in given])
    else:
        np.save(tmp_path / "X.npy", X.astype(kind))
        given = tmp_path / "X.npy"
    np.testing.assert_array_equal(DISH(**PARAMS).fit(given, y).codes_, DISH(**PARAMS).fit(X, y).codes_)


def test_a_saved_model_forgets_its_checkpoint(rows, tmp_path):
    hasher = DISH(**CODES, checkpoint=tmp_path / "state").fit(*rows)
    hasher.save(tmp_path / "m.dish")
    assert load(tmp_path / "m.dish").checkpoint is None


@pytest.mark.slow
def test_a_fit_killed_at_random_moments_ends_with_the_same_codes(tmp_path):
    """SIGKILL, again and again, until a run gets through; by the command line with --resume."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 20, 40_000)
    X = (rng.standard_normal((40_000, 16)) + rng.standard_normal((20, 16))[y]).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    arguments = ["--bits", "48", "--anchors", "300", "--iter", "12", "--init", "random", "-q"]
    command = [sys.executable, "-m", "dish", "fit", str(tmp_path / "X.npy"), str(tmp_path / "y.npy"), *arguments]
    start = time.perf_counter()
    subprocess.run([*command, "-o", str(tmp_path / "whole.dish")], check=True)
    seconds = time.perf_counter() - start
    output, kills = tmp_path / "m.dish", 0
    while not output.exists():
        process = subprocess.Popen([*command, "-o", str(output), "--resume"])
        share = (0.4, 0.6, 0.8)[kills] if kills < 3 else 20.0  # then it gets time enough to get through
        try:
            assert process.wait(timeout=share * seconds) == 0
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills > 0
    np.testing.assert_array_equal(load(output).codes_, load(tmp_path / "whole.dish").codes_)
    np.testing.assert_array_equal(load(output).W_, load(tmp_path / "whole.dish").W_)
