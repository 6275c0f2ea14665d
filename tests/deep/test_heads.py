"""Heads: formulas, calibration, and the choice between a projection and error diffusion."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from dish import codes, metrics
from dish.deep.h_step import start_codes
from dish.deep.heads import (
    FrozenHead,
    Head,
    MultilabelHead,
    Outputs,
    PosteriorHead,
    calibrate,
    calibrate_labels,
    cosines,
    default_head,
    default_multilabel_head,
    diffusing_head,
    expected_map,
    fit_head,
    fit_multilabel_head,
    refined,
    restore,
)
from dish.deep.model import state_arrays
from dish.similarity import from_labels


def some(n=400, n_labels=4, R=16, seed=0):
    """Codewords, outputs near those of two classes each, and labels drawn from softmax(6 cos)."""
    rng = torch.Generator().manual_seed(seed)
    C = torch.where(torch.rand(n_labels, R, generator=rng) < 0.5, -1.0, 1.0)
    weight = torch.rand(n, n_labels, generator=rng) ** 3
    f = weight @ C + 0.3 * torch.randn(n, R, generator=rng)
    y = torch.multinomial(torch.softmax(6 * cosines(f, C), 1), 1, generator=rng)[:, 0]
    return C, Outputs(f, torch.nn.functional.one_hot(y, n_labels).float())


def test_F_equals_its_formula():
    C, rows = some(5)
    rng = np.random.default_rng(0)
    V, offset = rng.standard_normal((4, 6)), rng.standard_normal(6)
    f = rows.f.double().numpy()
    z = 3 * (f / np.linalg.norm(f, axis=1, keepdims=True)) @ C.numpy().T / 4
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    head = PosteriorHead(C, torch.from_numpy(V), torch.from_numpy(offset), torch.tensor(3.0))
    np.testing.assert_allclose(head(rows.f).numpy(), p @ V + offset, atol=1e-5)


@pytest.mark.parametrize("power", [1, 2])
def test_the_multilabel_head_equals_its_formula(power):
    rng = np.random.default_rng(0)
    f, V, offset, beta, b = (rng.standard_normal(shape) for shape in ((5, 4), (4, 6), 6, 4, 4))
    p = 1 / (1 + np.exp(-(beta * f + b)))
    head = MultilabelHead(*(torch.from_numpy(each) for each in (V, offset, beta, b)), power)
    np.testing.assert_allclose(head(torch.from_numpy(f)).numpy(), p**power @ V + offset, atol=1e-5)


def kernel_head(kernel):
    """A frozen head with random arrays, and its features of length 7."""
    rng = torch.Generator().manual_seed(0)
    m = 9 if kernel == "rbf" else 16
    shapes = {"anchors": (9, 7), "centre": (7,), "mean": (m,), "B": (m, 3), "b": (3,), "V": (3, 6), "offset": (6,)}
    arrays = {name: torch.randn(*shape, generator=rng) for name, shape in shapes.items()}
    return FrozenHead(kernel, 0.3, "softmax", 1, **arrays)


@pytest.mark.parametrize("kernel", ["rbf", "rbf+linear"])
def test_the_frozen_head_equals_its_formula(kernel):
    head, phi = kernel_head(kernel), torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    x = (phi / phi.norm(dim=1, keepdim=True)).double().numpy()
    A, centre, mean, B, b, V, offset = (each.double().numpy() for each in head.buffers())
    K = np.exp(-0.3 * np.square(x[:, None] - A[None]).sum(2))
    if kernel == "rbf+linear":
        K = np.concatenate([K, np.sqrt(0.3) * (x - centre)], 1)
    z = (K - mean) @ B + b
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(head(phi), p @ V + offset, atol=1e-5)


def test_calibration_finds_the_true_beta():
    C, rows = some(20_000)
    assert calibrate(C, rows) == pytest.approx(6, rel=0.1)


def test_calibration_of_labels_equals_logistic_regression():
    """By scikit-learn's logistic regression, one label at a time."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((500, 3))
    t = (rng.random((500, 3)) < 1 / (1 + np.exp(-(2 * scores - 1)))).astype(np.float32)
    beta, b = calibrate_labels(torch.from_numpy(scores), torch.from_numpy(t))
    for j in range(3):
        model = LogisticRegression(C=1e6).fit(scores[:, [j]], t[:, j])
        assert float(beta[j]) == pytest.approx(model.coef_.item(), rel=0.01)
        assert float(b[j]) == pytest.approx(model.intercept_.item(), rel=0.01)


def ranking(head, rows):
    """MAP of half of the rows against the other half."""
    packed, Y, n = codes.pack(head(rows.f).numpy()), rows.t.numpy().astype(int), len(rows.f) // 2
    return metrics.mean_average_precision(packed[:n], Y[:n], packed[n:], Y[n:])


