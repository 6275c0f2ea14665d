"""Products with label similarities in a compiled kernel, against products with P and R."""

import numpy as np
import pytest
import torch

from dish import cbcd, codes
from dish.cbcd import algorithm1
from dish.cbcd.packed import LabelProducts
from dish.similarity import from_labels


class PlainProducts:
    """The readable twin of ``LabelProducts``."""

    def __init__(self, S, r):
        self.S, self.r = S, r

    def __call__(self, sums):
        Sb = self.S.P(self.S.Rt(sums))
        return self.r * Sb, sums @ Sb


@pytest.mark.parametrize(("lam", "max_steps"), [(0.0, 20), (3.0, 2)])
@pytest.mark.parametrize("labels", ["classes", "multilabel", "weighted"])
def test_label_products_give_the_sweeps_of_plain_products(labels, lam, max_steps, monkeypatch):
    rng = np.random.default_rng(2)
    n, r = 20_001, 70  # enough rows for a selection by bounds; codes of two words
    y = rng.integers(0, 5, n) if labels == "classes" else rng.random((n, 9)) < 0.2
    S = from_labels(y, similar_weight=2.7 if labels == "weighted" else 2.0)
    start, q = codes.pack(rng.standard_normal((n, r))), torch.from_numpy(5 * rng.standard_normal((r, n))).float()
    q[3] = torch.round(q[3])  # many ties
    fast, slow = cbcd.PackedColumns(start, r), cbcd.PackedColumns(start, r)
    for _ in range(2):
        a = cbcd.sweep(fast, S, q, lam=lam, max_steps=max_steps)
        with monkeypatch.context() as patch:
            patch.setattr(algorithm1, "LabelProducts", PlainProducts)
            b = cbcd.sweep(slow, S, q, lam=lam, max_steps=max_steps)
        np.testing.assert_array_equal(fast.packed(), slow.packed())
        np.testing.assert_array_equal(fast.cols, slow.cols)
        assert (a.steps, a.flips) == (b.steps, b.flips)
        np.testing.assert_allclose(a.hSh, b.hSh, rtol=1e-12)
        np.testing.assert_array_equal(a.qh, b.qh)
    assert a.steps > 0
    q[5, 7] = torch.nan
    with pytest.raises(ValueError, match="bit 5: the objective is nan"):
        cbcd.sweep(fast, S, q)


@pytest.mark.parametrize("multilabel", [False, True])
def test_label_products_of_a_sequence_of_columns(multilabel):
    """The kernel updates Yᵀb from one call to the next."""
    rng = np.random.default_rng(5)
    y = rng.random((50, 6)) < 0.4 if multilabel else rng.integers(0, 6, 50)
    S = from_labels(y, similar_weight=2.7)
    fast, plain = LabelProducts(S, 16), PlainProducts(S, 16)
    for _ in range(4):
        sums = torch.from_numpy(rng.integers(-9, 10, S.n_groups).astype(float))
        (a, bSb), (b, expected) = fast(sums), plain(sums)
        torch.testing.assert_close(a, b)
        assert bSb == pytest.approx(float(expected))
