"""Start several processes of ``rank_worker`` on this machine: a file store, loopback, gloo."""

import os
import subprocess
import sys
from pathlib import Path

from helpers import rank_worker

WORKER = Path(rank_worker.__file__)


def run(job, world, folder):
    """Start ``world`` processes; (exit code, standard error) of each."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), job, str(rank), str(world), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        return [(process.wait(timeout=300), process.stderr.read()) for process in started]
    finally:
        for process in started:
            process.kill()


def succeed(job, world, folder):
    for code, err in run(job, world, folder):
        assert code == 0, err
