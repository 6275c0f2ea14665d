"""Projections of probabilities onto bits, and their refinement by a ranking loss or a pair loss."""

import numpy as np
import pytest
import torch

from dish.posterior import projection


def random_signs(l, r, seed=0):  # noqa: E741
    return np.where(np.random.default_rng(seed).random((l, r)) < 0.5, -1.0, 1.0)


def gram_error(V):
    """Distance of VᵀV (tall V) or VVᵀ from a multiple of the identity."""
    gram = V.T @ V if V.shape[1] <= len(V) else V @ V.T
    return np.linalg.norm(gram / np.diag(gram).mean() - np.eye(len(gram)))


@pytest.mark.parametrize(("l", "r"), [(40, 16), (10, 32), (20, 20)])
def test_a_signed_projection_has_the_given_signs_and_is_nearly_orthogonal(l, r):  # noqa: E741
    C = random_signs(l, r)
    V = projection.signed_projection(C, np.random.RandomState(0)).numpy()
    np.testing.assert_array_equal(np.sign(V), C)
    start = C * np.abs(np.random.RandomState(0).standard_normal(C.shape))
    assert gram_error(V) < 0.6 * gram_error(start)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (5, 5)])
@pytest.mark.parametrize("rank", ["full", "low"])
def test_the_nearest_orthogonal_matrix_is_that_of_the_singular_values(shape, rank):
    rng = np.random.default_rng(0)
    V = rng.standard_normal(shape)
    if rank == "low":
        V[:, 0] = V[:, 1]
        V[0] = V[1]
    left, _, right = np.linalg.svd(V, full_matrices=False)
    found = projection.nearest_orthogonal(V)
    assert np.trace(found.T @ V) == pytest.approx(np.trace((left @ right).T @ V))  # the maximum
    np.testing.assert_allclose(np.linalg.svd(found)[1], 1, atol=1e-8)


def test_centred_subtracts_three_quarters_of_the_mean_probability():
    V = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 6)))
    same, offset = projection.centred(V)
    assert same is V
    np.testing.assert_allclose(offset, -(15 / 16) / 4 * V.sum(0))


def test_the_loss_of_a_rotation_never_rises():
    V = torch.from_numpy(np.random.default_rng(0).standard_normal((300, 6)) * np.linspace(1, 3, 6))
    R, loss = projection.rotation(V, 10, 8, np.random.RandomState(0))
    assert R.shape == (6, 10)
    np.testing.assert_allclose(R @ R.T, np.eye(6), atol=1e-12)
    assert (np.diff(loss) <= 1e-9).all()
    F = V.numpy() @ R
    assert loss[-1] >= np.square(np.where(F >= 0, 1, -1) - F).sum() - 1e-9


# --- The ranking loss ---


def ranking_loss(V, log_beta, G, y, q):
    """The loss of ``ranking_gradient``, one query at a time; the first q rows are the queries."""
    Phi = torch.tanh(G @ V)
    scores = log_beta.exp() / V.shape[1] * (Phi[:q] @ Phi.T)
    loss = torch.zeros((), dtype=V.dtype)
    for i in range(q):
        others = [j for j in range(len(G)) if j != i]
        mates = [k for k, j in enumerate(others) if y[j] == y[i]]
        if mates:
            loss = loss - torch.log_softmax(scores[i, others], 0)[mates].mean() / q
    return loss


@pytest.mark.parametrize("at_a_time", [4, 128])
def test_the_gradient_of_the_ranking_loss_is_that_of_autograd(at_a_time, monkeypatch):
    monkeypatch.setattr(projection, "QUERIES", at_a_time)
    rng = torch.Generator().manual_seed(0)
    G, y = torch.rand(15, 4, generator=rng, dtype=torch.float64), torch.randint(3, (15,), generator=rng)
    y[1] = 3  # alone in its class
    V = torch.randn(4, 5, generator=rng, dtype=torch.float64).requires_grad_(True)
    log_beta = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    ranking_loss(V, log_beta, G, y, 6).backward()
    found = projection.ranking_gradient(V.detach(), log_beta.detach(), (G[:6], y[:6]), (G[6:], y[6:]))
    torch.testing.assert_close(found[0], V.grad)
    torch.testing.assert_close(found[1], log_beta.grad)


