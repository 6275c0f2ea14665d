"""The training loop: batches, gradients, pretrained bodies, states that resume, several processes."""

import copy
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dish import nets
from dish.deep import DISHD, DeepDISH, training
from dish.deep.heads import Head, PosteriorHead
from dish.deep.model import HashingNet
from dish.deep.training import Batch, Objective, RoundState, Settings, Training, seeded
from dish.io.checkpoint import Checkpoint
from dish.parallel import ALONE
from helpers.deep import Tiny, fit_data, patches, score, smooth, tiny

SETTINGS = Settings(
    epochs=2,
    batch_size=32,
    lr="auto",
    weight_decay="auto",
    accumulate=1,
    augment=False,
    mirror=False,
    fine_tuning=False,
    recordable=True,
    report=lambda line: None,
)


def train(X, y, **changes):
    torch.manual_seed(0)
    model = HashingNet(Tiny(), 64, 8, 16, nets.NETS["6conv"].normal)
    return Training(fit_data(X, y), model, frozenset(), replace(SETTINGS, **changes))


@pytest.fixture(scope="module")
def data():
    return patches(96, 0)


# --- batches ---


def test_every_row_is_in_one_batch_of_an_epoch(data):
    made = train(*data)
    batches = list(made._batches(torch.arange(96), torch.Generator().manual_seed(0)))
    assert [len(batch.rows) for batch in batches] == [32, 32, 32]
    assert sorted(torch.cat([batch.rows for batch in batches]).tolist()) == list(range(96))
    assert len(list(made._batches(torch.arange(70), torch.Generator().manual_seed(0)))) == 2  # the rest is left out


def test_parts_of_a_batch_draw_what_the_batch_draws():
    whole = Batch(torch.arange(10), 10, slice(0, None, 1))
    drawn = whole.draw(torch.Generator().manual_seed(0), 3)
    parts = whole.parts(4)
    assert [len(part.rows) for part in parts] == [3, 3, 2, 2]
    for part in parts:
        torch.testing.assert_close(part.draw(torch.Generator().manual_seed(0), 3), drawn[part.rows])
    assert sum(part.share for part in parts) == pytest.approx(1)


def test_rows_and_labels_are_mixed_alike():
    mixed = Batch(torch.arange(2), 2, slice(0, None, 1), mixed=torch.tensor([0.25, 0.5]))
    x = torch.tensor([[0.0, 8.0], [4.0, 0.0]])
    torch.testing.assert_close(mixed.blend(x), torch.tensor([[1.0, 6.0], [2.0, 4.0]]))
    plain = replace(mixed, mixed=None)
    assert plain.blend(x) is x


@pytest.mark.parametrize("k", [2, 3])
def test_a_batch_in_parts_takes_the_same_steps(k, data, monkeypatch):
    """Without batch norm, and without augmentation, which is drawn for each part."""
    X, y = data
    monkeypatch.setattr(training, "augment", lambda x, draw, size: x.float())
    whole, parts = (smooth(alpha=0.0, accumulate=n).fit(X, y) for n in (1, k))
    np.testing.assert_allclose([e["loss"] for e in parts.history_], [e["loss"] for e in whole.history_], rtol=1e-4)
    np.testing.assert_allclose(parts.decision_function(X), whole.decision_function(X), atol=1e-3)
    with pytest.raises(ValueError, match="accumulate: a batch of 32 rows cannot be split into 20 parts"):
        smooth(accumulate=20).fit(X, y)


# --- rounds ---


def squares(phi, F, batch):
    return F.square().mean()


