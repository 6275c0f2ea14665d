"""What a network gets at once, its first outputs and batch norm's averages; a trained body keeps what it knows."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from dish import nets
from dish.deep import codewords, training
from dish.deep.data import Problem, learnable
from dish.deep.model import HashingNet
from dish.deep.solved import regress
from dish.parallel import Ranks
from helpers.deep import Tiny, patches, score, tiny


def test_batch_norm_settles_on_images_as_they_are():
    X, y = patches(300, 0)
    hasher = tiny(head="codewords", n_iter=0, epochs=2, augment=True, mirror=False).fit(X, y)
    model = hasher.model_
    first, norm = model.body.layers[0], model.body.layers[1]
    with torch.no_grad():
        z = first(model.prepare(torch.from_numpy(X)))
    np.testing.assert_allclose(norm.running_mean, z.mean((0, 2, 3)), atol=1e-3)
    np.testing.assert_allclose(norm.running_var, z.var((0, 2, 3)), rtol=0.03)
    assert norm.momentum == Tiny().layers[1].momentum
    assert not norm.training


def test_outputs_begin_as_a_ridge_regression():
    X, y = patches(200, 0)
    S, targets = learnable(y, len(y), takes_graded=False)
    problem = Problem(torch.from_numpy(X), targets, S, 0, torch.device("cpu"), Ranks())
    torch.manual_seed(0)
    model = HashingNet(Tiny(), 64, 12, 16, nets.NETS["6conv"].normal)
    T = torch.where(torch.rand(200, 12) < 0.5, -1.0, 1.0)
    regress(problem, model, T)
    with torch.no_grad():
        phi, F = model.eval()(model.prepare(problem.rows))
    Phi = torch.cat([phi - phi.mean(0), torch.ones(200, 1)], 1).double().numpy()
    ridge = np.diag([*[np.square(Phi[:, :-1]).sum(0).mean()] * 64, 0.0])
    W = np.linalg.solve(Phi.T @ Phi + ridge, Phi.T @ T.double().numpy())
    np.testing.assert_allclose(F, Phi @ W, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "shape", "rows"),
    [(0, (9, 300), 512), (32, (9, 500, 500, 3), 512), (224, (9, 32, 32, 3), 16), (0, (9, 448, 300, 3), 4)],
)
def test_fewer_large_images_are_encoded_at_once(size, shape, rows):
    model = HashingNet(nn.Identity(), 1, 1, size, nets.NETS["6conv"].normal)
    assert model.rows_at_once(shape) == rows


@pytest.fixture(scope="module")
def trained():
    """A body that knows the patches, and images of the same kind."""
    X, y = patches(600, 0)
    return tiny(head="codewords", n_iter=1, epochs=4).fit(X, y).model_.body


def test_features_that_are_all_the_same_are_no_crash(trained):
    blank = copy.deepcopy(trained)
    with torch.no_grad():
        for weight in blank.parameters():
            weight.zero_()
    X, y = patches(64, 1)
    with pytest.warns(UserWarning, match="same code"):
        tiny(net=blank, weights="own", head="codewords", n_iter=0, epochs=1).fit(X, y)


def test_a_module_that_was_trained_keeps_what_it_knows(trained):
    """One short pass over few images: from where it was, not from nothing."""
    X, y = patches(64, 1)
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    hasher = tiny(net=trained, weights="own", head="codewords", n_iter=0, epochs=1).fit(X, y)
    kept = hasher.model_.body.state_dict()
    for name in ("layers.1.running_mean", "layers.1.running_var", "layers.5.running_mean"):
        torch.testing.assert_close(kept[name], before[name])
    assert not torch.equal(kept["layers.0.weight"], before["layers.0.weight"])  # it learned
    assert score(hasher, X, y, *patches(200, 2)) > 0.95
    torch.testing.assert_close(trained.state_dict(), before)  # the caller's module stays as it was


def test_weights_do_not_shrink_beside_averages_that_stay(trained, monkeypatch):
    """Without gradients nothing moves them, unless weight decay is asked for."""
    X, y = patches(60, 1)
    monkeypatch.setattr(training, "CLIP", 0.0)
    before = {name: value.clone() for name, value in trained.named_parameters()}
    how = {"net": trained, "weights": "own", "head": "codewords"}
    kept = dict(tiny(**how).fit(X, y).model_.body.named_parameters())
    torch.testing.assert_close(kept, before, rtol=0, atol=0)
    shrunk = dict(tiny(**how, weight_decay=0.01).fit(X, y).model_.body.named_parameters())
    assert all(shrunk[name].norm() < before[name].norm() for name in before)


def test_every_kind_of_batch_norm_keeps_its_averages(trained):
    X, y = patches(60, 1)
    body = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(trained))
    before = {name: value.clone() for name, value in body.state_dict().items() if "running" in name}
    kept = tiny(net=body, weights="own", head="codewords").fit(X, y).model_.body.state_dict()
    assert before
    torch.testing.assert_close({name: kept[name] for name in before}, before)


def test_a_file_without_averages_is_not_trusted(trained, tmp_path):
    """Batch norm with weights, and with averages that no image gave, would be kept as it is."""
    X, y = patches(60, 1)
    torch.save(dict(trained.named_parameters()), tmp_path / "parameters.pth")
    hasher = tiny(net=copy.deepcopy(trained), weights=str(tmp_path / "parameters.pth"), head="codewords")
    for layer in hasher.net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
    kept = hasher.fit(X, y).model_.body.state_dict()
    assert all(value.abs().max() > 0 for name, value in kept.items() if name.endswith("running_mean"))


def test_named_networks_have_no_weights_of_their_own():
    X, y = patches(20, 0)
    with pytest.raises(ValueError, match="weights='own' is for a module that was trained; net is '6conv'"):
        tiny(net="6conv", weights="own").fit(X, y)


def test_what_came_with_weights_or_has_no_pixels_is_trained_otherwise():
    image, vector = torch.zeros(2, 8, 8, 3), torch.zeros(2, 8)
    assert codewords.recipe(image, fine_tuning=False) is codewords.SCRATCH
    assert codewords.recipe(image, fine_tuning=True) is codewords.TUNED
    assert codewords.recipe(vector, fine_tuning=False) is codewords.VECTORS
    assert not codewords.TUNED.settle
