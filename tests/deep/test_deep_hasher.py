"""The contract of deep hashers: what they encode, what a fit leaves behind, checkpoints, files, errors."""

import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import nn

import dish
from dish import codes
from dish.deep import DISHD, DeepDISH, deep_hasher
from dish.deep.training import Training
from dish.io import checkpoint as checkpoints
from dish.io.images import decode
from helpers.deep import Tiny, patches, score, tiny


@pytest.fixture(scope="module")
def data():
    return *patches(120, 0), *patches(40, 1)


@pytest.fixture(scope="module")
def fitted(data):
    return tiny(DISHD, epochs=1, n_iter=0, image_size=16).fit(*data[:2])


# --- rows ---


def test_the_same_seed_gives_the_same_codes(data):
    X, y, Xq, _ = data
    torch.manual_seed(5)
    expected = torch.rand(3)
    first = tiny(epochs=1, augment=True, random_state=1)
    torch.manual_seed(5)
    first.fit(X, y)
    assert torch.equal(torch.rand(3), expected)  # the caller's generator is not touched
    second, other = (tiny(epochs=1, augment=True, random_state=seed).fit(X, y) for seed in (1, 2))
    np.testing.assert_array_equal(first.decision_function(Xq), second.decision_function(Xq))
    assert (first.decision_function(Xq) != other.decision_function(Xq)).any()


def test_vectors_are_learned_by_a_perceptron(digits):
    X, y, Xq, yq = digits
    hasher = DeepDISH(24, epochs=5, n_iter=1, device="cpu").fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.9
    with pytest.raises(ValueError, match="X holds images, but this DeepDISH learned from vectors"):
        hasher.transform(patches(3, 0)[0])


def test_vectors_may_be_far_from_zero(digits):
    """Ninety steps would not bring batch norm's averages from 0 to there."""
    X, y, Xq, yq = (each[:600].astype(np.float32) for each in digits)
    hasher = DeepDISH(32, epochs=5, device="cpu").fit(X + 1e5, y)
    assert score(hasher, X + 1e5, y, Xq + 1e5, yq) > 0.9


def test_images_of_another_size_and_grey_images_are_encoded(data, fitted):
    X = data[0][:3]
    assert fitted.transform(np.repeat(np.repeat(X, 2, 1), 2, 2)).shape == (3, 2)
    assert fitted.transform(X[:, :, :, 0]).shape == (3, 2)
    np.testing.assert_array_equal(fitted.transform(torch.from_numpy(X)), fitted.transform(X))
    with pytest.raises(ValueError, match="must be images"):
        fitted.transform(np.zeros((3, 5)))


def test_a_column_of_classes_is_read_as_classes(data):
    X, y, Xq, _ = data
    flat = tiny(epochs=1, n_iter=0).fit(X, y)
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        column = tiny(epochs=1, n_iter=0).fit(X, y[:, None])
    np.testing.assert_array_equal(column.decision_function(Xq), flat.decision_function(Xq))


def test_arrays_that_are_not_square_are_cut_like_files(fitted, tmp_path):
    wide = np.random.default_rng(0).integers(256, size=(3, 16, 24, 3), dtype=np.uint8)
    np.testing.assert_array_equal(fitted.decision_function(wide), fitted.decision_function(wide[:, :, 4:20]))
    for i, image in enumerate(wide):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    np.testing.assert_array_equal(fitted.decision_function(tmp_path), fitted.decision_function(wide))


def test_a_file_gets_the_same_code_as_its_bytes(data, tmp_path):
    hasher = tiny(epochs=1, n_iter=0).fit(*data[:2])
    assert (
        hasher.image_side == 16
    )  # a module without a size of its own reads files in the size of its training images
    Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 60, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    uploaded = decode((tmp_path / "a.png").read_bytes(), hasher.image_side)
    np.testing.assert_array_equal(hasher.decision_function(uploaded[None]), hasher.decision_function(tmp_path))
    assert DeepDISH().image_side == 32
    assert DeepDISH(net=Tiny()).image_side == 224


class Images(torch.utils.data.Dataset):
    def __init__(self, X):
        self.X, self.asked = X, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.asked += 1
        return self.X[i], 0


