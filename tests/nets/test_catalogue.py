"""Networks by name: shapes and sizes with and without the last layer."""

import pytest
import torch

from dish import nets

# VGG-16 is large: see test_imagenet
SMALL = ["6conv", "6conv-paper", "nin", "alexnet", "efficientnet_lite0", "efficientnet_lite2"]
PARAMETERS = {"alexnet": 61_100_840, "efficientnet_lite0": 4_652_008, "efficientnet_lite2": 6_092_072}
WIDTH = {"6conv": 192, "6conv-paper": 4 * 4 * 192, "nin": 192, "alexnet": 4096}
WIDTH |= {"efficientnet_lite0": 1280, "efficientnet_lite2": 1280}


def n_parameters(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_shapes_with_and_without_the_last_layer(name):
    side = nets.spec(name).size
    with torch.device("meta"):  # only shapes
        whole, body, x = nets.build(name, 1000).eval(), nets.build(name, None).eval(), torch.rand(2, 3, side, side)
        assert whole(x).shape == (2, 1000)
        assert body(x).shape == (2, WIDTH[name])
    assert n_parameters(whole) == PARAMETERS.get(name, n_parameters(whole))
    assert n_parameters(whole) - n_parameters(body) == 1000 * (WIDTH[name] + 1)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"net must be one of 6conv, .*'resnet'"):
        nets.build("resnet")