def words(n_labels, n_bits):
    """One codeword of ±1 per class."""
    return codes.unpack(start_codes(from_labels(np.arange(n_labels)), n_bits, 0), n_bits).astype(np.float64)


def diffusing(C, V, beta=6.0):
    return diffusing_head(C, V, torch.tensor(beta))


def test_queries_that_are_not_rounded_rank_better_with_error_diffusion():
    C, rows = some(3000, n_labels=6, R=32)
    V, y = words(6, 48), rows.t.argmax(1).numpy()
    F = diffusing(C, V)(rows.f).numpy()
    h = np.where(F >= 0, 1.0, -1.0)
    assert mean_ap(F[:300] @ h[300:].T, y[:300], y[300:]) > mean_ap(h[:300] @ h[300:].T, y[:300], y[300:]) + 0.002


def mean_ap(scores, y, y_base):
    """MAP of rankings by scores, scikit-learn's average precision."""
    return np.mean([average_precision_score(y_base == label, row) for row, label in zip(scores, y, strict=True)])


def test_distances_to_codewords_follow_the_probabilities():
    """Without error diffusion, rows have nearly the codeword of their likeliest class."""
    C, rows = some(1000)
    V = words(4, 48)
    head = diffusing(C, V)
    p = head.probabilities(rows.f).numpy()
    wanted = p @ (48 - V @ V.T) / 2  # distances to codewords if each bit were drawn from p
    missed = []
    for F in (head(rows.f).numpy(), p @ V):
        distances = (48 - np.where(F >= 0, 1.0, -1.0) @ V.T) / 2
        missed.append(np.average(np.abs(distances - wanted), weights=p))
    assert missed[0] < 1.5 < 6 < missed[1]


def test_certain_rows_have_their_codeword():
    C, _ = some(1)
    np.testing.assert_array_equal(np.sign(diffusing(C, words(4, 24), 1000.0)(C).numpy()), words(4, 24))


def test_error_diffusion_ranks_better_than_a_projection():
    """On new rows, whose labels are drawn from the probabilities."""
    C, rows = some(4000, n_labels=6, R=32)
    held, seen, new = (
        Outputs(rows.f[part], rows.t[part]) for part in (slice(0, 1000), slice(1000, 2000), slice(2000, None))
    )
    V = words(6, 48)
    start = default_head(C, V, 6.0, np.random.RandomState(1))
    projecting = refined(start, held, seen, np.random.RandomState(1))
    fitted = fit_head(C, V, held, seen, np.random.RandomState(1))
    assert fitted.diffused > 0
    assert ranking(fitted, new) > ranking(projecting, new) + 0.005


def test_many_classes_have_a_projection(monkeypatch):
    C, rows = some(300, n_labels=12)
    held = Outputs(rows.f[:150], rows.t[:150])
    monkeypatch.setattr("dish.deep.heads.diffusion_gain", lambda *_: 0.1)
    for n_bits, kind in ((16, "posterior"), (18, "error_diffusion")):
        assert fit_head(C, words(12, n_bits), held, rows, np.random.RandomState(0)).kind == kind


def test_expected_map_equals_a_loop():
    """Each row is the query once; rows at the same distance count together."""
    C, rows = some(40)
    head = default_head(C, words(4, 12), 5.0, np.random.RandomState(0))
    p, H = head.probabilities(rows.f).double().numpy(), codes.unpack(codes.pack(head(rows.f).numpy()), 12)
    found = []
    for i in range(40):
        others = np.flatnonzero(np.arange(40) != i)
        distance, probability = (H[i] != H[others]).sum(1), p[others] @ p[i]
        total = 0.0
        for d in np.unique(distance):
            nearer, equal = distance < d, distance == d
            precision = (probability[nearer].sum() + probability[equal].sum() / 2) / (nearer.sum() + equal.sum() / 2)
            total += probability[equal].sum() * precision
        found.append(total / probability.sum())
    assert len(np.unique(distance)) > 3
    assert expected_map(head, rows) == pytest.approx(np.mean(found), abs=1e-5)


def test_warns_if_classes_cannot_be_told_apart():
    C, rows = some(600, n_labels=6, R=32)
    noise = Outputs(rows.f, torch.nn.functional.one_hot(torch.arange(600) % 6).float())
    with pytest.warns(UserWarning, match="can hardly tell the classes of the 600 held-out rows apart"):
        fit_head(C, words(6, 48), noise, noise, np.random.RandomState(0))


def test_uneven_classes_have_a_projection(monkeypatch):
    C, rows = some(600, n_labels=6, R=32)
    monkeypatch.setattr("dish.deep.heads.diffusion_gain", lambda *_: 0.1)
    for largest, kind in ((0.35, "error_diffusion"), (0.6, "posterior")):
        y = np.random.default_rng(0).choice(6, 600, p=[largest, *[(1 - largest) / 5] * 5])
        uneven = Outputs(rows.f, torch.nn.functional.one_hot(torch.from_numpy(y)).float())
        assert fit_head(C, words(6, 48), uneven, uneven, np.random.RandomState(0)).kind == kind


