"""Without torch, models with kernel features encode, search and serve. Learning says what is missing."""

import json
import subprocess
import sys

import numpy as np
import pytest

import dish
from dish import DISH, DISHK
from dish.baselines import REGISTRY
from dish.io import modelfile
from dish.kernel import kernel_hasher

WITHOUT_TORCH = """
import importlib.util, json, sys
from pathlib import Path
import numpy as np
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *package: None if name == "torch" else real(name, *package)
folder = Path(sys.argv[1])
X = np.load(folder / "X.npy")
"""

MODELS = """
import dish
from dish import registry
codes, errors = {}, {}
for path in sorted(folder.glob("*.dish")):
    try: codes[path.stem] = dish.load(path).transform(X)
    except ValueError as error: errors[path.stem] = str(error)
for name in ("dish", "dish_k", "sdh"):
    try: registry.find(name)(n_bits=4).fit(X, np.arange(len(X)) % 2)
    except ImportError as error: errors[f"fit {name}"] = str(error)
np.savez(folder / "codes.npz", **codes)
print(json.dumps([errors, "torch" in sys.modules]))
"""

COMMANDS = """
from dish.cli import main
def dish(*words):
    sys.argv = ["dish", *map(str, words)]
    try: main()
    except SystemExit as end: return end.code or 0
model, both = folder / "m.dish", [folder / "X.npy", folder / "y.npy"]
done = [dish("encode", model, both[0], "-o", folder / "c.npy")]
done += [dish("index", folder / "c.npy", "--bits", 20, "-o", folder / "ix.dish")]
labelled = ["--labels", both[1], "--label-codes", "--model", model]
done += [dish("index", folder / "c.npy", "--bits", 20, "-o", folder / "labelled.dish", *labelled)]
done += [dish("search", folder / "ix.dish", "--codes", folder / "c.npy", "-k", "1")]
done += [dish("eval", model, "--db", *both, "--queries", *both)]
done += [dish("fit", *both, "-o", folder / "other.dish")]
from dish.web import server
served = server.open_collection(model, folder / "ix.dish")
equal = bool((served.encode(X.tolist()) == np.load(folder / "c.npy")).all())
of_labels, n = served.encode_items(X, np.load(both[1]).tolist())
equal &= n == len(X) and bool((of_labels == np.load(folder / "of_labels.npy")).all())
print(json.dumps([done, equal, "torch" in sys.modules]))
"""


def without_torch(program, folder):
    """What a program prints last, as JSON, and its standard error, in a process that cannot import torch."""
    call = [sys.executable, "-c", WITHOUT_TORCH + program, str(folder)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 150)
    X = rng.standard_normal((150, 6)) + 2 * rng.standard_normal((4, 6))[y]
    X[3] *= 1e3  # an outlier must not move the centre
    return X.astype(np.float32), y


KERNEL_RIVALS = [name for name, kind in REGISTRY.items() if issubclass(kind, kernel_hasher.KernelHasher)]
FITS = {
    "dish": lambda: DISH(n_bits=20, n_anchors=30),
    "dish with the RBF kernel alone": lambda: DISH(n_bits=20, n_anchors=30, kernel="rbf", gamma=0.1),
    "dish with the linear kernel": lambda: DISH(n_bits=20, kernel="linear"),
    "dish_k": lambda: DISHK(n_bits=20, n_anchors=30),
    "dish_k with the linear kernel": lambda: DISHK(n_bits=20, kernel="linear"),
    "dish_k with both kernels": lambda: DISHK(n_bits=20, n_anchors=30, kernel="rbf+linear", loss="logistic"),
}


def assert_same_codes(hasher, X, monkeypatch, tmp_path):
    """Check that a loaded model encodes in NumPy as the fitted one does in torch."""
    hasher.save(tmp_path / "m.dish")
    same = dish.load(tmp_path / "m.dish")
    F, packed = hasher.decision_function(X), hasher.transform(X)
    monkeypatch.setattr(kernel_hasher, "has_torch", lambda: False)
    found = same.decision_function(X)
    np.testing.assert_allclose(found, F, atol=1e-4 * np.abs(F).max())
    clear = np.abs(F) > 1e-4 * np.abs(F).max()
    np.testing.assert_array_equal((found >= 0)[clear], (F >= 0)[clear])
    assert (np.unpackbits(same.transform(X)) == np.unpackbits(packed)).mean() > 0.999
    assert same.transform(X[:0]).shape == packed[:0].shape
    assert same.fingerprint_ == hasher.fingerprint_


