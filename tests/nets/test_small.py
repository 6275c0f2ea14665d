"""Networks that are trained from scratch."""

import pytest
import torch
from torch import nn

from dish import nets
from dish.nets.small import FeatureDropout


def test_the_papers_six_convolutions():
    net = nets.build("6conv", 10)
    widths = [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert widths == [96, 96, 192, 192, 192, 192]


def test_the_papers_pooling():
    """Table 3: three poolings of 3×3 with stride 2, the last one an average."""
    net = nets.build("6conv-paper", 10)
    layers = [m for m in net.modules() if not list(m.children())]
    pools = [m for m in layers if isinstance(m, (nn.MaxPool2d, nn.AvgPool2d))]
    assert [type(m) for m in pools] == [nn.MaxPool2d, nn.MaxPool2d, nn.AvgPool2d]
    assert {(m.kernel_size, m.stride) for m in pools} == {(3, 2)}
    widths = [m.out_channels for m in layers if isinstance(m, nn.Conv2d)]
    assert widths == [96, 96, 192, 192, 192, 192]
    x = torch.ones(1, 192, 8, 8)
    torch.testing.assert_close(net.avgpool(x), torch.ones(1, 192, 4, 4))  # at the border, too


@pytest.mark.parametrize("name", ["6conv", "6conv-paper", "nin"])
def test_batch_norm_can_be_left_out(name):
    plain = type(nets.build(name, 10))(10, batch_norm=False)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in plain.modules())
    assert plain(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_the_perceptron_learns_its_width_from_the_rows():
    assert nets.build("mlp", 7)(torch.rand(3, 11)).shape == (3, 7)
    assert nets.build("mlp", None)(torch.rand(3, 11)).shape == (3, 1024)


def test_the_perceptron_starts_with_the_averages_of_the_rows():
    net, rows = nets.MLP(None), torch.randn(100, 5) * torch.arange(1, 6) + 1000
    net.eval()(rows[:2])
    net.begin_with(rows)
    standardised = net.features[0](rows)
    torch.testing.assert_close(standardised.mean(0), torch.zeros(5), atol=1e-3, rtol=0)
    torch.testing.assert_close(standardised.var(0, correction=0), torch.ones(5), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("d", "share"), [(1024, 0.2), (512, 0.2), (128, 0.05)])
def test_dropout_of_fewer_features_where_there_are_few(d, share):
    torch.manual_seed(0)
    x = FeatureDropout().train()(torch.ones(200, d))
    assert float((x == 0).float().mean()) == pytest.approx(share, abs=0.01)
    assert (FeatureDropout().eval()(torch.ones(2, d)) == 1).all()
