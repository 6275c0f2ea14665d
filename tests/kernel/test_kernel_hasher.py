"""What every hasher with kernel features shares: parameters, stored state and the encoder."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dish import DISH, DISHK, load
from dish.baselines import REGISTRY
from dish.baselines.sdh import SDH
from dish.encoder import Encoder, FeatureMap
from dish.errors import InputError
from dish.kernel import kernel_hasher

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 4, 500)
X = (RNG.standard_normal((500, 8)) + 2 * RNG.standard_normal((4, 8))[Y]).astype(np.float32)


@pytest.fixture(scope="module", params=[DISH, DISHK, SDH], ids=lambda kind: kind.__name__)
def fitted(request):
    return request.param(n_bits=12, n_anchors=40, device="cpu").fit(X, Y)


def test_the_state_is_explicit(fitted):
    assert fitted.kernel_ in ("rbf", "rbf+linear")
    assert fitted.gamma_ > 0
    assert fitted.anchors_.shape == (40, 8)
    assert fitted.centre_.shape == (8,)
    assert fitted.mean_.shape == ({"rbf": 40, "rbf+linear": 48}[fitted.kernel_],)
    assert fitted.encoder_.n_bits == 12


def test_the_encoder_gives_the_decision_function(fitted):
    made = fitted.encoder_
    assert isinstance(made, Encoder)
    assert isinstance(made.features.anchors, np.ndarray)
    F = fitted.decision_function(X)
    np.testing.assert_allclose(made(X), F, atol=1e-4 * np.abs(F).max())
    np.testing.assert_allclose(made.features(X).mean(0), 0, atol=1e-5)


def test_only_parameters_and_results_are_kept(fitted, tmp_path):
    extra = set(vars(fitted)) - set(fitted.get_params())
    assert all(name.endswith("_") and not name.startswith("_") for name in extra)
    assert {"kernel_", "gamma_", "anchors_", "centre_", "mean_", "hash_function_"} <= extra
    fitted.save(tmp_path / "m.dish")
    np.testing.assert_array_equal(load(tmp_path / "m.dish").transform(X), fitted.transform(X))


def test_encoding_leaves_the_hasher_as_it_was(fitted):
    before = dict(vars(fitted))
    fitted.transform(X)
    assert vars(fitted) == before


def test_transform_prepares_its_anchors_once(monkeypatch):
    hasher = DISHK(n_bits=12, n_anchors=40, device="cpu").fit(X, Y)
    prepared = []
    centred = FeatureMap._centred_anchors.func
    counting = kernel_hasher.FeatureMap._centred_anchors.__class__(lambda self: prepared.append(1) or centred(self))
    counting.__set_name__(FeatureMap, "_centred_anchors")
    monkeypatch.setattr(FeatureMap, "_centred_anchors", counting)
    many = np.tile(X, (140, 1))  # three blocks of 32,768 rows
    codes = hasher.transform(many)
    hasher.transform([many[:40_000], many[40_000:]])
    assert len(prepared) == 2  # once per call
    np.testing.assert_array_equal(codes[:500], hasher.transform(X))


def test_a_second_fit_replaces_the_first():
    hasher = DISHK(n_bits=8, n_anchors=20).fit(X, Y)
    hasher.set_params(kernel="linear").fit(X, Y)
    assert hasher.kernel_ == "linear"
    fresh = DISHK(n_bits=8, n_anchors=20, kernel="linear").fit(X, Y)
    np.testing.assert_array_equal(hasher.decision_function(X), fresh.decision_function(X))


def test_bfloat16_rows_are_taken():
    half = torch.from_numpy(X).bfloat16()
    hasher = DISHK(n_bits=8, n_anchors=40).fit(half, Y)
    np.testing.assert_array_equal(hasher.codes_, DISHK(n_bits=8, n_anchors=40).fit(half.float(), Y).codes_)
    np.testing.assert_array_equal(hasher.transform(half), hasher.transform(half.float().numpy()))


@pytest.mark.parametrize("kind", [DISH, DISHK])
def test_a_fit_on_the_cpu_makes_no_cuda_context(kind, monkeypatch):
    def refuse(*args):
        raise AssertionError("a CUDA context would have been made")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("synchronize", "mem_get_info", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    kind(n_bits=8, n_anchors=40, device="cpu").fit(X, Y).transform(X)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_reported():
    with pytest.raises(InputError, match="no GPU"):
        DISHK(device="cuda").fit(X, Y)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_anchors": 0}, "n_anchors must be a whole number of at least 1, got 0"),
        ({"n_anchors": 1.5}, "n_anchors"),
        ({"gamma": -1.0}, "gamma must be a number above 0, got -1.0"),
        ({"gamma": "scale"}, "gamma must be 'auto' or a number above 0, got 'scale'"),
        ({"kernel": "poly"}, "kernel must be one of .*'rbf', 'linear', 'rbf.linear' or a function"),
        ({"kernel": lambda X, A: np.full((len(X), len(A)), np.nan)}, "kernel returned NaN"),
        ({"anchors": "first"}, "anchors must be one of 'random', 'kmeans' or an array"),
        ({"anchors": np.zeros((5, 3))}, "anchors"),
        ({"anchors": np.zeros((0, 8))}, "anchors"),
        ({"device": "tpu9"}, "device"),
        ({"device": "meta"}, "device"),
        ({"n_bits": 1 << 15}, "n_bits must be a whole number from 1 to 16384"),
    ],
)
@pytest.mark.parametrize("kind", [DISH, DISHK])
def test_bad_parameters_are_named(kind, params, message):
    with pytest.raises(InputError, match=message):
        kind(**{"n_bits": 8, "n_anchors": 20, **params}).fit(X, Y)


def test_a_bad_ridge_is_named():
    with pytest.raises(InputError, match="ridge must be a number of at least 0"):
        DISHK(n_bits=8, n_anchors=20, ridge=-1).fit(X, Y)


def test_only_dish_chooses_the_kernel_by_itself():
    with pytest.raises(InputError, match=r"kernel must be one of 'rbf', 'linear', 'rbf.linear' or a function"):
        DISHK(n_bits=8, n_anchors=20, kernel="auto").fit(X, Y)


def test_rivals_are_kernel_hashers_too():
    assert issubclass(REGISTRY["ksh"], kernel_hasher.KernelHasher)
    with pytest.raises(InputError, match=r"KSH requires y .* y is None"):
        REGISTRY["ksh"](n_bits=4, n_anchors=10).fit(X)


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["classes", "sets"])
@pytest.mark.parametrize("kind", [DISH, DISHK])
def test_codes_do_not_depend_on_the_number_of_threads_of_torch(kind, labels):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 8, 2000)
    X = (rng.standard_normal((8, 16))[y] + rng.standard_normal((2000, 16))).astype(np.float32)
    found, usual = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            hasher = kind(32, n_anchors=100).fit(X, y if labels == "classes" else np.eye(8, dtype=int)[y])
            found.append((hasher.fingerprint_, hasher.transform(X).tobytes()))
    finally:
        torch.set_num_threads(usual)
    assert found[0] == found[1]


@pytest.mark.long
def test_the_fingerprint_does_not_depend_on_the_number_of_threads():
    code = """
