"""A PostgreSQL of our own, and codes to put into it."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import psycopg

from dish import codes


class Server:
    """A PostgreSQL of our own on a socket in a folder of our own; PostgreSQL refuses to run as root."""

    def __init__(self, binaries):
        self.folder = Path(tempfile.mkdtemp(prefix="dish-pg-"))
        user = "nobody" if os.geteuid() == 0 else None
        if user:
            shutil.chown(self.folder, user)
            binaries = self.readable(binaries, user)
        self.dsn = f"host={self.folder} user=postgres dbname=postgres"
        data = self.folder / "data"
        settings = {"cwd": self.folder, "user": user, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        subprocess.run(
            [binaries / "initdb", "-U", "postgres", "--auth=trust", "--no-sync", "-D", data], check=True, **settings
        )
        self.process = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-k", self.folder, "-h", "", "-F"],
            cwd=self.folder,
            user=user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                psycopg.connect(self.dsn).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.05)
        self.stop()
        raise RuntimeError("the server does not answer")

    def readable(self, binaries, user):
        """The binaries, or a copy of them if they lie where that user cannot go."""
        try:
            subprocess.run([binaries / "postgres", "--version"], check=True, user=user, stdout=subprocess.DEVNULL)
            return binaries
        except PermissionError:
            packages, copy = binaries.parents[2], self.folder / "packages"
            libraries = f"{binaries.parents[1].name}.libs"
            shutil.copytree(binaries.parent, copy / binaries.parent.relative_to(packages))
            shutil.copytree(packages / libraries, copy / libraries)
            return copy / binaries.relative_to(packages)

    def stop(self):
        self.process.send_signal(signal.SIGINT)  # fast shutdown
        self.process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)


def clustered(n, n_bits=64, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((30, n_bits))
    return codes.pack(2 * centres[rng.integers(0, 30, n)] + rng.standard_normal((n, n_bits)))


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