@pytest.mark.parametrize("kind", ["folder", "files", "dataset", "map"])
def test_images_are_read_block_by_block(kind, data, fitted, tmp_path, monkeypatch):
    X = data[2]
    given = Images(X)
    if kind == "map":
        np.save(tmp_path / "X.npy", X)
        given = np.load(tmp_path / "X.npy", mmap_mode="r")
    elif kind != "dataset":
        for i, image in enumerate(X):
            Image.fromarray(image).save(tmp_path / f"{i:03}.png")
        given = tmp_path if kind == "folder" else sorted(tmp_path.iterdir())
    sizes, encode = [], deep_hasher.encode
    monkeypatch.setattr(deep_hasher, "BLOCK_BYTES", 7 * 16 * 16 * 3)
    monkeypatch.setattr(
        deep_hasher, "encode", lambda model, x, mirror, head: sizes.append(len(x)) or encode(model, x, mirror)
    )
    packed = fitted.transform(given)
    assert sizes == [7] * 5 + [5]
    np.testing.assert_array_equal(packed, codes.pack(fitted.decision_function(given)))
    np.testing.assert_allclose(fitted.decision_function(given), fitted.decision_function(X), atol=1e-5)


def test_memory_does_not_grow_with_the_files(fitted, monkeypatch):
    """3,000 images of 64×64 pixels are 37 MB; blocks have one."""
    X = np.zeros((64, 64, 3), np.uint8)

    class Many(Images):
        def __getitem__(self, i):
            return X.copy()

    monkeypatch.setattr(deep_hasher, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(deep_hasher, "encode", lambda model, x, mirror, head: torch.zeros(len(x), 16))
    tracemalloc.start()
    packed = fitted.transform(Many(range(3000)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert packed.shape == (3000, 2)
    assert peak < 12 << 20


def test_unreadable_files_are_skipped_with_a_warning(data, fitted, tmp_path):
    for i, image in enumerate(data[2][:5]):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    (tmp_path / "2.png").write_bytes(b"junk")
    with pytest.warns(UserWarning, match="1 of 5 images cannot be read and are skipped"):
        assert len(fitted.transform(tmp_path)) == 4
    with pytest.raises(ValueError, match=r"2\.png: not a readable image"):
        fitted.transform(sorted(tmp_path.iterdir()))
    for i in (0, 1):
        (tmp_path / f"{i}.png").write_bytes(b"junk")
    with pytest.raises(ValueError, match="3 of 5 images cannot be read"):
        fitted.transform(tmp_path)


@pytest.mark.parametrize("params", [{"net": "vgg16"}, {"mirror": False}, {"augment": False}, {"image_size": 64}])
def test_warns_about_image_parameters_for_vectors(params, blobs):
    with pytest.warns(UserWarning, match=f"{next(iter(params))}: no effect, because X holds vectors") as warned:
        DISHD(8, n_iter=0, epochs=1, device="cpu", **params).fit(*blobs)
    assert warned[0].filename == __file__


def test_names_of_columns_are_kept(blobs):
    pd = pytest.importorskip("pandas")
    X, y = blobs
    table = pd.DataFrame(X, columns=[f"c{i}" for i in range(6)])
    hasher = DISHD(8, n_iter=0, epochs=1, device="cpu").fit(table, y)
    assert list(hasher.feature_names_in_) == list(table.columns)
    with pytest.raises(ValueError, match="feature names"):
        hasher.transform(table[table.columns[::-1]])


# --- what a fit leaves behind ---


def test_a_fit_that_fails_changes_nothing(data, digits, monkeypatch):
    X, y, Xq, _ = data

    def fail(*_, **__):
        raise RuntimeError("the device is gone")

    hasher, former = tiny(epochs=1, n_iter=0), tiny(epochs=1, n_iter=0).fit(X, y)
    before, codes_before = set(vars(hasher)), former.transform(Xq)
    monkeypatch.setattr(Training, "run", fail)
    with pytest.raises(RuntimeError, match="the device is gone"):
        hasher.fit(X, y)
    assert set(vars(hasher)) == before
    with pytest.raises(NotFittedError):
        hasher.transform(X)
    with pytest.raises(NotFittedError):
        check_is_fitted(hasher)
    with pytest.raises(RuntimeError, match="the device is gone"):
        former.set_params(net="mlp").fit(*digits[:2])
    former.set_params(net=former.fit_params_["net"])  # codes belong to the parameters of their fit
    np.testing.assert_array_equal(former.transform(Xq), codes_before)


def test_a_new_fit_replaces_the_former_one(data, digits):
    hasher = tiny(epochs=1, n_iter=0).fit(*data[:2])
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
def test_a_fit_on_the_gpu_leaves_its_generator_and_export_leaves_the_model(data, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("GPU NOT CHECKED: torch sees none")
    X, y, _, _ = data
    hasher = tiny(epochs=1, n_iter=1, device="cuda")  # seeds the generators
    torch.cuda.manual_seed(5)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(5)
    hasher.fit(X, y)
    assert torch.equal(torch.rand(3, device="cuda"), expected)
    hasher.export_onnx(tmp_path / "h.onnx")
    assert {p.device.type for p in hasher.model_.parameters()} == {"cuda"}


def test_takes_images(fitted, digits, tmp_path):
    with pytest.raises(NotFittedError):
        _ = DeepDISH().takes_images
    assert fitted.takes_images
    vectors = DeepDISH(8, epochs=1, n_iter=0, device="cpu").fit(*digits[:2])
    assert not vectors.takes_images
    vectors.save(tmp_path / "m.dish")
    assert not dish.load(tmp_path / "m.dish").takes_images


# --- checkpoints ---

CHILD = """
import sys
sys.path.insert(0, {support!r})
import torch
torch.set_num_threads({threads})
from dish.io.checkpoint import Checkpoint
from helpers.deep import patches, tiny
X, y = patches(120, 0)
save = Checkpoint.save
def slow(checkpoint, state):
    save(checkpoint, state)
    if state.step == 1:
        print("ready", flush=True)
        import time
        time.sleep(60)
Checkpoint.save = slow
tiny(epochs=2, n_iter=3, checkpoint={checkpoint!r}, augment=True).fit(X, y)
"""


@pytest.mark.long  # test_it_resumes_with_the_state_of_the_optimiser in test_deep_dish.py is quick
def test_a_killed_fit_resumes_to_the_same_codes(tmp_path):
    X, y = patches(120, 0)
    whole = tiny(epochs=2, n_iter=3, augment=True).fit(X, y)
    path = tmp_path / "c"
    support = str(Path(__file__).parents[1] / "support")
    script = CHILD.format(support=support, checkpoint=str(path), threads=torch.get_num_threads())
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    resumed = tiny(epochs=2, n_iter=3, checkpoint=path, augment=True).fit(X, y)
    assert [h["round"] for h in resumed.history_] == [h["round"] for h in whole.history_]
    assert set(resumed.timings_) >= {"round 2", "round 3"}
    assert not {"round 0", "round 1"} & set(resumed.timings_)
    assert resumed.agreement_ == whole.agreement_
    np.testing.assert_array_equal(resumed.codes_, whole.codes_)
    np.testing.assert_array_equal(resumed.transform(X), whole.transform(X))


def swapped(X, y):
    """X with two rows of the same label exchanged."""
    i, j = np.flatnonzero(y == y[0])[:2]
    Z = X.copy()
    Z[[i, j]] = X[[j, i]]
    return Z


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    X, y = patches(60, 0)
    path = tmp_path / "c"
    tiny(epochs=1, n_iter=0, checkpoint=path).fit(X, y)
    resumed = tiny(epochs=1, n_iter=0, checkpoint=path).fit(X, y)
    assert not any(name.startswith("round") for name in resumed.timings_)
    for params, (A, b) in {
        "data": ({}, patches(60, 1)),
        "order": ({}, (swapped(X, y), y)),
        "labels": ({}, (X, 3 - y)),
        "epochs": ({"epochs": 2}, (X, y)),
        "seed": ({"random_state": 7}, (X, y)),
        "method": ({"kind": DISHD}, (X, y)),
    }.values():
        with pytest.raises(ValueError, match="other parameters or labels, or to other training rows"):
            tiny(**{"epochs": 1, "n_iter": 0, "checkpoint": path, **params}).fit(A, b)
    (path / "state.dish").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"state\.dish is not a dish model.* to start over"):
        tiny(epochs=1, n_iter=0, checkpoint=path).fit(X, y)


class Odd(Tiny):
    """A module whose text differs in every process and does not contain its width."""

    def __init__(self, width=8):
        super().__init__()
        self.layers[0] = torch.nn.Conv2d(3, width, 3, padding=1)
        self.layers[1] = torch.nn.BatchNorm2d(width)
        self.layers[4] = torch.nn.Conv2d(width, 16, 3, padding=1)

    def __repr__(self):
        return f"Odd({object()!r})"


def test_a_module_is_identified_by_its_class_and_shapes(tmp_path):
    X, y = patches(60, 0)
    path = tmp_path / "c"
    torch.manual_seed(1)
    first = tiny(net=Odd(), epochs=1, n_iter=1, checkpoint=path).fit(X, y)
    torch.manual_seed(2)  # other initial weights do not matter to a fit that resumes
    second = tiny(net=Odd(), epochs=1, n_iter=1, checkpoint=path).fit(X, y)
    assert not any(name.startswith("round") for name in second.timings_)
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
    for other in (Odd(12), type("Other", (Odd,), {})()):
        with pytest.raises(ValueError, match="other parameters"):
            tiny(net=other, epochs=1, n_iter=1, checkpoint=path).fit(X, y)


def test_a_checkpoint_knows_the_weights_that_training_started_from(tmp_path):
    X, y = patches(60, 0)
    params = {"epochs": 1, "n_iter": 0, "checkpoint": tmp_path / "c", "weights": "own"}
    tiny(**params).fit(X, y)
    assert "round 0" not in tiny(**params).fit(X, y).timings_
    other = Tiny()
    other.layers[5].running_var += 0.01
    with pytest.raises(ValueError, match="other parameters"):
        tiny(**params, net=other).fit(X, y)


def test_without_a_seed_a_fit_resumes_with_that_of_its_checkpoint(tmp_path):
    X, y = patches(60, 0)
    params = {"epochs": 1, "n_iter": 1, "checkpoint": tmp_path / "c", "random_state": None}
    first, second = (tiny(**params).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.decision_function(X), second.decision_function(X))


def test_rows_are_hashed_once_and_only_for_a_checkpoint(tmp_path, monkeypatch):
    X, y = patches(60, 0)
    calls, fingerprint = [], checkpoints.fit_fingerprint
    monkeypatch.setattr(deep_hasher, "fit_fingerprint", lambda *given: calls.append(given) or fingerprint(*given))
    tiny(epochs=1, n_iter=1).fit(X, y)
    assert len(calls) == 0
    tiny(epochs=1, n_iter=1, checkpoint=tmp_path / "c").fit(X, y)
    assert len(calls) == 1


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
    assert loaded.fingerprint_ == named.fingerprint_
    np.testing.assert_array_equal(loaded.decision_function(X), named.decision_function(X))
    np.testing.assert_array_equal(loaded.codes_, named.codes_)


def test_a_module_of_ones_own_is_not_saved(fitted, tmp_path):
    with pytest.raises(TypeError, match=r"files hold no code.*export_onnx"):
        fitted.save(tmp_path / "m.dish")
    assert not (tmp_path / "m.dish").exists()


def test_export_does_not_change_the_model(data, tmp_path, monkeypatch):
    hasher = tiny(epochs=1, n_iter=0).fit(*data[:2])
    hasher.model_.train()

    def export(model, args, file, **_):
        assert not model.training
        assert model.model is not hasher.model_
        Path(file).write_bytes(b"graph")

    monkeypatch.setattr(torch.onnx, "export", export)
    hasher.export_onnx(tmp_path / "h.onnx")
    assert hasher.model_.training
    assert (tmp_path / "h.onnx").read_bytes() == b"graph"


HEADS = [
    pytest.param(kind, marks=pytest.mark.slow) for kind in ("posterior", "error diffusion", "multilabel", "frozen")
]


@pytest.mark.parametrize("kind", ["named", "own", "vectors", *HEADS])
def test_onnx_gives_the_same_codes(kind, named, fitted, data, digits, tmp_path, monkeypatch):
    runtime = pytest.importorskip("onnxruntime", reason="ONNX NOT CHECKED: onnxruntime is missing")
    pytest.importorskip("onnx", reason="ONNX NOT CHECKED: onnx is missing")
    Xq = data[2] if kind in ("named", "own", "frozen") else digits[2].astype(np.float32)
    if kind in ("named", "own"):
        hasher = named if kind == "named" else fitted
    elif kind == "frozen":
        hasher = DeepDISH(12, Tiny(), freeze=True, device="cpu").fit(*data[:2])
    else:
        labels = np.eye(10)[digits[1]] if kind == "multilabel" else digits[1]
        monkeypatch.setattr("dish.deep.heads.diffusion_gain", lambda *_: 1.0)
        n_bits, n_iter = 24 if kind == "error diffusion" else 12, 0 if kind == "vectors" else 1
        hasher = DeepDISH(n_bits, epochs=1, n_iter=n_iter, device="cpu").fit(digits[0], labels)
        assert (hasher.model_.head.kind == "error_diffusion") == (kind == "error diffusion")
    hasher.export_onnx(tmp_path / "h.onnx")
    session = runtime.InferenceSession(str(tmp_path / "h.onnx"), providers=["CPUExecutionProvider"])
    (F,) = session.run(None, {session.get_inputs()[0].name: Xq})
    expected = hasher.decision_function(Xq)
    bits = np.abs(expected) > 1e-4  # closer to zero, rounding may decide
    if kind == "error diffusion":  # a changed bit changes the following ones
        bits[((F >= 0) != (expected >= 0)).any(1)] = False
        assert bits.mean() > 0.99
    np.testing.assert_allclose(F[bits], expected[bits], atol=1e-4)
    np.testing.assert_array_equal((F >= 0)[bits], (codes.unpack(hasher.transform(Xq), hasher.n_bits) > 0)[bits])
    hasher.export_onnx(tmp_path / "c.onnx", output="codes")
    session = runtime.InferenceSession(str(tmp_path / "c.onnx"), providers=["CPUExecutionProvider"])
    (packed,) = session.run(None, {session.get_inputs()[0].name: Xq})
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(packed, codes.pack(F))


# --- errors ---


@pytest.mark.parametrize(
    "params",
    [
        {"net": "resnet"}, {"epochs": 0}, {"batch_size": 1}, {"accumulate": 0}, {"lr": 0}, {"lr": "fast"},
        {"weight_decay": -1}, {"image_size": 4}, {"augment": 2}, {"mirror": None},
    ],
)  # fmt: skip
def test_bad_parameters_are_named(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        tiny(**params).fit(*patches(20, 0))


def test_only_bits_and_network_are_positional():
    assert DISHD(8, "nin").net == "nin"
    for kind in (DeepDISH, DISHD):
        with pytest.raises(TypeError, match="positional"):
            kind(8, "nin", None)


class Blind(nn.Module):
    """The same features for all images."""

    def forward(self, x):
        return torch.ones(len(x), 4, device=x.device)


def test_warns_if_the_network_learned_nothing():
    with pytest.warns(UserWarning, match=r"all training rows have the same code: .* lr \(it was "):
        tiny(DISHD, net=Blind(), n_iter=0, epochs=1).fit(*patches(20, 0))


def test_bad_input_is_refused():
    X, y = patches(20, 0)
    with pytest.raises(ValueError, match="1 class"):
        tiny().fit(X, np.zeros(20))
    with pytest.raises(ValueError, match="requires y"):
        tiny().fit(X)
    with pytest.raises(ValueError, match="y has 19"):
        tiny().fit(X, y[:19])


def test_a_hasher_without_history_plots_nothing(named, tmp_path):
    named.save(tmp_path / "m.dish")
    with pytest.raises(ValueError, match="has no history to plot"):
        dish.load(tmp_path / "m.dish").draw_history(tmp_path / "loss.png")
