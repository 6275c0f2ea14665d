"""Cores, memory and thread limits of this process."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import threadpoolctl
import torch

from dish import machine
from dish.errors import InputError


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """A machine of 8 cores and 64 GiB whose control groups are what a test writes."""
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))

    def write(**files):
        for name, text in {"proc/meminfo": f"MemAvailable: {64 << 20} kB\n", **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return lambda files: write(**files)


def test_cores_by_cgroup_quota_version_2(cgroups):
    cgroups({"proc/self/cgroup": "0::/pod/box\n", "cgroup/cpu.max": "max 100000"})
    (machine.CGROUPS / "pod/box").mkdir(parents=True)
    assert machine.usable_cores() == 8
    cgroups({"cgroup/pod/cpu.max": "450000 100000"})
    assert machine.usable_cores() == 5
    cgroups({"cgroup/pod/box/cpu.max": "150000 100000"})
    assert machine.usable_cores() == 2
    cgroups({"cgroup/pod/box/cpu.max": "20000 100000"})
    assert machine.usable_cores() == 1


def test_cores_by_cgroup_quota_version_1(cgroups):
    cgroups({"proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/box\n0::/\n"})
    cgroups({"cgroup/cpu/box/cpu.cfs_quota_us": "-1", "cgroup/cpu/box/cpu.cfs_period_us": "100000"})
    assert machine.usable_cores() == 8
    cgroups({"cgroup/cpu/box/cpu.cfs_quota_us": "300000"})
    assert machine.usable_cores() == 3


def test_free_memory_by_cgroup_version_2(cgroups):
    cgroups({"proc/self/cgroup": "0::/box\n"})
    assert machine.free_memory() == 64 << 30
    cgroups({"cgroup/box/memory.max": str(6 << 30), "cgroup/box/memory.current": str(5 << 30)})
    assert machine.free_memory() == 1 << 30
    cgroups({"cgroup/box/memory.stat": f"anon 1\ninactive_file {2 << 30}\n"})  # freed when memory is needed
    assert machine.free_memory() == 3 << 30
    cgroups({"cgroup/box/memory.max": "max"})
    assert machine.free_memory() == 64 << 30


def test_free_memory_by_cgroup_version_1(cgroups):
    cgroups({"proc/self/cgroup": "4:memory:/outer/box\n0::/\n"})
    cgroups({"cgroup/memory/outer/box/memory.limit_in_bytes": str(6 << 30)})
    cgroups({"cgroup/memory/outer/box/memory.usage_in_bytes": str(2 << 30)})
    assert machine.free_memory() == 4 << 30


def test_without_control_groups(cgroups):
    cgroups({})
    assert machine.usable_cores() == 8
    assert machine.free_memory() == 64 << 30


@pytest.fixture
def four_threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_torch_threads_are_restored_in_any_order(four_threads):
    """A enters, B enters, A leaves, B leaves: the original number is restored."""
    a_in, b_in, a_out = (threading.Event() for _ in range(3))
    seen = {}

    def first():
        with machine.torch_threads(1):
            a_in.set()
            b_in.wait(10)
            seen["a"] = torch.get_num_threads()
        a_out.set()

    def second():
        a_in.wait(10)
        with machine.torch_threads(1):
            b_in.set()
            a_out.wait(10)
            seen["b"] = torch.get_num_threads()
        seen["after"] = torch.get_num_threads()

    workers = [threading.Thread(target=f) for f in (first, second)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen == {"a": 1, "b": 1, "after": 4}
    assert torch.get_num_threads() == 4
    fresh = []
    worker = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    worker.start()
    worker.join()
    assert fresh == [4]


def test_torch_threads_nest(four_threads):
    with machine.torch_threads(3):
        assert torch.get_num_threads() == 3
        with machine.torch_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        with machine.torch_threads(16):
            assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), machine.torch_threads(1):
        raise KeyError
    assert torch.get_num_threads() == 4


def test_blas_threads_are_restored_by_the_last_caller():
    def now():
        return {lib["num_threads"] for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"}

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        first, second = machine.one_blas_thread(), machine.one_blas_thread()
        first.__enter__()
        second.__enter__()
        assert now() == {1}
        first.__exit__(None, None, None)
        assert now() == {1}
        second.__exit__(None, None, None)
        assert now() == {2}


CALM = """
import threading, torch
torch.set_num_threads({threads})
from dish import machine
for _ in range(2):
    with machine.torch_threads(1):
        pass
print([thread.name for thread in threading.enumerate()].count("dish-calm"), torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("threads", "policy", "calm"), [(2, "", 1), (1, "", 0), pytest.param(2, "PASSIVE", 0, marks=pytest.mark.long)]
)
def test_idle_team_starts_only_where_threads_would_spin(threads, policy, calm):
    kept = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment = kept | ({"OMP_WAIT_POLICY": policy} if policy else {})
    code = CALM.format(threads=threads)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(calm), str(threads)]


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
def test_memory_budgets(given, expected):
    assert machine.memory_budget(given) == expected


@pytest.mark.parametrize("given", ["2 apples", "GB", -3, 0, "-2GB", float("nan"), True, [1], ""])
def test_bad_memory_budgets_are_refused(given):
    with pytest.raises(InputError, match="memory_budget must be"):
        machine.memory_budget(given)


def test_the_default_budget_is_half_of_the_free_memory_shared_by_local_processes(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 8000)
    assert machine.memory_budget(None) == 4000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert machine.memory_budget(None) == 1000


FIT = """
import time, torch
torch.ones(1 << 20).add_(1)  # torch and its threads are there before dish
from sklearn.datasets import load_digits
from dish import DISH, machine
if {spin}:
    machine._keep_threads_from_spinning = lambda: None
X, y = load_digits(return_X_y=True)
DISH(n_bits=16, n_anchors=100).fit(X[:600], y[:600])
start = time.perf_counter()
for seed in range(2):
    DISH(n_bits=32, n_anchors=300, random_state=seed).fit(X, y)
print(time.perf_counter() - start)
"""


@pytest.mark.long
@pytest.mark.skipif(machine.usable_cores() < 2, reason="needs two cores")
def test_idle_team_makes_fits_faster_next_to_busy_neighbours():
    """The background thread pays: without it, torch's threads spin and starve each other."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    neighbours = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * machine.usable_cores())
    ]
    try:

        def seconds(spin):
            program = [sys.executable, "-c", FIT.format(spin=spin)]
            done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
            return float(done.stdout)

        calm, spinning = zip(*[(seconds(False), seconds(True)) for _ in range(3)], strict=True)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    assert min(calm) < 0.8 * min(spinning)
