"""Without torch: loading a kernel model, encoding, searching, serving. Learning says what is missing."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dish.kernel.frozen import FrozenHasher

from dish import DISH, load
from dish.baselines import REGISTRY
from dish.errors import ModelFileError
from dish.io import modelfile

GOLDEN = Path(__file__).parent / "golden"
WITHOUT_TORCH = """
import importlib.util, json, sys
import numpy as np
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *package: None if name == "torch" else real(name, *package)

from dish.cli import main
def dish(*words):
    sys.argv = ["dish", *words]
    try: main()
    except SystemExit as end: return end.code or 0
model, folder = sys.argv[1:]
done = [dish("encode", model, folder + "/X.npy", "-o", folder + "/c.npy")]
done += [dish("index", folder + "/c.npy", "--bits", "20", "-o", folder + "/ix.dish")]
done += [dish("search", folder + "/ix.dish", "--codes", folder + "/c.npy", "-k", "1")]
both = [folder + "/X.npy", folder + "/y.npy"]
done += [dish("eval", model, "--db", *both, "--queries", *both)]
done += [dish("fit", folder + "/X.npy", folder + "/y.npy", "-o", folder + "/m.dish")]
from pathlib import Path
from dish.web import server
served = server.open_collection(Path(model), Path(folder + "/ix.dish"))
codes = served.encode(np.load(folder + "/X.npy").tolist())
equal = bool((codes == np.load(folder + "/c.npy")).all())
print(json.dumps({"done": done, "equal": equal, "torch": "torch" in sys.modules}))
"""


@pytest.mark.slow
def test_encode_search_and_serve_without_torch(tmp_path):
    model = GOLDEN / "dish.dish"
    hasher = load(model)
    X = np.random.default_rng(0).standard_normal((50, hasher.n_features_in_)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.arange(50) % 3)
    program = [sys.executable, "-c", WITHOUT_TORCH, str(model), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"done": [0, 0, 0, 0, 2], "equal": True, "torch": False}
    assert "this command needs torch" in done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), hasher.transform(X))


def frozen(hasher, path):
    hasher.save(path)
    return FrozenHasher.of(*modelfile.read(path))


@pytest.mark.filterwarnings("ignore:n_anchors", "ignore:X. row 3")
@pytest.mark.parametrize(
    "parameters",
    [{}, {"loss": "ridge"}, {"kernel": "linear"}, {"kernel": "rbf"}, {"gamma": 2.0}],
    ids=["posterior", "ridge", "linear", "rbf", "gamma"],
)
def test_the_same_codes_as_with_torch(parameters, digits, tmp_path):
    X, y, Xq, _ = digits
    X = X.astype(np.float32) / 16
    X[3] *= 1e4  # far from all others: it must not move the centre
    hasher = DISH(n_bits=24, n_anchors=len(X), random_state=0, **parameters).fit(X[:400], y[:400])
    same = frozen(hasher, tmp_path / "m.dish")
    np.testing.assert_allclose(same.decision_function(Xq / 16), hasher.decision_function(Xq / 16), atol=1e-3)
    np.testing.assert_array_equal(same.transform(Xq[:0]), hasher.transform(Xq[:0]))
    assert (same.transform(Xq / 16) == hasher.transform(Xq / 16)).mean() > 0.995
    assert same.fingerprint_ == hasher.fingerprint_
    same.save(tmp_path / "again.dish")
    assert load(tmp_path / "again.dish").fingerprint_ == hasher.fingerprint_


def test_several_labels_too(tmp_path):
    rng = np.random.default_rng(0)
    Y = rng.integers(0, 2, (300, 5))
    X = Y @ rng.standard_normal((5, 8)) + 0.1 * rng.standard_normal((300, 8))
    hasher = DISH(n_bits=16, n_anchors=50).fit(X, Y)
    same = frozen(hasher, tmp_path / "m.dish")
    assert same.link_ in ("sigmoid", "sigmoid_1")
    np.testing.assert_allclose(same.decision_function(X), hasher.decision_function(X), atol=1e-9)


def test_what_needs_torch_says_so(tmp_path, digits):
    X, y, *_ = digits
    same = FrozenHasher.of(*modelfile.read(GOLDEN / "dish.dish"))
    with pytest.raises(TypeError, match="can only encode: pip install torch"):
        same.fit(X, y)
    for name in ("lsh", "fasth"):
        REGISTRY[name](n_bits=8).fit(X[:200], y[:200]).save(tmp_path / "other.dish")
        with pytest.raises(ModelFileError, match="computed by torch"):
            FrozenHasher.of(*modelfile.read(tmp_path / "other.dish"))
