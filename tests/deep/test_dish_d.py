"""DISHD on small images, on vectors and on a similarity."""

import numpy as np
import pytest
import torch

from dish import codes, metrics
from dish.deep import DISHD
from dish.io.checkpoint import Checkpoint
from dish.similarity import LowRank, from_labels
from helpers.deep import label_sets, patches, score, tiny


@pytest.fixture(scope="module")
def data():
    return *patches(200, 0), *patches(100, 1)


@pytest.fixture(scope="module")
def fitted(data):
    return tiny(DISHD).fit(*data[:2])


def test_losses_fall_and_codes_retrieve(data, fitted):
    X, y, Xq, yq = data
    for round_ in range(3):
        losses = [h["loss"] for h in fitted.history_ if h["round"] == round_]
        assert len(losses) == 6
        assert losses[-1] < losses[0]
    assert score(fitted, X, y, Xq, yq) > 0.9


def test_the_h_step_leaves_bits_balanced(fitted):
    np.testing.assert_array_equal(codes.unpack(fitted.codes_, 16).sum(0), 0)
    assert len(fitted.agreement_) == 2
    assert fitted.agreement_[-1] > 0.8


def test_flipped_targets_shrink_the_outputs(data):
    """With alpha = 0.5 the targets are random: |F| shrinks, and F agrees less with H than without flips."""
    X, y, _, _ = data
    sizes, agreement = {}, {}
    for alpha in (0.0, 0.5):
        hasher = tiny(DISHD, alpha=alpha, epochs=8).fit(X, y)
        F = hasher.decision_function(X)
        sizes[alpha] = np.abs(F).mean()
        agreement[alpha] = ((F >= 0) == (codes.unpack(hasher.codes_, 16) > 0)).mean()
    assert sizes[0.5] < 0.6 * sizes[0.0]
    assert agreement[0.5] < agreement[0.0]


def test_without_the_hinge_the_output_layer_is_not_trained(data):
    X, y = data[0][:60], data[1][:60]
    params = {"epochs": 1, "stop_agreement": 2.0, "weight_decay": 0}
    start, none, some = (tiny(DISHD, mu=mu, n_iter=n, **params).fit(X, y) for mu, n in ((1, 0), (0, 1), (1, 1)))
    weights = [hasher.model_.hash.weight for hasher in (start, none, some)]
    assert torch.equal(weights[1], weights[0])
    assert not torch.equal(weights[2], weights[0])


def test_rounds_end_at_the_agreement(data):
    X, y, _, _ = data
    hasher = tiny(DISHD, epochs=1, n_iter=5, stop_agreement=0.1).fit(X, y)
    assert len(hasher.agreement_) == 1
    assert {h["round"] for h in hasher.history_} == {0}


def test_the_learning_rate_halves(data, monkeypatch):
    from dish.deep.training import Training

    scales, optimiser = [], Training.optimiser

    def noted(self, *args, **named):
        scales.append(named.get("scale", 1.0))
        return optimiser(self, *args, **named)

    monkeypatch.setattr(Training, "optimiser", noted)
    tiny(DISHD, epochs=1, n_iter=2, stop_agreement=2.0).fit(*data[:2])
    assert scales == [1.0, 0.5, 0.25]


def test_multi_label_rows(data):
    X, y, Xq, yq = data
    Y, Yq = label_sets(y), label_sets(yq)
    hasher = tiny(DISHD).fit(X, Y)
    rng = np.random.default_rng(0)
    q, b = (rng.integers(256, size=(len(v), 2), dtype=np.uint8) for v in (Yq, Y))
    random = metrics.mean_average_precision(q, Yq, b, Y)  # most rows share a label: chance is far above 0
    assert score(hasher, X, Y, Xq, Yq) > 0.9 > random


# --- similarities ---


def test_a_similarity_made_of_labels_is_learned_like_the_labels(data):
    X, y, Xq, _ = data
    params = {"epochs": 1, "n_iter": 1}
    labels, similarity = (tiny(DISHD, **params).fit(X, each) for each in (y, from_labels(y)))
    np.testing.assert_array_equal(similarity.decision_function(Xq), labels.decision_function(Xq))


def test_a_low_rank_similarity_without_classes(data):
    """S = 2 E Eᵀ − 1, with E one-hot: only S knows the classes, so there is no softmax loss."""
    X, y, Xq, yq = data
    E = np.eye(4)[y]
    P, R = np.hstack([2 * E, -np.ones((len(y), 1))]), np.hstack([E, np.ones((len(y), 1))])
    hasher = tiny(DISHD, epochs=8).fit(X, LowRank(P, R))
    assert score(hasher, X, y, Xq, yq) > 0.9
    assert len(hasher.agreement_) == 2
    again = tiny(DISHD, epochs=8).fit(X, LowRank(P, R))
    np.testing.assert_array_equal(again.codes_, hasher.codes_)


def test_a_similarity_of_other_rows_is_refused(data):
    X, y, _, _ = data
    with pytest.raises(ValueError, match="the similarity has 150 rows, but X has 200"):
        tiny(DISHD).fit(X, from_labels(y[:150]))


# --- checkpoints and errors ---


@pytest.mark.parametrize("similarity", [False, True])
@pytest.mark.parametrize("last", [0, 1])
def test_it_resumes_after_every_round(last, similarity, data, tmp_path, monkeypatch):
    X, y = data[0][:60], data[1][:60]
    v = np.where(y % 2 == 0, 1.0, -1.0)[:, None]
    given = LowRank(v, v) if similarity else y
    params = {"epochs": 1, "n_iter": 2, "augment": True, "stop_agreement": 2.0}
    whole = tiny(DISHD, **params).fit(X, given)
    save = Checkpoint.save

    def killed(checkpoint, state):
        save(checkpoint, state)
        if state.step == last:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        tiny(DISHD, **params, checkpoint=tmp_path / "c").fit(X, given)
    monkeypatch.undo()
    resumed = tiny(DISHD, **params, checkpoint=tmp_path / "c").fit(X, given)
    assert resumed.history_ == whole.history_
    assert resumed.agreement_ == whole.agreement_
    np.testing.assert_array_equal(resumed.codes_, whole.codes_)
    np.testing.assert_array_equal(resumed.decision_function(X), whole.decision_function(X))


def test_graded_labels_are_refused(data):
    Y = label_sets(data[1]) * 0.5
    with pytest.raises(ValueError, match="DISHD learns from labels of 0 and 1; use DeepDISH"):
        tiny(DISHD).fit(data[0], Y)


@pytest.mark.parametrize(
    "params", [{"n_iter": -1}, {"alpha": 0.6}, {"mu": -1}, {"nu": float("nan")}, {"stop_agreement": "x"}]
)
def test_bad_parameters_are_named(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        tiny(DISHD, **params).fit(*patches(20, 0))


def test_parameters_of_deep_dish_do_not_exist():
    for name in ("freeze", "patience", "error_diffusion"):
        assert name not in DISHD().get_params()
        with pytest.raises(TypeError):
            DISHD(**{name: True})


def test_reports_every_epoch(data, capsys):
    torch.manual_seed(0)
    tiny(DISHD, epochs=1, n_iter=1, verbose=1).fit(*data[:2])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("DISHD round 0, epoch 1/1: loss ")
    assert lines[1].startswith("DISHD H-step 1: ")