@pytest.mark.filterwarnings("ignore:X. row 3")
@pytest.mark.parametrize("name", FITS)
def test_numpy_gives_the_codes_of_torch(name, rows, monkeypatch, tmp_path):
    X, y = rows
    assert_same_codes(FITS[name]().fit(X, y), X, monkeypatch, tmp_path)


@pytest.mark.filterwarnings("ignore:X. row 3")
@pytest.mark.parametrize("name", KERNEL_RIVALS)
def test_numpy_gives_the_codes_of_torch_for_rivals(name, rows, monkeypatch, tmp_path):
    X, y = rows
    params = {"n_anchors": 20, "n_iter": 1} if name in ("bre", "mlh") else {"n_anchors": 20}
    hasher = REGISTRY[name](**({} if name == "whitened_itq" else params), n_bits=10).fit(X, y)
    assert_same_codes(hasher, X, monkeypatch, tmp_path)


@pytest.mark.filterwarnings("ignore:X. row 3")
def test_numpy_gives_the_codes_of_torch_for_multi_label_data(rows, monkeypatch, tmp_path):
    X, y = rows
    Y = np.eye(4, dtype=int)[y] | np.eye(4, dtype=int)[(y + 1) % 4]
    hasher = DISH(n_bits=16, n_anchors=30).fit(X, Y)
    assert hasher.hash_function_.link == "sigmoid"
    p = hasher.predict_proba(X)
    assert_same_codes(hasher, X, monkeypatch, tmp_path)
    np.testing.assert_allclose(hasher.predict_proba(X), p, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:X. row 3")
def test_load_and_encode_in_a_process_without_torch(rows, tmp_path):
    X, y = rows
    expected = {}
    for name, make in {**FITS, "sdh": lambda: REGISTRY["sdh"](n_bits=8, n_anchors=20)}.items():
        hasher = make().fit(X, y)
        hasher.save(tmp_path / f"{name}.dish")
        expected[name] = hasher.transform(X)
    for name in ("DeepDISH", "CSQ"):
        modelfile.save(tmp_path / f"{name}.dish", name, {"init": {}, "fitted": {}}, {})
    np.save(tmp_path / "X.npy", X)
    (errors, torch_loaded), _ = without_torch(MODELS, tmp_path)
    assert not torch_loaded
    found = np.load(tmp_path / "codes.npz")
    assert set(found) == set(expected)
    for name in expected:
        assert (np.unpackbits(found[name]) == np.unpackbits(expected[name])).mean() > 0.999, name
    missing = "this needs torch, which is not installed: pip install torch"
    assert {name: errors[f"fit {name}"] for name in ("dish", "dish_k", "sdh")} == dict.fromkeys(
        ("dish", "dish_k", "sdh"), missing
    )
    for name in ("DeepDISH", "CSQ"):
        assert f"{name} encodes with torch, which is not installed: pip install torch" in errors[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:X. row 3")
def test_commands_and_service_without_torch(rows, tmp_path):
    X, y = rows
    hasher = DISH(n_bits=20, n_anchors=30).fit(X, y)
    hasher.save(tmp_path / "m.dish")
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    of_labels = hasher.transform(X, labels=y)
    np.save(tmp_path / "of_labels.npy", of_labels)
    (codes_of_commands, equal, torch_loaded), err = without_torch(COMMANDS, tmp_path)
    assert codes_of_commands == [0, 0, 0, 0, 0, 2]  # encode, index, search, eval; fit needs torch
    assert equal
    assert not torch_loaded
    assert "torch" in err.splitlines()[-1]
    assert "pip install torch" in err
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), hasher.transform(X))
    np.testing.assert_array_equal(dish.HammingIndex.load(tmp_path / "labelled.dish").get(range(150)), of_labels)
