"""Weight files of any origin."""

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dish import nets
from dish.nets import weights


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(1)
    return nets.build("6conv", 10).state_dict()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_the_file_of_a_classifier_loads_into_the_network_without_last_layer(suffix, trained, tmp_path):
    path = tmp_path / f"6conv{suffix}"
    torch.save(trained, path) if suffix == ".pth" else save_file(trained, path)
    net = nets.build("6conv", None)
    assert nets.load_weights(net, path) == []
    for name, value in net.state_dict().items():
        assert torch.equal(value, trained[name]), name


def test_layers_that_a_file_lacks_are_returned_and_not_changed(trained, tmp_path):
    convolutions = {k: v for k, v in trained.items() if k.startswith("features.")}
    torch.save({"state_dict": convolutions}, tmp_path / "conv.pth")
    net = nets.build("6conv", 5)
    before = net.classifier.weight.clone()
    fresh = nets.load_weights(net, str(tmp_path / "conv.pth"))
    assert fresh == [k for k in net.state_dict() if k.startswith("classifier.")]
    assert torch.equal(net.classifier.weight, before)
    assert torch.equal(net.features[0].weight, trained["features.0.weight"])


def small():
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))


def test_files_that_do_not_fit_are_refused(tmp_path):
    files = {
        r"0\.weight of shape \(4, 3\), the network \(2, 3\)": {"0.weight": torch.zeros(4, 3)},
        "no layer of this network .*conv1": {"conv1.weight": torch.zeros(1)},
        r"no layer of this network \(its first: none\)": {},
        "no dictionary of tensors": [torch.zeros(2)],
        r"w\.pth holds no dictionary": {"0.weight": "text"},
    }
    for message, content in files.items():
        torch.save(content, tmp_path / "w.pth")
        net = small()
        before = {k: v.clone() for k, v in net.state_dict().items()}
        with pytest.raises(ValueError, match=message):
            nets.load_weights(net, tmp_path / "w.pth")
        assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    for name in ("junk.pth", "junk.safetensors"):
        (tmp_path / name).write_bytes(b"junk" * 10)
        with pytest.raises(ValueError, match=f"{name} is not a readable weight file"):
            nets.load_weights(small(), tmp_path / name)
    (tmp_path / "empty.pth").write_bytes(b"")
    with pytest.raises(ValueError, match="not a readable weight file"):
        nets.load_weights(small(), tmp_path / "empty.pth")
    with pytest.raises(ValueError, match=r"weights must be 'imagenet', the path of a file, 'own' or None, got 3"):
        nets.load_weights(net, 3)
    with pytest.raises(FileNotFoundError, match=r"no file at .*none\.pth"):
        nets.load_weights(small(), tmp_path / "none.pth")


class Evil:
    """Writes a file when unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_a_pickle_with_code_is_refused_and_not_run(writer, tmp_path):
    mark = tmp_path / "it ran"
    if writer == "pickle":
        (tmp_path / "w.pth").write_bytes(pickle.dumps({"0.weight": Evil(mark)}, protocol=2))
    else:
        torch.save({"0.weight": Evil(mark)}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="not a readable weight file"):
        nets.load_weights(small(), tmp_path / "w.pth")
    assert not mark.exists()
    with (tmp_path / "w.pth").open("rb") as file:  # the file does carry code: a plain loader runs it
        pickle.load(file) if writer == "pickle" else torch.load(file, weights_only=False)
    assert mark.exists()


def test_missing_imagenet_weights_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(weights, "cache_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"alexnet-owt-7be5be79\.pth"):
        nets.load_weights(small(), "imagenet", "alexnet")
    with pytest.raises(ValueError, match="give a path"):
        nets.load_weights(small(), "imagenet", "6conv")
