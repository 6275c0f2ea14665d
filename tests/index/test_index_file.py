"""Locks and marks of index files."""

import os
import shutil
import subprocess
import sys
import threading
from contextlib import closing

import numpy as np
import pytest

from dish import HammingIndex
from dish.errors import FileInUseError, FileReplacedError, InputError, ModelFileError
from dish.index.index_file import IndexFile, JournalMark, in_use, read_mark


@pytest.fixture
def path(tmp_path):
    HammingIndex(8).save(tmp_path / "ix.dish")
    return tmp_path / "ix.dish"


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_all_names_of_a_file_share_its_lock(path, link, monkeypatch):
    monkeypatch.setattr("dish.index.index_file.LOCK_SECONDS", 0.0)
    link(path, path.with_name("other"))
    with closing(IndexFile(path)) as file:
        for _ in range(2):
            with pytest.raises(FileInUseError, match="is in use"):
                IndexFile(path.with_name("other"))
            with pytest.raises(FileInUseError, match="is in use"):
                HammingIndex(8).save(path.with_name("other"))
            file.write(HammingIndex(8).__getstate__())  # the path names another file now
    HammingIndex(8).save(path.with_name("other"))


def test_another_process_is_locked_out_until_the_end(path):
    program = f"from dish import HammingIndex\nHammingIndex(8).save({str(path)!r})"
    with closing(IndexFile(path)):
        assert in_use(path)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "another process writes to this index" in done.stderr
    assert not in_use(path)


@pytest.mark.parametrize("how", ["replaced", "overwritten", "deleted"])
def test_file_that_changed_is_not_overwritten(path, how):
    other = HammingIndex(8)
    other.add(np.zeros((3, 1), np.uint8))
    other.save(path.with_name("new"))
    with closing(IndexFile(path)) as file:
        if how == "replaced":
            os.replace(path.with_name("new"), path)
        elif how == "overwritten":
            shutil.copyfile(path.with_name("new"), path)
        else:
            path.unlink()
        with pytest.raises(FileReplacedError, match=r"ix\.dish was replaced by another program"):
            file.write(HammingIndex(8).__getstate__())
    assert path.exists() == (how != "deleted")
    assert how == "deleted" or len(HammingIndex.load(path)) == 3


def test_what_is_not_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    for name in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InputError, match="not an ordinary file"):
            HammingIndex(8).save(name)


def test_index_with_an_open_journal_is_not_replaced(path):
    with closing(IndexFile(path)) as file:
        file.write(HammingIndex(8).__getstate__(), JournalMark("ab", open=True))
    assert read_mark(path) == JournalMark("ab", open=True)
    with pytest.raises(ModelFileError, match="start `dish serve --writable` once"):
        HammingIndex(8).save(path)
    with closing(IndexFile(path)) as file:
        file.write(HammingIndex.load(path).__getstate__(), JournalMark("cd", open=False))
    HammingIndex.load(path).save(path)
    assert read_mark(path) is None  # a copy belongs to no journal


def test_replaced_files_are_not_kept_open(path):
    """An open file takes space on the disk after it was deleted."""
    with closing(IndexFile(path)) as file:
        for _ in range(5):
            file.write(HammingIndex(8).__getstate__())
        kept = [name for name in map(_target, os.listdir("/proc/self/fd")) if str(path) in name]
    assert kept == [str(path)]


def _target(handle):
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return ""


def test_own_write_is_not_taken_for_that_of_another_program(path, monkeypatch):
    with closing(IndexFile(path)) as file:
        renamed, checked, problems, lock = threading.Event(), threading.Event(), [], file._lock

        def check():
            renamed.wait(10)
            try:
                file.check_unchanged()
            except FileReplacedError as error:
                problems.append(error)
            checked.set()

        def slow_lock(seconds):
            renamed.set()
            checked.wait(0.3)  # the other thread looks at the new file before its stamp is known
            lock(seconds)

        monkeypatch.setattr(file, "_lock", slow_lock)
        thread = threading.Thread(target=check)
        thread.start()
        file.write(HammingIndex(8).__getstate__())
        thread.join(10)
        assert checked.is_set()
        assert not problems
