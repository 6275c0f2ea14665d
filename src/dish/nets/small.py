"""Networks that are trained from scratch: 6conv and NIN for 32×32 images, a perceptron for vectors."""

from __future__ import annotations

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Convolutions, average pooling and a classifier, under the names that torchvision gives them."""

    features: nn.Sequential
    avgpool: nn.Module
    classifier: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, H, W) → logits, or Φ (n, D) if the network has no last layer."""
        phi: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return phi


def last_layer(width: int, num_classes: int | None) -> nn.Module:
    """The linear classifier on Φ, or the identity if ``num_classes`` is None."""
    return nn.Identity() if num_classes is None else nn.Linear(width, num_classes)


def convolution(i: int, o: int, k: int = 3, padding: int = 1, norm: bool = True) -> list[nn.Module]:
    """Convolution, batch norm and ReLU."""
    layers: list[nn.Module] = [nn.Conv2d(i, o, k, padding=padding, bias=not norm)]
    return [*layers, *([nn.BatchNorm2d(o)] if norm else []), nn.ReLU(inplace=True)]


def he_init(net: nn.Module) -> None:
    """Initialise convolutions as He et al. (2015) do before a ReLU."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class SixConv(ConvNet):
    """The paper's six convolutions (96, 96, 192, 192, 192, 192) for 32×32 images.

    Batch norm, and the mean over the whole image as the last pooling, are ours.
    """

    def __init__(self, num_classes: int | None = 10, batch_norm: bool = True) -> None:
        super().__init__()

        def pair(i: int, o: int) -> list[nn.Module]:
            return [*convolution(i, o, norm=batch_norm), *convolution(o, o, norm=batch_norm)]

        def pool() -> nn.Module:
            return nn.MaxPool2d(3, stride=2, padding=1)

        self.features = nn.Sequential(*pair(3, 96), pool(), *pair(96, 192), pool(), *pair(192, 192))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = last_layer(192, num_classes)
        he_init(self)


class SixConvPaper(SixConv):
    """6conv with the last pooling of the paper's Table 3, an average over 3×3 with stride 2; batch norm is ours.

    Φ has 4 × 4 × 192 = 3,072 features. Windows at the border average the pixels that they contain, as in Caffe.
    """

    def __init__(self, num_classes: int | None = 10, batch_norm: bool = True) -> None:
        super().__init__(None, batch_norm)
        self.avgpool = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)
        self.classifier = last_layer(4 * 4 * 192, num_classes)


class NIN(ConvNet):
    """Network in network for 32×32 images: convolutions followed by 1×1 convolutions (Lin et al., ICLR 2014)."""

    def __init__(self, num_classes: int | None = 10, batch_norm: bool = True) -> None:
        super().__init__()

        def block(i: int, widths: tuple[int, int, int], k: int) -> list[nn.Module]:
            a, b, c = widths
            return [
                *convolution(i, a, k, k // 2, norm=batch_norm),
                *convolution(a, b, 1, 0, norm=batch_norm),
                *convolution(b, c, 1, 0, norm=batch_norm),
            ]

        self.features = nn.Sequential(
            *block(3, (192, 160, 96), 5),
            nn.MaxPool2d(3, stride=2, padding=1),
            *block(96, (192, 192, 192), 5),
            nn.AvgPool2d(3, stride=2, padding=1),
            *convolution(192, 192, norm=batch_norm),
            *convolution(192, 192, 1, 0, norm=batch_norm),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = last_layer(192, num_classes)
        he_init(self)


class FeatureDropout(nn.Module):
    """Dropout of a fifth of the features if there are 512 or more, and of fewer if there are fewer."""

    RATE, FEATURES = 0.2, 512  # few features are less redundant

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) → (n, d)."""
        return nn.functional.dropout(x, self.RATE * min(1.0, x.shape[1] / self.FEATURES), self.training)


class MLP(nn.Module):
    """One wide hidden layer on standardised vectors, with dropout; the first forward pass sets the input width."""

    def __init__(self, num_classes: int | None = 10, width: int = 1024) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.LazyBatchNorm1d(affine=False),
            FeatureDropout(),
            nn.LazyLinear(width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.5),
        )
        self.classifier = last_layer(width, num_classes)

    def begin_with(self, rows: Tensor) -> None:
        """Initialise the averages of the input with those of rows (n, d): SGD would take many steps to reach them."""
        norm = self.features[0]
        assert isinstance(norm, nn.BatchNorm1d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(rows.mean(0))
        norm.running_var.copy_(rows.var(0, correction=0))

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) → logits, or Φ (n, width)."""
        phi: Tensor = self.classifier(self.features(x))
        return phi
