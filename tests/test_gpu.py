"""Fits, encodings and scores on a GPU are those of the CPU. Skipped if torch sees no GPU."""

import numpy as np
import pytest
import torch

from dish import DISH, DISHK, DeepDISH, codes, metrics, nets
from dish.cbcd import algorithm1
from dish.cbcd.cuda_sweep import can_sweep
from dish.deep import training
from dish.encoder import sigmoid, softmax
from dish.errors import InputError
from dish.parallel import ALONE
from dish.parallel.transport import Transport, sending_device
from dish.posterior import regression
from dish.similarity import from_labels
from helpers.deep import patches, score
from helpers.processes import succeed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine"),
]


def test_a_sweep_gives_the_same_codes():
    rng = np.random.default_rng(0)
    y, start = rng.integers(0, 7, 5001), codes.pack(rng.standard_normal((5001, 19)))
    q = torch.from_numpy(5 * rng.standard_normal((19, 5001))).float()
    on_cpu, on_gpu = algorithm1.PackedColumns(start, 19), algorithm1.TorchColumns(torch.from_numpy(start).cuda(), 19)
    algorithm1.sweep(on_cpu, from_labels(y), q)
    algorithm1.sweep(on_gpu, from_labels(y).to(torch.device("cuda")), q.cuda())
    np.testing.assert_array_equal(on_cpu.packed(), on_gpu.packed())


@pytest.mark.parametrize("kind", [DISH, DISHK])
def test_fit_on_the_gpu_is_as_good(kind, digits):
    X, y, Xq, yq = digits
    scores = []
    for device in ("cpu", "cuda"):
        hasher = kind(n_bits=32, n_anchors=200, device=device).fit(X, y)
        assert (np.diff(hasher.objective_) <= 0).all()
        scores.append(metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y))
    assert scores[0] == pytest.approx(scores[1], abs=0.01)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "rbf+linear"])
@pytest.mark.parametrize("kind", [DISH, DISHK])
def test_encoding_agrees_on_every_bit_beyond_rounding_error(kind, kernel, digits):
    X, y, Xq, _ = digits
    hasher = kind(n_bits=64, n_anchors=200, kernel=kernel, device="cpu").fit(X.astype(np.float32), y)
    Xq = Xq.astype(np.float32)
    on_cpu = hasher.decision_function(Xq)
    on_gpu = hasher.set_params(device="cuda").decision_function(Xq)
    clear = np.abs(on_cpu) > 1e-4 * np.abs(on_cpu).max()
    assert clear.mean() > 0.99
    np.testing.assert_array_equal((on_gpu >= 0)[clear], (on_cpu >= 0)[clear])


@pytest.mark.parametrize("multi", [False, True])
def test_histograms_are_equal(multi):
    rng = np.random.default_rng(0)
    q, b = (np.packbits(rng.random((n, 70)) < 0.5, axis=1) for n in (50, 3000))
    yq, yb = ((rng.random((n, 80)) < 0.05).astype(int) if multi else rng.integers(0, 5, n) for n in (50, 3000))
    on_cpu, on_gpu = (metrics.histograms(q, yq, b, yb, device=d) for d in ("cpu", "cuda"))
    np.testing.assert_array_equal(on_cpu.all_, on_gpu.all_)
    np.testing.assert_array_equal(on_cpu.relevant, on_gpu.relevant)


