"""`dish tune` prints the trials and the command to fit with."""

import json

import numpy as np

from dish.evaluation import tune


def test_tune_prints_the_recommended_command(cli, digits, tmp_path, monkeypatch):
    X, y, *_ = digits
    np.savez(tmp_path / "d.npz", X=X[:300], y=y[:300])
    monkeypatch.setattr(tune, "CANDIDATES", {"n_bits": (16,), "n_anchors": (50,)})
    code, out, err = cli("tune", tmp_path / "d.npz", "--picture", tmp_path / "t.svg", "--minutes", 5)
    assert code == 0, err
    assert "recommended: dish fit" in out
    assert "--bits" in out
    assert "</svg>" in (tmp_path / "t.svg").read_text()
    code, out, _ = cli("tune", tmp_path / "d.npz", "--json", "--minutes", 0.0001)
    assert json.loads(out)["params"] == {"n_bits": 64}
