"""`dish bench` and `dish reproduce`."""

import csv
import dataclasses
import json

import numpy as np
import pytest

from dish import metrics
from dish.experiments import paper
from helpers.nuswide import write_nuswide


def features(folder, separation):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    folder.mkdir()
    np.save(folder / "features.npy", rng.standard_normal((600, 8)) + separation * rng.standard_normal((3, 8))[y])
    np.save(folder / "features_labels.npy", y)
    return folder / "features.npy"


def test_two_files_with_the_same_name_have_separate_results(cli, tmp_path):
    shown = {}
    for name, separation in (("a", 3.0), ("b", 0.05)):
        path = features(tmp_path / name, separation)
        arguments = ("bench", "--data", path, "--methods", "lsh", "--bits", "16", "--results", tmp_path / "runs")
        code, shown[name], _ = cli(*arguments)
        assert code == 0
    line = {name: next(line for line in text.splitlines() if "lsh" in line) for name, text in shown.items()}
    assert line["a"] != line["b"]
    code, again, errors = cli(*arguments)
    assert (code, again) == (0, shown["b"])
    assert "1 finished runs reused (--force to run again)" in errors


def test_dry_run_runs_nothing(cli, tmp_path):
    arguments = ("bench", "--data", "digits", "--methods", "lsh,sh", "--bits", "8,16", "--results", tmp_path / "runs")
    code, out, _ = cli(*arguments, "--dry-run")
    assert code == 0
    assert "4 runs to do, 0 finished runs reused" in out
    assert "no estimate for the other 4" in out
    assert not (tmp_path / "runs").exists()
    code, out, _ = cli("reproduce", "sensitivity", "--trials", "5", "--results", tmp_path / "runs", "--dry-run")
    assert (code, "95 runs to do" in out) == (0, True)


