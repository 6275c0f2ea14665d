"""Several processes that train one network."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.deep import Tiny, patches, smooth, tiny

pytestmark = pytest.mark.slow

WORKER = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import torch
import torch.distributed as dist
torch.set_num_threads(1)
from helpers.deep import patches, score, smooth, tiny
rank, world = int(sys.argv[1]), {world}
dist.init_process_group("gloo", init_method="file://{store}", rank=rank, world_size=world)
X, y = patches(400, 0)
def message(hasher, X, y):
    try:
        hasher.fit(X, y)
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
    return "none"
def weights(hasher):
    return np.concatenate([p.detach().numpy().ravel() for p in hasher.model_.state_dict().values()])
{body}
np.savez("{store}.%d.npz" % rank, **found)
dist.destroy_process_group()
"""


def run(body, world, folder):
    """The arrays that ``body`` puts into ``found``, by rank."""
    store = folder / "store"
    script = WORKER.format(tests=str(Path(__file__).parents[1]), store=store, world=world, body=body)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    children = [subprocess.Popen([sys.executable, "-c", script, str(rank)], env=env) for rank in range(world)]
    try:
        assert [child.wait(timeout=300) for child in children] == [0] * world
    finally:
        for child in children:
            child.kill()
    return [np.load(f"{store}.{rank}.npz") for rank in range(world)]


LEARN = """
X, y = patches(600, 0)  # some are held out, and decide by which top codes are made
h = tiny().fit(X, y)
found = dict(F=h.decision_function(X), weights=weights(h), codes=h.codes_, map=score(h, X, y, *patches(100, 1)))
"""


def test_two_processes_learn_one_network(tmp_path):
    first, second = run(LEARN, 2, tmp_path)
    for name in ("F", "weights", "codes"):
        np.testing.assert_array_equal(first[name], second[name])
    assert first["map"] > 0.9


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_take_the_steps_of_one(world, tmp_path):
    """Without batch norm and dropout; 32 rows over three processes are shares of 11, 11 and 10."""
    X, y = patches(400, 0)
    alone = smooth(head="paper").fit(X, y)
    body = """
h = smooth(head="paper").fit(X, y)
found = dict(F=h.decision_function(X), loss=[e["loss"] for e in h.history_])
"""
    for one in run(body, world, tmp_path):
        np.testing.assert_allclose(one["loss"], [e["loss"] for e in alone.history_], rtol=1e-4)
        np.testing.assert_allclose(one["F"], alone.decision_function(X), atol=1e-3)


def test_several_processes_put_the_same_kernel_on_a_frozen_network(tmp_path):
    X, y = patches(400, 0)
    torch.manual_seed(0)
    alone = tiny(net=Tiny(), freeze=True, head="kernel").fit(X, y)
    body = """
from helpers.deep import Tiny
torch.manual_seed(0)
h = tiny(net=Tiny(), freeze=True, head="kernel").fit(X, y)
found = dict(F=h.decision_function(X), codes=h.codes_)
"""
    first, second = run(body, 2, tmp_path)
    np.testing.assert_array_equal(first["F"], second["F"])
    np.testing.assert_allclose(first["F"], alone.decision_function(X), atol=1e-3)
    assert first["codes"].shape == alone.codes_.shape


BAD = """
import os
part = patches(100, rank)
path = os.path.join(os.path.dirname("{store}"), "of%d.dish" % rank)
tiny(epochs=1, n_iter=2, stop_agreement=2, checkpoint=path if rank == 0 else None).fit(X, y)
h = tiny(epochs=1, n_iter=2, stop_agreement=2, checkpoint=path).fit(X, y)
found = dict(
    crowd=message(tiny(batch_size=3), X, y),
    parts=message(tiny(epochs=1), *part),
    params=message(tiny(epochs=1 + rank), X, y),
    bad=message(tiny(epochs=1), X, y if rank else y[:-1]),
    diverged=message(tiny(lr=1e12), X, y),
    rounds=[name for name in h.timings_ if name.startswith("round")],
    written=os.path.exists(path),
    seed=h.decision_function(X),
    unseeded=tiny(epochs=1, n_iter=0, random_state=None).fit(X, y).decision_function(X),
)
"""


def test_what_goes_wrong_in_one_process_is_told_by_all(tmp_path):
    first, second = run(BAD.replace("{store}", str(tmp_path / "store")), 2, tmp_path)
    for one in (first, second):
        assert "ValueError: batch_size: 3 rows cannot be shared by 2 processes" in str(one["crowd"])
        assert "at least 4" in str(one["crowd"])
        for case in ("parts", "params"):
            assert "every process of a deep fit needs all rows and labels and the same parameters" in str(one[case])
        assert "399" in str(one["bad"])
        assert "training diverged" in str(one["diverged"])
        assert one["rounds"].tolist() == []  # both resumed, although the second does not see the file
    assert first["written"]
    assert not second["written"]
    for case in ("seed", "unseeded"):
        np.testing.assert_array_equal(first[case], second[case])
