"""Which numbers of the paper are measured."""

import dataclasses
import json

from dish.experiments import coverage, paper


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_every_number_is_counted_once_in_its_best_place(small, tmp_path, monkeypatch):
    lines = (
        *small.lines[:2],  # two MAPs and a time each; the first also a MAP with learned codes
        paper.Line("Cosine", "l2", None, (0.3, 0.3), bits=(8,)),
        paper.Line("SDH", "sdh", None, (0.4, 0.5), missing="too slow"),
        paper.Line("Ours", "dish", None),
    )
    table = dataclasses.replace(small, lines=lines, elsewhere=("mediamill",))
    monkeypatch.setattr(paper, "TABLES", {"table1": table})
    synthetic = {"definition": {"synthetic": True}, "map": 0.5, "fit_s": 1.0}
    write(table.run(lines[0], 8, 0).path(tmp_path / "runs"), {**synthetic, "definition": {"synthetic": False}})
    write(table.run(lines[0], 12, 1).path(tmp_path / "runs"), synthetic)
    write(table.run(lines[3], 12, 0).path(tmp_path / "runs"), {"definition": {"synthetic": False}, "failed": "no"})
    runs = [
        {"method": "cosine", "bits": None, "protocol": "trained on", "map": 0.2},
        {"method": "dish_k", "bits": 12, "protocol": "trained on", "map": 0.2},
        {"method": "sdh", "bits": 8, "protocol": "disjoint", "map": 0.2},
    ]
    write(tmp_path / "real" / "mediamill.json", {"runs": runs})
    text = coverage.markdown(tmp_path / "runs")
    assert "| Table 1 | 10 | 1 | 2 | 1 | 6 |" in text
    assert "| all | 10 | 1 | 2 | 1 | 6 |" in text
    assert "| Table 1 | DISH-K, all rows | 8 bits | 12 bits | time | learned codes: not run yet |" in text
    assert "| Table 1 | Cosine, all rows | – | MAP | – | – |" in text
    assert "| Table 1 | SDH, all rows | – | – | – | 8, 12 bits: too slow |" in text
    assert "| Table 1 | Other, all rows | – | – | – | 8, 12 bits, time: not run yet |" in text
    assert "Ours" not in text


def test_missing_cells_of_networks_have_a_reason(small, tmp_path, monkeypatch):
    table = dataclasses.replace(small, deep=True)
    monkeypatch.setattr(paper, "TABLES", {"table1": table})
    assert "not run yet, needs a GPU |" in coverage.markdown(tmp_path)
    monkeypatch.setattr(paper, "TABLES", {"table1": dataclasses.replace(table, data="nuswide_images")})
    assert "we could not obtain the images of NUS-WIDE |" in coverage.markdown(tmp_path)
