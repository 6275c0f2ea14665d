"""Networks with published ImageNet weights. Their layers have the names that the weight files use.

These are torchvision's names for AlexNet and VGG-16, and those of the public weight files for EfficientNet-Lite.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from dish.nets.small import ConvNet, convolution, he_init, last_layer


class AlexNet(ConvNet):
    """AlexNet in its one-column form (Krizhevsky, arXiv 1404.5997)."""

    def __init__(self, num_classes: int | None = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2)),
            *(*convolution(64, 192, 5, 2, norm=False), nn.MaxPool2d(3, stride=2)),
            *convolution(192, 384, norm=False),
            *convolution(384, 256, norm=False),
            *(*convolution(256, 256, norm=False), nn.MaxPool2d(3, stride=2)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            *(nn.Dropout(), nn.Linear(256 * 36, 4096), nn.ReLU(inplace=True)),
            *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True)),
            last_layer(4096, num_classes),
        )


class VGG16(ConvNet):
    """VGG-16, configuration D (Simonyan and Zisserman, ICLR 2015)."""

    WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0: max-pool

    def __init__(self, num_classes: int | None = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in self.WIDTHS:
            layers += convolution(channels, width, norm=False) if width else [nn.MaxPool2d(2, stride=2)]
            channels = width or channels
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            *(nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout()),
            *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout()),
            last_layer(4096, num_classes),
        )
        he_init(self)


def _normed(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """norm(conv(x)) with an output of size ceil(size / stride); an odd padding row goes below and to the right.

    In evaluation mode, batch norm is folded into the weights of the convolution, which saves a pass over the outputs.
    """
    x, padding = _same_pad(x, conv.kernel_size[0], conv.stride[0])
    if norm.training:
        z = nn.functional.conv2d(x, conv.weight, None, conv.stride, padding, 1, conv.groups)
        return cast(Tensor, norm(z))
    scale = norm.weight * (cast(Tensor, norm.running_var) + norm.eps).rsqrt()
    bias = norm.bias - cast(Tensor, norm.running_mean) * scale
    return nn.functional.conv2d(x, conv.weight * scale.view(-1, 1, 1, 1), bias, conv.stride, padding, 1, conv.groups)


def _same_pad(x: Tensor, k: int, stride: int) -> tuple[Tensor, list[int]]:
    """(n, c, H, W), padded if the padding is not symmetric, and the symmetric padding left to the convolution."""
    totals = [max((-(-size // stride) - 1) * stride + k - size, 0) for size in x.shape[2:]]
    if all(total % 2 == 0 for total in totals):
        return x, [total // 2 for total in totals]
    sides = [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return nn.functional.pad(x, sides), [0, 0]


def _relu6(x: Tensor) -> Tensor:
    return nn.functional.relu6(x, inplace=True)


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class _InvertedBottleneck(nn.Module):
    """Expand, depthwise convolution, project; a residual connection if input and output have the same shape."""

    def __init__(self, i: int, o: int, k: int, stride: int, expand: int) -> None:
        super().__init__()
        mid = i * expand
        self.residual = stride == 1 and i == o
        self.expands = expand != 1
        if self.expands:
            self._expand_conv, self._bn0 = nn.Conv2d(i, mid, 1, bias=False), _batch_norm(mid)
        self._depthwise_conv = nn.Conv2d(mid, mid, k, stride, groups=mid, bias=False)
        self._bn1 = _batch_norm(mid)
        self._project_conv, self._bn2 = nn.Conv2d(mid, o, 1, bias=False), _batch_norm(o)

    def forward(self, x: Tensor) -> Tensor:
        """(n, i, H, W) → (n, o, H / stride, W / stride)."""
        z = _relu6(_normed(self._expand_conv, self._bn0, x)) if self.expands else x
        z = _relu6(_normed(self._depthwise_conv, self._bn1, z))
        z = _normed(self._project_conv, self._bn2, z)
        return x + z if self.residual else z


class EfficientNetLite(nn.Module):
    """EfficientNet without squeeze-and-excitation, with ReLU6 (Tan and Le, ICML 2019)."""

    # kernel size, stride, expansion
    STAGES = ((3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6))

    def __init__(
        self, repeats: tuple[int, ...], widths: tuple[int, ...], dropout: float, num_classes: int | None
    ) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = nn.Conv2d(3, 32, 3, stride=2, bias=False), _batch_norm(32)
        blocks, channels = [], 32
        for (k, stride, expand), count, width in zip(self.STAGES, repeats, widths, strict=True):
            for j in range(count):
                blocks.append(_InvertedBottleneck(channels, width, k, stride if j == 0 else 1, expand))
                channels = width
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = nn.Conv2d(channels, 1280, 1, bias=False), _batch_norm(1280)
        self.dropout = nn.Dropout(dropout)
        self._fc = last_layer(1280, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, H, W) → logits, or Φ (n, 1280)."""
        x = _relu6(_normed(self._conv_stem, self._bn0, x))
        for block in self._blocks:
            x = block(x)
        x = _relu6(_normed(self._conv_head, self._bn1, x))
        return self._fc(self.dropout(x.mean((2, 3))))


def efficientnet_lite0(num_classes: int | None = 1000) -> EfficientNetLite:
    """EfficientNet-Lite0, for 224×224 images."""
    return EfficientNetLite((1, 2, 2, 3, 3, 4, 1), (16, 24, 40, 80, 112, 192, 320), 0.2, num_classes)


def efficientnet_lite2(num_classes: int | None = 1000) -> EfficientNetLite:
    """EfficientNet-Lite2, for 260×260 images: 1.1 times as wide and 1.2 times as deep."""
    return EfficientNetLite((1, 3, 3, 4, 4, 5, 1), (16, 24, 48, 88, 120, 208, 352), 0.3, num_classes)
