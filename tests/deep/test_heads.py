"""What comes on top of a network trained towards codewords: formula, calibration, the rows it is fitted by."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from dish import DeepDISH, codes, load, metrics
from dish.deep.codewords import hold_out, start_codes
from dish.deep.heads import (
    CARRY,
    CarryingTop,
    PosteriorTop,
    Rows,
    calibrate,
    calibrate_each,
    cosines,
    expected_map,
    fit_label_top,
    fit_top,
    plain_label_top,
    plain_top,
    top_of,
    turned,
)
from dish.deep.model import Top
from dish.deep.training import Training
from dish.similarity import from_labels


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


def words(n_labels, n_bits):
    """One codeword of ±1 per class."""
    return codes.unpack(start_codes(from_labels(np.arange(n_labels)), n_bits, 0), n_bits).astype(np.float64)


def carrying(C, V, beta=6.0):
    return CarryingTop(C, torch.from_numpy(V), torch.tensor(beta), CARRY)


def test_errors_are_carried_as_the_formula_says():
    C, rows = some(50)
    V = words(4, 24)
    its = carrying(C, V)
    p = its.posterior(rows.f).double().numpy()
    z = np.zeros((50, 24))
    for i in range(50):
        for j in range(24):
            wrong = [sum((np.sign(z[i, k]) - p[i] @ V[:, k]) * V[m, k] for k in range(j)) for m in range(4)]
            z[i, j] = p[i] @ V[:, j] - CARRY * sum(p[i, m] * wrong[m] * V[m, j] for m in range(4))
    np.testing.assert_allclose(its.carried(torch.from_numpy(p).float()), z, atol=1e-4)
    turned_over = np.sign(z) != np.sign(p @ V)
    assert 0.02 < turned_over.mean() < 0.5
    np.testing.assert_allclose(its(rows.f), np.where(turned_over, 1e-3 * np.sign(z), p @ V), atol=2e-3)
    np.testing.assert_array_equal(np.sign(its(rows.f).numpy()), np.sign(z))


def test_queries_that_are_not_rounded_rank_better():
    C, rows = some(3000, n_labels=6, R=32)
    V, y = words(6, 48), rows.t.argmax(1).numpy()
    F = carrying(C, V)(rows.f).numpy()
    h = np.where(F >= 0, 1.0, -1.0)
    assert mean_ap(F[:300] @ h[300:].T, y[:300], y[300:]) > mean_ap(h[:300] @ h[300:].T, y[:300], y[300:]) + 0.002


def mean_ap(scores, y, y_base):
    """MAP of rankings by scores, scikit-learn's average precision."""
    return np.mean([average_precision_score(y_base == label, row) for row, label in zip(scores, y, strict=True)])


def test_codes_are_as_far_from_likely_codewords_as_the_posterior_says():
    """Signs without the errors give all rows the codeword of their likeliest class, or nearly so."""
    C, rows = some(1000)
    V = words(4, 48)
    its = carrying(C, V)
    p = its.posterior(rows.f).numpy()
    wanted = p @ (48 - V @ V.T) / 2  # distances to codewords if each bit were drawn from p
    missed = []
    for F in (its(rows.f).numpy(), p @ V):
        distances = (48 - np.where(F >= 0, 1.0, -1.0) @ V.T) / 2
        missed.append(np.average(np.abs(distances - wanted), weights=p))
    assert missed[0] < 1.5 < 6 < missed[1]


def test_rows_that_are_sure_have_their_codeword():
    C, _ = some(1)
    np.testing.assert_array_equal(np.sign(carrying(C, words(4, 24), 1000.0)(C).numpy()), words(4, 24))


def test_carried_errors_rank_better_than_a_frame():
    """By rows that neither saw; labels are as likely as the posterior says."""
    C, rows = some(6000, n_labels=6, R=32)
    held, seen, new = (
        Rows(rows.f[part], rows.t[part]) for part in (slice(0, 1000), slice(1000, 2000), slice(2000, None))
    )
    V = words(6, 48)
    start = plain_top(C, V, 6.0, np.random.RandomState(1))
    framed = turned(start, held, seen, np.random.RandomState(1))
    fitted = fit_top(C, V, held, seen, np.random.RandomState(1))
    assert isinstance(fitted, CarryingTop)
    assert ranking(fitted, new) > ranking(framed, new) + 0.005


def test_codes_of_many_classes_have_a_frame(monkeypatch):
    C, rows = some(300, n_labels=12)
    held = Rows(rows.f[:150], rows.t[:150])
    monkeypatch.setattr("dish.deep.heads.gain", lambda *_: 0.1)
    for n_bits, kind in ((16, PosteriorTop), (18, CarryingTop)):
        assert type(fit_top(C, words(12, n_bits), held, rows, np.random.RandomState(0))) is kind


def test_rows_rank_one_another_as_likely_as_p_says():
    """By a loop: each row is the query once, rows at one distance are entered together."""
    C, rows = some(40)
    its = plain_top(C, words(4, 12), 5.0, np.random.RandomState(0))
    p, H = its.posterior(rows.f).double().numpy(), codes.unpack(codes.pack(its(rows.f).numpy()), 12)
    found = []
    for i in range(40):
        others = np.flatnonzero(np.arange(40) != i)
        distance, chance = (H[i] != H[others]).sum(1), p[others] @ p[i]
        total = 0.0
        for d in np.unique(distance):
            nearer, equal = distance < d, distance == d
            precision = (chance[nearer].sum() + chance[equal].sum() / 2) / (nearer.sum() + equal.sum() / 2)
            total += chance[equal].sum() * precision
        found.append(total / chance.sum())
    assert len(np.unique(distance)) > 3
    assert expected_map(its, rows) == pytest.approx(np.mean(found), abs=1e-5)


