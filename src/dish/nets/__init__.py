"""Networks for images and vectors, and their published weights: ``build(name, num_classes)``."""

from dish.nets.networks import LITE, NETS, build, load_weights, read_weights, spec

__all__ = ["LITE", "NETS", "build", "load_weights", "read_weights", "spec"]
