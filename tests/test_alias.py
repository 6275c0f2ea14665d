"""Aliases: what is verified, what is refused, rollback."""

import json
import os
import shutil
from contextlib import closing

import numpy as np
import pytest

from dish import DISH, HammingIndex
from dish.alias import Alias, CollectionFiles, verify
from dish.errors import DataFileError, DishError, InputError, ModelFileError, ModelMismatchError
from dish.index.index_file import IndexFile, JournalMark

N = 300


@pytest.fixture(scope="module")
def made(tmp_path_factory, digits):
    """A folder with two collections, 1 and 2, and float vectors."""
    folder, (X, y, _, _) = tmp_path_factory.mktemp("alias"), digits
    X, y = X[:N], y[:N]
    for i in (1, 2):
        hasher = DISH(n_bits=32, n_anchors=40 + i, random_state=i).fit(X, y)
        hasher.save(folder / f"m{i}.dish")
        index = HammingIndex(32, model=hasher.fingerprint_)
        index.add(hasher.transform(X), ids=[f"{i}-{row}" for row in range(N)])
        index.save(folder / f"ix{i}.dish")
        np.save(folder / f"ids{i}.npy", index.ids.astype(str))
    np.save(folder / "x.npy", X)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of the folder."""
    return shutil.copytree(made, tmp_path / "files")


def files(folder, i, **others):
    return CollectionFiles(folder / f"m{i}.dish", folder / f"ix{i}.dish", **others)


def test_set_and_roll_back(folder, monkeypatch):
    alias = Alias(folder / "p.alias")
    first = alias.set(files(folder, 1))
    assert (first.items, first.n_bits, first.kind) == (N, 32, "DISH")
    assert alias.entries()[1] is None
    with pytest.raises(InputError, match="no earlier collection"):
        alias.roll_back()
    alias.set(files(folder, 2))
    assert (alias.files, alias.entries()[1].files(folder)) == (files(folder, 2), files(folder, 1))
    alias.set(files(folder, 2))  # changes nothing: the collection for rollback stays
    assert alias.entries()[1].files(folder) == files(folder, 1)
    assert alias.roll_back() == first
    assert (alias.files, alias.entries()[1].files(folder)) == (files(folder, 1), files(folder, 2))
    alias.roll_back()
    assert alias.files == files(folder, 2)


def test_relative_paths_start_at_the_alias(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Alias("files/p.alias").set(CollectionFiles("files/m1.dish", "files/ix1.dish"))
    content = json.loads((folder / "p.alias").read_text())
    assert (content["current"]["model"], content["current"]["index"]) == ("m1.dish", "ix1.dish")
    folder.rename(tmp_path / "moved")
    moved = Alias(tmp_path / "moved" / "p.alias")
    assert verify(moved.files).items == N
    os.symlink(tmp_path / "moved" / "p.alias", tmp_path / "link.alias")
    assert Alias("link.alias").files == moved.files


def damaged(folder):
    data = bytearray((folder / "ix2.dish").read_bytes())
    data[-5] ^= 1
    (folder / "ix2.dish").write_bytes(data)


def of_another_model(folder):
    shutil.copy(folder / "ix1.dish", folder / "ix2.dish")


def of_other_bits(folder):
    index = HammingIndex(16)
    index.add(np.zeros((3, 2), np.uint8))
    index.save(folder / "ix2.dish")


def in_use(folder):
    return IndexFile(folder / "ix2.dish")


def unsettled(folder):
    """As a killed writable server leaves it."""
    index = HammingIndex.load(folder / "ix2.dish")
    with closing(IndexFile(folder / "ix2.dish")) as file:
        file.write(index.__getstate__(), JournalMark("1", open=True))


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (damaged, ModelFileError, r"ix2\.dish is damaged"),
        (of_another_model, ModelMismatchError, "another|of the model"),
        (of_other_bits, InputError, "32 bits, those of the index 16"),
        (lambda folder: (folder / "m2.dish").unlink(), FileNotFoundError, r"m2\.dish"),
        (lambda folder: (folder / "ix2.dish").unlink(), FileNotFoundError, r"ix2\.dish"),
        (lambda folder: shutil.copy(folder / "m2.dish", folder / "ix2.dish"), ModelFileError, "not an index"),
        (in_use, ModelFileError, "in use"),
        (unsettled, ModelFileError, "journal"),
    ],
)
def test_what_is_refused_leaves_the_alias(folder, spoil, error, message):
    alias = Alias(folder / "p.alias")
    alias.set(files(folder, 1))
    before = alias.path.read_bytes()
    held = spoil(folder)
    with pytest.raises(error, match=message):
        alias.set(files(folder, 2))
    assert alias.path.read_bytes() == before
    if isinstance(held, IndexFile):
        held.close()


def test_roll_back_verifies_too(folder):
    alias = Alias(folder / "p.alias")
    alias.set(files(folder, 2))
    alias.set(files(folder, 1))
    damaged(folder)
    with pytest.raises(ModelFileError, match="damaged"):
        alias.roll_back()
    assert alias.files == files(folder, 1)


def test_vectors_must_fit(folder):
    alias = Alias(folder / "p.alias")
    with pytest.raises(InputError, match="without ids"):
        alias.set(files(folder, 1, vectors=folder / "x.npy"))
    with pytest.raises(InputError, match="no vector of the item '1-0'"):
        alias.set(files(folder, 1, vectors=folder / "x.npy", vector_ids=folder / "ids2.npy"))
    np.save(folder / "wide.npy", np.zeros((N, 65)))
    with pytest.raises(InputError, match=r"65 numbers, but the model takes vectors of 64"):
        alias.set(files(folder, 1, vectors=folder / "wide.npy", vector_ids=folder / "ids1.npy"))
    with pytest.raises(InputError, match="give the vectors"):
        files(folder, 1, vector_ids=folder / "ids1.npy")
    assert not alias.path.exists()
    given = files(folder, 1, vectors=folder / "x.npy", vector_ids=folder / "ids1.npy")
    alias.set(given)
    assert alias.files == given


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"format": "dish-alias", "version": 9, "current": null, "previous": null}',
        b'{"format": "dish-alias", "version": 1, "current": null, "previous": null}',
        b'{"format": "dish-alias", "version": 1, "current": {"model": "m", "since": ""}, "previous": null}',
        b'{"format": "dish-alias", "version": 1, "current": {"model": 1, "index": "i", "since": ""}, "previous": 0}',
        b'{"format": "dish-alias", "version": 1, "current": [1], "previous": null}',
    ],
)
def test_damaged_alias_is_named(tmp_path, text):
    (tmp_path / "p.alias").write_bytes(text)
    with pytest.raises(DataFileError, match=r"p\.alias is not an alias"):
        Alias(tmp_path / "p.alias").entries()
    with pytest.raises(DishError):
        Alias(tmp_path / "p.alias").set(CollectionFiles("m", "i"))


def test_missing_alias_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="dish alias set"):
        Alias(tmp_path / "p.alias").entries()
    with pytest.raises(DataFileError, match="not an alias"):
        Alias(tmp_path).entries()
