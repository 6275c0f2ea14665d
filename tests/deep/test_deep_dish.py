"""DeepDISH on small images that a small network can tell apart."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import nn

import dish
from dish import DeepDISH, codes, metrics
from dish.deep import training
from dish.deep.heads import CarryingTop
from dish.deep.training import Training
from dish.io.images import decode
from dish.similarity import from_labels
from helpers.deep import Tiny, patches, score, smooth, tiny


@pytest.fixture(scope="module")
def data():
    return *patches(400, 0), *patches(100, 1)


# --- learning ---


@pytest.mark.slow
def test_loss_falls_codes_retrieve_and_stay_balanced(data):
    X, y, Xq, yq = data
    hasher = tiny(head="paper").fit(X, y)
    for round_ in range(3):
        losses = [h["loss"] for h in hasher.history_ if h["round"] == round_]
        assert len(losses) == 6
        assert losses[-1] < losses[0]
    assert score(hasher, X, y, Xq, yq) > 0.9
    H = codes.unpack(hasher.codes_, 16)
    np.testing.assert_array_equal(H.sum(0), 0)  # 400 rows: the H-step leaves each bit +1 on half of them
    assert hasher.agreement_[-1] > 0.8


@pytest.mark.slow
def test_same_seed_same_codes_and_the_callers_generator_is_left_alone(data):
    X, y, Xq, _ = data
    torch.manual_seed(5)
    expected = torch.rand(3)
    first = tiny(epochs=1, augment=True, random_state=1)
    torch.manual_seed(5)
    first.fit(X, y)
    assert torch.equal(torch.rand(3), expected)
    second, other = (tiny(epochs=1, augment=True, random_state=seed).fit(X, y) for seed in (1, 2))
    np.testing.assert_array_equal(first.decision_function(Xq), second.decision_function(Xq))
    assert (first.decision_function(Xq) != other.decision_function(Xq)).any()


@pytest.mark.slow
def test_flipping_half_of_the_target_bits_teaches_the_bits_nothing(data):
    """With alpha = 0.5 the targets are coin tosses: F shrinks, and agrees less with H than without flips."""
    X, y, _, _ = data
    sizes, agreement = {}, {}
    for alpha in (0.0, 0.5):
        hasher = tiny(alpha=alpha, epochs=10).fit(X, y)
        F = hasher.decision_function(X)
        sizes[alpha] = np.abs(F).mean()
        agreement[alpha] = ((F >= 0) == (codes.unpack(hasher.codes_, 16) > 0)).mean()
    assert sizes[0.5] < 0.5 * sizes[0.0]
    assert agreement[0.5] < agreement[0.0]


@pytest.mark.slow
def test_multi_label_rows(data):
    X, y, Xq, yq = data
    Y, Yq = (np.stack([v % 2 == 0, v % 2 == 1, v // 2 == 1], 1).astype(int) for v in (y, yq))
    hasher = tiny().fit(X, Y)
    rng = np.random.default_rng(0)
    q, b = (rng.integers(256, size=(len(v), 2), dtype=np.uint8) for v in (Yq, Y))
    random = metrics.mean_average_precision(q, Yq, b, Y)  # most rows share a label: chance is far above 0
    assert score(hasher, X, Y, Xq, Yq) > 0.9 > random


def test_vectors_take_a_perceptron(digits):
    X, y, Xq, yq = digits
    hasher = DeepDISH(n_bits=24, epochs=5, n_iter=1, device="cpu").fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.9
    with pytest.raises(ValueError, match="learned from rows of features"):
        hasher.transform(patches(3, 0)[0])


def test_images_of_another_size_and_grey_ones_are_encoded(data):
    X, y, _, _ = data
    hasher = tiny(epochs=1, n_iter=0, image_size=16).fit(X, y)
    assert hasher.transform(np.repeat(np.repeat(X[:3], 2, 1), 2, 2)).shape == (3, 2)
    assert hasher.transform(X[:3, :, :, 0]).shape == (3, 2)
    with pytest.raises(ValueError, match="must be images"):
        hasher.transform(np.zeros((3, 5)))


def test_a_column_of_classes_is_read_as_classes(data):
    X, y, Xq, _ = data
    flat = tiny(epochs=1, n_iter=1).fit(X, y)
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        column = tiny(epochs=1, n_iter=1).fit(X, y[:, None])
    np.testing.assert_array_equal(column.decision_function(Xq), flat.decision_function(Xq))


def test_images_that_are_not_square_are_cut_as_files_are(data, tmp_path):
    X, y, _, _ = data
    hasher = tiny(epochs=1, n_iter=0, image_size=16).fit(X, y)
    wide = np.random.default_rng(0).integers(256, size=(3, 16, 24, 3), dtype=np.uint8)
    np.testing.assert_array_equal(hasher.decision_function(wide), hasher.decision_function(wide[:, :, 4:20]))
    for i, image in enumerate(wide):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    np.testing.assert_array_equal(hasher.decision_function(tmp_path), hasher.decision_function(wide))


def test_a_file_gets_the_same_code_as_its_bytes(data, tmp_path):
    X, y, _, _ = data
    hasher = tiny(epochs=1, n_iter=0).fit(X, y)  # a module without a size of its own reads files as it learned
    assert hasher.image_side == 16
    Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 60, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    uploaded = decode((tmp_path / "a.png").read_bytes(), hasher.image_side)
    np.testing.assert_array_equal(hasher.decision_function(uploaded[None]), hasher.decision_function(tmp_path))
    assert DeepDISH().image_side == 32
    assert DeepDISH(net=Tiny()).image_side == 224


# --- what a fit leaves behind ---


def test_a_fit_that_fails_leaves_nothing_behind(data, digits, monkeypatch):
    X, y, Xq, _ = data

    def fail(*_, **__):
        raise RuntimeError("the device is gone")

    hasher, fitted = tiny(epochs=1, n_iter=0), tiny(epochs=1, n_iter=0).fit(X, y)
    before, codes_before = set(vars(hasher)), fitted.transform(Xq)
    monkeypatch.setattr(Training, "run", fail)
    with pytest.raises(RuntimeError, match="the device is gone"):
        hasher.fit(X, y)
    assert set(vars(hasher)) == before
    with pytest.raises(NotFittedError):
        hasher.transform(X)
    with pytest.raises(NotFittedError):
        check_is_fitted(hasher)
    with pytest.raises(RuntimeError, match="the device is gone"):
        fitted.set_params(net="mlp").fit(*digits[:2])
    np.testing.assert_array_equal(fitted.transform(Xq), codes_before)  # the former fit stands


def test_a_new_fit_leaves_nothing_of_the_former_one(data, digits):
    X, y, _, _ = data
    hasher = tiny(epochs=1, n_iter=0).fit(X, y)
    hasher.set_params(net="mlp").fit(*digits[:2])
    assert not hasattr(hasher, "image_shape_")
    assert not hasher.takes_images


def test_a_fit_on_the_cpu_touches_no_gpu(data, monkeypatch):
    X, y, _, _ = data
    hasher, touched = tiny(epochs=1, n_iter=1), []
    for name in ("manual_seed_all", "get_rng_state", "set_rng_state", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: touched.append(name))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    hasher.fit(X[:60], y[:60])
    assert touched == []


@pytest.mark.gpu
def test_a_fit_on_the_gpu_leaves_its_generator_alone_and_export_the_model_there(data, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("GPU NOT CHECKED: torch sees none")
    X, y, _, _ = data
    torch.cuda.manual_seed(5)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(5)
    hasher = tiny(epochs=1, n_iter=1, device="cuda").fit(X, y)
    assert torch.equal(torch.rand(3, device="cuda"), expected)
    hasher.export_onnx(tmp_path / "h.onnx")
    assert {p.device.type for p in hasher.model_.parameters()} == {"cuda"}


def test_export_leaves_the_model_alone(data, tmp_path, monkeypatch):
    X, y, _, _ = data
    hasher = tiny(epochs=1, n_iter=0).fit(X, y)
    hasher.model_.train()

    def export(model, args, file, **_):
        assert not model.training
        assert model.model is not hasher.model_
        Path(file).write_bytes(b"graph")

    monkeypatch.setattr(torch.onnx, "export", export)
    hasher.export_onnx(tmp_path / "h.onnx")
    assert hasher.model_.training
    assert (tmp_path / "h.onnx").read_bytes() == b"graph"


def test_whether_it_takes_images_is_a_truth_of_the_fit(data, digits, tmp_path):
    X, y, _, _ = data
    with pytest.raises(NotFittedError):
        _ = DeepDISH().takes_images
    assert tiny(epochs=1, n_iter=0).fit(X, y).takes_images
    vectors = DeepDISH(8, epochs=1, n_iter=0, device="cpu").fit(*digits[:2])
    assert not vectors.takes_images
    vectors.save(tmp_path / "m.dish")
    assert not dish.load(tmp_path / "m.dish").takes_images


# --- files ---


@pytest.fixture(scope="module")
def named():
    X, y = patches(24, 0)
    return DeepDISH(12, net="6conv", image_size=16, epochs=1, n_iter=1, batch_size=12, device="cpu").fit(X, y)


def test_save_and_load(named, tmp_path):
    X, _ = patches(10, 3)
    named.save(tmp_path / "m.dish")
    loaded = dish.load(tmp_path / "m.dish")
    assert type(loaded) is DeepDISH
    assert loaded.get_params() == named.get_params()
    np.testing.assert_array_equal(loaded.decision_function(X), named.decision_function(X))
    np.testing.assert_array_equal(loaded.codes_, named.codes_)


def test_a_module_of_ones_own_is_not_saved(data, tmp_path):
    X, y, _, _ = data
    with pytest.raises(TypeError, match=r"files hold no code.*export_onnx"):
        tiny(epochs=1, n_iter=0).fit(X[:60], y[:60]).save(tmp_path / "m.dish")
    assert not (tmp_path / "m.dish").exists()


TOPS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("codewords", "carried", "several labels")]


@pytest.mark.parametrize("kind", ["named", "own", "vectors", *TOPS])
def test_onnx_gives_the_same_codes(kind, named, data, digits, tmp_path, monkeypatch):
    runtime = pytest.importorskip("onnxruntime", reason="ONNX NOT CHECKED: onnxruntime is missing")
    pytest.importorskip("onnx", reason="ONNX NOT CHECKED: onnx is missing")
    X, y, Xq, _ = data
    if kind == "named":
        hasher = named
    elif kind == "own":
        hasher = tiny(epochs=1, n_iter=0).fit(X, y)
    else:
        Xq, params = (
            digits[2].astype(np.float32),
            {"n_iter": 0} if kind == "vectors" else {"head": "codewords", "n_iter": 1},
        )
        labels = np.eye(10)[digits[1]] if kind == "several labels" else digits[1]
        monkeypatch.setattr("dish.deep.heads.gain", lambda *_: 1.0)  # carry errors where there are bits enough
        hasher = DeepDISH(24 if kind == "carried" else 12, epochs=1, device="cpu", **params).fit(digits[0], labels)
        assert isinstance(hasher.model_.top, CarryingTop) == (kind == "carried")
    hasher.export_onnx(tmp_path / "h.onnx")
    session = runtime.InferenceSession(str(tmp_path / "h.onnx"), providers=["CPUExecutionProvider"])
    (F,) = session.run(None, {session.get_inputs()[0].name: Xq})
    expected = hasher.decision_function(Xq)
    bits = np.abs(expected) > 1e-4  # nearer to zero, rounding may decide
    if kind == "carried":  # for the bits after it, too
        bits[((F >= 0) != (expected >= 0)).any(1)] = False
        assert bits.mean() > 0.99
    np.testing.assert_allclose(F[bits], expected[bits], atol=1e-4)
    np.testing.assert_array_equal((F >= 0)[bits], (codes.unpack(hasher.transform(Xq), hasher.n_bits) > 0)[bits])
    hasher.export_onnx(tmp_path / "c.onnx", output="codes")
    session = runtime.InferenceSession(str(tmp_path / "c.onnx"), providers=["CPUExecutionProvider"])
    (packed,) = session.run(None, {session.get_inputs()[0].name: Xq})
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, codes.pack(F))  # bit by bit


@pytest.mark.parametrize("k", [2, 3])
def test_a_batch_in_parts_takes_the_same_steps(k, monkeypatch):
    """Without batch norm, and without what is drawn anew for each part."""
    X, y = patches(96, 0)
    monkeypatch.setattr(training, "augment", lambda x, draw, size: x.float())
    whole, parts = (smooth(alpha=0.0, accumulate=n).fit(X, y) for n in (1, k))
    np.testing.assert_allclose([e["loss"] for e in parts.history_], [e["loss"] for e in whole.history_], rtol=1e-4)
    np.testing.assert_allclose(parts.decision_function(X), whole.decision_function(X), atol=1e-3)
    with pytest.raises(ValueError, match="accumulate: a batch of 32 rows cannot be split into 20 parts"):
        smooth(accumulate=20).fit(X, y)


def test_features_may_lie_far_from_zero(digits):
    """Ninety steps do not bring batch norm's averages from 0 to there."""
    X, y, Xq, yq = (each.astype(np.float32) for each in digits)
    hasher = DeepDISH(32, epochs=10, device="cpu").fit(X + 1e5, y)
    assert score(hasher, X + 1e5, y, Xq + 1e5, yq) > 0.9


