"""Networks with published ImageNet weights, under the names those files use for their layers.

AlexNet and VGG-16 have torchvision's names, EfficientNet-Lite those of its public weight files: they load unchanged.
"""

from __future__ import annotations

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


class _SamePad(nn.Module):
    """Zero padding that makes a strided convolution give ceil(size / stride), the odd row below and to the right."""

    def __init__(self, k: int, stride: int) -> None:
        super().__init__()
        self.k, self.stride = k, stride

    def forward(self, x: Tensor) -> Tensor:
        """Pad (n, c, H, W)."""
        sides = []
        for size in (x.shape[3], x.shape[2]):
            total = max((-(-size // self.stride) - 1) * self.stride + self.k - size, 0)
            sides += [total // 2, total - total // 2]
        return nn.functional.pad(x, sides)


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
        self.pad = _SamePad(k, stride)
        self._depthwise_conv = nn.Conv2d(mid, mid, k, stride, groups=mid, bias=False)
        self._bn1 = nn.BatchNorm2d(mid, eps=1e-3, momentum=0.01)
        self._project_conv = nn.Conv2d(mid, o, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(o, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """(n, i, H, W) → (n, o, H / stride, W / stride)."""
        relu6 = nn.functional.relu6
        z = relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        z = relu6(self._bn1(self._depthwise_conv(self.pad(z))))
        z = self._bn2(self._project_conv(z))
        return x + z if self.residual else z


class EfficientNetLite(nn.Module):
    """EfficientNet without squeeze-and-excitation, with ReLU6 (Tan and Le, ICML 2019)."""

    # kernel, stride, expansion
    STAGES = ((3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6))

    def __init__(
        self, repeats: tuple[int, ...], widths: tuple[int, ...], dropout: float, num_classes: int | None
    ) -> None:
        super().__init__()
        self.pad = _SamePad(3, 2)
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
        relu6 = nn.functional.relu6
        x = relu6(self._bn0(self._conv_stem(self.pad(x))))
        for block in self._blocks:
            x = block(x)
        x = relu6(self._bn1(self._conv_head(x)))
        return self._fc(self.dropout(x.mean((2, 3))))


class EfficientNetLite0(EfficientNetLite):
    """EfficientNet-Lite0, for 224×224 images."""

    def __init__(self, num_classes: int | None = 1000) -> None:
        super().__init__((1, 2, 2, 3, 3, 4, 1), (16, 24, 40, 80, 112, 192, 320), 0.2, num_classes)


class EfficientNetLite2(EfficientNetLite):
    """EfficientNet-Lite2, for 260×260 images: 1.1 times as wide and 1.2 times as deep."""

    def __init__(self, num_classes: int | None = 1000) -> None:
        super().__init__((1, 3, 3, 4, 4, 5, 1), (16, 24, 48, 88, 120, 208, 352), 0.3, num_classes)
