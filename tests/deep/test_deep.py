"""DeepDISH and the deep rivals, on small images that a small network can tell apart."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dish
from dish import DeepDISH, codes, metrics
from dish.baselines import CNNH, DHN, FTDE, REGISTRY, SFHC
from dish.baselines.cnnh import _newton_column, factorise
from dish.baselines.ftde import infer_codes, sample_triplets
from dish.similarity import from_labels
from helpers.deep import patches, rival, score, tiny


@pytest.fixture(scope="module")
def data():
    return *patches(400, 0), *patches(100, 1)


# --- learning ---


def test_loss_falls_codes_retrieve_and_stay_balanced(data):
    X, y, Xq, yq = data
    hasher = tiny().fit(X, y)
    for round_ in range(3):
        losses = [h["loss"] for h in hasher.history_ if h["round"] == round_]
        assert len(losses) == 6
        assert losses[-1] < losses[0]
    assert score(hasher, X, y, Xq, yq) > 0.9
    H = codes.unpack(hasher.codes_, 16)
    np.testing.assert_array_equal(H.sum(0), 0)  # 400 rows: the H-step leaves each bit +1 on half of them
    assert hasher.agreement_[-1] > 0.8


def test_same_seed_same_codes_and_the_callers_generator_is_left_alone(data):
    X, y, Xq, _ = data
    torch.manual_seed(5)
    expected = torch.rand(3)
    first = tiny(epochs=1, augment=True, random_state=1)
    torch.manual_seed(5)
    first.fit(X, y)
    assert torch.equal(torch.rand(3), expected)
    second, other = (tiny(epochs=1, augment=True, random_state=seed).fit(X, y) for seed in (1, 2))
    np.testing.assert_array_equal(first.decision_function(Xq), second.decision_function(Xq))
    assert (first.decision_function(Xq) != other.decision_function(Xq)).any()


def test_flipping_half_of_the_target_bits_teaches_the_bits_nothing(data):
    """With alpha = 0.5 the targets are coin tosses: F shrinks, and agrees less with H than without flips."""
    X, y, _, _ = data
    sizes, agreement = {}, {}
    for alpha in (0.0, 0.5):
        hasher = tiny(alpha=alpha, epochs=10).fit(X, y)
        F = hasher.decision_function(X)
        sizes[alpha] = np.abs(F).mean()
        agreement[alpha] = ((F >= 0) == (codes.unpack(hasher.codes_, 16) > 0)).mean()
    assert sizes[0.5] < 0.5 * sizes[0.0]
    assert agreement[0.5] < agreement[0.0]


def test_multi_label_rows(data):
    X, y, Xq, yq = data
    Y, Yq = (np.stack([v % 2 == 0, v % 2 == 1, v // 2 == 1], 1).astype(int) for v in (y, yq))
    hasher = tiny().fit(X, Y)
    rng = np.random.default_rng(0)
    q, b = (rng.integers(256, size=(len(v), 2), dtype=np.uint8) for v in (Yq, Y))
    random = metrics.mean_average_precision(q, Yq, b, Y)  # most rows share a label: chance is far above 0
    assert score(hasher, X, Y, Xq, Yq) > 0.9 > random


def test_vectors_take_a_perceptron(digits):
    X, y, Xq, yq = digits
    hasher = DeepDISH(n_bits=24, epochs=5, n_iter=1, device="cpu").fit(X, y)
    assert score(hasher, X, y, Xq, yq) > 0.9
    with pytest.raises(ValueError, match="learned from rows of features"):
        hasher.transform(patches(3, 0)[0])


def test_images_of_another_size_and_grey_ones_are_encoded(data):
    X, y, _, _ = data
    hasher = tiny(epochs=1, n_iter=0, image_size=16).fit(X, y)
    assert hasher.transform(np.repeat(np.repeat(X[:3], 2, 1), 2, 2)).shape == (3, 2)
    assert hasher.transform(X[:3, :, :, 0]).shape == (3, 2)
    with pytest.raises(ValueError, match="must be images"):
        hasher.transform(np.zeros((3, 5)))


# --- files ---

CHILD = """
import sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from helpers.deep import patches, tiny
X, y = patches(200, 0)
hasher = tiny(epochs=2, n_iter=3, checkpoint={checkpoint!r}, augment=True)
write = hasher._write_checkpoint
def slow(round_, *rest):
    write(round_, *rest)
    if round_ == 1:
        print("ready", flush=True)
        import time
        time.sleep(60)
