"""S = P Rᵀ, the similarity that codes reproduce: from classes, label counts, label sets or your own P and R.

S itself is never built. ``from_labels`` chooses the class; ``nystroem`` and ``anchor_graph`` need no labels.
"""

from dish.similarity.base import Similarity
from dish.similarity.labelled import Classes, LabelCounts, LabelSets, check_labels, from_labels, n_labels, with_labels
from dish.similarity.lowrank import LowRank
from dish.similarity.unlabelled import anchor_graph, anchor_weights, nystroem

__all__ = [
    "Classes",
    "LabelCounts",
    "LabelSets",
    "LowRank",
    "Similarity",
    "anchor_graph",
    "anchor_weights",
    "check_labels",
    "from_labels",
    "n_labels",
    "nystroem",
    "with_labels",
]