import warnings, zlib
import numpy as np
from dish import DISH, DISHK
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
y = rng.integers(0, 8, 4000)
X = (rng.standard_normal((8, 16))[y] + rng.standard_normal((4000, 16))).astype(np.float32)
for hasher in (DISH(32, n_anchors=200), DISHK(32, n_anchors=200), DISHK(32, kernel="linear")):
    hasher.fit(X, y)
    print(hasher.fingerprint_, zlib.crc32(hasher.transform(X)), np.abs(hasher.mean_).sum())
"""
    outputs = []
    for threads in "12":
        env = os.environ | {"OMP_NUM_THREADS": threads}
        outputs.append(subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True).stdout)
    one, two = (dict(line.split()[:2] for line in out.decode().splitlines()) for out in outputs)
    assert len(one) == 3
    assert one == two


def test_fingerprints_tell_models_apart():
    X, y = load_digits(return_X_y=True)
    base = {"n_bits": 16, "n_anchors": 50, "n_iter": 2}
    others = [{"random_state": 1}, {"n_iter": 1}, {"nu": 1.0}, {"gamma": 0.01}, {"kernel": "rbf+linear"}]
    marks = [DISHK(**(base | other)).fit(X, y).fingerprint_ for other in ({}, *others)]
    marks.append(DISHK(**base).fit(X[:-100], y[:-100]).fingerprint_)
    assert len(set(marks)) == len(marks)
    assert DISHK(**base).fit(X, y).fingerprint_ == marks[0]