hasher._write_checkpoint = slow
hasher.fit(X, y)
"""


def test_a_fit_that_was_killed_goes_on_to_the_same_codes(tmp_path):
    X, y = patches(200, 0)
    whole = tiny(epochs=2, n_iter=3, augment=True).fit(X, y)
    path = tmp_path / "c.dish"
    script = CHILD.format(tests=str(Path(__file__).parents[1]), checkpoint=str(path))
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    resumed = tiny(epochs=2, n_iter=3, checkpoint=path, augment=True).fit(X, y)
    assert [h["round"] for h in resumed.history_] == [h["round"] for h in whole.history_]
    assert set(resumed.timings_) >= {"round 2", "round 3"}
    assert not {"round 0", "round 1"} & set(resumed.timings_)  # these were not done again
    np.testing.assert_array_equal(resumed.codes_, whole.codes_)
    np.testing.assert_array_equal(resumed.transform(X), whole.transform(X))


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    X, y = patches(60, 0)
    path = tmp_path / "c.dish"
    tiny(epochs=1, n_iter=0, checkpoint=path).fit(X, y)
    tiny(epochs=1, n_iter=0, checkpoint=path).fit(X, y)
    for params, (A, b) in {
        "data": ({}, patches(60, 1)),
        "labels": ({}, (X, 3 - y)),
        "epochs": ({"epochs": 2}, (X, y)),
        "seed": ({"random_state": 7}, (X, y)),
    }.values():
        with pytest.raises(ValueError, match="other data or parameters"):
            tiny(**{"epochs": 1, "n_iter": 0, "checkpoint": path, **params}).fit(A, b)
    path.write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"c\.dish is not a dish model"):
        tiny(epochs=1, n_iter=0, checkpoint=path).fit(X, y)


@pytest.fixture(scope="module")
def named():
    X, y = patches(24, 0)
    return DeepDISH(12, net="6conv", image_size=16, epochs=1, n_iter=1, batch_size=12, device="cpu").fit(X, y)


def test_save_and_load(named, tmp_path):
    X, _ = patches(10, 3)
    named.save(tmp_path / "m.dish")
    loaded = dish.load(tmp_path / "m.dish")
    assert type(loaded) is DeepDISH
    assert loaded.get_params() == named.get_params()
    np.testing.assert_array_equal(loaded.decision_function(X), named.decision_function(X))
    np.testing.assert_array_equal(loaded.codes_, named.codes_)


def test_a_module_of_ones_own_is_not_saved(data, tmp_path):
    X, y, _, _ = data
    with pytest.raises(TypeError, match=r"files hold no code.*export_onnx"):
        tiny(epochs=1, n_iter=0).fit(X[:60], y[:60]).save(tmp_path / "m.dish")
    assert not (tmp_path / "m.dish").exists()


@pytest.mark.parametrize("kind", ["named", "own", "vectors"])
def test_onnx_gives_the_same_codes(kind, named, data, digits, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="ONNX NOT CHECKED: onnxruntime is missing")
    pytest.importorskip("onnx", reason="ONNX NOT CHECKED: onnx is missing")
    X, y, Xq, _ = data
    if kind == "named":
        hasher = named
    elif kind == "own":
        hasher = tiny(epochs=1, n_iter=0).fit(X, y)
    else:
        Xq = digits[2].astype(np.float32)
        hasher = DeepDISH(12, epochs=1, n_iter=0, device="cpu").fit(digits[0], digits[1])
    hasher.export_onnx(tmp_path / "h.onnx")
    session = runtime.InferenceSession(str(tmp_path / "h.onnx"), providers=["CPUExecutionProvider"])
    (F,) = session.run(None, {session.get_inputs()[0].name: Xq})
    np.testing.assert_allclose(F, hasher.decision_function(Xq), atol=1e-4)
    bits = np.abs(F) > 1e-4  # nearer to zero, rounding may decide
    np.testing.assert_array_equal((F >= 0)[bits], (codes.unpack(hasher.transform(Xq), hasher.n_bits) > 0)[bits])


# --- two processes ---

WORKER = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import torch
import torch.distributed as dist
torch.set_num_threads(1)
from helpers.deep import patches, score, tiny
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{store}", rank=rank, world_size=2)
X, y = patches(400, 0)
hasher = tiny().fit(X, y)
F = hasher.decision_function(X)
found = score(hasher, X, y, *patches(100, 1))
weights = np.concatenate([p.detach().numpy().ravel() for p in hasher.model_.state_dict().values()])
np.savez("{store}.%d.npz" % rank, F=F, weights=weights, codes=hasher.codes_, map=found)
dist.destroy_process_group()
"""


