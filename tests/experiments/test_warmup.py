"""``dish warmup`` runs every part, says how long each took, and fails if one does."""

import pytest

from dish.experiments import warmup


def test_all_parts_run_and_are_reported(cli, monkeypatch):
    monkeypatch.setattr(warmup, "BEGIN", "")
    monkeypatch.setattr(warmup, "PARTS", {"one": "pass", "two": "print(1)"})
    code, out, _ = cli("warmup")
    assert code == 0
    assert [line.split(":")[0].strip() for line in out.splitlines()[1:3]] == ["one", "two"]
    assert "kept in" in out


def test_a_part_that_fails_is_named(monkeypatch):
    monkeypatch.setattr(warmup, "BEGIN", "")
    monkeypatch.setattr(warmup, "PARTS", {"broken": "raise KeyError('what')"})
    with pytest.raises(RuntimeError, match=r"(?s)broken failed.*KeyError: 'what'"):
        warmup.compile_all(print)


@pytest.mark.slow
def test_a_fit_after_warming_up_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    warmup._run("learning")
    kept = {path.name for path in tmp_path.rglob("*.nbc")}
    warmup._run("learning")
    assert {path.name for path in tmp_path.rglob("*.nbc")} == kept
    assert any("_scores" in name for name in kept)