def test_a_round_repeats_exactly_and_records_its_losses(data):
    outputs = []
    for _ in range(2):
        made = train(*data)
        with seeded(3, torch.device("cpu")):
            made.run_objective(Objective(squares), 2)
        outputs.append(made.outputs())
        assert [(e["round"], e["epoch"]) for e in made.history] == [(2, 0), (2, 1)]
        assert made.history[1]["loss"] < made.history[0]["loss"]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_steps_of_a_graph_are_the_ordinary_ones(data, monkeypatch):
    """On a CPU the graph simply runs its work, from the same fixed memory as on a GPU."""
    losses = []
    for records in (False, True):
        monkeypatch.setattr(Training, "records_graphs", records)
        made = train(*data)
        made.run_objective(Objective(squares, recordable=True))
        losses.append([epoch["loss"] for epoch in made.history])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_training_stops_if_the_held_out_loss_stays(data):
    made, losses = train(*data, epochs=9), iter([3.0, 2.0, 2.5, 2.5, 1.0])
    stopped = made.run(squares, 0, made.optimiser(), held_out_loss=lambda: next(losses), patience=2)
    assert stopped
    assert made.held_out_losses == [3.0, 2.0, 2.5, 2.5]


def test_divergence_is_an_error(data):
    made = train(*data, lr=1e12)
    with pytest.raises(ValueError, match=r"training diverged in epoch .*lower lr \(it is 1e\+12\)"):
        made.run_objective(Objective(squares))


@pytest.mark.parametrize("fine_tuning", [False, True])
def test_learning_rates(fine_tuning, data):
    made = train(*data, fine_tuning=fine_tuning)
    made.fresh = frozenset({"layers.0.weight"})
    layer = nn.Linear(2, 2)
    groups = made.optimiser(layer, scale=0.5).sgd.param_groups
    assert [g["max_lr"] for g in groups] == pytest.approx([5e-4, 5e-3] if fine_tuning else [0.05, 0.05])
    assert [g["weight_decay"] for g in groups] == ([5e-4] * 2 if fine_tuning else [2e-3] * 2)
    new = {id(p) for p in groups[1]["params"]}
    assert {id(p) for p in layer.parameters()} <= new
    assert (id(made.model.body.layers[0].weight) in new) == fine_tuning  # it came without weights
    fixed = train(*data, lr=0.3, weight_decay=0.1).optimiser(rate=0.7).sgd.param_groups
    assert [(g["max_lr"], g["weight_decay"]) for g in fixed] == [(0.3, 0.1)] * 2


def test_a_head_can_be_given_for_the_outputs(data):
    class Doubled(Head):
        def bits(self, scores):
            return 2 * scores

    made = train(*data)
    torch.testing.assert_close(made.outputs(head=Doubled()), 2 * made.outputs())
    torch.testing.assert_close(made.outputs(made.data.rows[:5]), made.outputs()[:5], rtol=1e-4, atol=1e-5)


def test_warns_if_all_codes_are_equal(data):
    made = train(*data)
    for p in made.model.hash.parameters():
        nn.init.zeros_(p)
    with pytest.warns(UserWarning, match="all training rows have the same code: the network has learned nothing"):
        made.warn_if_codes_are_equal(Head())


# --- states ---


def test_a_state_is_resumed(data, tmp_path):
    made = train(*data)
    made.checkpoint = Checkpoint(tmp_path / "c", "abc", ALONE)
    made.checkpoint.prepare()
    optimiser = made.optimiser()
    made.run(squares, 0, optimiser)
    head = PosteriorHead(torch.ones(2, 8), torch.ones(2, 4), torch.zeros(4), torch.tensor(3.0))
    saved = made.save(0, made.codes(), [0.5], optimiser, head)
    other = train(*data)
    found = RoundState.load(made.checkpoint, other.model)
    torch.testing.assert_close(other.model.state_dict(), made.model.state_dict())
    for name in ("round", "seed", "agreement", "history", "rates"):
        assert getattr(found, name) == getattr(saved, name)
    np.testing.assert_array_equal(found.codes, saved.codes)
    for a, b in zip(found.momentum, saved.momentum, strict=True):
        np.testing.assert_array_equal(a, b)
    assert found.head.config() == head.config()
    torch.testing.assert_close(found.head.state_dict(), head.state_dict())


