"""S = P Rᵀ, the similarity that codes reproduce, never built: classes, label counts, label sets, low rank, none.

``from_labels`` picks the form that fits the labels; ``nystroem`` and ``anchor_graph`` need none.
"""

from dish.similarity.base import Similarity
from dish.similarity.labelled import Classes, LabelCounts, LabelSets, check_labels, from_labels, n_labels
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
]