def test_two_processes_learn_one_network(data, tmp_path):
    script = WORKER.format(tests=str(Path(__file__).parents[1]), store=str(tmp_path / "store"))
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    children = [subprocess.Popen([sys.executable, "-c", script, str(rank)], env=env) for rank in range(2)]
    assert [child.wait(timeout=120) for child in children] == [0, 0]
    first, second = (np.load(tmp_path / f"store.{rank}.npz") for rank in range(2))
    for name in ("F", "weights", "codes"):
        np.testing.assert_array_equal(first[name], second[name])
    assert first["map"] > 0.9


# --- errors ---


@pytest.mark.parametrize(
    "params",
    [
        {"net": "resnet"}, {"epochs": 0}, {"batch_size": 1}, {"lr": 0}, {"lr": "fast"}, {"weight_decay": -1},
        {"image_size": 4}, {"n_iter": -1}, {"alpha": 0.6}, {"mu": -1}, {"nu": float("nan")}, {"stop_agreement": "x"},
    ],
)  # fmt: skip
def test_bad_parameters_are_named(params):
    X, y = patches(20, 0)
    with pytest.raises(ValueError, match=next(iter(params))):
        tiny(**params).fit(X, y)


def test_other_bad_input_is_refused():
    X, y = patches(20, 0)
    with pytest.raises(ValueError, match=r"training diverged in epoch .*lower lr"):
        tiny(lr=1e12).fit(X, y)
    with pytest.raises(ValueError, match="1 class"):
        tiny().fit(X, np.zeros(20))
    with pytest.raises(ValueError, match="requires y"):
        tiny().fit(X)
    with pytest.raises(ValueError, match="not from a similarity"):
        tiny().fit(X, from_labels(y))
    with pytest.raises(ValueError, match="feature vector"):
        tiny(net=nn.Conv2d(3, 4, 3)).fit(X, y)
    with pytest.raises(ValueError, match="y has 19"):
        tiny().fit(X, y[:19])


# --- rivals ---


@pytest.mark.parametrize("name", ["cnnbh", "cnnh", "dhn", "ftde"])
def test_rivals_retrieve(name, data):
    X, y, Xq, yq = data
    assert score(rival(REGISTRY[name]).fit(X, y), X, y, Xq, yq) > 0.8


def test_sfhc_retrieves(digits):
    """On digits, over three seeds: bits may come to copy each other.

    On the patches all of them tell the two colours and none the direction (MAP 0.51); on digits a seed in three
    stays at 0.73.
    """
    X, y, Xq, yq = digits
    hashers = [SFHC(n_bits=24, epochs=8, device="cpu", random_state=seed).fit(X, y) for seed in range(3)]
    assert np.mean([score(hasher, X, y, Xq, yq) for hasher in hashers]) > 0.8


def cnnh_objective(S, H):
    return ((S - H @ H.T / H.shape[1]) ** 2).sum()


@pytest.mark.parametrize("multilabel", [False, True])
def test_cnnh_never_raises_its_objective(multilabel):
    rng = np.random.default_rng(0)
    S = from_labels(rng.integers(2, size=(30, 3)) if multilabel else rng.integers(3, size=30))
    H, values = np.random.RandomState(1).uniform(-1, 1, (30, 8)), []
    table = S.P(S.Rt(torch.eye(S.n_groups, dtype=torch.float64))).numpy()
    for k in [*range(8), *range(8)]:
        values.append(cnnh_objective(S.dense(), H))
        _newton_column(H, k, S.row_group.numpy(), table, S.diag.numpy())
    assert np.abs(H).max() <= 1
    assert (np.diff(values) < 0).all()
    np.testing.assert_array_equal(H, factorise(S, 8, np.random.RandomState(1), 2))


