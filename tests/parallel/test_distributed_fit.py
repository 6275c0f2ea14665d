"""Fits, sweeps and encoding by several processes give the results of one process."""

import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from dish import DISH, DISHK, load, metrics
from dish.parallel import ALONE
from helpers import rank_worker
from helpers.processes import run, succeed

JOBS = ["labels", "fits", "sweeps", "sweep_infinity", "messages"]
TWO = ["mixed_labels", "budgets", "unseen_checkpoint", "other_parameters", "generators", "bad_arguments", "encode"]


@pytest.fixture(scope="module", params=[pytest.param(world, marks=pytest.mark.long) for world in (2, 3)])
def together(request, tmp_path_factory, digits):
    """(number of processes, folder with what they wrote): all jobs in one start, because a start takes seconds."""
    folder, world = tmp_path_factory.mktemp("ranks"), request.param
    rank_worker.write_data(folder)
    DISH(n_bits=16, n_anchors=50).fit(*digits[:2]).save(folder / "m.dish")
    np.save(folder / "X.npy", digits[0])
    np.save(folder / "y.npy", digits[1])
    succeed(JOBS + (TWO if world == 2 else []), world, folder)
    return world, folder


@pytest.fixture
def two(together):
    """The folder of two processes, for jobs that three do not do."""
    world, folder = together
    if world != 2:
        pytest.skip("a job for two processes")
    return folder


def joined(folder, name, world=2):
    """What the processes wrote, in the order of their ranks."""
    return np.concatenate([np.load(folder / f"{name}-{rank}.npy") for rank in range(world)])


@pytest.mark.slow
@pytest.mark.parametrize("name", rank_worker.FITS)
def test_fit_gives_the_codes_of_one_process(name, together):
    world, folder = together
    kind, params, labels = rank_worker.FITS[name]
    data = np.load(folder / "data.npz")
    alone = kind(**params).fit(data["X"], data[labels])
    np.testing.assert_array_equal(joined(folder, f"{name}-{world}", world), alone.codes_)
    F = [np.load(folder / f"{name}-F-{world}-{rank}.npy") for rank in range(world)]
    assert all(np.array_equal(one, F[0]) for one in F)
    expected = alone.decision_function(data["X"][:300])
    np.testing.assert_allclose(F[0], expected, atol=1e-6 * abs(expected).max())
    if kind is DISHK:
        objective = np.load(folder / f"{name}-objective-{world}-0.npy")
        np.testing.assert_allclose(objective, alone.objective_, rtol=1e-9)


@pytest.mark.slow
def test_sweeps_do_not_depend_on_the_shares_of_rows_nor_on_the_form_of_the_codes(together):
    world, folder = together
    rank_worker.sweeps(ALONE, folder)
    for name in rank_worker.SWEEPS:
        alone = np.load(folder / f"sweep-{name}-dense-equal-1-0.npz")
        for form, shares, processes in product(rank_worker.FORMS, ("equal", "unequal"), (1, world)):
            where = f"{name}-{form}-{shares}-{processes}"
            parts = [np.load(folder / f"sweep-{where}-{rank}.npz") for rank in range(processes)]
            np.testing.assert_array_equal(np.concatenate([p["codes"] for p in parts]), alone["codes"], where)
            assert parts[0]["objective"] == pytest.approx(float(alone["objective"]), rel=1e-12), where


@pytest.mark.slow
def test_messages_do_not_grow_with_the_rows(together):
    (few, messages, steps), (many, more_messages, more_steps) = np.load(together[1] / "sent-0.npy")
    assert few / messages == pytest.approx(many / more_messages, rel=0.1)
    assert messages / steps < 20
    assert many / more_steps < 4 * few / steps


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unequal budgets", "unequal rows"])
def test_features_that_fit_in_one_process_only_give_the_same_codes(name, two):
    data = np.load(two / "data.npz")
    alone = DISHK(**rank_worker.PAPER).fit(data["X"], data["y"])
    np.testing.assert_array_equal(joined(two, name), alone.codes_)


@pytest.mark.slow
def test_random_state_of_the_first_process_is_shared(two):
    data = np.load(two / "data.npz")
    seed = np.random.RandomState(5).randint(2**31 - 1)  # the processes share a seed drawn from the generator
    alone = DISHK(**rank_worker.PAPER, init="random", n_iter=3, random_state=seed).fit(data["X"], data["y"])
    np.testing.assert_array_equal(joined(two, "generator"), alone.codes_)


@pytest.mark.slow
def test_file_is_encoded_and_scored_in_parts(two, digits):
    X, y, _, _ = digits
    codes = load(two / "m.dish").transform(X)
    np.testing.assert_array_equal(np.load(two / "codes.npy"), codes)
    expected = metrics.mean_average_precision(codes[:50], y[:50], codes, y)
    assert np.load(two / "map-0.npy") == pytest.approx(expected, abs=1e-12)


@pytest.mark.long
def test_killed_process_stops_all_and_the_fit_can_be_resumed_by_three(tmp_path):
    rank_worker.write_data(tmp_path)
    (code, err), (killed, _) = run(["dies"], 2, tmp_path)
    assert killed == -9
    assert code == 1
    assert "another process of this job ended or cannot be reached" in err
    assert (tmp_path / "state" / "state.dish").exists()
    succeed(["resumes"], 3, tmp_path)
    data = np.load(tmp_path / "data.npz")
    alone = DISHK(**rank_worker.LONG_FIT).fit(data["X"], data["y"])
    assert alone.n_iter_ > 2  # otherwise nothing was left to resume
    np.testing.assert_array_equal(joined(tmp_path, "resumed", 3), alone.codes_)


@pytest.mark.long
def test_command_line_under_torchrun_makes_the_model_of_one_process(tmp_path, digits):
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
    alone = DISH(n_bits=16, n_anchors=80).fit(X.astype(np.float64), y)
    together = load(tmp_path / "m.dish")
    np.testing.assert_array_equal(together.codes_, alone.codes_)
    np.testing.assert_array_equal(together.row_hashes_, alone.remember_rows(X).row_hashes_)  # of all processes
    assert not (tmp_path / "m.dish.checkpoint").exists()