def test_held_out_rows_decide_on_error_diffusion():
    """If labels hardly depend on the outputs, codes with error diffusion contain little but rounding errors."""
    C, rows = some(400, n_labels=6, R=32)
    signs, rng = words(6, 48), np.random.RandomState
    uncertain = Outputs(rows.f, torch.nn.functional.one_hot(torch.arange(400) % 6).float())
    uncertain.t[::8] = rows.t[::8]
    gains = []
    head = fit_head(C, signs, uncertain, uncertain, rng(0), True, lambda gain: gains.append(gain) or gain)
    assert head.diffused == 0
    head = fit_head(C, signs, rows, rows, rng(0), True, lambda gain: gains.append(gain) or -1.0)
    assert head.diffused == 0  # another process had a negative gain
    assert gains[0] < 0 < gains[1]
    assert fit_head(C, signs, rows, rows, rng(0), error_diffusion=False).diffused == 0


def test_a_prefix_is_the_code_of_its_length():
    C, rows = some(50)
    V = words(4, 24)
    np.testing.assert_array_equal(diffusing(C, V)(rows.f)[:, :9], diffusing(C, V[:, :9])(rows.f))


def test_probabilities_are_averaged_over_views():
    C, rows = some(40)
    views = rows.f[:20], rows.f[20:]
    np.testing.assert_array_equal(Head()(*views), (views[0] + views[1]) / 2)
    head = diffusing(C, words(4, 24))
    p = (head.probabilities(views[0]) + head.probabilities(views[1])) / 2
    np.testing.assert_allclose(head(*views), head.bits(p), atol=1e-6)


@pytest.mark.parametrize("kind", ["outputs", "posterior", "error_diffusion", "multilabel", "frozen"])
def test_heads_are_restored(kind):
    C, rows = some(20)
    f = torch.randn(20, 7, generator=torch.Generator().manual_seed(1)) if kind == "frozen" else rows.f
    head = {
        "outputs": Head,
        "posterior": lambda: default_head(C, words(4, 24), 5.0, np.random.RandomState(0)),
        "error_diffusion": lambda: diffusing(C, words(4, 24)),
        "multilabel": lambda: default_multilabel_head(
            words(16, 24), torch.full((16,), 0.3), np.random.RandomState(0)
        ),
        "frozen": lambda: kernel_head("rbf+linear"),
    }[kind]()
    again = restore(json.loads(json.dumps(head.config())), state_arrays(head))
    assert type(again) is type(head)
    assert head.kind == kind
    assert again.config() == head.config()
    np.testing.assert_array_equal(again(f), head(f))


def test_codewords_can_be_replaced():
    C, rows = some(20)
    other = -C
    for head in (diffusing(C, words(4, 24)), default_head(C, words(4, 24), 5.0, np.random.RandomState(0))):
        replaced = head.with_codewords(other)
        assert replaced.config() == head.config()
        torch.testing.assert_close(replaced.C, other)
        torch.testing.assert_close(replaced(-rows.f), head(rows.f))


def test_a_fitted_projection_ranks_held_out_rows_better():
    C, rows = some(2000)
    held, seen = (Outputs(rows.f[part], rows.t[part]) for part in (slice(0, 1000), slice(1000, None)))
    signs = np.where(np.random.RandomState(0).rand(4, 5) < 0.5, -1.0, 1.0)  # too few bits for error diffusion
    fitted = fit_head(C, signs, held, seen, np.random.RandomState(1))
    plain = default_head(C, signs, 0.5, np.random.RandomState(1))
    assert ranking(fitted, held) > ranking(plain, held) + 0.01


def test_the_multilabel_head_ranks_held_out_rows_better():
    """With over-confident logits, and labels some of which are rare."""
    rng = torch.Generator().manual_seed(0)
    share = torch.tensor([0.5, 0.3, 0.2, 0.1, 0.02, 0.02])
    f = 3 * torch.randn(2000, 6, generator=rng)
    t = (torch.rand(2000, 6, generator=rng) < torch.sigmoid(0.5 * f + torch.logit(share))).float()
    held, seen = (Outputs(f[part], t[part]) for part in (slice(0, 1000), slice(1000, None)))
    signs = np.where(np.random.RandomState(0).rand(6, 12) < 0.5, -1.0, 1.0)
    fitted = fit_multilabel_head(signs, held, seen, np.random.RandomState(1))
    np.testing.assert_allclose(fitted.beta[:4], 0.5, atol=0.15)
    others = [default_multilabel_head(signs, share, np.random.RandomState(seed)) for seed in range(2, 7)]
    for other in others:
        other.beta, other.b = fitted.beta, fitted.b
    assert ranking(fitted, held) > max(ranking(other, held) for other in others)