@pytest.mark.parametrize("params", [{"net": "vgg16"}, {"mirror": False}, {"augment": False}, {"image_size": 64}])
def test_what_is_for_images_has_no_effect_on_vectors_and_says_so(params, blobs):
    with pytest.warns(UserWarning, match=f"{next(iter(params))}: X holds rows of features, not images") as said:
        DeepDISH(8, n_iter=0, epochs=1, device="cpu", **params).fit(*blobs)
    assert said[0].filename == __file__


# --- errors ---


@pytest.mark.parametrize(
    "params",
    [
        {"net": "resnet"}, {"epochs": 0}, {"batch_size": 1}, {"accumulate": 0}, {"lr": 0}, {"lr": "fast"},
        {"weight_decay": -1}, {"image_size": 4}, {"n_iter": -1}, {"alpha": 0.6}, {"mu": -1}, {"nu": float("nan")},
        {"stop_agreement": "x"}, {"freeze": "no"}, {"augment": 2}, {"mirror": None}, {"carry": "no"},
    ],
)  # fmt: skip
def test_bad_parameters_are_named(params):
    X, y = patches(20, 0)
    with pytest.raises(ValueError, match=next(iter(params))):
        tiny(**params).fit(X, y)


class TwoThings(nn.Module):
    def forward(self, x):
        return x.flatten(1), x