def test_without_a_checkpoint_there_is_no_state(data, tmp_path):
    model = train(*data).model
    assert RoundState.load(None, model) is None
    assert RoundState.load(Checkpoint(tmp_path, "abc", ALONE), model) is None


# --- generators ---


def test_the_generator_of_the_caller_is_restored():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1, torch.device("cpu")):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(1, torch.device("cpu")):
        assert torch.equal(torch.rand(3), inside)


# --- pretrained bodies ---


@pytest.fixture(scope="module")
def trained():
    """A body that was trained on the patches."""
    X, y = patches(600, 0)
    return tiny(n_iter=1, epochs=4).fit(X, y).model_.body


def test_a_trained_module_keeps_its_averages_and_learns(trained):
    X, y = patches(64, 1)
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    hasher = tiny(net=trained, weights="own", n_iter=0, epochs=1).fit(X, y)
    kept = hasher.model_.body.state_dict()
    for name in ("layers.1.running_mean", "layers.1.running_var", "layers.5.running_mean"):
        torch.testing.assert_close(kept[name], before[name])
    assert not torch.equal(kept["layers.0.weight"], before["layers.0.weight"])
    assert score(hasher, X, y, *patches(200, 2)) > 0.95
    torch.testing.assert_close(trained.state_dict(), before)  # the caller's module is not changed


def test_constant_features_do_not_crash(trained):
    blank = copy.deepcopy(trained)
    with torch.no_grad():
        for weight in blank.parameters():
            weight.zero_()
    X, y = patches(64, 1)
    with pytest.warns(UserWarning, match="same code"):
        tiny(net=blank, weights="own", n_iter=0, epochs=1).fit(X, y)


def test_preserved_weights_do_not_decay(trained, monkeypatch):
    """Without gradients, nothing changes them unless weight decay is set."""
    X, y = patches(60, 1)
    monkeypatch.setattr(training, "MAX_GRADIENT", 0.0)
    before = {name: value.clone() for name, value in trained.named_parameters()}
    params = {"net": trained, "weights": "own", "epochs": 2}
    kept = dict(tiny(**params).fit(X, y).model_.body.named_parameters())
    torch.testing.assert_close(kept, before, rtol=0, atol=0)
    shrunk = dict(tiny(**params, weight_decay=0.01).fit(X, y).model_.body.named_parameters())
    assert all(shrunk[name].norm() < before[name].norm() for name in before)


def test_every_kind_of_batch_norm_keeps_its_averages(trained):
    X, y = patches(60, 1)
    body = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(trained))
    before = {name: value.clone() for name, value in body.state_dict().items() if "running" in name}
    kept = tiny(net=body, weights="own", epochs=1).fit(X, y).model_.body.state_dict()
    assert before
    torch.testing.assert_close({name: kept[name] for name in before}, before)


def test_averages_that_came_without_weights_are_trained(trained, tmp_path):
    X, y = patches(60, 1)
    torch.save(dict(trained.named_parameters()), tmp_path / "parameters.pth")
    hasher = tiny(net=copy.deepcopy(trained), weights=str(tmp_path / "parameters.pth"), epochs=1)
    for layer in hasher.net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
    kept = hasher.fit(X, y).model_.body.state_dict()
    assert all(value.abs().max() > 0 for name, value in kept.items() if name.endswith("running_mean"))


# --- several processes ---


WORKER = """
import sys
sys.path.insert(0, {support!r})
import numpy as np
import torch
import torch.distributed as dist
torch.set_num_threads(1)
from dish.deep import DISHD
from helpers.deep import Tiny, patches, score, smooth, tiny
rank, world = int(sys.argv[1]), {world}
dist.init_process_group("gloo", init_method="file://{store}", rank=rank, world_size=world)
X, y = patches(200, 0)
def message(hasher, X, y):
    try:
        hasher.fit(X, y)
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
    return "none"
def weights(hasher):
    return np.concatenate([p.detach().numpy().ravel() for p in hasher.model_.state_dict().values()])
{body}
np.savez("{store}.%d.npz" % rank, **found)
dist.destroy_process_group()
"""


