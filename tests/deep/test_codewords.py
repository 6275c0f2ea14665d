"""DeepDISH(head="codewords"): the loss against a loop, learning, resuming, files."""

import itertools
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch

import dish
from dish import DeepDISH, codes, metrics
from dish.deep.checkpoint import Checkpoint
from dish.deep.codewords import (
    MARGIN,
    codeword_loss,
    codewords,
    label_loss,
    least_distance,
    one_hot,
    start_codes,
    width,
)
from dish.deep.cycles import CodewordFit
from dish.similarity import from_labels
from helpers.deep import patches, score, tiny


def test_the_loss_is_that_of_a_loop_over_rows():
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


def test_the_loss_of_labels_is_that_of_a_loop():
    F = np.random.default_rng(0).standard_normal((3, 2))
    t, share, total = np.array([[1, 0], [1, 1], [0, 1]], float), np.array([0.6, 0.3]), 0.0
    for f, labels in zip(F, t, strict=True):
        for z, wanted, s in zip(f, labels, share, strict=True):
            p = 1 / (1 + np.exp(-(z + np.log(s / (1 - s)))))
            total -= np.log(p if wanted else 1 - p)
    found = label_loss(*(torch.from_numpy(a) for a in (F, t, share)))
    assert float(found) == pytest.approx(total / 3)


def test_a_missing_label_counts_nothing():
    F = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    share = torch.tensor([0.5, 0.5])
    whole = label_loss(F, torch.tensor([[1.0, 0.0], [0.3, 1.0]]), share)
    part = label_loss(F, torch.tensor([[1.0, torch.nan], [0.3, 1.0]]), share)
    assert float(whole - part) == pytest.approx(np.log1p(np.exp(-2)) / 2)


def test_a_label_that_is_missing_everywhere_is_refused():
    Y = np.eye(3)[np.arange(30) % 3]
    Y[:, 1] = np.nan
    with pytest.raises(ValueError, match=r"nothing is known about label 1.*1 of 3 labels"):
        DeepDISH(8, head="codewords", device="cpu").fit(np.zeros((30, 4)), Y)


@pytest.mark.parametrize("kind", [list, pd.DataFrame, torch.tensor])
def test_graded_labels_may_come_in_other_forms(kind):
    Y = np.where(np.eye(3)[np.arange(30) % 3] == 1, 0.8, 0.1)
    Y[::4, 0] = np.nan
    X = np.random.default_rng(0).standard_normal((30, 4))
    fitted = [DeepDISH(8, epochs=1, n_iter=0, device="cpu").fit(X, y) for y in (Y, kind(Y.tolist()))]
    np.testing.assert_array_equal(*(hasher.transform(X) for hasher in fitted))


@pytest.mark.slow
def test_labels_may_be_missing_or_between_0_and_1(digits):
    """A third of the labels missing, and those of one digit never sure: it still tells them apart."""
    X, y, Xq, yq = digits
    Y, Yq = (np.eye(10)[each] for each in (y, yq))
    graded = np.where(Y == 1, 0.8, 0.1)
    graded[np.random.default_rng(0).random(Y.shape) < 1 / 3] = np.nan
    hasher = DeepDISH(32, head="codewords", epochs=5, n_iter=1, device="cpu").fit(X, graded)
    assert metrics.mean_average_precision(hasher.transform(Xq), Yq, hasher.transform(X), Y) > 0.85
    with pytest.raises(ValueError, match=r"missing .NaN. or between 0 and 1: only"):
        DeepDISH(32, head="paper").fit(X, graded)
    with pytest.raises(ValueError, match=r"y: labels \(n, l\) must be from 0 to 1"):
        DeepDISH(32, head="codewords").fit(X, 2 * graded)


def test_codewords_are_votes():
    H = np.array([[1, 1], [1, -1], [1, -1], [-1, 1]])
    t = one_hot(torch.tensor([0, 0, 0, 1]), 2)
    assert codewords(codes.pack(H), 2, t).tolist() == [[1, -1], [-1, 1]]


def test_the_start_tells_classes_apart_and_is_balanced():
    y = np.arange(80) % 4
    H = codes.unpack(start_codes(from_labels(y), 16, 0), 16)
    np.testing.assert_array_equal(H.sum(0), 0)
    C = codewords(codes.pack(H), 16, one_hot(torch.from_numpy(y), 4)).numpy()
    np.testing.assert_array_equal(C[y], H)
    assert (C @ C.T - 16 * np.eye(4)).max() <= 4  # 6 bits or more apart


@pytest.mark.parametrize("sizes", [(180, 10, 10), (500, 100, 50, 50), (199, 1)])
def test_rare_classes_have_codewords_of_their_own(sizes):
    y = np.repeat(np.arange(len(sizes)), sizes)
    C = codewords(start_codes(from_labels(y), 64, 0), 64, one_hot(torch.from_numpy(y), len(sizes)))
    assert least_distance(C) >= 32
    brute = min(int((a != b).sum()) for a, b in itertools.combinations(C, 2))
    assert least_distance(C) == brute


def test_many_classes_have_codewords_far_apart():
    assert [width(12, 10), width(128, 10), width(64, 150), width(64, 10_000)] == [64, 128, 150, 512]
    y = np.arange(150)
    C = codewords(start_codes(from_labels(y), width(64, 150), 0), 150, one_hot(torch.from_numpy(y), 150))
    assert least_distance(C) >= 45  # of 150; among 64 outputs some are 10 apart


