"""Networks with published ImageNet weights, under the names those files use for their layers.

AlexNet and VGG-16 have torchvision's names, EfficientNet-Lite those of its public weight files: they load unchanged.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from dish.nets.small import convolution, he_init, last_layer


class AlexNet(nn.Module):
    """AlexNet in its one-column form, with torchvision's layer names (Krizhevsky, arXiv 1404.5997)."""

    def __init__(self, num_classes: int | None = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 36, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            last_layer(4096, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 224, 224) → logits, or Φ (n, 4096)."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


class VGG16(nn.Module):
    """VGG-16, configuration D, with torchvision's layer names (Simonyan and Zisserman, ICLR 2015)."""

    WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0: max-pool

    def __init__(self, num_classes: int | None = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in self.WIDTHS:
            if width == 0:
                layers.append(nn.MaxPool2d(2, stride=2))
            else:
                layers += convolution(channels, width, norm=False)
                channels = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 49, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            last_layer(4096, num_classes),
        )
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 224, 224) → logits, or Φ (n, 4096)."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _normed(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """norm(conv(x)), padded so that it gives ceil(size / stride), the odd row below and to the right.

    Averages that stay as they are go into the weights: the outputs are then read and written once less.
    """
    x, padding = _same_pad(x, conv.kernel_size[0], conv.stride[0])
    if norm.training:
        z = nn.functional.conv2d(x, conv.weight, None, conv.stride, padding, 1, conv.groups)
        return cast(Tensor, norm(z))
    scale = norm.weight * (cast(Tensor, norm.running_var) + norm.eps).rsqrt()
    bias = norm.bias - cast(Tensor, norm.running_mean) * scale
    return nn.functional.conv2d(x, conv.weight * scale.view(-1, 1, 1, 1), bias, conv.stride, padding, 1, conv.groups)


def _same_pad(x: Tensor, k: int, stride: int) -> tuple[Tensor, list[int]]:
    """(n, c, H, W) with the zeros that a convolution cannot add itself, and those that it can, per side."""
    totals = [max((-(-size // stride) - 1) * stride + k - size, 0) for size in x.shape[2:]]
    if all(total % 2 == 0 for total in totals):
        return x, [total // 2 for total in totals]
    sides = [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return nn.functional.pad(x, sides), [0, 0]


def _relu6(x: Tensor) -> Tensor:
    return nn.functional.relu6(x, inplace=True)


class _InvertedBottleneck(nn.Module):
    """Expand, depthwise convolution, project; added to its input where the shapes agree."""

    def __init__(self, i: int, o: int, k: int, stride: int, expand: int) -> None:
        super().__init__()
        mid = i * expand
        self.residual = stride == 1 and i == o
        if expand != 1:
            self._expand_conv = nn.Conv2d(i, mid, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(mid, eps=1e-3, momentum=0.01)
        self.expands = expand != 1
        self._depthwise_conv = nn.Conv2d(mid, mid, k, stride, groups=mid, bias=False)
        self._bn1 = nn.BatchNorm2d(mid, eps=1e-3, momentum=0.01)
        self._project_conv = nn.Conv2d(mid, o, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(o, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """(n, i, H, W) → (n, o, H / stride, W / stride)."""
        z = _relu6(_normed(self._expand_conv, self._bn0, x)) if self.expands else x
        z = _relu6(_normed(self._depthwise_conv, self._bn1, z))
        z = _normed(self._project_conv, self._bn2, z)
        return x + z if self.residual else z


class EfficientNetLite(nn.Module):
    """EfficientNet without squeeze-and-excitation, with ReLU6 (Tan and Le, ICML 2019)."""

    # kernel, stride, expansion
    STAGES = ((3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6))

    def __init__(
        self, repeats: tuple[int, ...], widths: tuple[int, ...], dropout: float, num_classes: int | None
    ) -> None:
        super().__init__()
        self._conv_stem = nn.Conv2d(3, 32, 3, stride=2, bias=False)
        self._bn0 = nn.BatchNorm2d(32, eps=1e-3, momentum=0.01)
        blocks, channels = [], 32
        for (k, stride, expand), count, width in zip(self.STAGES, repeats, widths, strict=True):
            for j in range(count):
                blocks.append(_InvertedBottleneck(channels, width, k, stride if j == 0 else 1, expand))
                channels = width
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(channels, 1280, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(1280, eps=1e-3, momentum=0.01)
        self.dropout = nn.Dropout(dropout)
        self._fc = last_layer(1280, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, H, W) → logits, or Φ (n, 1280)."""
        x = _relu6(_normed(self._conv_stem, self._bn0, x))
        for block in self._blocks:
            x = block(x)
        x = _relu6(_normed(self._conv_head, self._bn1, x))
        return self._fc(self.dropout(x.mean((2, 3))))


class EfficientNetLite0(EfficientNetLite):
    """EfficientNet-Lite0, for 224×224 images."""

    def __init__(self, num_classes: int | None = 1000) -> None:
        super().__init__((1, 2, 2, 3, 3, 4, 1), (16, 24, 40, 80, 112, 192, 320), 0.2, num_classes)


class EfficientNetLite2(EfficientNetLite):
    """EfficientNet-Lite2, for 260×260 images: 1.1 times as wide and 1.2 times as deep."""

    def __init__(self, num_classes: int | None = 1000) -> None:
        super().__init__((1, 3, 3, 4, 4, 5, 1), (16, 24, 48, 88, 120, 208, 352), 0.3, num_classes)
