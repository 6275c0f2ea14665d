"""Start several processes of ``rank_worker`` on this machine, connected by gloo over loopback."""

import os
import subprocess
import sys
from pathlib import Path

from helpers import rank_worker


def run(jobs, world, folder):
    """(exit code, standard error) of ``world`` processes that do the jobs one after the other."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(rank_worker.__file__)), str(world), str(folder)]
    started = [
        subprocess.Popen([*command, str(rank), *jobs], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    try:
        return [(process.wait(timeout=300), process.stderr.read()) for process in started]
    finally:
        for process in started:
            process.kill()


def succeed(jobs, world, folder):
    """Run the jobs and fail with the standard error of the first process that failed."""
    for code, err in run(jobs, world, folder):
        assert code == 0, err
