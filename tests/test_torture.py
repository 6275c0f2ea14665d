"""The runner of the torture tests detects scripts that fail, hang, or write no result."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("torture_run", Path(__file__).parent / "torture" / "run.py")
runner = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runner)

WRITE = "import sys, pathlib; pathlib.Path(sys.argv[-1]).write_text('{\"n\": 3}')\n"


@pytest.mark.long
def test_failing_scripts_are_detected(tmp_path):
    scripts = {"good": WRITE, "bad": WRITE + "sys.exit(1)", "silent": "", "hangs": "import time; time.sleep(600)"}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    results = runner.torture(tmp_path, dict.fromkeys([*scripts, "absent"], 0.05), 60.0, grace=5)
    assert {name: result["ok"] for name, result in results.items()} == {
        **{"good": True, "bad": False, "silent": False, "hangs": False, "absent": False}
    }
    assert results["good"]["found"] == {"n": 3}
    assert "stopped after" in results["hangs"]["exit"]
