"""Networks for images and vectors, and their published weights: ``build(name, num_classes)``.

``small`` has networks that are trained from scratch, ``imagenet`` those with published weights. ``catalogue`` names
them all, ``weights`` reads weight files.
"""

from dish.nets.catalogue import LITE, NETS, Normal, Spec, build, spec
from dish.nets.small import MLP
from dish.nets.weights import load_weights, read_weights

__all__ = ["LITE", "MLP", "NETS", "Normal", "Spec", "build", "load_weights", "read_weights", "spec"]
