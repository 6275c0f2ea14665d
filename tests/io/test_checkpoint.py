"""Checkpoint folders: what they keep, what they refuse, and what identifies a fit."""

import numpy as np
import pytest
import torch

from dish.io import checkpoint
from dish.io.checkpoint import Checkpoint, FitState, checksum, fit_fingerprint
from dish.parallel import ALONE, Ranks
from helpers.killed_fit import fit, kill_after_state

CODES = np.random.default_rng(0).integers(256, size=(50, 3), dtype=np.uint8)


def state(step, codes=CODES):
    values = {"agreement": [0.5, 0.75], "name": "a"}
    return FitState(step, values, {"W": np.arange(6.0).reshape(2, 3)}, codes)


def prepared(folder, fingerprint="abc", n=50):
    made = Checkpoint(folder, fingerprint, ALONE, (0, n))
    made.prepare()
    return made


def test_a_state_is_read_as_it_was_written(tmp_path):
    saved = prepared(tmp_path / "c")
    assert saved.load((50, 3)) is None
    saved.save(state(4))
    found = Checkpoint(tmp_path / "c", "abc", ALONE, (0, 50)).load((50, 3))
    assert (found.step, found.values) == (4, state(4).values)
    np.testing.assert_array_equal(found.arrays["W"], state(4).arrays["W"])
    np.testing.assert_array_equal(found.codes, CODES)


def test_a_state_without_codes(tmp_path):
    saved = prepared(tmp_path / "c")
    saved.save(state(1, None))
    assert saved.load().codes is None
    assert not list((tmp_path / "c").glob("*.npy"))


def test_a_process_reads_its_own_rows(tmp_path):
    prepared(tmp_path / "c").save(state(2))
    part = Checkpoint(tmp_path / "c", "abc", ALONE, (10, 50))
    with pytest.raises(ValueError, match="its codes are damaged"):  # alone, these rows are not all
        part.load((20, 3))
    found, _ = part._read((20, 3))
    np.testing.assert_array_equal(found.codes, CODES[10:30])


def test_old_codes_are_deleted_after_the_new_state_is_written(tmp_path):
    saved = prepared(tmp_path / "c")
    saved.save(state(1))
    saved.save(state(2))
    assert [file.name for file in (tmp_path / "c").glob("*.npy")] == ["codes-2.npy"]