def test_cnnhs_newton_step_is_that_of_numeric_differentiation():
    """The first entry of the first column moves by −f'/f'', cut to [−1, 1], or stays if that does not help."""
    S = from_labels(np.arange(12) % 3)
    dense, r, e, moved = S.dense(), 4, 1e-4, 0
    for seed in range(10):
        start = np.random.RandomState(seed).uniform(-1, 1, (12, r))
        H = start.copy()
        table = S.P(S.Rt(torch.eye(3, dtype=torch.float64))).numpy()
        _newton_column(H, 0, S.row_group.numpy(), table, S.diag.numpy())

        def f(value, start=start):
            changed = start.copy()
            changed[0, 0] = value
            return r * r * cnnh_objective(dense, changed)

        h = start[0, 0]
        slope, curve = (f(h + e) - f(h - e)) / (2 * e), (f(h + e) - 2 * f(h) + f(h - e)) / e**2
        if curve <= 0:
            continue
        wanted = np.clip(h - slope / curve, -1, 1)
        moved += f(wanted) < f(h)
        assert H[0, 0] == pytest.approx(wanted if f(wanted) < f(h) else h, abs=1e-4)
    assert moved >= 5


def test_ftdes_loss_never_rises_and_equals_a_count():
    y = np.arange(40) % 4
    S = from_labels(y)
    triplets = sample_triplets(S, 5, np.random.RandomState(0))
    i, j, k = triplets.T
    assert (y[i] == y[j]).all()
    assert (i != j).all()
    assert (y[i] != y[k]).all()
    H, losses = infer_codes(triplets, 40, 8, np.random.RandomState(1), 2)
    assert set(np.unique(H)) == {-1, 1}
    assert (np.diff(losses) <= 1e-12).all()
    assert losses[-1] < losses[0]
    count = np.mean([max(0, 4 - (H[a] != H[c]).sum() + (H[a] != H[b]).sum()) for a, b, c in triplets])
    assert losses[-1] == pytest.approx(count)


def test_ftde_needs_triplets():
    with pytest.raises(ValueError, match="no triplets"):
        sample_triplets(from_labels(np.arange(5)), 3, np.random.RandomState(0))


def batch(kind, multilabel):
    hasher = rival(kind, n_bits=6)
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=(7, 3)).astype(np.float32) if multilabel else rng.integers(3, size=7)
    hasher._targets = torch.from_numpy(labels)
    F = torch.from_numpy(rng.standard_normal((7, 6)))
    share = labels @ labels.T > 0 if multilabel else labels[:, None] == labels
    return hasher, F, share, torch.arange(7)


@pytest.mark.parametrize("multilabel", [False, True])
def test_dhns_loss_is_that_of_a_loop_over_pairs(multilabel):
    hasher, F, share, rows = batch(DHN, multilabel)
    z = np.tanh(F.numpy())
    parts = {True: [], False: []}
    for i, j in itertools.permutations(range(7), 2):
        p = 1 / (1 + np.exp(-z[i] @ z[j] / 2))
        parts[bool(share[i, j])].append(-np.log(p if share[i, j] else 1 - p))
    expected = np.mean(parts[True]) + np.mean(parts[False]) + 0.1 * np.log(np.cosh(np.abs(z) - 1)).mean()
    assert float(hasher._pair_loss(F, F, rows)) == pytest.approx(expected)


@pytest.mark.parametrize("multilabel", [False, True])
def test_sfhcs_loss_is_that_of_a_loop_over_triplets(multilabel):
    hasher, F, share, rows = batch(SFHC, multilabel)
    z = 1 / (1 + np.exp(-F.numpy()))
    terms = [
        max(0, 6 / 4 - ((z[i] - z[k]) ** 2).sum() + ((z[i] - z[j]) ** 2).sum())
        for i, j, k in itertools.permutations(range(7), 3)
        if share[i, j] and not share[i, k]
    ]
    assert len(terms) > 10
    assert float(hasher._triplet_loss(F, F, rows)) == pytest.approx(np.mean(terms))


@pytest.mark.parametrize("kind", [CNNH, FTDE])
def test_two_stage_rivals_keep_their_codes_through_a_checkpoint(kind, tmp_path):
    X, y = patches(60, 0)
    first, second = (rival(kind, epochs=1, checkpoint=tmp_path / "c.dish").fit(X, y) for _ in range(2))
    assert "round 0" not in second.timings_
    np.testing.assert_array_equal(first.codes_, second.codes_)
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
