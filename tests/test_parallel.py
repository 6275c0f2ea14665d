"""Several processes on this machine: a file store, loopback, gloo. What each does is in rank_worker.py."""

import os
import subprocess
import sys
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from dish import DISH, metrics, parallel
from dish.parallel import transport
from helpers import rank_worker
from helpers.processes import run, succeed

pytestmark = pytest.mark.slow  # processes take seconds to start


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 700)
    X = rng.standard_normal((700, 8)) + 1.5 * rng.standard_normal((6, 8))[y]  # float64: sums differ by rounding only
    words = np.array(["ant", "bee", "cat", "dog", "eel", "fox"])[y]
    Y = (rng.random((700, 5)) < 0.3).astype(int)
    np.savez(folder / "data.npz", X=X, y=y, words=words, Y=Y)
    return folder


def test_selection_over_three_processes_is_a_stable_sort(folder):
    succeed("select", 3, folder)


@pytest.mark.parametrize("world", [2, 3])
def test_the_same_codes_however_many_processes(world, folder):
    succeed("fits", world, folder)
    data = np.load(folder / "data.npz")
    for name, (params, labels) in rank_worker.FITS.items():
        if name == "polished":  # of a generator of one's own the processes draw one seed
            drawn = np.random.RandomState(3).randint(2**31 - 1)
            params = {**params, "random_state": np.random.RandomState(drawn)}
        alone = DISH(**params).fit(data["X"], data[labels])
        parts = [np.load(folder / f"{name}-{world}-{rank}.npy") for rank in range(world)]
        F = [np.load(folder / f"{name}-F-{world}-{rank}.npy") for rank in range(world)]
        assert all(np.array_equal(one, F[0]) for one in F)
        np.testing.assert_array_equal(np.concatenate(parts), alone.codes_, err_msg=name)
        whole = alone.decision_function(data["X"][:300])
        np.testing.assert_allclose(F[0], whole, atol=1e-6 * abs(whole).max(), err_msg=name)
        objective = np.load(folder / f"{name}-objective-{world}-0.npy")
        np.testing.assert_allclose(objective, alone.objective_, rtol=1e-9)


@pytest.mark.parametrize("world", [2, 3])
def test_every_form_of_the_codes_learns_the_same_however_the_rows_are_shared(world, folder):
    """The digits of u must come from the rows of all processes, which sum to it."""
    succeed("sweeps", 1, folder)
    succeed("sweeps", world, folder)
    for name in rank_worker.SWEEPS:
        alone = np.load(folder / f"sweep-{name}-dense-equal-1-0.npz")
        for form, shares in product(rank_worker.FORMS, ("equal", "unequal")):
            for processes in (1, world):
                parts = [
                    np.load(folder / f"sweep-{name}-{form}-{shares}-{processes}-{rank}.npz")
                    for rank in range(processes)
                ]
                told = f"{name}, {form}, {shares} shares of {processes}"
                np.testing.assert_array_equal(np.concatenate([p["codes"] for p in parts]), alone["codes"], told)
                assert parts[0]["objective"] == pytest.approx(float(alone["objective"]), rel=1e-12), told


def test_scores_that_are_not_finite_stop_all_processes(folder):
    for code, err in run("nan_scores", 2, folder):
        assert code == 1
        assert "InputError: bit 3: the objective is" in err


def test_an_error_in_a_section_reaches_all_with_its_reason(folder):
    succeed("sections", 3, folder)
    own = (folder / "told-1.txt").read_text().splitlines()
    assert own == [
        "before: ValueError: no such file",
        "between: OSError: disk full",
        "after: KeyError: 'last'",
        "nested: ValueError: inside",
        "silent: AssertionError: ",
    ]
    for rank in (0, 2):
        told = (folder / f"told-{rank}.txt").read_text().splitlines()
        assert told == [
            "before: RankError: process 1 of 3 stopped: no such file",
            "between: RankError: process 1 of 3 stopped: OSError: disk full",
            "after: RankError: process 1 of 3 stopped: KeyError: 'last'",
            "nested: RankError: process 1 of 3 stopped: inside",
            "silent: RankError: process 1 of 3 stopped: AssertionError: ",
        ]


def test_a_decision_of_some_processes_only_is_told_at_once(folder):
    for code, err in run("disagree", 2, folder):
        assert code == 1
        assert "process 0 wants to send 1 numbers, process 1 has finished this part" in err


def test_the_reason_of_a_process_that_left_reaches_those_who_wait_for_it(folder):
    (code, err), (left, own) = run("leaves", 2, folder)
    assert code == left == 1
    assert "ValueError: the true reason" in own
    assert "RankError: process 1 of 2 stopped: the true reason" in err