def run(body, world, folder):
    """The arrays that ``body`` puts into ``found``, by rank."""
    store = folder / "store"
    script = WORKER.format(support=str(Path(__file__).parents[1] / "support"), store=store, world=world, body=body)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    children = [subprocess.Popen([sys.executable, "-c", script, str(rank)], env=env) for rank in range(world)]
    try:
        assert [child.wait(timeout=300) for child in children] == [0] * world
    finally:
        for child in children:
            child.kill()
    return [np.load(f"{store}.{rank}.npz") for rank in range(world)]


ALL_KINDS = """
X, y = patches(600, 0)  # enough rows to hold some out, which decide on the head
h = tiny(epochs=3).fit(X, y)
torch.manual_seed(0)
f = tiny(net=Tiny(), freeze=True, epochs=60, n_iter=3, batch_size=128, augment=True).fit(X, y)
found = dict(F=h.decision_function(X), weights=weights(h), codes=h.codes_, map=score(h, X, y, *patches(100, 1)))
found |= dict(frozen_F=f.decision_function(X), frozen_codes=f.codes_)
"""


@pytest.mark.long
def test_two_processes_learn_the_same_network(tmp_path):
    first, second = run(ALL_KINDS, 2, tmp_path)
    for name in ("F", "weights", "codes", "frozen_F", "frozen_codes"):
        np.testing.assert_array_equal(first[name], second[name])
    assert first["map"] > 0.9
    X, y = patches(600, 0)
    torch.manual_seed(0)
    alone = DeepDISH(16, Tiny(), freeze=True, device="cpu").fit(X, y)
    np.testing.assert_allclose(first["frozen_F"], alone.decision_function(X), atol=1e-3)
    assert first["frozen_codes"].shape == alone.codes_.shape


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_take_the_steps_of_one(world, tmp_path):
    """Without batch norm and dropout; 32 rows over three processes are shares of 11, 11 and 10."""
    X, y = patches(200, 0)
    alone = smooth(DISHD).fit(X, y)
    body = """
h = smooth(DISHD).fit(X, y)
found = dict(F=h.decision_function(X), loss=[e["loss"] for e in h.history_])
"""
    for one in run(body, world, tmp_path):
        np.testing.assert_allclose(one["loss"], [e["loss"] for e in alone.history_], rtol=1e-4)
        np.testing.assert_allclose(one["F"], alone.decision_function(X), atol=1e-3)


BAD = """
part = patches(100, rank)
params = dict(kind=DISHD, epochs=1, n_iter=2, stop_agreement=2.0, checkpoint="{store}.checkpoint")
tiny(**params).fit(X, y)
h = tiny(**params).fit(X, y)
found = dict(
    crowd=message(tiny(batch_size=3), X, y),
    parts=message(tiny(epochs=1), *part),
    params=message(tiny(epochs=1 + rank), X, y),
    bad=message(tiny(epochs=1), X, y if rank else y[:-1]),
    diverged=message(tiny(DISHD, lr=1e12), X, y),
    rounds=[name for name in h.timings_ if name.startswith("round")],
    seeded=h.decision_function(X),
    unseeded=tiny(epochs=1, n_iter=0, random_state=None).fit(X, y).decision_function(X),
)
"""


@pytest.mark.long
def test_an_error_in_one_process_is_reported_by_all(tmp_path):
    first, second = run(BAD.replace("{store}", str(tmp_path / "store")), 2, tmp_path)
    for one in (first, second):
        assert "InputError: batch_size: 3 rows cannot be shared by 2 processes" in str(one["crowd"])
        assert "at least 4" in str(one["crowd"])
        for case in ("parts", "params"):
            assert "the processes of this fit have different parameters or data" in str(one[case])
        assert "199" in str(one["bad"])
        assert "training diverged" in str(one["diverged"])
        assert one["rounds"].tolist() == []  # the second fit found everything in the checkpoint
    for case in ("seeded", "unseeded"):
        np.testing.assert_array_equal(first[case], second[case])
