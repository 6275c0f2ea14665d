"""Helpers that several commands share."""

import numpy as np
import pytest

from dish.cli.options import check_writable
from dish.errors import InputError


def test_rejects_outputs_that_cannot_be_written(tmp_path):
    (tmp_path / "shards").mkdir()
    check_writable(tmp_path / "m.dish", tmp_path / "X.npy", None)
    for path, inputs, message in (
        (tmp_path / "X.npy", (tmp_path / "X.npy",), "it is one of the inputs"),
        (tmp_path, (), "it is a folder"),
        (tmp_path / "shards" / "m.dish", (tmp_path / "shards",), "inside the input"),
        (tmp_path / "none" / "m.dish", (), "does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            check_writable(path, *inputs)


def test_a_missing_index_is_called_an_index(cli, tmp_path):
    gone = tmp_path / "gone.npy"
    np.save(gone, np.arange(3))
    nope = tmp_path / "nope.dish"
    for command in (
        ("search", nope, "--codes", gone),
        ("index", "-o", nope, "--remove", gone),
        ("alias", "set", tmp_path / "a.alias", "--model", nope, "--index", nope),
        ("serve", "--model", nope, "--index", nope),
    ):
        code, _, err = cli(*command)
        assert (code, f"there is no index {nope}: make one with `dish index`" in err) == (2, True), err


def test_vectors_in_a_table_are_refused_with_the_way_to_write_them(cli, tmp_path):
    code, _, err = cli("search", tmp_path, "--codes", "q.npy", "--vectors", "products.parquet")
    assert (code, "--save-vectors" in err) == (2, True), err
