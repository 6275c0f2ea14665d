"""CNNBH: a classifier's fully connected layer, cut at zero.

Guo, Li, "CNN based hashing for image retrieval", arXiv 1509.01354 (cited by the DISH paper as its start).
"""

from __future__ import annotations

from dish.deep.checkpoint import State
from dish.deep.deep_dish import train_classifier
from dish.deep.deep_hasher import DeepHasher, Fitted
from dish.deep.training import Training


class CNNBH(DeepHasher):
    """Train a network to tell classes from r outputs; the signs of those outputs are the code."""

    def _learn(self, training: Training, done: State | None) -> Fitted:
        if done is None:
            train_classifier(training)
            training.save(0, training.codes())
        return {}
