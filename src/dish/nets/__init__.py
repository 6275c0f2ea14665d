"""Networks for images and vectors, and their published weights: ``build(name, num_classes)``.

``small`` are trained from scratch, ``imagenet`` have published weights; ``catalogue`` names them all, ``weights``
reads their files.
"""

from dish.nets.catalogue import LITE, NETS, Normal, Spec, build, spec
from dish.nets.small import MLP, FormerMLP
from dish.nets.weights import load_weights, read_weights

__all__ = ["LITE", "MLP", "NETS", "FormerMLP", "Normal", "Spec", "build", "load_weights", "read_weights", "spec"]
