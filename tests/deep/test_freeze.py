"""freeze=True: the network stays as it is, what comes on top of it learns."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import dish
from dish import DISH, DeepDISH, nets
from dish.deep import training
from dish.deep.data import Problem
from dish.parallel import ALONE
from dish.posterior.regression import MAX_LABELS
from dish.similarity import from_labels
from helpers.deep import Tiny, patches, score, tiny


@pytest.mark.slow
@pytest.mark.parametrize("head", ["paper", "codewords", "kernel"])
def test_only_what_is_on_top_learns(head, monkeypatch):
    (X, y), (Xq, yq) = patches(300, 0), patches(100, 1)
    torch.manual_seed(0)
    net = Tiny()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    monkeypatch.setattr(training, "augment", lambda *_: pytest.fail("images are seen once, as they are"))
    hasher = tiny(net=net, freeze=True, head=head, epochs=30, augment=True).fit(X, y)
    for name, value in hasher.model_.body.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert score(hasher, X, y, Xq, yq) > 0.8  # random convolutions tell stripes apart


@pytest.mark.slow
def test_a_frozen_network_is_saved_whole_and_resumes(tmp_path):
    X, y = patches(80, 0)
    torch.manual_seed(0)
    save_file(nets.build("6conv", None).state_dict(), tmp_path / "w.safetensors")
    given = {"weights": tmp_path / "w.safetensors", "freeze": True, "epochs": 2, "n_iter": 1, "device": "cpu"}
    given |= {"head": "codewords"}
    hasher = DeepDISH(12, checkpoint=tmp_path / "c.dish", **given).fit(X, y)
    hasher.save(tmp_path / "m.dish")
    F = hasher.decision_function(X)
    np.testing.assert_array_equal(dish.load(tmp_path / "m.dish").decision_function(X), F)
    resumed = DeepDISH(12, checkpoint=tmp_path / "c.dish", **given).fit(X, y)
    assert "round 1" not in resumed.timings_
    np.testing.assert_array_equal(resumed.decision_function(X), F)


def test_what_cannot_be_frozen_is_refused():
    X, y = patches(20, 0)
    with pytest.raises(ValueError, match="freeze=True needs weights"):
        DeepDISH(freeze=True).fit(X, y)
    with pytest.raises(ValueError, match="head='kernel' is for a network that stays as it is"):
        tiny(head="kernel").fit(X, y)
    with pytest.raises(ValueError, match="freeze is for images"):
        tiny(freeze=True).fit(X.reshape(20, -1).astype(np.float32), y)


@pytest.mark.parametrize("several", [False, True])
def test_the_kernel_on_top_is_that_of_dish(several, tmp_path):
    """By the features of the network, from a file and through the functions users call."""
    X, y = patches(80, 0)
    y = np.stack([y == 0, y >= 1, y == 2], 1).astype(np.uint8) if several else y
    torch.manual_seed(0)
    save_file(nets.build("6conv", None).state_dict(), tmp_path / "w.safetensors")
    hasher = DeepDISH(12, weights=tmp_path / "w.safetensors", freeze=True, head="kernel", mirror=False, device="cpu")
    hasher.fit(X, y)
    with torch.no_grad():
        phi = hasher.model_.body(hasher.model_.prepare(torch.from_numpy(X)))
    rows = torch.nn.functional.normalize(phi, dim=1).numpy()
    seed = int(np.random.RandomState(0).randint(2**31 - 1))  # what random_state=0 comes to
    reference = DISH(12, n_anchors=80, device="cpu", random_state=seed).fit(rows, y)
    F = hasher.decision_function(X)
    np.testing.assert_allclose(F, reference.decision_function(rows), atol=1e-4)
    np.testing.assert_array_equal(hasher.codes_, reference.codes_)
    hasher.save(tmp_path / "m.dish")
    loaded = dish.load(tmp_path / "m.dish")
    assert loaded.head_ == hasher.head_ == "kernel"
    assert loaded.fingerprint_ == hasher.fingerprint_
    np.testing.assert_array_equal(loaded.decision_function(X), F)


@pytest.mark.slow
def test_the_kernel_on_top_in_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    X, y = patches(60, 0)
    hasher = tiny(net=Tiny(), freeze=True, head="kernel", mirror=True).fit(X, y)
    hasher.export_onnx(tmp_path / "codes.onnx", output="codes")
    (packed,) = onnxruntime.InferenceSession(str(tmp_path / "codes.onnx")).run(None, {"images": X})
    sure = np.abs(hasher.decision_function(X)) > 1e-4  # other libraries round otherwise
    found, ours = (np.unpackbits(codes, axis=1)[:, : hasher.n_bits] for codes in (packed, hasher.transform(X)))
    np.testing.assert_array_equal(found[sure], ours[sure])


@pytest.mark.parametrize(
    ("params", "graded", "vectors", "head"),
    [
        ({}, False, False, "codewords"),
        ({"alpha": 0.2}, False, False, "paper"),
        ({"mu": 0.5}, False, True, "paper"),
        ({"alpha": 0.2, "freeze": True}, False, False, "kernel"),
        ({}, False, True, "codewords"),
        ({}, True, False, "codewords"),
        ({"freeze": True}, False, False, "kernel"),
        ({"freeze": True}, True, False, "codewords"),
        ({"patience": 3}, False, False, "codewords"),
        ({"head": "paper"}, False, True, "paper"),
    ],
)
def test_what_auto_stands_for(params, graded, vectors, head):
    targets = torch.tensor([[1.0, 0.5], [0.0, float("nan")]]) if graded else torch.tensor([0, 1])
    rows = torch.zeros(2, 4) if vectors else torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    problem = Problem(rows, targets, from_labels([0, 1]), 0, torch.device("cpu"), ALONE)
    assert DeepDISH(**params)._chosen_head(problem) == head


@pytest.mark.filterwarnings("default")
def test_what_has_no_effect_on_a_frozen_network_is_said(tmp_path):
    X, y = patches(40, 0)
    with pytest.warns(UserWarning, match=r"n_iter, epochs, .*checkpoint: head='kernel' trains nothing"):
        tiny(freeze=True, checkpoint=tmp_path / "c.dish").fit(X, y)
    assert not (tmp_path / "c.dish").exists()


def test_more_classes_than_a_posterior_can_learn():
    y = np.arange(MAX_LABELS + 1)
    rows, S = torch.zeros(len(y), 4), from_labels(y)
    problem = Problem(rows, torch.from_numpy(y), S, 0, torch.device("cpu"), ALONE)
    assert DeepDISH(freeze=True)._chosen_head(problem) == "codewords"
    with pytest.raises(ValueError, match="learns at most 4,096 labels, there are 4,097"):
        DeepDISH(freeze=True, head="kernel")._outputs(problem)


def test_a_loaded_hasher_knows_where_its_weights_came_from(tmp_path):
    X, y = patches(40, 0)
    torch.save(nets.build("6conv", None).state_dict(), tmp_path / "w.pth")
    DeepDISH(8, net="6conv", weights=tmp_path / "w.pth", freeze=True, device="cpu").fit(X, y).save(
        tmp_path / "m.dish"
    )
    loaded = dish.load(tmp_path / "m.dish")
    assert loaded.weights == str(tmp_path / "w.pth")
    codes = loaded.transform(X)
    np.testing.assert_array_equal(loaded.fit(X, y).transform(X), codes)
