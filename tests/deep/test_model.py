"""The network around any body: preparation of images, heads, packed codes, features, files."""

import numpy as np
import pytest
import torch
from torch import nn

from dish import codes, nets
from dish.deep.heads import Head
from dish.deep.model import (
    HashingNet,
    NetworkEncoder,
    PackedEncoder,
    encode,
    extract_features,
    load_state,
    make_model,
    state_arrays,
)
from dish.errors import ModelFileError
from dish.parallel import ALONE
from helpers.deep import Tiny, patches


def model(n_outputs=12, size=16, norm=False):
    torch.manual_seed(0)
    return HashingNet(Tiny(), 64, n_outputs, size, nets.NETS["6conv"].normal, norm)


@pytest.mark.parametrize(
    ("size", "shape", "rows"),
    [(0, (9, 300), 512), (32, (9, 500, 500, 3), 512), (224, (9, 32, 32, 3), 16), (0, (9, 448, 300, 3), 4)],
)
def test_fewer_large_images_are_encoded_at_once(size, shape, rows):
    assert HashingNet(nn.Identity(), 1, 1, size, nets.NETS["6conv"].normal).rows_at_once(shape) == rows


def test_images_are_normalised_and_resized():
    net = HashingNet(nn.Identity(), 1, 1, 8, ((0.5,) * 3, (0.25,) * 3))
    x = torch.full((2, 8, 8, 3), 255, dtype=torch.uint8)
    np.testing.assert_allclose(net.prepare(x), 2.0, atol=1e-6)
    wide = torch.zeros(1, 16, 40, 3, dtype=torch.uint8)
    wide[:, :, 12:28] = 255  # the middle square
    np.testing.assert_allclose(net.prepare(wide), 2.0, atol=1e-5)
    rows = torch.ones(2, 5, dtype=torch.float64)
    assert net.prepare(rows).dtype == torch.float32


def test_mirror_images_are_averaged():
    net, x = model(), torch.from_numpy(patches(3, 0)[0])
    plain, flipped = (encode(net, each, mirror=False) for each in (x, x.flip(2)))
    torch.testing.assert_close(encode(net, x, mirror=True), (plain + flipped) / 2)


def test_another_head_can_be_given():
    class Negated(Head):
        def bits(self, scores):
            return -scores

    net, x = model(), torch.from_numpy(patches(3, 0)[0])
    torch.testing.assert_close(encode(net, x, False, Negated()), -encode(net, x, False))


@pytest.mark.parametrize("n_bits", [8, 12])
def test_packed_codes(n_bits):
    net, x = model(n_bits), torch.from_numpy(patches(5, 0)[0])
    packed = PackedEncoder(NetworkEncoder(net.eval(), False))(x)
    np.testing.assert_array_equal(packed, codes.pack(encode(net, x, False).numpy()))


def test_features_are_those_of_the_body():
    net, x = model(), torch.from_numpy(patches(5, 0)[0])
    with torch.no_grad():
        expected = net.body.eval()(net.prepare(x))
    torch.testing.assert_close(extract_features(net, x, ALONE), expected)


def test_without_outputs_the_head_takes_the_features():
    net, x = model(0), torch.from_numpy(patches(5, 0)[0])
    torch.testing.assert_close(encode(net, x, False), extract_features(net, x, ALONE))


def test_batch_norm_of_the_outputs():
    net = model(norm=True).train()
    _, f = net(net.prepare(torch.from_numpy(patches(50, 0)[0])))
    np.testing.assert_allclose(f.detach().mean(0), 0, atol=1e-5)


def test_a_module_is_copied():
    body, rows = Tiny(), torch.from_numpy(patches(4, 0)[0])
    made, fresh = make_model(body, None, None, 8, rows)
    assert made.body is not body
    assert made.width == 64
    assert fresh == frozenset()


def test_vectors_get_a_perceptron_that_starts_with_their_averages():
    rows = torch.randn(50, 7) + 1e5
    made, _ = make_model("6conv", None, None, 8, rows)
    assert isinstance(made.body, nets.MLP)
    np.testing.assert_allclose(made.body.features[0].running_mean, rows.mean(0))


class TwoThings(nn.Module):
    def forward(self, x):
        return x.flatten(1), x


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (TwoThings(), r"net must return .* a tensor \(n, D\); it returned a tuple"),
        (nn.Linear(5, 3), r"net: the module cannot take float32 rows of shape \(.*RuntimeError"),
        (nn.Conv2d(3, 4, 3), r"one feature vector per row.*returned shape \(2, 4, 14, 14\)"),
    ],
)
def test_modules_without_feature_vectors_are_refused(net, message):
    with pytest.raises(ValueError, match=message):
        make_model(net, None, None, 8, torch.from_numpy(patches(4, 0)[0]))


def test_named_networks_have_no_weights_of_their_own():
    with pytest.raises(ValueError, match="weights='own' is for a module that was trained; net is '6conv'"):
        make_model("6conv", "own", None, 8, torch.from_numpy(patches(4, 0)[0]))


def test_state_as_arrays_and_back():
    first, second = model(), model()
    nn.init.zeros_(second.hash.weight)
    load_state(second, state_arrays(first, "model."), "model.")
    torch.testing.assert_close(second.state_dict(), first.state_dict())
    with pytest.raises(ModelFileError, match="the file does not fit its network"):
        load_state(model(8), state_arrays(first, "model."), "model.")
