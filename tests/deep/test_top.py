"""What comes on top of a network trained towards codewords: formula, calibration, the rows it is fitted by."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dish import DeepDISH, codes, metrics
from dish.deep.codewords import hold_out
from dish.deep.top import (
    PosteriorTop,
    Rows,
    calibrate,
    calibrate_each,
    cosines,
    fit_label_top,
    fit_top,
    plain_label_top,
    plain_top,
)
from dish.deep.training import Training


def some(n=400, n_labels=4, R=16, seed=0):
    """Codewords, outputs near those of two classes each, and labels drawn by softmax(6 cos)."""
    rng = torch.Generator().manual_seed(seed)
    C = torch.where(torch.rand(n_labels, R, generator=rng) < 0.5, -1.0, 1.0)
    weight = torch.rand(n, n_labels, generator=rng) ** 3
    f = weight @ C + 0.3 * torch.randn(n, R, generator=rng)
    y = torch.multinomial(torch.softmax(6 * cosines(f, C), 1), 1, generator=rng)[:, 0]
    return C, Rows(f, torch.nn.functional.one_hot(y, n_labels).float())


def test_it_is_its_formula():
    C, rows = some(5)
    rng = np.random.default_rng(0)
    V, offset = rng.standard_normal((4, 6)), rng.standard_normal(6)
    f = rows.f.double().numpy()
    z = 3 * (f / np.linalg.norm(f, axis=1, keepdims=True)) @ C.numpy().T / 4
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    top = PosteriorTop(C, torch.from_numpy(V), torch.from_numpy(offset), torch.tensor(3.0), power=0.5)
    np.testing.assert_allclose(top(rows.f).numpy(), np.sqrt(p) @ V + offset, atol=1e-5)


def test_it_is_as_sure_as_it_is_right():
    C, rows = some(20_000)
    assert calibrate(C, rows) == pytest.approx(6, rel=0.1)


def test_each_label_is_as_likely_as_it_says():
    """By scikit-learn's logistic regression, one label at a time."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((500, 3))
    t = (rng.random((500, 3)) < 1 / (1 + np.exp(-(2 * scores - 1)))).astype(np.float32)
    beta, b = calibrate_each(torch.from_numpy(scores), torch.from_numpy(t))
    for j in range(3):
        model = LogisticRegression(C=1e6).fit(scores[:, [j]], t[:, j])
        assert float(beta[j]) == pytest.approx(model.coef_.item(), rel=0.01)
        assert float(b[j]) == pytest.approx(model.intercept_.item(), rel=0.01)


def ranking(top, rows):
    """MAP of half of the rows against the other half."""
    packed, Y, n = codes.pack(top(rows.f).numpy()), rows.t.numpy().astype(int), len(rows.f) // 2
    return metrics.mean_average_precision(packed[:n], Y[:n], packed[n:], Y[n:])


def test_held_out_rows_make_codes_that_rank_them_better():
    C, rows = some(2000)
    held, seen = (Rows(rows.f[part], rows.t[part]) for part in (slice(0, 1000), slice(1000, None)))
    signs = np.where(np.random.RandomState(0).rand(4, 8) < 0.5, -1.0, 1.0)
    fitted = fit_top(C, signs, held, seen, np.random.RandomState(1))
    plain = plain_top(C, signs, 0.5, np.random.RandomState(1))
    assert ranking(fitted, held) > ranking(plain, held) + 0.01


def test_rows_with_several_labels_get_the_frame_that_ranks_them_best():
    """Logits that say too much, of labels some of which hardly ever occur."""
    rng = torch.Generator().manual_seed(0)
    share = torch.tensor([0.5, 0.3, 0.2, 0.1, 0.02, 0.02])
    f = 3 * torch.randn(2000, 6, generator=rng)
    t = (torch.rand(2000, 6, generator=rng) < torch.sigmoid(0.5 * f + torch.logit(share))).float()
    held, seen = (Rows(f[part], t[part]) for part in (slice(0, 1000), slice(1000, None)))
    signs = np.where(np.random.RandomState(0).rand(6, 12) < 0.5, -1.0, 1.0)
    fitted = fit_label_top(signs, held, seen, np.random.RandomState(1))
    np.testing.assert_allclose(fitted.beta[:4], 0.5, atol=0.15)
    others = [plain_label_top(signs, share, np.random.RandomState(seed)) for seed in range(2, 7)]
    for other in others:
        other.beta, other.b = fitted.beta, fitted.b
    assert ranking(fitted, held) > max(ranking(other, held) for other in others)


@pytest.mark.slow
def test_rows_are_held_out_in_the_first_cycle_only(digits, monkeypatch):
    X, y, _, _ = digits
    seen, run = [], Training.run

    def noted(self, loss, round_, optimiser, rows=None, *others, **named):
        seen.append(None if rows is None else rows.tolist())
        run(self, loss, round_, optimiser, rows, *others, **named)

    monkeypatch.setattr(Training, "run", noted)
    DeepDISH(16, head="codewords", epochs=1, n_iter=3, device="cpu").fit(X, y)
    assert seen[2:] == [None, None]
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == len(X) - int(0.15 * len(X))
    seen.clear()
    DeepDISH(16, head="codewords", epochs=1, n_iter=1, device="cpu").fit(X[:400], y[:400])
    assert seen == [None, None]  # too few rows to leave any out


def test_held_out_and_seen_rows_are_all_rows():
    held, seen = hold_out(1000, 3)
    assert len(held) == 150
    assert sorted([*held.tolist(), *seen.tolist()]) == list(range(1000))
