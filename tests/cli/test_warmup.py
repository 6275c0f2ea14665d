"""`dish warmup` runs every part, reports its time, and names a part that fails."""

import functools

import pytest

from dish.cli import warmup

QUICK = functools.partial(int, "1")


def fail():
    raise KeyError("what")


@pytest.mark.slow
def test_all_parts_run_and_are_reported(cli, monkeypatch):
    monkeypatch.setattr(warmup, "PARTS", {"one": QUICK, "two": QUICK})
    code, out, _ = cli("warmup")
    assert code == 0
    assert {line.split(":")[0].strip() for line in out.splitlines()[1:3]} == {"one", "two"}  # as they end
    assert "kept in" in out


@pytest.mark.slow
def test_a_failing_part_is_named(capfd):
    with pytest.raises(RuntimeError, match=r"compiling the kernels for 'broken' failed"):
        warmup.compile_all({"broken": functools.partial(int, "x")}, print)


@pytest.mark.long
def test_fit_after_warmup_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    part = {"fit": warmup.PARTS["fit, float32"]}
    warmup.compile_all(part, print)
    kept = {path.name for path in tmp_path.rglob("*.nbc")}
    warmup.compile_all(part, print)
    assert {path.name for path in tmp_path.rglob("*.nbc")} == kept
    assert any("_scores" in name for name in kept)
