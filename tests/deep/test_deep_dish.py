"""DeepDISH: learning towards codewords, graded labels, resuming, frozen networks."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import dish
from dish import DISH, codes, metrics, nets
from dish.deep import DeepDISH, heads, training
from dish.deep.codewords import CodewordFit
from dish.deep.heads import FrozenHead
from dish.deep.training import Training
from dish.io.checkpoint import Checkpoint
from dish.similarity import from_labels
from helpers.deep import Tiny, label_sets, patches, score, tiny


@pytest.mark.parametrize("multilabel", [False, True])
def test_it_learns(multilabel):
    (X, y), (Xq, yq) = patches(200, 0), patches(100, 1)
    if multilabel:
        y, yq = label_sets(y), label_sets(yq)
    hasher = tiny().fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.9
    if not multilabel:
        assert np.abs((hasher.decision_function(X) >= 0).mean(0) - 0.5).max() < 0.3  # batch norm on the outputs


def test_graded_and_missing_labels(digits):
    """A third of the labels is missing, and the others are uncertain: digits are still told apart."""
    X, y, Xq, yq = digits
    Y, Yq = (np.eye(10)[each] for each in (y, yq))
    graded = np.where(Y == 1, 0.8, 0.1)
    graded[np.random.default_rng(0).random(Y.shape) < 1 / 3] = np.nan
    hasher = DeepDISH(32, epochs=5, n_iter=1, device="cpu").fit(X, graded)
    assert metrics.mean_average_precision(hasher.transform(Xq), Yq, hasher.transform(X), Y) > 0.85


def test_a_common_class_leaves_rare_ones_their_codes():
    rng = np.random.default_rng(0)
    means, y, yq = 1.2 * rng.standard_normal((3, 16)), np.repeat([0, 1, 2], [600, 120, 80]), np.arange(150) % 3
    X, Xq = ((means[v] + rng.standard_normal((len(v), 16))).astype(np.float32) for v in (y, yq))
    hasher = DeepDISH(32, epochs=5, device="cpu").fit(X, y)
    assert len(torch.unique(hasher.model_.head.C, dim=0)) == 3
    assert score(hasher, X, y, Xq, yq) > 0.9


def test_rows_that_are_alone_in_their_class_get_different_codes():
    """If some were held out, the probabilities would say nothing about the others."""
    X = np.random.default_rng(0).standard_normal((500, 32)).astype(np.float32)
    hasher = DeepDISH(64, epochs=5, device="cpu").fit(X, np.arange(500))
    near = hasher.transform(X + 0.1)
    assert metrics.mean_average_precision(near, np.arange(500), hasher.transform(X), np.arange(500)) > 0.7


def test_rows_are_held_out_only_in_the_first_cycle(digits, monkeypatch):
    X, y, _, _ = digits
    seen, run = [], Training.run

    def noted(self, loss, round_, optimiser, *, rows=None, **named):
        seen.append(None if rows is None else rows.tolist())
        return run(self, loss, round_, optimiser, rows=rows, **named)

    monkeypatch.setattr(Training, "run", noted)
    DeepDISH(16, epochs=1, n_iter=3, device="cpu").fit(X, y)
    assert seen[2:] == [None, None]
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == len(X) - int(0.15 * len(X))
    seen.clear()
    DeepDISH(16, epochs=1, n_iter=1, device="cpu").fit(X[:400], y[:400])
    assert seen == [None, None]  # too few rows to hold any out


def test_error_diffusion_is_saved_and_can_be_turned_off(digits, tmp_path, monkeypatch):
    X, y, Xq, _ = digits
    monkeypatch.setattr("dish.deep.heads.diffusion_gain", lambda *_: 1.0)
    hasher = DeepDISH(24, epochs=1, n_iter=1, device="cpu").fit(X, y)
    hasher.save(tmp_path / "m.dish")
    loaded = dish.load(tmp_path / "m.dish")
    assert loaded.model_.head.diffused == heads.DIFFUSED
    np.testing.assert_array_equal(loaded.transform(X, labels=y), codes.pack(loaded.model_.head.V.numpy())[y])
    np.testing.assert_array_equal(loaded.decision_function(Xq), hasher.decision_function(Xq))
    np.testing.assert_array_equal(loaded.transform(Xq, n_bits=16), hasher.transform(Xq)[:, :2])
    other = DeepDISH(24, epochs=1, n_iter=1, error_diffusion=False, device="cpu").fit(X, y)
    assert other.model_.head.diffused == 0


# --- resuming and early stopping ---


@contextmanager
def killed_after(round_):
    """Interrupt the fit once the state of a round is written."""
    save = Checkpoint.save

    def killed(checkpoint, state):
        save(checkpoint, state)
        if state.step == round_:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_it_resumes_with_the_state_of_the_optimiser(tmp_path):
    X, y = patches(120, 0)
    params = {"epochs": 2, "n_iter": 2, "augment": True}
    whole = tiny(**params).fit(X, y)
    with killed_after(1):
        tiny(**params, checkpoint=tmp_path / "c").fit(X, y)
    resumed = tiny(**params, checkpoint=tmp_path / "c").fit(X, y)
    assert {name for name in resumed.timings_ if name.startswith("round")} == {"round 2"}
    assert resumed.history_ == whole.history_
    assert resumed.agreement_ == whole.agreement_
    np.testing.assert_array_equal(resumed.decision_function(X), whole.decision_function(X))


@pytest.mark.parametrize(("last", "multilabel"), [(0, False), (1, False), (2, False), (1, True)])
def test_it_resumes_in_and_between_the_cycles(last, multilabel, digits, tmp_path):
    """After round 1 the head is known, and the second cycle has an optimiser of its own."""
    X, y = digits[0][:600], digits[1][:600]
    y = np.eye(10, dtype=int)[y] if multilabel else y
    whole = DeepDISH(16, epochs=1, device="cpu").fit(X, y)
    with killed_after(last):
        DeepDISH(16, epochs=1, device="cpu", checkpoint=tmp_path / "c").fit(X, y)
    resumed = DeepDISH(16, epochs=1, device="cpu", checkpoint=tmp_path / "c").fit(X, y)
    assert resumed.history_ == whole.history_
    np.testing.assert_array_equal(resumed.decision_function(X), whole.decision_function(X))


def test_it_stops_when_the_held_out_loss_rises(tmp_path, monkeypatch):
    """That loss is lowest after three epochs here. The second cycle has three epochs, also after resuming."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((500, 8)), rng.integers(0, 4, 500)
    monkeypatch.setattr(
        CodewordFit, "held_out_loss", lambda self, C: 1.0 + abs(len(self.training.held_out_losses) - 2)
    )
    params = {"epochs": 12, "n_iter": 1, "patience": 2, "device": "cpu"}
    hasher = DeepDISH(16, **params).fit(X, y)
    assert [epoch.get("held_out") for epoch in hasher.history_] == [3, 2, 1, 2, 3, None, None, None]
    hasher.draw_history(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[1:4] == b"PNG"
    with killed_after(0):
        DeepDISH(16, **params, checkpoint=tmp_path / "c").fit(X, y)
    resumed = DeepDISH(16, **params, checkpoint=tmp_path / "c").fit(X, y)
    assert resumed.history_ == hasher.history_
    np.testing.assert_array_equal(resumed.decision_function(X), hasher.decision_function(X))


def test_the_held_out_loss_is_that_of_the_held_out_rows(digits):
    X, y, _, _ = digits
    hasher = DeepDISH(16, epochs=2, n_iter=1, patience=5, device="cpu").fit(X, y)
    losses = [epoch["held_out"] for epoch in hasher.history_ if "held_out" in epoch]
    assert len(losses) == 2
    assert 0 < losses[1] < losses[0]


def test_patience_needs_held_out_rows(digits):
    with pytest.raises(ValueError, match=r"patience needs held-out rows: at least 500 rows, .*there are 100 rows"):
        DeepDISH(8, patience=3, device="cpu").fit(digits[0][:100], digits[1][:100])


# --- frozen networks ---


def weight_file(folder):
    torch.manual_seed(0)
    save_file(nets.build("6conv", None).state_dict(), folder / "w.safetensors")
    return folder / "w.safetensors"


def test_a_frozen_network_is_not_changed(monkeypatch):
    (X, y), (Xq, yq) = patches(300, 0), patches(100, 1)
    torch.manual_seed(0)
    net = Tiny()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    monkeypatch.setattr(training, "augment", lambda *_: pytest.fail("frozen networks see images as they are"))
    hasher = DeepDISH(16, net, freeze=True, device="cpu").fit(X, y)
    torch.testing.assert_close(hasher.model_.body.state_dict(), before, rtol=0, atol=0)
    assert isinstance(hasher.model_.head, FrozenHead)
    assert hasher.history_ == []
    assert score(hasher, X, y, Xq, yq) > 0.8  # random convolutions tell stripes apart


@pytest.mark.parametrize("multilabel", [False, True])
def test_a_frozen_network_has_the_codes_of_dish_on_its_features(multilabel, tmp_path):
    X, y = patches(80, 0)
    y = label_sets(y) if multilabel else y
    hasher = DeepDISH(12, weights=weight_file(tmp_path), freeze=True, mirror=False, device="cpu").fit(X, y)
    with torch.no_grad():
        phi = hasher.model_.body(hasher.model_.prepare(torch.from_numpy(X)))
    rows = torch.nn.functional.normalize(phi, dim=1).numpy()
    seed = int(np.random.RandomState(0).randint(2**31 - 1))  # the seed that random_state=0 gives
    reference = DISH(12, n_anchors=80, scale=None, geometry=0, device="cpu", random_state=seed).fit(rows, y)
    F = hasher.decision_function(X)
    np.testing.assert_allclose(F, reference.decision_function(rows), atol=1e-4)
    np.testing.assert_array_equal(hasher.codes_, reference.codes_)
    hasher.save(tmp_path / "m.dish")
    loaded = dish.load(tmp_path / "m.dish")
    assert isinstance(loaded.model_.head, FrozenHead)
    assert loaded.fingerprint_ == hasher.fingerprint_
    np.testing.assert_array_equal(loaded.decision_function(X), F)


def test_a_loaded_hasher_knows_its_weights(tmp_path):
    X, y = patches(40, 0)
    path = weight_file(tmp_path)
    DeepDISH(8, weights=path, freeze=True, device="cpu").fit(X, y).save(tmp_path / "m.dish")
    loaded = dish.load(tmp_path / "m.dish")
    assert loaded.weights == str(path)
    codes = loaded.transform(X)
    np.testing.assert_array_equal(loaded.fit(X, y).transform(X), codes)


@pytest.mark.filterwarnings("default")
def test_warns_about_training_parameters_of_a_frozen_network(tmp_path):
    X, y = patches(40, 0)
    with pytest.warns(UserWarning, match="n_iter, checkpoint: no effect, because freeze=True") as warned:
        DeepDISH(8, Tiny(), freeze=True, n_iter=7, checkpoint=tmp_path / "c", device="cpu").fit(X, y)
    assert warned[0].filename == __file__
    assert not (tmp_path / "c").exists()


def test_frozen_networks_refuse_what_they_cannot_learn_from():
    X, y = patches(20, 0)
    with pytest.raises(ValueError, match="freeze=True needs weights"):
        DeepDISH(freeze=True).fit(X, y)
    with pytest.raises(ValueError, match="freeze=True is for images; use DISH"):
        DeepDISH(8, Tiny(), freeze=True).fit(X.reshape(20, -1).astype(np.float32), y)
    with pytest.raises(ValueError, match="freeze=True learns from labels of 0 and 1; use DeepDISH with freeze=False"):
        DeepDISH(8, Tiny(), freeze=True).fit(X, 0.5 * label_sets(y))


# --- errors ---


def test_a_similarity_is_refused():
    X, y = patches(20, 0)
    with pytest.raises(ValueError, match="DeepDISH learns from labels, not from a similarity; use DISHD"):
        tiny().fit(X, from_labels(y))


@pytest.mark.parametrize("params", [{"n_iter": -1}, {"freeze": "no"}, {"error_diffusion": "no"}, {"patience": 0}])
def test_bad_parameters_are_named(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        tiny(**params).fit(*patches(20, 0))


def test_parameters_of_dish_d_do_not_exist():
    for name in ("alpha", "mu", "nu", "stop_agreement", "head"):
        assert name not in DeepDISH().get_params()
        with pytest.raises(TypeError):
            DeepDISH(**{name: 0.5})
