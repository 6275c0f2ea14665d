"""`dish index`, `dish search` and `dish store`."""

import json

import numpy as np
import pytest

from helpers.codes import brute_nearest, make_codes


def test_index_and_search(cli, tmp_path):
    B = make_codes("clustered", 300, 24)
    names = np.array([f"n{i}" for i in range(300)])
    for name, array in {"B": B, "ids": names, "y": np.arange(300) % 4, "Q": B[:3]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    made = cli(
        "index", tmp_path / "B.npy", "-o", tmp_path / "ix.dish", "--ids", tmp_path / "ids.npy",
        "--labels", tmp_path / "y.npy",
    )  # fmt: skip
    assert made == (0, f"{tmp_path / 'ix.dish'}: 300 codes of 24 bits\n", "")
    code, out, _ = cli("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--k", 4, "--json")
    assert code == 0
    D, rows = brute_nearest(B[:3], B, 4)
    for i, line in enumerate(out.splitlines()):
        hits = json.loads(line)["hits"]
        assert [hit["id"] for hit in hits] == names[rows[i]].tolist()
        assert [hit["distance"] for hit in hits] == D[i].tolist()
        assert [hit["label"] for hit in hits] == (rows[i] % 4).tolist()
    code, out, _ = cli("search", tmp_path / "ix.dish", "--codes", tmp_path / "Q.npy", "--radius", 0)
    assert out.splitlines()[0].startswith("query 0: n0 (0, 0)")
    code, out, _ = cli("info", tmp_path / "ix.dish")
    assert "HammingIndex" in out


def test_errors_are_one_line_and_write_nothing(cli, tmp_path):
    B = make_codes("clustered", 300, 24)
    np.save(tmp_path / "B.npy", B)
    np.save(tmp_path / "floats.npy", np.ones((2, 3)))
    cli("index", tmp_path / "B.npy", "-o", tmp_path / "ix.dish")
    for message, call in {
        "packed codes are uint8": ("index", tmp_path / "floats.npy", "-o", tmp_path / "no.dish"),
        "3 bytes per row": ("index", tmp_path / "B.npy", "-o", tmp_path / "no.dish", "--bits", 64),
        "one of the inputs": ("index", tmp_path / "B.npy", "-o", tmp_path / "B.npy"),
        "no model file": ("search", tmp_path / "none.dish", "--codes", tmp_path / "B.npy"),
        "k must be": ("search", tmp_path / "ix.dish", "--codes", tmp_path / "B.npy", "--k", 0),
    }.items():
        code, _, err = cli(*call)
        assert (code, len(err.strip().splitlines())) == (2, 1)
        assert message in err
    assert not (tmp_path / "no.dish").exists()


@pytest.mark.postgres
def test_store(dsn, cli, monkeypatch, tmp_path):
    B = make_codes("clustered", 900, 64)
    for name, array in {"B": B, "y": np.arange(900) % 3, "Q": B[:2]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.setenv("DISH_DSN", dsn)
    push = ("store", "push", tmp_path / "B.npy", "--table", "from cli", "--labels", tmp_path / "y.npy")
    assert cli(*push) == (0, "from cli: 900 rows written, 900 there\n", "")
    assert cli(*push, "--resume")[1] == "from cli: 0 rows written, 900 there\n"
    code, _, err = cli(*push)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert "resume" in err
    search = ("store", "search", "--table", "from cli", "--codes", tmp_path / "Q.npy", "--k", 1)
    assert cli(*search)[:2] == (0, "query 0: 0 (0, 0)\nquery 1: 1 (0, 1)\n")
    code, _, err = cli(*search, "--dsn", f"host={tmp_path}")
    assert code == 2
    assert "cannot reach PostgreSQL" in err