def test_large_fits_give_the_same_codes():
    """Float32 sums differ in their last digits: all but a few bits in a thousand agree, and the objective does."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 40, 90_000)
    X = (rng.standard_normal((90_000, 24)) + rng.standard_normal((40, 24))[y]).astype(np.float32)
    on_cpu = DISHK(n_bits=32, n_anchors=300, device="cpu").fit(X, y)
    on_gpu = DISHK(n_bits=32, n_anchors=300, device="cuda").fit(torch.from_numpy(X).cuda(), y)
    assert (np.unpackbits(on_cpu.codes_) == np.unpackbits(on_gpu.codes_)).mean() >= 0.999
    assert on_gpu.objective_[-1] == pytest.approx(on_cpu.objective_[-1], rel=1e-4)
    again = DISHK(n_bits=32, n_anchors=300, device="cuda").fit(torch.from_numpy(X).cuda(), y)
    np.testing.assert_array_equal(again.codes_, on_gpu.codes_)


def test_bad_rows_on_the_gpu_are_named():
    X = torch.randn(1000, 5, device="cuda")
    X[700, 2] = torch.inf
    with pytest.raises(InputError, match="NaN or infinity in row 700"):
        DISHK(n_bits=4, n_anchors=20, device="cuda").fit(X, np.arange(1000) % 3)


def test_selection_of_many_ties():
    columns = algorithm1.TorchColumns(torch.zeros(200_000, 1, dtype=torch.uint8, device="cuda"), 1)
    for values in (torch.zeros(200_000), torch.arange(200_000) % 3, torch.randn(200_000)):
        sim = values.double().cuda()
        threshold, ties = columns.kth_largest(sim, 100_000)
        assert threshold == float(sim.sort(descending=True).values[99_999])
        columns.set_largest(0, sim, threshold, ties)
        assert int(columns.signs(slice(None), sim).gt(0).sum()) == 100_000


@pytest.mark.parametrize("n_groups", [2, 1000, 2897, 2999, 4097, 20_000, 65_537])
def test_sums_by_group_are_exact(n_groups):
    rng = np.random.default_rng(0)
    row_group = torch.from_numpy(rng.integers(0, n_groups, 300_001).astype(np.int32))
    packed = codes.pack(rng.standard_normal((300_001, 3)))
    on_gpu = algorithm1.TorchColumns(torch.from_numpy(packed).cuda(), 3)
    H = torch.from_numpy(codes.unpack(packed, 3)).double()
    for k in range(3):
        sums, against = on_gpu.sums(k, row_group.cuda(), n_groups)
        exact = torch.zeros(n_groups, dtype=torch.float64).index_add_(0, row_group, H[:, k])
        assert torch.equal(sums.cpu(), exact)
        assert torch.equal(against.cpu(), H.T @ H[:, k])


def many_label_sets(n=30_000, n_labels=60):
    rng = np.random.default_rng(0)
    Y = (rng.random((n, n_labels)) < 0.05).astype(int)
    X = (Y @ rng.standard_normal((n_labels, 24)) + rng.standard_normal((n, 24))).astype(np.float32)
    assert len(np.unique(Y, axis=0)) > 5000
    return X, Y


def test_a_sweep_over_many_label_sets_gives_the_same_codes():
    _, Y = many_label_sets()
    rng = np.random.default_rng(1)
    start, q = codes.pack(rng.standard_normal((len(Y), 12))), torch.from_numpy(rng.standard_normal((12, len(Y))))
    on_cpu, on_gpu = algorithm1.PackedColumns(start, 12), algorithm1.TorchColumns(torch.from_numpy(start).cuda(), 12)
    S = from_labels(Y)
    a = algorithm1.sweep(on_cpu, S, q)
    b = algorithm1.sweep(on_gpu, S.to(torch.device("cuda")), q.cuda())
    np.testing.assert_array_equal(on_cpu.packed(), on_gpu.packed())
    np.testing.assert_array_equal(a.hSh, b.hSh)


def test_fits_over_many_label_sets_agree():
    """Two fits differ by rounding, which every sweep amplifies, but no more than after one more rounding of X."""
    X, Y = many_label_sets()
    noise = 1e-7 * np.random.default_rng(1).standard_normal(X.shape)  # about the last bit of a float32
    on_cpu, rounded, on_gpu = (
        DISHK(n_bits=16, n_anchors=200, device=device).fit(rows, Y)
        for device, rows in (("cpu", X), ("cpu", (X * (1 + noise)).astype(np.float32)), ("cuda", X))
    )
    moved = [np.mean(np.unpackbits(on_cpu.codes_) != np.unpackbits(other.codes_)) for other in (rounded, on_gpu)]
    assert moved[1] < 1.5 * moved[0]
    assert on_gpu.objective_[-1] == pytest.approx(on_cpu.objective_[-1], rel=1e-3)


@pytest.mark.parametrize("n_groups", [10, 5000])
def test_products_repeat(n_groups):
    rng = np.random.default_rng(0)
    S = from_labels(rng.permutation(np.arange(400_000) % n_groups)).to(torch.device("cuda"))
    Z = torch.randn(S.n, 64, device="cuda")
    blocks = [(slice(i, i + 2**15), Z[i : i + 2**15]) for i in range(0, S.n, 2**15)]
    first, totals = S.times(Z), S.group_totals(blocks)
    for _ in range(4):
        assert torch.equal(S.times(Z), first)
        assert torch.equal(S.group_totals(blocks), totals)


@pytest.mark.parametrize("kind", [DISH, DISHK])
@pytest.mark.parametrize("multilabel", [False, True])
def test_a_fit_on_the_gpu_repeats(kind, multilabel):
    X, Y = many_label_sets()
    X = torch.from_numpy(X).cuda()
    y = Y if multilabel else Y.argmax(1)
    fits = [kind(n_bits=16, n_anchors=200, device="cuda", n_iter=3).fit(X, y) for _ in range(3)]
    for other in fits[1:]:
        np.testing.assert_array_equal(other.codes_, fits[0].codes_)
        assert other.fingerprint_ == fits[0].fingerprint_


def test_sums_of_gpu_tensors_stay_on_the_gpu_with_nccl(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert sending_device(torch.device("cuda", 0)) == torch.device("cuda", 0)
        assert sending_device(torch.device("cpu")) == torch.device("cpu")
        ranks = Transport(0, 1)
        for device in ("cpu", "cuda"):
            sent = torch.arange(5.0, dtype=torch.float64, device=device)
            assert torch.equal(ranks._reduce(sent.clone()), sent)
    finally:
        dist.destroy_process_group()


def test_two_processes_on_one_gpu_learn_the_same(tmp_path):
    """Over gloo: nccl needs a GPU for each process."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 4000)
    X = (rng.standard_normal((4000, 16)) + rng.standard_normal((6, 16))[y]).astype(np.float64)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    succeed(["on_gpu"], 2, tmp_path)
    alone = DISH(n_bits=16, n_anchors=100, device="cuda").fit(X, y)
    together = np.concatenate([np.load(tmp_path / f"gpu-{rank}.npy") for rank in range(2)])
    assert (np.unpackbits(together) == np.unpackbits(alone.codes_)).mean() >= 0.999