def test_refining_lowers_the_loss_and_leaves_its_inputs_alone():
    rng = np.random.RandomState(0)
    G = torch.rand(300, 12, generator=torch.Generator().manual_seed(0))
    y = torch.from_numpy(rng.randint(12, size=300))
    G[torch.arange(300), y] += 1
    V = projection.signed_projection(random_signs(12, 8), rng).float()
    before, held, seen = V.clone(), (G[:150], y[:150]), (G[150:], y[150:])
    kept = G.clone()
    refined = projection.refine(V, held, seen, rng)
    assert torch.equal(V, before)
    assert torch.equal(G, kept)
    start = V / ((G[:150] - projection.centre(12)) @ V).square().mean().sqrt()
    losses = [ranking_loss(each, torch.tensor(10.0).log(), G, y, 150) for each in (start, refined)]
    assert losses[1] < losses[0]


# --- The pair loss ---


def pair_loss(V, offset, log_beta, bias, G, Y, q):
    """The loss of ``pair_gradient``, one pair at a time; the first q rows are the queries."""
    codes = [torch.tanh(g @ V + offset) for g in G]
    loss = torch.zeros((), dtype=V.dtype)
    for i in range(q):
        for j in range(len(G)):
            if j != i:
                p = torch.sigmoid(log_beta.exp() * codes[i] @ codes[j] / V.shape[1] + bias)
                loss = loss - torch.log(p if Y[i] @ Y[j] > 0 else 1 - p)
    return loss / (q * len(G))


def pair_problem(n, l, r, seed=0):  # noqa: E741
    """Scores of n label sets of l labels, which tell the labels but not surely, the sets, and a projection."""
    rng = np.random.default_rng(seed)
    Y = (rng.random((n, l)) < 0.3).astype(float)
    G = 1 / (1 + np.exp(-4 * (Y - 0.5) - rng.standard_normal((n, l))))
    V = projection.signed_projection(random_signs(l, r), np.random.RandomState(seed))
    return torch.from_numpy(G), torch.from_numpy(Y), V, 0.1 * torch.from_numpy(rng.standard_normal(r))


def test_the_gradient_of_the_pair_loss_is_that_of_autograd():
    G, Y, V, offset = pair_problem(13, 4, 5)
    Y[2] = 0  # shares a label with none, not even with itself
    scores = torch.cat([G[:6], Y[6:]])  # rows with labels need no scores
    assert 0 < (Y[:6] @ Y.T > 0).double().mean() < 1
    thetas = [V, offset, *(torch.tensor(value, dtype=torch.float64) for value in (1.3, -0.4))]
    before = [theta.clone() for theta in thetas]
    found = projection.pair_gradient(*thetas, (G[:6], Y[:6]), Y[6:])
    assert all(map(torch.equal, thetas, before))
    for theta in thetas:
        theta.requires_grad_(True)
    pair_loss(*thetas, scores, Y, 6).backward()
    for theta, gradient in zip(thetas, found, strict=True):
        torch.testing.assert_close(gradient, theta.grad)


def fast_pair_loss(V, offset, log_beta, bias, G, Y, q):
    """``pair_loss`` by matrices."""
    codes = torch.tanh(G @ V + offset)
    logits = log_beta.exp() / V.shape[1] * codes[:q] @ codes.T + bias
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, (Y[:q] @ Y.T > 0).to(V), reduction="none")
    return (losses.sum() - losses[:, :q].trace()) / losses.numel()