@pytest.mark.parametrize("stopped", ["state", "codes"])
def test_a_kill_while_saving_leaves_the_last_state(stopped, tmp_path, monkeypatch):
    saved = prepared(tmp_path / "c")
    saved.save(state(1))

    def kill(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(*((checkpoint.modelfile, "save") if stopped == "state" else (checkpoint, "checksum")), kill)
    with pytest.raises(KeyboardInterrupt):
        saved.save(state(2, CODES[::-1]))
    monkeypatch.undo()
    found = saved.load((50, 3))
    assert found.step == 1
    np.testing.assert_array_equal(found.codes, CODES)


def test_a_folder_of_other_files_is_never_touched(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    names = ["codes-1.npy", "codes-train.npy", "notes.txt", "state.dish"]
    for name in names:
        (mine / name).write_text(name)
    with pytest.raises(ValueError, match="holds other files: pass a new or an empty folder"):
        prepared(mine)
    with pytest.raises(ValueError, match="is a file: pass a folder"):
        prepared(mine / "notes.txt")
    checkpoint.remove(mine)
    assert sorted(file.name for file in mine.iterdir()) == names


def test_remove_deletes_only_the_files_of_the_checkpoint(tmp_path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        prepared(folder).save(state(1))
    (tmp_path / "b" / "codes-best.npy").write_text("kept")
    for folder in ("a", "b", "never"):
        checkpoint.remove(tmp_path / folder)
    assert [file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*.npy")] == ["b/codes-best.npy"]
    assert not (tmp_path / "a").exists()


def test_another_fit_is_refused(tmp_path):
    prepared(tmp_path / "c").save(state(1))
    with pytest.raises(ValueError, match="belongs to a fit with other parameters or labels"):
        prepared(tmp_path / "c", "other").load((50, 3))


@pytest.mark.parametrize("damage", ["zeros", "narrow", "gone", "state", "fewer rows"])
def test_damage_is_found(damage, tmp_path):
    saved = prepared(tmp_path / "c", n=40 if damage == "fewer rows" else 50)
    prepared(tmp_path / "c").save(state(1))
    path = tmp_path / "c" / "codes-1.npy"
    if damage == "gone":
        path.unlink()
    elif damage == "state":
        (tmp_path / "c" / "state.dish").write_bytes(b"junk")
    elif damage != "fewer rows":
        np.save(path, np.zeros_like(CODES) if damage == "zeros" else CODES[:, :2])
    with pytest.raises(ValueError, match="to start over"):
        saved.load((saved.n, 3))


def test_a_state_that_cannot_be_parsed_is_named(tmp_path):
    saved = prepared(tmp_path / "c")
    message = r"c: its arrays do not match \('W'\)\. Remove it to start over"
    with pytest.raises(ValueError, match=message), saved.parsing():
        {}["W"]


def test_processes_that_see_different_states_are_told(tmp_path, monkeypatch):
    saved = prepared(tmp_path / "c")
    monkeypatch.setattr(Ranks, "gather", lambda self, mine: torch.tensor([[float(mine)], [3.0]]))
    with pytest.raises(ValueError, match=r"different states: none \(process 0\), one of 3 iterations \(process 1\)"):
        saved.load((50, 3))


VALUES = [
    torch.from_numpy(CODES),
    torch.from_numpy(np.random.default_rng(1).standard_normal((50, 7))),
    torch.from_numpy(np.random.default_rng(1).standard_normal((50, 7)).astype(np.float32)),
    torch.arange(50),
    torch.randn(50, 2, 3, generator=torch.Generator().manual_seed(0)).half(),
]


@pytest.mark.parametrize("rows", VALUES, ids=lambda rows: str(rows.dtype))
def test_the_checksum_does_not_depend_on_how_rows_are_shared(rows):
    whole = checksum([rows], 0, ALONE)
    assert whole == checksum([rows[:1], rows[1:1], rows[1:30], rows[30:]], 0, ALONE)
    assert whole == (checksum([rows[:20]], 0, ALONE) + checksum([rows[20:]], 20, ALONE)) % 2**64
    assert whole == checksum([rows.repeat_interleave(2, 0)[::2]], 0, ALONE)  # not contiguous


@pytest.mark.parametrize("rows", VALUES, ids=lambda rows: str(rows.dtype))
def test_the_checksum_depends_on_every_value_and_on_their_order(rows):
    found = {checksum([rows], 0, ALONE), checksum([rows.flip(0)], 0, ALONE), checksum([rows], 1, ALONE)}
    for i in range(len(rows)):
        for change in (lambda row: -row, lambda row: row + 1):
            other = rows.clone()
            other.view(50, -1)[i, i % other[0].numel()] = change(rows.view(50, -1)[i, i % other[0].numel()])
            found.add(checksum([other], 0, ALONE))
        other = rows.clone()
        other[[0, i]] = rows[[i, 0]]
        found.add(checksum([other], 0, ALONE))
    same = (rows[1:].reshape(49, -1) == rows[0].reshape(-1)).all(1).sum() + 1
    zeros = int((rows == 0).sum()) if not rows.is_floating_point() else 0  # −0 is another bit pattern only for floats
    assert len(found) >= 3 + 2 * 50 + 50 - int(same) - zeros


# --- kills ---


@pytest.mark.long
@pytest.mark.parametrize("method", ["dish_k", "deep_dish", "dish_d"])
def test_a_fit_that_is_killed_twice_ends_with_the_same_codes(method, tmp_path):
    for seed in range(2):
        kill_after_state(method, tmp_path / "c", seed)
    assert (tmp_path / "c" / "state.dish").exists()
    for whole, resumed in zip(fit(method), fit(method, tmp_path / "c"), strict=True):
        np.testing.assert_array_equal(whole, resumed)


# --- fingerprints ---


class Odd(torch.nn.Linear):
    """A module whose text contains its address."""

    def __repr__(self):
        return f"Odd({object()!r})"


SAME = [
    (np.float64(0.5), 0.5),
    (np.float32(0.5), 0.5),
    (np.arange(4), np.arange(4)),
    (Odd(3, 2), Odd(3, 2)),
    (torch.nn.LazyLinear(2), torch.nn.LazyLinear(2)),
]
OTHER = [(0.5, 0.25), (np.arange(4), np.arange(4)[::-1]), (Odd(3, 2), Odd(3, 4)), (Odd(3, 2), torch.nn.Linear(3, 2))]


def fingerprint(value, method="DISHK", ranks=ALONE):
    return fit_fingerprint(method, {"value": value}, ranks)


@pytest.mark.parametrize(("a", "b"), SAME)
def test_equal_values_have_one_fingerprint(a, b):
    assert fingerprint(a) == fingerprint(b)


@pytest.mark.parametrize(("a", "b"), OTHER)
def test_other_values_have_another_fingerprint(a, b):
    assert fingerprint(a) != fingerprint(b)
    assert fingerprint(a) != fingerprint(a, "DISHD")


def test_processes_with_other_parameters_are_told(monkeypatch):
    monkeypatch.setattr(Ranks, "gather_arrays", lambda self, mine: [mine, np.array("another")])
    with pytest.raises(ValueError, match="the processes of this fit have different parameters or data"):
        fingerprint(0.5, ranks=Ranks(0, 2))
