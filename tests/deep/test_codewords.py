"""Training towards codewords: losses against loops, held-out rows, closed-form steps."""

import numpy as np
import pytest
import torch

from dish import codes, nets
from dish.deep.codewords import (
    MARGIN,
    PRETRAINED,
    SCRATCH,
    VECTORS,
    codeword_loss,
    codewords,
    hold_out,
    label_loss,
    preserves_body,
    recalibrate_batch_norm,
    recipe,
    regress_outputs,
    width,
)
from dish.deep.data import one_hot
from dish.deep.model import HashingNet
from helpers.deep import Tiny, fit_data, patches


def test_the_loss_equals_a_loop_over_rows():
    rng = np.random.default_rng(0)
    F, C = rng.standard_normal((6, 8)), np.sign(rng.standard_normal((4, 8)))
    t = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]], float)
    total = 0.0
    for f, labels in zip(F, t, strict=True):
        cosine = C @ f / np.linalg.norm(f) / np.sqrt(8)
        logits = np.sqrt(8) * (cosine - MARGIN * labels)
        log_p = logits - np.log(np.exp(logits).sum())
        total -= (labels / max(labels.sum(), 1) * log_p).sum()
    found = codeword_loss(*(torch.from_numpy(a) for a in (F, C, t)))
    assert float(found) == pytest.approx(total / 6)


def test_the_label_loss_equals_a_loop():
    F = np.random.default_rng(0).standard_normal((3, 2))
    t, share, total = np.array([[1, 0], [1, 1], [0, 1]], float), np.array([0.6, 0.3]), 0.0
    for f, labels in zip(F, t, strict=True):
        for z, wanted, s in zip(f, labels, share, strict=True):
            p = 1 / (1 + np.exp(-(z + np.log(s / (1 - s)))))
            total -= np.log(p if wanted else 1 - p)
    found = label_loss(*(torch.from_numpy(a) for a in (F, t, share)))
    assert float(found) == pytest.approx(total / 3)


def test_a_missing_label_does_not_count():
    F = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    share = torch.tensor([0.5, 0.5])
    whole = label_loss(F, torch.tensor([[1.0, 0.0], [0.3, 1.0]]), share)
    part = label_loss(F, torch.tensor([[1.0, torch.nan], [0.3, 1.0]]), share)
    assert float(whole - part) == pytest.approx(np.log1p(np.exp(-2)) / 2)


def test_codewords_are_majority_votes():
    H = np.array([[1, 1], [1, -1], [1, -1], [-1, 1]])
    t = one_hot(torch.tensor([0, 0, 0, 1]), 2)
    assert codewords(codes.pack(H), 2, t).tolist() == [[1, -1], [-1, 1]]


def test_outputs_have_room_for_the_codewords_of_all_classes():
    assert [width(12, 10), width(128, 10), width(64, 150), width(64, 10_000)] == [64, 128, 150, 512]


def test_held_out_and_seen_rows_are_all_rows():
    held, seen = hold_out(1000, 3)
    assert len(held) == 150
    assert sorted([*held.tolist(), *seen.tolist()]) == list(range(1000))


def test_no_row_is_held_out_that_is_alone_in_its_class():
    y = torch.cat([torch.arange(100), torch.full((900,), 100)])
    held, seen = hold_out(1000, 3, y)
    assert set(held.tolist()) == {row for row in hold_out(1000, 3)[0].tolist() if row >= 100}
    assert sorted([*held.tolist(), *seen.tolist()]) == list(range(1000))


def test_recipes_for_images_pretrained_networks_and_vectors():
    image, vector = torch.zeros(2, 8, 8, 3), torch.zeros(2, 8)
    assert recipe(image, fine_tuning=False) is SCRATCH
    assert recipe(image, fine_tuning=True) is PRETRAINED
    assert recipe(vector, fine_tuning=False) is VECTORS
    assert not PRETRAINED.recalibrate


def test_a_body_is_preserved_only_if_all_of_its_tensors_have_weights():
    model = HashingNet(Tiny(), 64, 12, 16, nets.NETS["6conv"].normal)
    assert preserves_body(PRETRAINED, model, frozenset())
    assert preserves_body(PRETRAINED, model, frozenset({"layers.1.num_batches_tracked"}))
    assert not preserves_body(PRETRAINED, model, frozenset({"layers.1.running_mean"}))
    assert not preserves_body(SCRATCH, model, frozenset())


def test_outputs_start_as_a_ridge_regression():
    X, y = patches(200, 0)
    data = fit_data(X, y)
    torch.manual_seed(0)
    model = HashingNet(Tiny(), 64, 12, 16, nets.NETS["6conv"].normal)
    T = torch.where(torch.rand(200, 12) < 0.5, -1.0, 1.0)
    regress_outputs(data, model, T)
    with torch.no_grad():
        phi, F = model.eval()(model.prepare(data.rows))
    Phi = torch.cat([phi - phi.mean(0), torch.ones(200, 1)], 1).double().numpy()
    ridge = np.diag([*[np.square(Phi[:, :-1]).sum(0).mean()] * 64, 0.0])
    W = np.linalg.solve(Phi.T @ Phi + ridge, Phi.T @ T.double().numpy())
    np.testing.assert_allclose(F, Phi @ W, atol=1e-4)


def test_batch_norm_is_recalibrated_on_images_as_they_are():
    X, y = patches(300, 0)
    data = fit_data(X, y)
    torch.manual_seed(0)
    body = torch.nn.Sequential(Tiny(), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(64))
    model = HashingNet(body, 64, 12, 16, nets.NETS["6conv"].normal)
    recalibrate_batch_norm(data, model)
    first, norm = body[0].layers[:2]
    with torch.no_grad():
        x = model.prepare(data.rows)
        z, phi = first(x), body[0](x)
    np.testing.assert_allclose(norm.running_mean, z.mean((0, 2, 3)), atol=1e-3)
    np.testing.assert_allclose(norm.running_var, z.var((0, 2, 3)), rtol=0.03)
    np.testing.assert_allclose(body[2].running_var, phi.var(0), rtol=0.1)  # dropout, on, would double it
    assert norm.momentum == Tiny().layers[1].momentum
    assert not norm.training
