"""Which rows are relevant to which queries: both labels in one form, and checks of what is scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dish.checks import check_integer
from dish.codes import as_words, check_codes
from dish.errors import InputError
from dish.labels import encode_together, plain_labels


@dataclass
class Labels:
    """Labels of queries and rows as uint64 words: one class index each, or one bit per label if ``sets``."""

    queries: NDArray[np.uint64]  # (n_queries, words)
    rows: NDArray[np.uint64]  # (n, words)
    sets: bool

    def relevant(self, i: int) -> NDArray[np.bool_]:
        """Mask of the rows that are relevant to query i."""
        if self.sets:
            return np.asarray(((self.rows & self.queries[i]) != 0).any(axis=1))
        return np.asarray((self.rows == self.queries[i]).all(axis=1))


def match_labels(q_labels: Any, db_labels: Any, n_queries: int, n: int) -> Labels:
    """Encode the labels of queries and rows alike. Raises an error if they are of different kinds."""
    q, b = plain_labels(q_labels, db_labels)
    q, b = (y.ravel() if y.ndim == 2 and y.shape[1] == 1 and not sp.issparse(y) else y for y in (q, b))
    for name, y, rows in (("q_labels", q, n_queries), ("db_labels", b, n)):
        if y.shape[0] != rows:
            raise InputError(f"{name} has {y.shape[0]} labels for {rows} codes")
    if q.ndim != b.ndim or (q.ndim == 2 and q.shape[1] != b.shape[1]):
        raise InputError(f"q_labels and db_labels differ in kind: shapes {q.shape} and {b.shape}")
    if q.ndim == 2:
        return Labels(_label_words(q, "q_labels"), _label_words(b, "db_labels"), True)
    q_classes, db_classes = (codes.astype(np.uint64) for codes in encode_together(q_labels=q, db_labels=b))
    return Labels(q_classes[:, None], db_classes[:, None], False)


def _label_words(Y: Any, name: str) -> NDArray[np.uint64]:
    Y = Y.toarray() if sp.issparse(Y) else Y
    if not np.isin(Y, (0, 1)).all():
        raise InputError(f"a 2-D {name} must hold only 0 and 1, one column per label")
    return as_words(np.packbits(Y.astype(bool), axis=1))


def check_pair(q_codes: ArrayLike, db_codes: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes of queries and rows as arrays. Raises an error if their widths differ or one is empty."""
    Q, B = check_codes(q_codes, name="q_codes"), check_codes(db_codes, name="db_codes")
    if Q.shape[1] != B.shape[1]:
        raise InputError(f"q_codes have {Q.shape[1]} bytes per row, db_codes {B.shape[1]}")
    if len(Q) == 0 or len(B) == 0:
        raise InputError(f"scoring needs at least one query and one row, got {len(Q)} queries and {len(B)} rows")
    return Q, B


def check_k(k: int, n: int) -> int:
    """k as an int. Raises an error unless it is a whole number and 1 ≤ k ≤ n."""
    if not 1 <= check_integer("k", k, low=0) <= n:
        raise InputError(f"k must be from 1 to {n}, the number of database rows, got {k}")
    return int(k)
