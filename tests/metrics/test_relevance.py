"""Labels of queries and rows in one form, and checks of what is scored."""

import numpy as np
import pytest
import scipy.sparse as sp

from dish import metrics
from helpers.rankings import make_codes


def test_a_column_of_labels_is_classes():
    q, yq, b, yb = make_codes()
    assert metrics.evaluate(q, yq[:, None], b, yb[:, None]).map == metrics.evaluate(q, yq, b, yb).map


def test_sparse_labels_score_like_dense_labels():
    q, yq, b, yb = make_codes(multi=True)
    dense = metrics.mean_average_precision(q, yq, b, yb)
    assert metrics.mean_average_precision(q, sp.csr_array(yq), b, sp.csr_array(yb)) == dense


def test_tags_score_like_a_label_matrix():
    q, _, b, _ = make_codes(nq=2, nb=3)
    by_tags = metrics.mean_average_precision(q, [["a"], ["b", "c"]], b, [["a", "b"], [], ["c"]])
    Yq, Y = np.array([[1, 0, 0], [0, 1, 1]]), np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    assert by_tags == metrics.mean_average_precision(q, Yq, b, Y)


def test_rejects_labels_and_codes_that_do_not_match():
    q, yq, b, yb = make_codes()
    with pytest.raises(ValueError, match="q_labels has 3 labels for 9 codes"):
        metrics.evaluate(q, yq[:3], b, yb)
    with pytest.raises(ValueError, match="differ in kind"):
        metrics.evaluate(q, np.eye(3)[yq], b, yb)
    with pytest.raises(ValueError, match="differ in kind"):
        metrics.evaluate(q, yq.astype(str), b, yb)
    with pytest.raises(ValueError, match="differ in kind: labels are a truth value and a number"):
        metrics.evaluate(q, yq > 0, b, yb)
    with pytest.raises(ValueError, match="0 and 1"):
        metrics.evaluate(q, 2 * np.eye(3)[yq], b, np.eye(3)[yb])
    with pytest.raises(ValueError, match="bytes per row"):
        metrics.evaluate(q, yq, b[:, :1], yb)
    with pytest.raises(ValueError, match="at least one query"):
        metrics.evaluate(q[:0], yq[:0], b, yb)
    with pytest.raises(ValueError, match="n_bits=2"):
        metrics.evaluate(q, yq, b, yb, n_bits=2)
