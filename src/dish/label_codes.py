"""Codes of labels, for hashers whose class bits are the signs of F = pᵃ V + offset: those of p = 1 for the label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish import codes
from dish.checks import check_option
from dish.encoder import geometry_positions, interleaved, row_blocks
from dish.errors import InputError, UnsupportedError
from dish.hasher import F_ROWS, DescribeRows, EncodeLabelled, EncodeRows, Hasher
from dish.labels import are_classes
from dish.metrics.profile import RowTraits, ambiguity, codeword_distances, entropy, shared_codes


@dataclass(frozen=True)
class ClassBits:
    """F (n, r) of labels and of rows x. Labels may be from 0 to 1, or missing (NaN): x decides these."""

    V: NDArray[np.float64]  # (l, r)
    offset: NDArray[np.float64]  # (r,)
    power: int  # a
    scores: EncodeRows  # x → pᵃ (n, l)
    values: EncodeRows  # x → F (n, r)

    def of_labels(self, P: sp.csr_array) -> NDArray[np.float32]:
        """PᵃV + offset; NaN for a row with a missing label."""
        return np.asarray(P.power(self.power) @ self.V + self.offset, np.float32)

    def __call__(self, X: Any, P: sp.csr_array, known: NDArray[np.bool_]) -> NDArray[np.float32]:
        """F of labels P (n, l) for rows whose labels are known, of x for the others."""
        F = np.empty((len(known), len(self.offset)), np.float32)
        F[known] = self.of_labels(P[known])
        if (partly := known & has_gaps(P)).any():
            Y = P[partly].toarray() ** self.power
            F[partly] = np.where(np.isnan(Y), self.scores(X[partly]), Y) @ self.V + self.offset
        if not known.all():
            F[~known] = self.values(X[~known])
        return F


def has_gaps(P: sp.csr_array) -> NDArray[np.bool_]:
    """Which rows of labels (n, l) have missing ones, (n,)."""
    return np.isnan(P.sum(axis=1))


class LabelledHasher(Hasher):
    """A hasher with codes of labels. A subclass has ``classes_`` and defines ``_class_bits``."""

    geometry_: Any = None  # the hash function of bits that depend on x alone

    def _class_bits(self) -> ClassBits:
        """F of labels and of checked rows, without geometry bits."""
        raise NotImplementedError

    def _geometry_encoder(self) -> EncodeRows:
        """Checked rows → the part of F that depends on x alone, (n, g)."""
        return lambda X: np.empty((len(X), 0), np.float32)

    def _labelled_encoder(self) -> EncodeLabelled:
        if not hasattr(self, "classes_"):
            raise UnsupportedError("labels: this model was saved without the names of its labels; fit it again")
        of_classes, of_x = self._class_bits(), self._geometry_encoder()
        return lambda X, P, known: np.asarray(interleaved(of_classes(X, P, known), of_x(X)))

    def with_labels(self, packed: Any, labels: Any, *, unknown: str = "warn") -> NDArray[np.uint8]:
        """``transform(X, labels=labels)`` from the codes ``transform(X)``, for labels that are known only later.

        ``labels`` and ``unknown`` are those of ``transform``. Rows without a known label keep their codes.
        """
        check_option("unknown", unknown, ("warn", "error"))
        self._check_fitted()
        P, known = self._known_labels(labels, unknown, stacklevel=3)
        if n_gaps := int((known & has_gaps(P)).sum()):
            raise InputError(
                f"labels: {n_gaps:,} rows have labels that are partly missing (NaN), which the code does not tell: "
                "use transform(X, labels=…)"
            )
        found = codes.check_codes(packed, self.n_bits).copy()
        if len(found) != len(known):
            raise InputError(f"packed has {len(found):,} codes, but labels has {len(known):,}; they must be equal")
        of_classes, rows = self._class_bits(), np.flatnonzero(known)
        at = geometry_positions(self.n_bits, 0 if self.geometry_ is None else self.geometry_.n_bits)
        for part in row_blocks(len(rows), F_ROWS):
            some = rows[part]
            G = codes.unpack(found[some], self.n_bits)[:, at]  # these bits are of x
            found[some] = codes.pack(np.asarray(interleaved(of_classes.of_labels(P[some]), G)))
        return found

    def distance_to_classes(self, packed: Any) -> NDArray[np.int32]:
        """The Hamming distance (n,) of the class bits of codes to the nearest codeword of a class: 0 is certain."""
        self._check_fitted()
        if not self._one_label:
            raise UnsupportedError(
                "distance_to_classes: this model learned label sets, which have no list of codewords; it needs a "
                "model of (n,) classes"
            )
        of_classes, g = self._class_bits(), 0 if self.geometry_ is None else self.geometry_.n_bits
        at = np.setdiff1d(np.arange(self.n_bits), geometry_positions(self.n_bits, g))
        words = codes.to_words(codes.pack(of_classes.V + of_classes.offset), len(at))
        bits = codes.to_words(codes.pack(codes.unpack(packed, self.n_bits)[:, at]), len(at))
        found = np.full(len(bits), len(at), np.int32)
        for word in np.unique(words, axis=0):
            np.minimum(found, np.bitwise_count(bits ^ word).sum(axis=1, dtype=np.int32), out=found)
        return found

    # --- what is normal ---

    def _row_describer(self) -> DescribeRows:
        encode, of_classes, describe = self._encoder(), self._class_bits(), self._probability_describer()
        return lambda X: describe(encode(X), of_classes.scores(X) ** (1 / of_classes.power))

    def _probability_describer(self) -> Callable[[NDArray[Any], NDArray[Any]], RowTraits]:
        """The function from F (n, r) and p (n, l) of some rows to their traits."""
        g = 0 if self.geometry_ is None else self.geometry_.n_bits
        at = np.setdiff1d(np.arange(self.n_bits), geometry_positions(self.n_bits, g))
        codewords, one_label = self._codewords(at), self._one_label

        def describe(F: NDArray[Any], p: NDArray[Any]) -> RowTraits:
            values = {} if codewords is None else {"distance": codeword_distances(codes.pack(F[:, at]), codewords)}
            return RowTraits(
                codes.pack(F), {**values, "entropy": entropy(p, one_label), "ambiguity": ambiguity(p, one_label)}
            )

        return describe

    def _codewords(self, at: NDArray[np.intp]) -> NDArray[np.uint8] | None:
        """Packed class bits, which are at positions ``at``, of every class, or of the label sets of training rows."""
        if self._one_label:
            of_classes = self._class_bits()
            return codes.pack(np.asarray(of_classes.V + of_classes.offset, np.float32))
        return shared_codes(codes.pack(codes.unpack(self.codes_, self.n_bits)[:, at]))

    def knows_labels(self, labels: Sequence[Any]) -> NDArray[np.bool_]:
        """Which of n labels have codes, (n,): the classes, equal in type and value; none of a model of label sets."""
        self._check_fitted()
        known = hasattr(self, "classes_") and self._one_label
        return are_classes(labels, self.classes_) if known else super().knows_labels(labels)
