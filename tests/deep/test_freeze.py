"""freeze=True: the network stays as it is, what comes on top of it learns."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import dish
from dish import DeepDISH, nets
from dish.deep import training
from helpers.deep import Tiny, patches, score, tiny


@pytest.mark.slow
@pytest.mark.parametrize("head", ["paper", "codewords"])
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
    with pytest.raises(ValueError, match="freeze is for images"):
        tiny(freeze=True).fit(X.reshape(20, -1).astype(np.float32), y)