def least_pair_loss(V, offset, *problem):
    """The pair loss with the best of many sharpnesses and biases."""
    betas, biases = torch.linspace(-1, 4, 21, dtype=V.dtype), torch.linspace(-4, 4, 33, dtype=V.dtype)
    return min(float(fast_pair_loss(V, offset, beta, bias, *problem)) for beta in betas for bias in biases)


def test_refining_for_sets_lowers_the_pair_loss_and_leaves_its_inputs_alone():
    G, Y, V, offset = pair_problem(300, 12, 8)
    problem = torch.cat([G[:150], Y[150:]]), Y, 150
    theta = (V, offset, torch.tensor(1.0), torch.tensor(-0.5))
    assert float(fast_pair_loss(*theta, *problem)) == pytest.approx(float(pair_loss(*theta, *problem)))
    inputs = V, offset, G, Y
    before = [each.clone() for each in inputs]
    refined = projection.refine_for_sets(V, offset, (G[:150], Y[:150]), Y[150:], np.random.RandomState(0))
    assert all(map(torch.equal, inputs, before))
    assert [each.shape for each in refined] == [V.shape, offset.shape]
    scale = (G[:150] @ V + offset).square().mean().sqrt()
    assert least_pair_loss(*refined, *problem) < 0.95 * least_pair_loss(V / scale, offset / scale, *problem)


def test_refining_for_sets_does_not_depend_on_the_number_of_threads():
    G, Y, V, offset = (each.float() for each in pair_problem(1200, 40, 32))
    held, found = (G[:600], Y[:600]), []
    usual = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(projection.refine_for_sets(V, offset, held, Y[600:], np.random.RandomState(0)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(usual)
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


def test_products_with_the_softmax(monkeypatch):
    D = torch.from_numpy(np.random.default_rng(0).standard_normal((11, 3)))
    weight, beta = torch.rand(7, 1, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    scores = beta * D[:7] @ D.T
    scores[torch.arange(7), torch.arange(7)] = -torch.inf
    P = torch.softmax(scores, 1)
    for size in (2, 100):
        monkeypatch.setattr(projection, "QUERIES", size)
        found, finding = projection.softmax_products(beta, D, weight)
        torch.testing.assert_close(found, P @ D)
        torch.testing.assert_close(finding, P.T @ (weight * D[:7]))


def test_class_sums():
    y, X = torch.tensor([2, 0, 2]), torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    assert projection.class_sums(y, 4, X).tolist() == [[3, 4], [0, 0], [6, 8], [0, 0]]


def test_drawn_rows_do_not_repeat_within_a_step():
    draws = projection._draws([10, 6], 5, 30, np.random.RandomState(0), torch.device("cpu"))
    assert draws.shape == (30, 2, 5)
    assert all(len(set(row.tolist())) == 5 for step in draws for row in step)
    assert draws[:, 0].max() == 9
    assert draws[:, 1].max() == 5


# --- What a GPU does without waiting for the host, on tensors of the CPU ---


@pytest.mark.parametrize("shape", [(60, 16), (10, 32)])
def test_signed_projections_on_a_device_are_the_same(shape):
    C = random_signs(*shape)
    V = torch.from_numpy(C * np.abs(np.random.RandomState(3).standard_normal(shape)))
    found = projection._signed_on_device(V, torch.from_numpy(C))
    np.testing.assert_allclose(found, projection.signed_projection(C, np.random.RandomState(3)), atol=1e-7)


def test_rotations_on_a_device_are_the_same():
    V = torch.from_numpy(np.random.default_rng(0).standard_normal((300, 6)) * np.linspace(1, 3, 6))
    R, loss = projection.rotation(V, 10, 8, np.random.RandomState(0))
    start = torch.from_numpy(np.linalg.qr(np.random.RandomState(0).standard_normal((10, 10)))[0][:6].copy())
    on_device, its_loss = projection._rotation_on_device(V, start, 8)
    np.testing.assert_allclose(on_device, R, atol=1e-6)
    np.testing.assert_allclose(its_loss, loss)