class Blind(nn.Module):
    """Sees nothing: the same features for all images."""

    def forward(self, x):
        return torch.ones(len(x), 4, device=x.device)


def test_a_network_that_learned_nothing_says_so():
    X, y = patches(20, 0)
    with pytest.warns(UserWarning, match=r"all training rows have the same code: .* lr \(it was "):
        tiny(net=Blind(), head="paper", n_iter=0).fit(X, y)


def test_other_bad_input_is_refused():
    X, y = patches(20, 0)
    with pytest.raises(ValueError, match=r"training diverged in epoch .*lower lr \(it is 1e\+12\)"):
        tiny(lr=1e12).fit(X, y)
    with pytest.raises(ValueError, match=r"net must give .* a tensor \(n, D\); it gave a tuple"):
        tiny(net=TwoThings()).fit(X, y)
    with pytest.raises(ValueError, match=r"net: the module cannot take float32 rows of shape \(.*RuntimeError"):
        tiny(net=nn.Linear(5, 3)).fit(X, y)
    with pytest.raises(ValueError, match="1 class"):
        tiny().fit(X, np.zeros(20))
    with pytest.raises(ValueError, match="requires y"):
        tiny().fit(X)
    with pytest.raises(ValueError, match="not from a similarity"):
        tiny().fit(X, from_labels(y))
    with pytest.raises(ValueError, match="feature vector"):
        tiny(net=nn.Conv2d(3, 4, 3)).fit(X, y)
    with pytest.raises(ValueError, match="y has 19"):
        tiny().fit(X, y[:19])
