"""A fit whose codes can be compared with those of an older model: what it keeps, and the start for new classes.

F = pᵃ V + offset. A class has the code sgn(V_c + offset). The rows of V of old classes, the offset, the power a and
the geometry bits stay as they are, so that codes of labels stay valid bit by bit; p is learned anew. New classes get
new rows of V: their codes lie far from all others, and V stays nearly orthogonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.cbcd.codewords import more_codewords
from dish.encoder import Linear, Posterior
from dish.errors import InputError
from dish.labels import merged_classes
from dish.lazy import Tensor, torch
from dish.posterior.projection import extended_projection


@dataclass(frozen=True)
class Kept:
    """What a fit keeps of an older model."""

    classes: NDArray[Any]  # (l,): old and new ones, sorted
    is_old: NDArray[np.bool_]  # (l,)
    V: NDArray[np.float64]  # (l, r): rows of old classes, and a start for those of new ones
    offset: NDArray[np.float64]  # (r,)
    power: int
    geometry: Linear | None

    @classmethod
    def of(
        cls, function: Posterior, geometry: Linear | None, old: NDArray[Any], new: NDArray[Any], seed: int
    ) -> Kept:
        """Of a hash function for the classes ``old``, and the classes of the new rows."""
        classes = merged_classes(old, new)
        place = {value: j for j, value in enumerate(classes.tolist())}
        at = np.array([place[value] for value in old.tolist()], np.intp)
        is_old = np.zeros(len(classes), bool)
        is_old[at] = True
        rng, offset = np.random.RandomState(seed), np.asarray(function.offset, np.float64)
        V = np.empty((len(classes), len(offset)))
        V[at] = function.V
        U = V[is_old] + offset
        known = np.where(U >= 0, 1.0, -1.0)
        signs = more_codewords(known, len(classes) - len(old), rng)
        V[~is_old] = extended_projection(U, signs, rng) - offset
        return cls(classes, is_old, V, offset, function.power, geometry)

    def tensors(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """V, the offset and the mask of old classes as tensors."""
        V, offset = (torch.from_numpy(A).to(device, dtype) for A in (self.V, self.offset))
        return V, offset, torch.from_numpy(self.is_old).to(device)

    def check_codes(self, function: Posterior) -> None:
        """Raise InputError if rounding changed the code of an old class."""
        V, offset = (np.asarray(A.cpu(), np.float64) for A in (function.V, function.offset))
        before, after = ((A[self.is_old] + b >= 0) for A, b in ((self.V, self.offset), (V, offset)))
        if not np.array_equal(before, after):
            raise InputError(
                f"compatible_with: rounding to {function.V.dtype} changes codes of the model's classes: pass X as "
                "float64, as for the older model"
            )


PROPERTIES = ("n_bits", "n_features_in_", "geometry bits", "one label per row")


def check_comparable(of_model: tuple[int, ...], of_fit: tuple[int, ...]) -> None:
    """Raise InputError for the first of ``PROPERTIES`` in which a fit differs from the older model."""
    for name, kept, given in zip(PROPERTIES, of_model, of_fit, strict=True):
        if kept != given:
            raise InputError(
                f"compatible_with: the model has {name} = {kept}, but this fit has {given}: their codes could not be "
                "compared. Use the same value, or fit without compatible_with and encode all rows again"
            )
