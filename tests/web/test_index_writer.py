"""Durable changes of an index: replay, files that belong together, and files that do not."""

import os
import shutil
from contextlib import closing

import numpy as np
import pytest

from dish import HammingIndex
from dish.errors import DishError, FileInUseError, FileReplacedError, JournalError, ModelMismatchError
from dish.index.index_file import read_mark
from dish.web.index_writer import IndexWriter, check_served_alone
from dish.web.journal import journal_path
from helpers.replay import replay

MODEL = "a" * 16


@pytest.fixture
def path(tmp_path):
    """An index of three items with integer ids."""
    index = HammingIndex(16, model=MODEL)
    index.add(np.arange(6, dtype=np.uint8).reshape(3, 2), ids=[0, 1, 2])
    index.save(tmp_path / "ix.dish")
    return tmp_path / "ix.dish"


def started(path, model=MODEL):
    writer = IndexWriter(path)
    try:
        writer.start(model)
    except BaseException:
        writer.release()
        raise
    return writer


def put(*ids):
    return {"ids": list(ids), "codes": "00ff" * len(ids), "labels": None}


@pytest.mark.slow
def test_random_sequences_agree_with_a_dictionary(tmp_path):
    """Set DISH_REPLAYS to run more of them."""
    kills = 0
    for seed in range(int(os.environ.get("DISH_REPLAYS", 8))):
        try:
            kills += replay(tmp_path / "r", seed)[0]
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert kills > 8


def test_index_that_was_empty_in_between_is_replayed(path):
    """Ids of both kinds in one journal."""
    writer = started(path)
    writer.change({"ids": [0, 1, 2]})
    writer.change(put("a"))
    writer.release()  # killed
    writer = started(path)
    writer.change(put("b", "c"))
    writer.change({"ids": ["a"]})
    writer.release()  # killed
    with closing(started(path)) as writer:
        assert writer.index.ids.tolist() == ["b", "c"]


@pytest.mark.parametrize("damage", ["missing", "empty", "one byte", "older"])
@pytest.mark.parametrize("writable", [True, False])
def test_lost_journal_is_not_overlooked(path, damage, writable, cli):
    writer, journal = started(path), journal_path(path)
    shutil.copy(journal, path.with_name("older"))
    writer.change(put(7))
    writer.compact()
    writer.change(put(8))
    writer.release()  # killed
    journal.with_name(journal.name + "-wal").unlink(missing_ok=True)
    if damage == "missing":
        journal.unlink()
    elif damage == "older":
        os.replace(path.with_name("older"), journal)
    else:
        os.truncate(journal, 0 if damage == "empty" else 1)
    with pytest.raises(JournalError, match=r"ix\.dish\.journal\.db .*--discard-journal"):
        IndexWriter(path) if writable else check_served_alone(path)
    code, out, _ = cli("index", "-o", path, "--discard-journal")  # as the message says
    assert (code, "4 codes" in out) == (0, True)
    with closing(started(path)) as writer:
        assert writer.index.ids.tolist() == [0, 1, 2, 7]


@pytest.mark.parametrize("n_bits", [16, 8])
def test_journal_is_not_replayed_onto_another_index(path, n_bits):
    writer = started(path)
    writer.change(put(7))
    writer.release()  # killed
    path.unlink()
    other = HammingIndex(n_bits, model="b" * 16)
    other.save(path)
    whole = path.read_bytes()
    with pytest.raises(JournalError, match="1 changes to another index file"):
        started(path, "b" * 16)
    with pytest.raises(JournalError, match="1 changes to another index file"):
        check_served_alone(path)
    assert path.read_bytes() == whole


def test_journal_is_not_replayed_by_another_model(path):
    index = HammingIndex.load(path)
    index.model = None  # unknown: only the journal knows the model
    index.save(path)
    writer = started(path)
    writer.change(put(7))
    writer.release()  # killed
    with pytest.raises(ModelMismatchError, match="journal"):
        started(path, "b" * 16)
    with closing(started(path)) as writer:
        assert 7 in writer.index


@pytest.mark.parametrize("end", ["close", "release"])
def test_first_codes_name_the_model_of_an_index_without_one(path, end):
    index = HammingIndex.load(path)
    index.model = None
    index.save(path)
    with closing(started(path, "c" * 16)) as writer:  # adds nothing
        writer.change({"ids": [2]})
    assert HammingIndex.load(path).model is None
    writer = started(path)
    writer.change(put(7))
    getattr(writer, end)()  # or killed
    with pytest.raises(ModelMismatchError):
        started(path, "b" * 16) if end == "release" else HammingIndex.load(path).check_model("b" * 16)
    with closing(started(path)) as writer:
        assert writer.index.model == MODEL
    assert HammingIndex.load(path).model == MODEL


@pytest.mark.parametrize("how", ["replaced", "overwritten"])
def test_index_that_was_replaced_is_left_as_it_is(path, how):
    new = HammingIndex(16, model=MODEL)
    new.add(np.zeros((5, 2), np.uint8))
    new.save(path.with_name("new"))
    writer = started(path)
    writer.change(put(7))
    (os.replace if how == "replaced" else shutil.copyfile)(path.with_name("new"), path)
    with pytest.raises(FileReplacedError, match=r"ix\.dish was replaced"):
        writer.change(put(8))
    with pytest.raises(FileReplacedError, match=r"ix\.dish was replaced"):
        writer.close()
    assert len(HammingIndex.load(path)) == 5
    with pytest.raises(JournalError, match="1 changes to another index file"):  # they are not lost
        IndexWriter(path)


def test_replaced_index_without_changes_is_served_next(path):
    writer = started(path)
    new = HammingIndex(16)
    new.save(path.with_name("new"))
    os.replace(path.with_name("new"), path)
    writer.close()
    with closing(started(path)) as writer:
        assert len(writer.index) == 0


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_second_writer_through_a_link_is_refused(path, link):
    link(path, path.with_name("link"))
    with closing(started(path)):
        for name in ("link", "ix.dish"):
            with pytest.raises(FileInUseError, match="is in use"):
                IndexWriter(path.with_name(name))
            with pytest.raises(DishError, match="is in use"):
                check_served_alone(path.with_name(name))


def test_clean_end_leaves_one_file(path):
    with closing(started(path)) as writer:
        assert read_mark(path).open
        writer.change(put(7))
    assert [file.name for file in path.parent.iterdir()] == ["ix.dish"]
    assert not read_mark(path).open
    before = path.stat()
    check_served_alone(path)
    assert path.stat() == before
    assert [file.name for file in path.parent.iterdir()] == ["ix.dish"]


def test_killed_writer_without_changes_does_not_stop_a_read_only_server(path):
    started(path).release()

    def written():  # when; reading may change the time of the last access
        return {file.name: file.stat().st_mtime_ns for file in path.parent.iterdir()}

    before = written()
    check_served_alone(path)
    assert written() == before
    writer = started(path)
    writer.change(put(7))
    writer.release()
    with pytest.raises(JournalError, match="start once with --writable"):
        check_served_alone(path)


def test_missing_index_gets_no_journal(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no index file .*ix\.dish"):
        IndexWriter(tmp_path / "ix.dish")
    assert not list(tmp_path.iterdir())
