import os
import signal
import threading
import time

import numpy as np
import pytest

from dish import HammingIndex
from dish.errors import ClusterError, InputError, ShardError
from dish.ray.search import ShardActors, open_shards
from helpers.codes import assert_same, brute_nearest, make_codes, make_queries

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """An index with string ids and labels, its file, and queries."""
    B = make_codes("duplicates", 20_000, 64)
    index = HammingIndex(64)
    index.add(B, [f"item {i}" for i in range(len(B))], [i % 5 for i in range(len(B))])
    path = tmp_path_factory.mktemp("index") / "index.dish"
    index.save(path)
    return index, path, make_queries(B, 40, 64), B


def actor_pids(index):
    """The processes of the actors, by shard and replica."""
    import ray

    actors = index._ask.__self__.replicas
    return [ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in shard]) for shard in actors]


def test_four_shards_give_the_answers_of_one_index(searched, ray):
    index, path, Q, _ = searched
    with open_shards(path, 4) as sharded:
        assert_same(sharded.search(Q, 50), index.search(Q, 50))
        assert_same(sharded.radius_search(Q, 12), index.radius_search(Q, 12))
        some = [f"item {i}" for i in range(0, 30_000, 7)]
        assert_same(sharded.search(Q, 9, some, labels=[1, 2]), index.search(Q, 9, some, labels=[1, 2]))
        assert sharded.labels_of(["item 7", "item 19999"]).tolist() == [2, 4]
        with pytest.raises(InputError, match="labels must be numbers or strings"):
            sharded.search(Q, labels=[object])


def test_each_actor_has_its_share_of_the_threads(searched, ray):
    from dish import numba_lazy

    with open_shards(searched[1], 2, replicas=2) as sharded:  # on four CPUs
        for actor in sharded._ask.__self__._all():
            assert ray.get(actor.__ray_call__.remote(lambda _: numba_lazy.threads())) == 1
    with open_shards(searched[1], 1, threads=2) as sharded:
        ((actor,),) = sharded._ask.__self__.replicas
        assert ray.get(actor.__ray_call__.remote(lambda _: numba_lazy.threads())) == 2


@pytest.mark.parametrize("replicas", [1, 2])
def test_killed_actors_under_load(searched, ray, replicas):
    """Each actor is killed while two threads search. Every answer is complete and right."""
    index, path, Q, _ = searched
    wanted, stop, answers = index.search(Q, 20), threading.Event(), []

    def search():
        while not stop.is_set():
            try:
                answers.append(sharded.search(Q, 20))
            except Exception as error:
                answers.append(error)

    with open_shards(path, 2, replicas=replicas) as sharded:
        pids = [pid for replica in zip(*actor_pids(sharded), strict=True) for pid in replica]
        threads = [threading.Thread(target=search) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for pid in pids:
                before, end = len(answers), time.monotonic() + 240  # a busy machine starts an actor late
                os.kill(pid, signal.SIGKILL)
                while len(answers) < before + 6 and time.monotonic() < end:
                    time.sleep(0.01)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert len(answers) >= 12 * replicas
    for answer in answers:
        assert not isinstance(answer, Exception), answer
        assert_same(answer, wanted)


def test_an_actor_that_cannot_come_back_is_an_error(tmp_path, ray):
    """Its file is gone. There is no answer from the other shards alone."""
    psutil = pytest.importorskip("psutil")
    B = make_codes("random", 2000, 64)
    np.save(tmp_path / "codes.npy", B)
    with open_shards(tmp_path / "codes.npy", 2, timeout=30) as sharded:
        assert_same(sharded.search(B[:5], 3), brute_nearest(B[:5], B, 3))
        (pid,) = actor_pids(sharded)[0]
        (tmp_path / "codes.npy").unlink()
        os.kill(pid, signal.SIGKILL)
        while psutil.pid_exists(pid):
            time.sleep(0.01)
        with pytest.raises(ShardError, match="shard 0 cannot be opened or reached"):
            sharded.search(B[:5], 3)


def test_a_shard_that_does_not_answer_in_time_is_an_error(searched, ray):
    _, path, Q, _ = searched
    with open_shards(path, 2, timeout=1.0) as sharded:
        sharded._ask.__self__.timeout = 30.0
        sharded.search(Q)
        (pid,) = actor_pids(sharded)[1]
        sharded._ask.__self__.timeout = 1.0
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ShardError, match=r"shard 1 did not answer within 1 s"):
                sharded.search(Q)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_arguments_are_checked(searched, ray):
    for options, message in (({"replicas": 0}, "replicas"), ({"threads": 0}, "threads"), ({"timeout": 0}, "timeout")):
        with pytest.raises(InputError, match=message):
            open_shards(searched[1], **options)


def test_without_ray_there_is_an_error(searched, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ClusterError, match="no connection to Ray"):
        ShardActors(None, 1, None, 1.0)