def test_tables_with_an_own_class(cli, tmp_path, monkeypatch):
    (tmp_path / "my_module.py").write_text("from dish.baselines.lsh import LSH\nclass MyHasher(LSH): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    common = ("bench", "--methods", "lsh,my_module:MyHasher", "--bits", "8,16", "--results", tmp_path / "runs")
    for ending in ("csv", "md", "tex"):
        code, out, errors = cli(*common, "--table", tmp_path / f"t.{ending}")
        assert code == 0, errors
    with (tmp_path / "t.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines] == ["lsh"] * 2 + ["my_module:MyHasher"] * 2
    assert lines[0]["map"] == lines[2]["map"]
    shown = f"{float(lines[1]['map']):.3f}"
    assert f" {shown} |" in (tmp_path / "t.md").read_text()
    assert f"& \\textbf{{{shown}}} &" in (tmp_path / "t.tex").read_text()
    assert shown in out
    for name in ("cosine of the floats", "float ceiling"):  # in every table
        assert name in out
        assert name in (tmp_path / "t.md").read_text()
    code, _, errors = cli(*common, "--table", tmp_path / "t.xls")
    assert (code != 0, ".md, .tex, .csv" in errors) == (True, True)
    code, _, errors = cli("bench", "--methods", "my_module:Nothing")
    assert (code != 0, "has no Nothing" in errors) == (True, True)


@pytest.mark.slow
def test_figure_of_precision_and_recall(cli, tmp_path):
    options = ("bench", "--bits", "8,16", "--results", tmp_path / "runs")
    for ending, start in (("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")):
        code, out, err = cli(*options, "--methods", "lsh,sh,l2", "--figure", tmp_path / f"pr.{ending}")
        assert code == 0, err
        assert "pr." in out.split("written:")[1]
        assert (tmp_path / f"pr.{ending}").read_bytes().startswith(start)
    svg = (tmp_path / "pr.svg").read_text()
    for text in ("digits", "LSH", "SH", "recall (8 bits)", "recall (16 bits)", "precision"):
        assert f">{text}</text>" in svg
    for given, says in (
        (("--methods", "lsh", "--figure", tmp_path / "pr.jpg"), "--figure must end in .pdf, .svg, .png"),
        (("--methods", "lsh", "--figure", tmp_path / "none" / "pr.pdf"), "does not exist"),
        (("--methods", "l2", "--figure", tmp_path / "pr.pdf"), "--figure needs a method with codes"),
    ):
        code, _, err = cli(*options, *given)
        assert (code, says in err) == (2, True), err


def test_failed_method_is_reported_and_the_others_run(cli, tmp_path, monkeypatch):
    lines = (
        "from dish.baselines.lsh import LSH",
        "class Broken(LSH):",
        "    def fit(self, X, y=None): raise OSError('off')",
    )
    (tmp_path / "broken_module.py").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = cli("bench", "--methods", "broken_module:Broken,lsh", "--bits", 8, "--results", tmp_path / "runs")
    assert code == 1
    assert "OSError: off" in out.replace("\n", "")
    assert any("map" in json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("*lsh*.json"))


def test_table_with_a_failed_run_is_written_and_reported(cli, tmp_path, monkeypatch):
    lines = (paper.Line("LSH", "lsh", None, (0.5,)), paper.Line("Broken", "lsh", None, (0.5,), params=(("typo", 1),)))
    table = paper.PaperTable("Table 1. digits: MAP", "digits", (8,), 8, lines)
    monkeypatch.setattr(paper, "TABLES", {"table1": table})
    arguments = ("reproduce", "table1", "--trials", "1", "-o", tmp_path / "out", "--results", tmp_path / "runs")
    code, out, _ = cli(*arguments)
    assert code == 1
    assert "typo" in out.split("failed: ")[1]
    assert "LSH" in (tmp_path / "out" / "table1.md").read_text()
    monkeypatch.setattr(paper, "TABLES", {"table1": paper.PaperTable(table.title, "digits", (8,), 8, lines[:1])})
    assert cli(*arguments)[0] == 0


@pytest.mark.parametrize("source", ["X.npy", "both.npz", "t.parquet", "t.csv"])
def test_bench_reads_all_file_types(cli, tmp_path, blobs, source):
    X, y = np.repeat(blobs[0], 3, axis=0), np.repeat(blobs[1], 3)  # a split takes 100 queries per class
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", X=X, y=y)
    np.savetxt(tmp_path / "t.csv", np.column_stack([X, y]), delimiter=",", header="a,b,c,d,e,f,label", comments="")
    if source == "t.parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"v": list(X), "label": y}), tmp_path / source)
    call = ("bench", "--data", tmp_path / source, "--methods", "l2", "--bits", 8, "--results", tmp_path / "runs")
    if source == "X.npy":
        assert "--labels" in "".join(cli(*call[:-1], tmp_path / "failed")[1:])
        call += ("--labels", tmp_path / "y.npy")
    code, _, err = cli(*call)
    assert code == 0, err
    (run,) = (tmp_path / "runs").rglob("*.json")
    assert json.loads(run.read_text())["map"] > 0.9


def test_bench_takes_a_split_and_columns(tmp_path, digits, cli):
    pd = pytest.importorskip("pandas")
    X, y, *_ = digits
    pd.DataFrame({"embedding": list(X[:400]), "topic": y[:400]}).to_parquet(tmp_path / "d.parquet")
    np.save(tmp_path / "split.npy", np.array(["train", "train", "database", "query"] * 100))
    data = ["--data", tmp_path / "d.parquet", "--x-column", "embedding", "--y-column", "topic"]
    lsh = ["--methods", "lsh", "--bits", 16, "--split", tmp_path / "split.npy", "--results", tmp_path / "r"]
    code, out, err = cli("bench", *data, *lsh)
    assert code == 0, err
    assert "lsh" in out
    assert cli("bench", "--data", "digits", *lsh)[0] == 2


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda X, y: (np.where(np.arange(len(X))[:, None] == 7, np.nan, X), y),
            "1 of 360 rows without a complete vector (row 7,",
        ),
        (lambda X, y: (X, np.where(np.arange(len(y)) == 5, np.nan, y)), "1 of 360 rows without a label (row 5,"),
        (lambda X, y: (X, 2 * np.eye(3, dtype=int)[y]), "only 0 and 1"),
        (lambda X, y: (X[:, 0], y), "must hold a matrix"),
        (lambda X, y: (X, y[:50]), "its labels have shape (50,)"),
        (lambda X, y: (X[:1], y[:1]), "class 0 has 1 rows"),
        (lambda X, y: (X.astype(str), y), "must hold a matrix of numbers"),
    ],
)
def test_bad_data_are_refused_once_and_not_by_every_run(cli, tmp_path, damage, says):
    X, y = damage(np.random.default_rng(0).normal(size=(360, 4)), np.arange(360) % 3)
    np.savez(tmp_path / "d.npz", X=X, y=y)
    code, _, err = cli("bench", "--data", tmp_path / "d.npz", "--methods", "lsh", "--results", tmp_path / "runs")
    assert (code, says in err, (tmp_path / "runs").exists()) == (2, True, False), err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--trials", 0), "--trials"),
        (("--top", 0), "--top"),
        (("--bits", "0"), "--bits must be comma-separated whole numbers above 0"),
        (("--bits", "²"), "--bits must be comma-separated whole numbers above 0"),
        (("--train", "0"), "--train must be comma-separated whole numbers above 0"),
        (("--dry-run", "--table", "t.md"), "--dry-run writes no --table"),
        (("--dry-run", "--figure", "t.pdf"), "--dry-run writes no --figure"),
    ],
)
def test_bad_options_of_bench_are_refused_in_one_line(cli, tmp_path, options, says):
    code, _, err = cli("bench", "--methods", "lsh", "--results", tmp_path / "runs", *options)
    assert (code, says in err, len(err.strip().splitlines())) == (2, True, 1), err