@pytest.mark.parametrize("images", [False, True])
def test_recorded_steps_are_the_ordinary_ones(digits, images, monkeypatch):
    """CUDA graphs launch the same kernels: same losses up to rounding, and codes as good."""
    X, y = patches(600, 0, side=32) if images else digits[:2]
    losses, scores = [], []
    for recorded in (False, True):
        monkeypatch.setattr(training, "GRAPHS", recorded)
        hasher = DeepDISH(16, epochs=4, n_iter=1, device="cuda").fit(X, y)
        losses.append([epoch["loss"] for epoch in hasher.history_])
        scores.append(score(hasher, X, y, X, y))
    np.testing.assert_allclose(losses[1][0], losses[0][0], rtol=0.05)
    assert scores[1] == pytest.approx(scores[0], abs=0.05)


def test_recorded_steps_of_a_network_with_weights_are_the_ordinary_ones(tmp_path, monkeypatch):
    """The averages of batch norm stay, and gradients are clipped, in the recorded step too."""
    X, y = patches(600, 0, side=32)
    body = nets.spec("efficientnet_lite0").make(None)
    torch.save(body.state_dict(), tmp_path / "weights.pth")
    losses, averages = [], []
    for recorded in (False, True):
        monkeypatch.setattr(training, "GRAPHS", recorded)
        how = {"weights": str(tmp_path / "weights.pth"), "image_size": 64, "epochs": 2, "n_iter": 1}
        hasher = DeepDISH(16, "efficientnet_lite0", device="cuda", **how).fit(X, y)
        losses.append([epoch["loss"] for epoch in hasher.history_])
        averages.append(hasher.model_.body._bn0.running_mean.cpu())
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.05)
    for each in averages:
        assert torch.equal(each, body._bn0.running_mean)


