"""Which code produced a result."""

import json
import subprocess

import pytest

import dish
from dish import machine, provenance
from dish.errors import InputError
from dish.experiments import bench

SOURCE = '"""What it is."""\n\n\ndef double(x):\n    """Twice."""\n    return 2 * x  # why\n'


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one module and one script, whose code is committed."""
    package = tmp_path / "src" / "dish"
    for file in (package / "one.py", tmp_path / "benchmarks" / "run.py"):
        file.parent.mkdir(parents=True)
        file.write_text(SOURCE)
    for command in ("init", "add .", "-c user.name=a -c user.email=b commit -m one"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "RESULTS", tmp_path / "benchmarks" / "results")
    return tmp_path


def hash_of(text, folder):
    file = folder / f"{len(list(folder.iterdir()))}.py"
    file.write_text(text)
    return provenance.hash_of(file)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("# why", "# because", True),
        ("Twice", "Two times", True),
        ("What it is", "Something else", True),
        ("return 2 * x", "return (\n        2 * x\n    )", True),
        ("2 * x", "3 * x", False),
        ("2 * x", "x * 2", False),
        ("double(x)", "double(x=None)", False),
        ("return 2 * x", "return '2 * x'", False),
    ],
)
def test_hash_changes_with_code_alone(old, new, same, tmp_path):
    assert old in SOURCE
    assert (hash_of(SOURCE, tmp_path) == hash_of(SOURCE.replace(old, new), tmp_path)) is same


def test_hash_is_the_same_for_every_version_of_python(tmp_path):
    assert hash_of("def f(x=None):\n    return f'{x} {None}'\n", tmp_path) == "527490a6fc02"


def test_code_names_imported_modules_and_packages_of_other_processes():
    found = machine.environment()["code"]
    assert found["src/dish/machine.py"] == provenance.hash_of(provenance.PACKAGE / "machine.py")
    assert not any(name.startswith(("src/dish/cli", "tests/test")) for name in found)
    assert set(dish.provenance.code("photos")) > {f"src/dish/photos/{name}.py" for name in ("duplicates", "folder")}


def test_commit_marks_changed_code(checkout):
    clean = machine.commit()
    assert len(clean) == 12
    checkout.joinpath("notes.md").write_text("not code")
    assert machine.commit() == clean
    checkout.joinpath("benchmarks", "run.py").write_text("x = 1")
    assert machine.commit() == clean + "+"


@pytest.mark.parametrize("file", ["src/dish/one.py", "benchmarks/run.py"])
def test_published_results_are_refused_while_code_is_changed(file, checkout, tmp_path_factory, monkeypatch):
    published, kept = provenance.RESULTS / "real" / "a.json", tmp_path_factory.mktemp("kept")
    monkeypatch.setattr(bench.tempfile, "gettempdir", lambda: str(kept))
    bench.write_json(published, {"map": 0.5})
    checkout.joinpath(file).write_text("x = 1")
    with pytest.raises(InputError, match=f"(?s)a.json is a published result.*{file}.*--output.*The results are in"):
        bench.write_json(published, {"map": 0.7})
    assert json.loads(published.read_text()) == {"map": 0.5}
    assert json.loads((kept / "a.json").read_text()) == {"map": 0.7}  # hours of work are not lost
    bench.write_json(checkout / "elsewhere.json", {"map": 0.7})


def test_runs_are_refused_before_they_start(checkout):
    checkout.joinpath("benchmarks", "run.py").write_text("x = 1")
    with pytest.raises(InputError, match="published result"):
        bench.run_all([bench.Run("digits", "lsh", 16)], provenance.RESULTS / "runs")


def test_without_git_nothing_is_refused_and_the_commit_is_that_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setenv("DISH_COMMIT", "abc")
    assert machine.commit() == "abc"
    bench.write_json(tmp_path / "a.json", {})
