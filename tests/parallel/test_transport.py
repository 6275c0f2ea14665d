"""Messages between processes."""

import numpy as np
import pytest
import torch

from dish.parallel import ALONE, transport
from helpers.processes import run, succeed


@pytest.mark.slow
def test_collective_operations_and_selection_in_two_processes(tmp_path):
    """In one start, because a start takes seconds."""
    succeed(["collectives", "select", "select_nan"], 2, tmp_path)


@pytest.mark.long
def test_collective_operations_in_three_processes(tmp_path):
    succeed(["collectives"], 3, tmp_path)


@pytest.mark.long  # test_error_in_one_process_reaches_all_with_its_reason is in make test
def test_reason_of_a_failed_process_reaches_those_that_wait_for_it(tmp_path):
    (code, err), (failed, own) = run(["leaves"], 2, tmp_path)
    assert code == failed == 1
    assert "ValueError: the true reason" in own
    assert "RankError: process 1 of 2 stopped: the true reason" in err


def test_one_process_sends_nothing():
    tensor = torch.ones(3)
    assert ALONE.total(tensor) is tensor
    assert ALONE.gather_arrays(np.arange(2))[0].tolist() == [0, 1]
    np.testing.assert_array_equal(ALONE.gather(tensor), np.ones((1, 3)))
    ALONE.broadcast([tensor])
    ALONE.barrier()
    assert ALONE.messages == 0


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
def test_tensors_are_sent_from_a_device_that_has_a_backend(backends, device, home, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: backends)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert transport.sending_device(torch.device(device)) == torch.device(home)
