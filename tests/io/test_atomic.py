"""Atomic writes, and what killed processes leave behind."""

import os
import subprocess
import sys

import pytest

from dish.io.atomic import replacing, write_atomically


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_atomically(tmp_path / "nowhere" / "m", b"")


def test_a_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch):
    write_atomically(tmp_path / "m", b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "m", b"new")
    assert (tmp_path / "m").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m"]


def test_links_and_permissions_are_kept(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="ordinary file"):
        write_atomically(tmp_path / "pipe", b"x")


def test_a_folder_appears_only_when_it_is_complete(tmp_path):
    with replacing(tmp_path / "set", folder=True) as folder:
        (folder / "a").write_text("a")
        assert not (tmp_path / "set").exists()
    assert (tmp_path / "set" / "a").read_text() == "a"
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "other", folder=True) as folder:
        (folder / "no" / "a").write_text("a")
    assert os.listdir(tmp_path) == ["set"]


def dead_process():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_only_leftovers_of_dead_processes_are_removed(tmp_path):
    dead = dead_process()
    ours = f".m.{os.getpid()}.0123abcd.tmp"  # left behind by an earlier process with our ID
    stale = [f".m.{dead}.0123abcd.tmp", ours]
    kept = [f".m.{os.getppid()}.0123abcd.tmp", f".other.{dead}.0123abcd.tmp", f".m.{dead}.tmp", ".m.x.0123abcd.tmp"]
    for name in (*stale, *kept):
        (tmp_path / name).write_text("half")
    (tmp_path / f".m.{dead}.4567abcd.tmp").mkdir()
    (tmp_path / f".m.{dead}.4567abcd.tmp" / "part").write_text("half")
    with replacing(tmp_path / "m") as temporary:
        write_atomically(tmp_path / "m", b"of another thread")
        assert temporary.exists()
        temporary.write_bytes(b"new")
    assert {*os.listdir(tmp_path)} == {"m", *kept}
    assert (tmp_path / "m").read_bytes() == b"new"


HOLDER = """
import sys, time
from dish.io import atomic
atomic.os.getpid = lambda: int(sys.argv[2])  # the process ID in another container
with atomic.replacing(sys.argv[1]) as temporary:
    print(temporary, flush=True)
    time.sleep(60)
"""


def test_files_of_a_writer_in_another_container_are_kept(tmp_path):
    """Its process ID is unknown here, but it holds a lock."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "m"), str(dead_process())], stdout=subprocess.PIPE, text=True
    )
    try:
        temporary = holder.stdout.readline().strip()
        write_atomically(tmp_path / "m", b"ours")
        assert os.path.exists(temporary)
    finally:
        holder.kill()
        holder.wait()
    write_atomically(tmp_path / "m", b"ours")
    assert os.listdir(tmp_path) == ["m"]