@pytest.mark.slow
def test_table2_on_the_official_folder_of_nuswide(cli, tmp_path):
    """2,100 queries as in the paper: 100 for each of the 21 concepts; images without any of these are dropped."""
    rng = np.random.default_rng(0)
    Y = (rng.random((2600, 23)) < 0.3).astype(int)
    Y[:, 21:] = 0
    Y[np.arange(2600), np.arange(2600) % 21] = 1
    Y[:50] = 0
    write_nuswide(tmp_path / "nus", Y, rng.poisson(0.2 + Y @ rng.random((23, 500)) / 10))
    call = ("reproduce", "table2", "--data", tmp_path / "nus", "--methods", "lsh,dish_k", "--bits", "16")
    folders = ("--results", tmp_path / "runs", "-o", tmp_path / "out")
    code, out, err = cli(*call, "--trials", 1, *folders)
    assert code == 0, err
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("*.json")]
    assert {run["definition"]["method"] for run in runs} == {"lsh", "dish_k"}
    for run in runs:
        assert (run["n_queries"], run["n_database"]) == (2100, 2600 - 50 - 2100)
        assert (run["definition"]["synthetic"], run["definition"]["centred"]) == (False, False)
        assert f"{run['map']:.3f}" in out
    assert "stand-in]" not in out
    assert cli(*call, "--trials", 1, *folders, "--dry-run")[1].startswith("0 runs to do, 2 finished runs reused")


@pytest.mark.slow
def test_table7_follows_the_protocol_of_imagenet(cli, tmp_path, monkeypatch):
    """Mean of the training rows subtracted, then unit length; all queries, the whole database; drawn or all rows."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 400)
    X = (9 + rng.normal(size=(400, 24)) + rng.normal(size=(6, 24))[y]).astype(np.float32)
    roles = np.where(np.arange(400) < 320, "train", "query")
    for name, array in {"X": X, "y": y, "split": roles}.items():
        np.save(tmp_path / f"{name}.npy", array)
    table = paper.TABLES["table7"]
    lines = tuple(dataclasses.replace(line, n_train=line.n_train and 120) for line in table.lines)
    monkeypatch.setitem(paper.TABLES, "table7", dataclasses.replace(table, lines=lines))
    files = ("--data", tmp_path / "X.npy", "--labels", tmp_path / "y.npy", "--split", tmp_path / "split.npy")
    folders = ("--results", tmp_path / "runs", "-o", tmp_path / "out")
    methods = ("--methods", "l2,lsh,dish_k", "--bits", "128", "--trials", 1)
    code, out, err = cli("reproduce", "table7", *files, *methods, *folders)
    assert code == 0, err
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("*.json")]
    found = {(run["definition"]["method"], run["definition"]["n_train"]): run for run in runs}
    assert {("l2", 120), ("lsh", 120), ("dish_k", 120), ("dish_k", None)} == set(found)
    assert len(runs) == 5  # DISH-K also with 4,000 anchors
    assert {(run.get("n_queries", 80), run.get("n_database", 320)) for run in runs} == {(80, 320)}
    train = roles == "train"
    unit = X - X[train].mean(axis=0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    expected = metrics.l2_mean_average_precision(unit[~train], y[~train], unit[train], y[train])
    assert found["l2", 120]["map"] == pytest.approx(expected, abs=1e-4)
    assert f"| Cosine of the floats | 120 | 1 | {expected:.3f} (0.306) |" in out
    assert "| DISH-K-Full | all | 1 |" in out


def test_a_single_cell_of_a_table(cli, tmp_path):
    options = ("--methods", "dish_k", "--bits", "32", "--train", "5000", "--trials", "1", "--results", tmp_path)
    code, out, _ = cli("reproduce", "table1", *options, "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "2 runs to do, 0 finished runs reused")  # DISH-K, and as printed
    code, _, err = cli("reproduce", "table1", "--methods", "magic", "--results", tmp_path)
    assert (code, "methods must be among l2" in err) == (2, True)
    code, _, err = cli("reproduce", "table1", "--dry-run", "--page", tmp_path / "page.md")
    assert (code, "--dry-run writes no --page" in err) == (2, True)


def test_coverage_is_printed_or_written_into_a_page(cli, tmp_path):
    code, out, _ = cli("reproduce", "coverage", "--results", tmp_path / "runs")
    assert (code, "| all | 182 | 0 | 0 | 0 | 182 |" in out) == (0, True)
    page = tmp_path / "page.md"
    page.write_text("<!-- coverage: begin -->\n<!-- coverage: end -->\n")
    assert cli("reproduce", "coverage", "--results", tmp_path / "runs", "--page", page)[0] == 0
    assert "| all | 182 | 0 | 0 | 0 | 182 |" in page.read_text()
