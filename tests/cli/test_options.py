"""Helpers that several commands share."""

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
