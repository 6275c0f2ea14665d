"""Notes about who writes to an index."""

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from dish import HammingIndex
from dish.errors import FileInUseError
from dish.index.index_file import IndexFile
from dish.index.writer_note import WriterNote, note_path, read_note, write_note


@pytest.fixture
def path(tmp_path):
    HammingIndex(8).save(tmp_path / "ix.dish")
    return tmp_path / "ix.dish"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, r"a server \(process {pid} on .*\) writes to it\. Try again when it has ended"),
        ("http://127.0.0.1:8000/", "POST http://127.0.0.1:8000/items/delete removes"),
    ],
)
def test_refused_writer_reads_who_writes(path, url, said, monkeypatch):
    monkeypatch.setattr("dish.index.index_file.LOCK_SECONDS", 0.0)
    with closing(IndexFile(path)) as file:
        file.sign("a server", url)
        with pytest.raises(FileInUseError, match=said.format(pid=os.getpid())):
            IndexFile(path)
    assert not note_path(path).exists()  # the end removes it


def test_note_of_an_ended_process_is_ignored(path):
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    note = replace(WriterNote.of_this_process("a server"), process=int(ended.stdout))
    write_note(path, note)
    assert read_note(path) is None
    elsewhere = replace(note, machine="another-machine")  # its processes cannot be seen from here
    write_note(path, elsewhere)
    assert read_note(path) == elsewhere


@pytest.mark.parametrize("content", ["", "[]", '{"process": 1}', json.dumps({"program": "x", "machine": "y"})])
def test_damaged_note_is_ignored(path, content, monkeypatch):
    monkeypatch.setattr("dish.index.index_file.LOCK_SECONDS", 0.0)
    note_path(path).write_text(content)
    with closing(IndexFile(path)), pytest.raises(FileInUseError, match="another process writes to this index"):
        IndexFile(path)


def test_note_that_cannot_be_written_stops_nobody(path):
    note_path(path).mkdir()
    with closing(IndexFile(path)) as file:
        file.sign("a server")
        file.write(HammingIndex(8).__getstate__())
    assert len(HammingIndex.load(path)) == 0