@pytest.mark.slow
def test_a_common_class_leaves_rare_ones_their_codes():
    rng = np.random.default_rng(0)
    means, y, yq = 1.2 * rng.standard_normal((3, 16)), np.repeat([0, 1, 2], [600, 120, 80]), np.arange(150) % 3
    X, Xq = ((means[v] + rng.standard_normal((len(v), 16))).astype(np.float32) for v in (y, yq))
    hasher = DeepDISH(32, head="codewords", epochs=5, device="cpu").fit(X, y)
    assert len(torch.unique(hasher.model_.top.C, dim=0)) == 3
    assert score(hasher, X, y, Xq, yq) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("multilabel", [False, True])
def test_it_learns(multilabel):
    (X, y), (Xq, yq) = patches(400, 0), patches(100, 1)
    if multilabel:
        y, yq = (np.stack([v % 2 == 0, v % 2 == 1, v // 2 == 1], 1).astype(int) for v in (y, yq))
    hasher = tiny(head="codewords").fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.9
    if not multilabel:
        assert np.abs((hasher.decision_function(X) >= 0).mean(0) - 0.5).max() < 0.3  # batch norm on F


@contextmanager
def killed_after(round_):
    """Ctrl-C once the state of a round is written."""
    write = Checkpoint.write

    def killed(checkpoint, state, model):
        write(checkpoint, state, model)
        if state.round == round_:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.slow
def test_it_resumes_with_the_state_of_the_optimiser(tmp_path):
    X, y = patches(120, 0)
    params = {"head": "codewords", "epochs": 2, "n_iter": 2, "augment": True}
    whole = tiny(**params).fit(X, y)
    with killed_after(1):
        tiny(**params, checkpoint=tmp_path / "c.dish").fit(X, y)
    resumed = tiny(**params, checkpoint=tmp_path / "c.dish").fit(X, y)
    assert {name for name in resumed.timings_ if name.startswith("round")} == {"round 2"}
    assert resumed.history_ == whole.history_
    assert resumed.agreement_ == whole.agreement_
    np.testing.assert_array_equal(resumed.decision_function(X), whole.decision_function(X))


@pytest.mark.slow
def test_it_stops_when_held_out_rows_gain_no_more(tmp_path, monkeypatch):
    """Their loss is least after three passes here. The second cycle has as many, also after resuming."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((500, 8)), rng.integers(0, 4, 500)
    loss = CodewordFit.loss

    def scripted(self, *args):
        held = not self.training.model.training
        return torch.tensor(1.0 + abs(len(self.held_out_losses()) - 2)) if held else loss(self, *args)

    monkeypatch.setattr(CodewordFit, "loss", scripted)
    params = {"head": "codewords", "epochs": 12, "n_iter": 1, "patience": 2, "device": "cpu"}
    hasher = DeepDISH(16, **params).fit(X, y)
    assert [epoch.get("held_out") for epoch in hasher.history_] == [3, 2, 1, 2, 3, None, None, None]
    hasher.draw_history(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[1:4] == b"PNG"
    with killed_after(0):
        DeepDISH(16, **params, checkpoint=tmp_path / "c.dish").fit(X, y)
    resumed = DeepDISH(16, **params, checkpoint=tmp_path / "c.dish").fit(X, y)
    assert resumed.history_ == hasher.history_
    np.testing.assert_array_equal(resumed.decision_function(X), hasher.decision_function(X))


def test_patience_needs_rows_to_hold_out(digits):
    with pytest.raises(ValueError, match=r"patience needs rows to hold out: at least 500 rows, .*got 100 rows"):
        DeepDISH(8, head="codewords", patience=3, device="cpu").fit(digits[0][:100], digits[1][:100])
    with pytest.raises(ValueError, match="patience is for head='codewords'"):
        DeepDISH(8, head="paper", patience=3).fit(*digits[:2])


@pytest.mark.slow
def test_files_and_parameters(digits, tmp_path):
    X, y, Xq, yq = digits
    hasher = DeepDISH(24, head="codewords", epochs=5, n_iter=1, device="cpu").fit(X, y)
    assert metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y) > 0.9
    hasher.save(tmp_path / "m.dish")
    loaded = dish.load(tmp_path / "m.dish")
    np.testing.assert_array_equal(loaded.decision_function(Xq), hasher.decision_function(Xq))
    with pytest.raises(ValueError, match="head must be one of 'auto', 'paper', 'codewords', 'kernel'"):
        DeepDISH(head="cosine").fit(X, y)


@pytest.mark.slow
@pytest.mark.parametrize("last", [0, 1, 2])
def test_it_resumes_in_and_between_the_cycles(last, digits, tmp_path, monkeypatch):
    """After round 1 the frame is known already, and the second cycle has an optimiser of its own."""
    X, y = digits[0][:600], digits[1][:600]
    whole = DeepDISH(16, head="codewords", epochs=1, device="cpu").fit(X, y)
    write = Checkpoint.write

    def killed(checkpoint, state, model):
        write(checkpoint, state, model)
        if state.round == last:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        DeepDISH(16, head="codewords", epochs=1, device="cpu", checkpoint=tmp_path / "c.dish").fit(X, y)
    monkeypatch.undo()
    resumed = DeepDISH(16, head="codewords", epochs=1, device="cpu", checkpoint=tmp_path / "c.dish").fit(X, y)
    assert resumed.history_ == whole.history_
    np.testing.assert_array_equal(resumed.decision_function(X), whole.decision_function(X))