@pytest.mark.parametrize("n", [37, 5001, 200_000])
@pytest.mark.parametrize("multilabel", [False, True])
def test_the_fused_sweep_takes_the_steps_of_the_cpu(n, multilabel):
    rng = np.random.default_rng(n)
    y = (rng.random((n, 30)) < 0.1).astype(int) if multilabel else rng.integers(0, 7, n)
    start, S = codes.pack(rng.standard_normal((n, 35))), from_labels(y)
    on_cpu, on_gpu = algorithm1.PackedColumns(start, 35), algorithm1.TorchColumns(torch.from_numpy(start).cuda(), 35)
    assert can_sweep(on_gpu, S)
    for scale in (50.0, 0.0, 1.0):  # without linear terms nearly all scores are equal
        q = torch.from_numpy(scale * rng.standard_normal((35, n))).float()
        a = algorithm1.sweep(on_cpu, S, q, lam=3.0)
        b = algorithm1.sweep(on_gpu, S, q.cuda(), lam=3.0)
        np.testing.assert_array_equal(on_cpu.packed(), on_gpu.packed())
        np.testing.assert_array_equal(a.hSh, b.hSh)
        np.testing.assert_allclose(a.qh, b.qh, rtol=1e-9, atol=1e-9)
        assert (a.steps, a.flips) == (b.steps, b.flips)


def test_the_fused_sweep_refuses_NaN():
    rng = np.random.default_rng(0)
    H = algorithm1.TorchColumns(torch.from_numpy(codes.pack(rng.standard_normal((3000, 8)))).cuda(), 8)
    q = torch.zeros(8, 3000, device="cuda")
    q[5, 77] = torch.nan
    with pytest.raises(InputError, match="bit 5: the objective is nan"):
        algorithm1.sweep(H, from_labels(rng.integers(0, 3, 3000)), q)


def test_a_sweep_without_the_kernel_takes_the_same_steps(monkeypatch):
    rng = np.random.default_rng(0)
    S, start = from_labels(rng.integers(0, 9, 20_000)), codes.pack(rng.standard_normal((20_000, 16)))
    q = torch.from_numpy(20 * rng.standard_normal((16, 20_000))).float().cuda()
    fused, stepped = (algorithm1.TorchColumns(torch.from_numpy(start).cuda(), 16) for _ in range(2))
    a = algorithm1.sweep(fused, S, q)
    monkeypatch.setattr(algorithm1, "can_sweep", lambda H, S: False)
    b = algorithm1.sweep(stepped, S, q)
    np.testing.assert_array_equal(fused.packed(), stepped.packed())
    assert (a.steps, a.flips) == (b.steps, b.flips)


@pytest.mark.parametrize("multilabel", [False, True])
def test_fused_steps_of_the_regression_are_the_ordinary_ones(multilabel, monkeypatch):
    """On the same batches: TF32 keeps p to the third digit."""
    rng = np.random.default_rng(0)
    n, m, labels = 6000, 67, 13
    y = (rng.random((n, labels)) < 0.2).astype(int) if multilabel else rng.integers(0, labels, n)
    U = rng.standard_normal((n, m)) + (y if multilabel else np.eye(labels)[y]) @ rng.standard_normal((labels, m))
    U = torch.from_numpy(U).float().cuda()
    rows = regression.WhitenedRows(U, torch.rand(n, device="cuda"), from_labels(y).to(U.device), ALONE, n)
    found = []
    for fused in (True, False):
        monkeypatch.setattr(regression, "can_compile", lambda device, fused=fused: fused)
        W, b = regression.regress(rows, np.arange(n), np.random.RandomState(0), share=0.333)
        found.append((sigmoid if multilabel else softmax)(U @ W + b))
    assert found[0].std() > 0.05
    assert (found[0] - found[1]).abs().max() < 0.01
    assert (found[0] - found[1]).abs().mean() < 0.001
