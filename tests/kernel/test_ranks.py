"""Fits by several processes: what they decide together, and what they are told when they cannot."""

import re

import numpy as np
import pytest

from dish import DISH
from helpers import rank_worker
from helpers.processes import run, succeed

pytestmark = pytest.mark.slow  # processes take seconds to start


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 700)
    X = rng.standard_normal((700, 8)) + 1.5 * rng.standard_normal((6, 8))[y]
    np.savez(folder / "data.npz", X=X, y=y)
    return folder


def test_processes_whose_features_fit_and_others_take_the_same_path(folder):
    succeed("budgets", 2, folder)
    data = np.load(folder / "data.npz")
    alone = DISH(**rank_worker.FITS["classes"][0]).fit(data["X"], data["y"])
    for name in ("unlike", "uneven"):
        parts = [np.load(folder / f"budgets-{name}-{rank}.npy") for rank in range(2)]
        np.testing.assert_array_equal(np.concatenate(parts), alone.codes_, err_msg=name)


def test_a_checkpoint_that_one_process_does_not_see_is_told_to_all(folder):
    for code, err in run("unseen", 2, folder):
        assert code == 1
        assert re.search(
            r"the processes read different states: one of \d iterations \(process 0\), none \(process 1\)", err
        )


def test_processes_with_different_parameters_are_told_so(folder):
    for code, err in run("unlike", 2, folder):
        assert code == 1
        assert "have different parameters" in err


def test_a_generator_of_ones_own_can_be_resumed_by_several_processes(folder):
    succeed("generators", 2, folder)


def test_a_mistake_of_one_process_is_told_to_all(folder):
    succeed("own_mistakes", 2, folder)
