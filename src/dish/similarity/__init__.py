"""S = P Rᵀ, the similarity that codes reproduce, never built: classes, label counts, label sets, low rank, none.

``from_labels`` picks the form that fits the labels.
"""

from dish.similarity.labelled import (
    Classes,
    LabelCounts,
    LabelSets,
    LowRank,
    Similarity,
    anchor_graph,
    from_labels,
    nystroem,
)

__all__ = [
    "Classes",
    "LabelCounts",
    "LabelSets",
    "LowRank",
    "Similarity",
    "anchor_graph",
    "from_labels",
    "nystroem",
]