@pytest.mark.parametrize("world", [2, 3])
def test_labels_have_the_same_numbers_on_all_processes(world, folder):
    succeed("labels", world, folder)


def test_labels_of_two_kinds_are_refused_by_all_processes(folder):
    for code, err in run("mixed_labels", 2, folder):
        assert code == 1
        assert "InputError: y: process 0 has labels that are numbers, process 1 strings" in err


def test_messages_do_not_grow_with_the_rows(folder):
    succeed("messages", 2, folder)
    (few, messages, steps), (many, more_messages, more_steps) = np.load(folder / "sent-0.npy")
    assert few / messages == pytest.approx(many / more_messages, rel=0.1)
    assert messages / steps < 20
    assert many / more_steps < 4 * few / steps


def test_a_killed_process_stops_all_and_others_can_go_on(folder):
    (code, err), (killed, _) = run("dies", 2, folder)
    assert killed == -9
    assert code == 1
    assert "another process of this job ended or cannot be reached" in err
    assert (folder / "state" / "state.dish").exists()
    succeed("resumes", 3, folder)
    data = np.load(folder / "data.npz")
    params = {**rank_worker.FITS["classes"][0], "n_iter": 6, "init": "random"}
    whole = DISH(**params).fit(data["X"], data["y"])
    assert whole.n_iter_ > 2  # there was something left to do
    parts = np.concatenate([np.load(folder / f"resumed-{rank}.npy") for rank in range(3)])
    np.testing.assert_array_equal(parts, whole.codes_)


def test_bad_rows_of_one_process_are_told_to_all(folder):
    (code, err), (bad_code, bad_err) = run("one_bad", 2, folder)
    assert code == bad_code == 1
    assert "Input X contains NaN or infinity" in bad_err
    assert "process 1 of 2 stopped: Input X contains NaN or infinity" in err


def test_encode_and_evaluate_by_parts(folder, digits):
    X, y, _, _ = digits
    hasher = DISH(n_bits=16, n_anchors=50).fit(X, y)
    hasher.save(folder / "m.dish")
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    succeed("encode", 2, folder)
    codes = hasher.transform(X)
    np.testing.assert_array_equal(np.load(folder / "codes.npy"), codes)
    whole = metrics.mean_average_precision(codes[:50], y[:50], codes, y)
    assert np.load(folder / "map-0.npy") == pytest.approx(whole, abs=1e-12)


def test_torchrun(tmp_path, digits):
    """The command line under torchrun, on shards: the same model as one process makes."""
    X, y, _, _ = digits
    shards = tmp_path / "shards"
    shards.mkdir()
    for i, rows in enumerate(np.array_split(np.arange(len(X)), 3)):
        np.save(shards / f"part-{i}.npy", X[rows].astype(np.float64))
        np.save(shards / f"y-{i}.npy", y[rows])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "dish", "fit", str(shards), "-o", str(tmp_path / "m.dish"), "--bits", "16", "--anchors", "80"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, *command], env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(f"16 bits learned from {len(X):,} rows") == 1
    from dish import load

    together = load(tmp_path / "m.dish")
    alone = DISH(n_bits=16, n_anchors=80).fit(X.astype(np.float64), y)
    np.testing.assert_array_equal(together.codes_, alone.codes_)
    assert not (tmp_path / "m.dish.checkpoint").exists()


def test_alone_is_the_identity():
    ranks = parallel.ALONE
    assert ranks.first
    assert ranks.offset_and_total(5) == (0, 5)
    assert ranks.my_rows(100) == slice(0, 100)
    with pytest.raises(KeyError), ranks.raise_together():
        raise KeyError("as it was")
    assert ranks.messages == 0


@pytest.mark.parametrize(
    ("backends", "device", "home"),
    [
        ("cpu:gloo,cuda:nccl", "cuda:1", "cuda:1"),
        ("cpu:gloo,cuda:nccl", "cpu", "cpu"),
        ("cpu:gloo,cuda:gloo,xpu:gloo", "cuda:0", "cpu"),
        ("cpu:gloo,cuda:gloo,xpu:gloo", "cpu", "cpu"),
        ("cuda:nccl", "cpu", "cuda:3"),
    ],
)
def test_tensors_are_sent_by_the_backend_of_their_device(backends, device, home, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: backends)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert transport.home_of(torch.device(device)) == torch.device(home)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [1, 5, 100_000, 1_280_000])
def test_shares_cover_all_rows_once(n, world):
    shares = [parallel.Ranks(rank, world).my_rows(n) for rank in range(world)]
    assert shares[0].start == 0
    assert shares[-1].stop == n
    assert all(a.stop == b.start for a, b in pairwise(shares))
    sizes = [s.stop - s.start for s in shares]
    assert max(sizes) - min(sizes) <= max(1, 2 * 8192 if n > 4 * 8192 * world else 1)
