"""How commands end: bad input with one line and code 2, bugs with a way to report them and code 1."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dish import DISH
from dish.errors import RankError
from dish.io import modelfile


@pytest.fixture
def files(tmp_path, blobs):
    for name, array in zip(("X", "y"), blobs, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def fit(files):
    return "fit", files / "X.npy", files / "y.npy", "-o", files / "m.dish", "--anchors", 20, "--bits", 8


@pytest.mark.parametrize("kind", [TypeError, IndexError, RuntimeError, AttributeError, KeyError, ZeroDivisionError])
def test_a_bug_is_not_passed_off_as_bad_input(cli, files, monkeypatch, kind):
    def bug(*_, **__):
        raise kind("something inside")

    monkeypatch.setattr(DISH, "fit", bug)
    monkeypatch.delenv("DISH_DEBUG", raising=False)
    code, _, err = cli(*fit(files))
    assert code == 1
    assert f"unexpected {kind.__name__}" in err
    assert "something inside" in err
    assert "DISH_DEBUG=1" in err
    assert len(err.strip().splitlines()) == 1
    monkeypatch.setenv("DISH_DEBUG", "1")
    code, _, err = cli(*fit(files))
    assert code == 1
    assert "Traceback" in err
    assert "in bug" in err


def test_debug_shows_where_bad_input_was_found(cli, files, monkeypatch):
    monkeypatch.setenv("DISH_DEBUG", "1")
    code, _, err = cli("fit", files / "none.npy", files / "y.npy", "-o", files / "m.dish")
    assert code == 2
    assert "Traceback" in err
    assert err.strip().splitlines()[-1].startswith("dish: ")


@pytest.mark.parametrize("kind", [TypeError, RuntimeError])
def test_what_dish_refuses_on_purpose_is_bad_input(kind):
    from dish.cli.errors import is_expected
    from dish.hasher import Hasher

    with pytest.raises(TypeError) as caught:
        Hasher()._decision_values(np.zeros((1, 1)))
    assert is_expected(caught.value)
    assert is_expected(RankError("gone"))
    with pytest.raises(kind) as caught:
        raise kind("from a test, not from dish")
    assert not is_expected(caught.value)


def test_errors_of_the_database_driver_are_one_line(cli, tmp_path, monkeypatch):
    psycopg = pytest.importorskip("psycopg")
    from dish.stores import postgres

    def lost(*_, **__):
        raise psycopg.OperationalError("server closed the connection unexpectedly\n\tThis probably means …")

    monkeypatch.setattr(postgres, "PostgresStore", lost)
    np.save(tmp_path / "c.npy", np.zeros((3, 2), np.uint8))
    code, _, err = cli("store", "push", tmp_path / "c.npy", "--dsn", "postgresql://nowhere", "--table", "t")
    assert code == 2
    assert "server closed the connection" in err
    assert len(err.strip().splitlines()) == 1


def test_a_damaged_npy_header_is_one_line(cli, files):
    whole = (files / "X.npy").read_bytes()
    for old, new in ((b"(120,", b"((((,"), (b"}", b"'"), (b"120", b"9e9")):
        damaged = whole.replace(old, new, 1)
        assert damaged != whole
        (files / "X.npy").write_bytes(damaged)
        code, _, err = cli(*fit(files))
        assert (code, "X.npy is not a .npy file" in err) == (2, True), err
        assert len(err.strip().splitlines()) == 1


def test_a_model_whose_parts_do_not_fit_is_one_line(cli, files):
    """A whole file with a right checksum whose arrays are of other shapes."""
    assert cli(*fit(files), "-q")[0] == 0
    kind, content, arrays = modelfile.read(files / "m.dish")
    for name in ("posterior_B_", "frame_", "anchors_"):
        crafted = arrays | {name: arrays[name][:3, :2]}
        modelfile.save(files / "crafted.dish", kind, content, crafted)
        code, _, err = cli("encode", files / "crafted.dish", files / "X.npy", "-o", files / "c.npy")
        assert (code, "crafted.dish" in err) == (2, True), err
        assert len(err.strip().splitlines()) == 1
    assert not (files / "c.npy").exists()


def test_help_is_quick_to_load():
    program = "import sys, dish.cli; print(json.dumps([m for m in HEAVY if m in sys.modules]))"
    program = f"import json; HEAVY = ['torch', 'numba', 'sklearn', 'scipy', 'fastapi', 'pyarrow']; {program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_help_names_the_extra_that_is_needed(cli):
    assert "pip install 'dish-hash[serve]'" in " ".join(cli("serve", "--help")[1].split())
    assert "dish-hash[serve]" in cli("--help")[1]
