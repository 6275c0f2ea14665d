"""TorchColumns on the CPU against PackedColumns."""

import numpy as np
import pytest
import torch

from dish import cbcd, codes
from dish.similarity import from_labels
from helpers.columns import FORMS


@pytest.mark.parametrize(("lam", "max_steps"), [(0.0, 20), (3.0, 2)])
@pytest.mark.parametrize("multilabel", [False, True])
def test_sweeps_equal_those_of_packed_columns(multilabel, lam, max_steps):
    """Tensors on the CPU stand in for a GPU's. Steps that are taken back count too."""
    rng = np.random.default_rng(1)
    y = (rng.random((2001, 9)) < 0.2).astype(int) if multilabel else rng.integers(0, 5, 2001)
    start, q = codes.pack(rng.standard_normal((2001, 11))), torch.from_numpy(5 * rng.standard_normal((11, 2001)))
    forms = [FORMS[form](start, 11) for form in ("packed", "torch")]
    for _ in range(2):
        a, b = (cbcd.sweep(H, from_labels(y), q, lam=lam, max_steps=max_steps) for H in forms)
        np.testing.assert_array_equal(forms[0].packed(), forms[1].packed())
        assert (a.steps, a.flips) == (b.steps, b.flips)
        np.testing.assert_array_equal(a.hSh, b.hSh)
        np.testing.assert_allclose(a.qh, b.qh)
    assert a.steps > 0


@pytest.mark.parametrize("r", [1, 8, 13])
def test_pack_signs_equals_codes_pack(r):
    F = np.random.default_rng(r).standard_normal((40, r)).astype(np.float32)
    F[0] = 0.0  # zero is bit 1
    np.testing.assert_array_equal(cbcd.pack_signs(torch.from_numpy(F)), codes.pack(F))
