"""CNNBH: a classifier's fully connected layer, thresholded at zero.

Guo, Li, "CNN based hashing for image retrieval", arXiv 1509.01354 (the DISH paper starts from it).
"""

from __future__ import annotations

from dish.deep.deep_hasher import DeepHasher
from dish.deep.dish_d import classifier
from dish.deep.training import Objective, Training


class CNNBH(DeepHasher):
    """Train a network to classify rows by r outputs; the signs of these outputs are the code."""

    def _objective(self, training: Training) -> Objective:
        return classifier(training)
