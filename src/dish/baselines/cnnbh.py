"""CNNBH: a classifier's fully connected layer, cut at zero.

Guo, Li, "CNN based hashing for image retrieval", arXiv 1509.01354 (cited by the DISH paper as its start).
"""

from __future__ import annotations

from dish import codes
from dish.deep.dish import train_classifier
from dish.deep.hasher import DeepHasher
from dish.similarity import Similarity


class CNNBH(DeepHasher):
    """Train a network to tell classes from r outputs; the signs of those outputs are the code."""

    def _learn(self, S: Similarity) -> None:
        if self._read_checkpoint() is None:
            train_classifier(self)
            self._write_checkpoint(0, codes.pack(self._outputs().cpu().numpy()))
