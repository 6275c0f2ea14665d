"""How commands end: bad input with one line and exit code 2, bugs with a way to report them and exit code 1."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dish import DISH, HammingIndex
from dish.cli import errors
from dish.cli.errors import is_expected
from dish.errors import DataFileError, DishError, InputError, RankError, UnsupportedError
from dish.io import modelfile

QUICK = ("--bits", 8, "--anchors", 20, "-q")


@pytest.fixture
def files(tmp_path, blobs):
    for name, array in zip(("X", "y"), blobs, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def fit(files):
    return "fit", files / "X.npy", files / "y.npy", "-o", files / "m.dish", *QUICK


# --- Which errors are expected ---


@pytest.mark.parametrize(
    "error",
    [DishError(), InputError(), UnsupportedError(), DataFileError(), RankError(), FileNotFoundError(), MemoryError(),
     ConnectionError(), ImportError()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_errors_about_input_and_machine_are_expected(error):
    assert is_expected(error)


def test_errors_of_loaded_packages_are_expected_by_their_class():
    import torch
    from safetensors import SafetensorError

    psycopg = pytest.importorskip("psycopg")
    for error in (torch.OutOfMemoryError(), SafetensorError(), psycopg.OperationalError()):
        assert is_expected(error)


@pytest.mark.parametrize(
    "kind", [ValueError, TypeError, IndexError, RuntimeError, AttributeError, KeyError, ZeroDivisionError]
)
def test_bugs_are_reported_as_bugs(cli, files, monkeypatch, kind):
    def bug(*_, **__):
        raise kind("something inside")

    assert not is_expected(kind())
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


def test_commands_that_need_torch_say_so(cli, files, monkeypatch):
    def without_torch(*_, **__):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(DISH, "fit", without_torch)
    code, _, err = cli(*fit(files))
    assert (code, errors.NEEDS_TORCH in err) == (2, True)


# --- Bad data, file by file: the library's error, or that of NumPy, scikit-learn or pyarrow, becomes one line ---


def odd_values(X, y):
    """Arrays that cannot be used as rows or labels, by the name of their file."""
    nan = X.copy()
    nan[5, 2] = np.nan
    return {
        "nan": nan,
        "text": X.astype(str),
        "complex": X.astype(complex),
        "cube": np.zeros((120, 2, 2)),
        "record": np.zeros(120, [("a", "f4"), ("b", "f4")]),
        "no_rows": X[:0],
        "one_row": X[:1],
        "constant": np.ones_like(X),
        "huge": X * 1e300,
        "narrow": X[:, :3],
        "codes": np.arange(120, dtype=np.uint8)[:, None],
        "wide_codes": np.zeros((3, 5), np.uint8),
        "y_nan": np.where(y == 1, np.nan, y),
        "y_inf": np.where(y == 1, np.inf, y),
        "y_fraction": y + 0.5,
        "y_one_class": np.zeros_like(y),
        "y_twice": np.stack([y, y], 1),
        "y_all_zero": np.zeros((120, 3)),
        "y_complex": y.astype(complex),
        "y_text": y.astype(str),
        "y_unlabelled": np.where(y == 1, -1, y),
        "y_cube": np.zeros((120, 2, 2)),
        "y_short": y[:3],
        "large": np.arange(120, dtype=np.uint64) + 2**63,
    }


TEXTS = {
    "bare.csv": "1,2\n3,4\n",
    "ragged.csv": "a,b\n1,2\n3\n",
    "gap.csv": "a,b\n1,2\n3,\n",
    "words.csv": "a,b\nc,d\n",
    "header.csv": "a,b\n",
    "empty.csv": "",
    "index.csv": ",a,b\n0,1,2\n1,3,4\n",
    "junk.npy": "junk",
    "junk.npz": "junk",
    "junk.parquet": "junk",
    "X.txt": "1 2",
}
X, Y, CODES, MODEL, OUT = "X.npy", "y.npy", "codes.npy", "m.dish", "out.npy"
BAD_ROWS = (
    *("nan.npy", "text.npy", "complex.npy", "cube.npy", "record.npy", "no_rows.npy", "none.npy", "folder"),
    *TEXTS,
)
BAD_LABELS = (
    *("y_nan", "y_inf", "y_fraction", "y_one_class", "y_twice", "y_all_zero", "y_complex", "y_unlabelled", "y_cube"),
    *("y_short", "junk", "none"),
)
BAD_CALLS = [
    *(("fit", file, Y, "-o", OUT) for file in (*BAD_ROWS, "one_row.npy", "constant.npy", "huge.npy")),
    *(("fit", X, f"{name}.npy", "-o", OUT) for name in BAD_LABELS),
    *(("fit", X, name, "-o", OUT) for name in TEXTS),
    *(("encode", MODEL, file, "-o", OUT) for file in (*BAD_ROWS, "narrow.npy", "codes.npy")),
    *(("encode", model, X, "-o", OUT) for model in (X, "none.dish", "folder", "index.dish")),
    *(("eval", MODEL, "--db", X, f"{name}.npy", "--queries", X, Y) for name in ("y_nan", "y_short", "y_text")),
    *(("eval", MODEL, "--db", X, Y, "--queries", "narrow.npy", f"{name}.npy") for name in ("y", "y_short")),
    *(("index", CODES, "-o", OUT, "--ids", f"{name}.npy") for name in ("y", "y_nan", "y_short", "y_twice", "large")),
    *(("index", CODES, "-o", OUT, "--labels", f"{name}.npy") for name in ("y_short", "y_twice", "y_complex")),
    *(("index", file, "-o", OUT) for file in (X, MODEL, "junk.npy", "no_rows.npy")),
    *(("search", "index.dish", "--codes", file) for file in ("wide_codes.npy", X, "junk.npy")),
    ("search", MODEL, "--codes", CODES),
    ("tune", "one_row.npy", "y_short.npy"),
    ("bench", "--data", "none.npy", "--methods", "l2", "--bits", 8),
    ("features", "folder", "-o", OUT),
    ("store", "push", CODES, "--address", "nonsense", "--table", "t"),
    *(("fit", X, Y, "-o", OUT, *option) for option in (
        ("--bits", 0), ("--bits", 2**40), ("--anchors", 0), ("--gamma", "nan"), ("--gamma", "wide"), ("--seed", -1),
        ("--seed", 2**40), ("--device", "cuda:99"), ("--device", "abacus"), ("--memory-budget", "2 apples"),
        ("--method", "dish_k", "--checkpoint", "X.txt"),
    )),
]  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1, 2], 40)
    rows = rng.standard_normal((120, 6)) + 6 * np.eye(3, 6)[y]
    for name, array in {"X": rows, "y": y, **odd_values(rows, y)}.items():
        np.save(folder / f"{name}.npy", array)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    (folder / "folder").mkdir()
    hasher = DISH(n_bits=8, n_anchors=20).fit(rows, y)
    hasher.save(folder / "m.dish")
    index = HammingIndex(8)
    index.add(hasher.transform(rows))
    index.save(folder / "index.dish")
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", BAD_CALLS, ids=str)
def test_bad_input_is_one_line_and_exit_code_2(cli, inputs, monkeypatch, call):
    monkeypatch.chdir(inputs)
    code, _, err = cli(*call)
    assert code == 2, err
    lines = [line for line in err.strip().splitlines() if not line.startswith("dish: note:")]
    assert len(lines) == 1, err
    assert lines[0].startswith("dish: ")
    assert len(lines[0]) > 20
    assert "unexpected" not in err
    assert not (inputs / OUT).exists()


def test_damaged_npy_headers_are_one_line(cli, files):
    whole = (files / "X.npy").read_bytes()
    for old, new in ((b"(120,", b"((((,"), (b"}", b"'"), (b"120", b"9e9")):
        damaged = whole.replace(old, new, 1)
        assert damaged != whole
        (files / "X.npy").write_bytes(damaged)
        code, _, err = cli(*fit(files))
        assert (code, "X.npy is not a .npy file" in err) == (2, True), err
        assert len(err.strip().splitlines()) == 1


def test_a_model_whose_arrays_do_not_fit_is_one_line(cli, files):
    """The checksum is right, but an array has another shape."""
    assert cli(*fit(files))[0] == 0
    kind, content, arrays = modelfile.read(files / "m.dish")
    matrices = [name for name, array in arrays.items() if array.ndim == 2 and array.size and name != "codes_"]
    assert len(matrices) >= 3
    for name in matrices:
        modelfile.save(files / "odd.dish", kind, content, arrays | {name: arrays[name][:3, :2]})
        code, _, err = cli("encode", files / "odd.dish", files / "X.npy", "-o", files / "c.npy")
        assert (code, "odd.dish" in err) == (2, True), (name, err)
        assert len(err.strip().splitlines()) == 1
    assert not (files / "c.npy").exists()


def test_errors_of_the_database_driver_are_one_line(cli, tmp_path, monkeypatch):
    psycopg = pytest.importorskip("psycopg")
    from dish import stores

    def lost(*_, **__):
        raise psycopg.OperationalError("server closed the connection unexpectedly\n\tThis probably means …")

    monkeypatch.setattr(stores, "open", lost)
    np.save(tmp_path / "c.npy", np.zeros((3, 2), np.uint8))
    code, _, err = cli("store", "push", tmp_path / "c.npy", "--address", "postgresql://nowhere", "--table", "t")
    assert code == 2
    assert "server closed the connection" in err
    assert len(err.strip().splitlines()) == 1


# --- Help ---


def test_help_loads_no_heavy_packages():
    program = "import sys, dish.cli; print(json.dumps([m for m in HEAVY if m in sys.modules]))"
    program = f"import json; HEAVY = ['torch', 'numba', 'sklearn', 'scipy', 'fastapi', 'pyarrow']; {program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_help_names_the_extra_that_is_needed(cli):
    assert "pip install 'dish-hash[serve]'" in " ".join(cli("serve", "--help")[1].split())
    assert "dish-hash[serve]" in cli("--help")[1]