def test_classes_that_cannot_be_told_are_said_to_be_so():
    C, rows = some(600, n_labels=6, R=32)
    noise = Rows(rows.f, torch.nn.functional.one_hot(torch.arange(600) % 6).float())
    with pytest.warns(UserWarning, match="can hardly tell the classes of the 600 rows that were held out"):
        fit_top(C, words(6, 48), noise, noise, np.random.RandomState(0))


def test_codes_of_uneven_classes_have_a_frame(monkeypatch):
    C, rows = some(600, n_labels=6, R=32)
    monkeypatch.setattr("dish.deep.heads.gain", lambda *_: 0.1)
    for largest, kind in ((0.35, CarryingTop), (0.6, PosteriorTop)):
        y = np.random.default_rng(0).choice(6, 600, p=[largest, *[(1 - largest) / 5] * 5])
        uneven = Rows(rows.f, torch.nn.functional.one_hot(torch.from_numpy(y)).float())
        assert type(fit_top(C, words(6, 48), uneven, uneven, np.random.RandomState(0))) is kind


def test_held_out_rows_decide():
    """Of rows whose labels hardly depend on the outputs, carried errors are all that codes would have."""
    C, rows = some(600, n_labels=6, R=32)
    signs = words(6, 48)
    unsure = Rows(rows.f, torch.nn.functional.one_hot(torch.arange(600) % 6).float())
    unsure.t[::8] = rows.t[::8]
    kinds, gains = [], []
    for given in (rows, unsure):
        fitted = fit_top(
            C, signs, given, given, np.random.RandomState(0), True, lambda gain: gains.append(gain) or gain
        )
        kinds.append(type(fitted))
    assert gains[0] > 0 > gains[1]
    assert kinds == [CarryingTop, PosteriorTop]
    assert type(fit_top(C, signs, rows, rows, np.random.RandomState(0), True, lambda _: -1.0)) is PosteriorTop
    assert type(fit_top(C, signs, rows, rows, np.random.RandomState(0), carry=False)) is PosteriorTop


def test_the_first_bits_are_the_code_of_their_length():
    C, rows = some(50)
    V = words(4, 24)
    np.testing.assert_array_equal(carrying(C, V)(rows.f)[:, :9], carrying(C, V[:, :9])(rows.f))


def test_views_of_a_row_have_one_posterior():
    C, rows = some(40)
    views = rows.f[:20], rows.f[20:]
    np.testing.assert_array_equal(Top()(*views), (views[0] + views[1]) / 2)
    top = carrying(C, words(4, 24))
    p = (top.posterior(views[0]) + top.posterior(views[1])) / 2
    np.testing.assert_allclose(top(*views), top.bits(p), atol=1e-6)


def test_its_state_makes_it_again():
    C, rows = some(20)
    top = carrying(C, words(4, 24))
    again = top_of({name: a.numpy() for name, a in top.state_dict().items()})
    assert isinstance(again, CarryingTop)
    np.testing.assert_array_equal(again(rows.f), top(rows.f))


def test_held_out_rows_make_codes_that_rank_them_better():
    C, rows = some(2000)
    held, seen = (Rows(rows.f[part], rows.t[part]) for part in (slice(0, 1000), slice(1000, None)))
    signs = np.where(np.random.RandomState(0).rand(4, 5) < 0.5, -1.0, 1.0)  # too few bits to carry errors
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
def test_a_file_carries_errors_on(digits, tmp_path, monkeypatch):
    X, y, Xq, _ = digits
    monkeypatch.setattr("dish.deep.heads.gain", lambda *_: 1.0)
    hasher = DeepDISH(24, head="codewords", epochs=1, n_iter=1, device="cpu").fit(X, y)
    hasher.save(tmp_path / "m.dish")
    loaded = load(tmp_path / "m.dish")
    assert isinstance(loaded.model_.top, CarryingTop)
    np.testing.assert_array_equal(loaded.transform(Xq), hasher.transform(Xq))
    np.testing.assert_array_equal(loaded.transform(Xq, n_bits=16), hasher.transform(Xq)[:, :2])
    framed = DeepDISH(24, head="codewords", epochs=1, n_iter=1, device="cpu", carry=False).fit(X, y)
    assert type(framed.model_.top) is PosteriorTop
    with pytest.warns(UserWarning, match="carry: head='paper' takes the signs of its outputs"):
        DeepDISH(24, head="paper", epochs=1, n_iter=0, device="cpu", carry=False).fit(X[:60], y[:60])


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


def test_no_row_is_held_out_that_is_alone_in_its_class():
    y = torch.cat([torch.arange(100), torch.full((900,), 100)])
    held, seen = hold_out(1000, 3, y)
    assert set(held.tolist()) == {row for row in hold_out(1000, 3)[0].tolist() if row >= 100}
    assert sorted([*held.tolist(), *seen.tolist()]) == list(range(1000))


def test_codes_of_rows_that_are_all_alone_in_their_class_tell_them_apart():
    """Those of rows that are held out would say nothing, and make p say nothing of the others."""
    X = np.random.default_rng(0).standard_normal((500, 32)).astype(np.float32)
    hasher = DeepDISH(64, head="codewords", epochs=5, device="cpu").fit(X, np.arange(500))
    near = hasher.transform(X + 0.1)
    assert metrics.mean_average_precision(near, np.arange(500), hasher.transform(X), np.arange(500)) > 0.7
