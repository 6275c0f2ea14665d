"""LFH: steps against automatic derivatives, and a likelihood that never falls."""

import numpy as np
import pytest
import torch

from dish.baselines import lfh
from dish.baselines.lfh import LFH
from dish.similarity import from_labels


def test_step_is_the_gradient_over_a_bound_of_the_hessian():
    rng = np.random.default_rng(7)
    U = torch.from_numpy(rng.standard_normal((9, 3))).requires_grad_()
    s = torch.from_numpy((lambda A: (A + A.T > 0).astype(float))(rng.standard_normal((9, 9))))
    (gradient,) = torch.autograd.grad(lfh.log_posterior(U, s, 5.0), U)
    others = torch.arange(9) != 4
    u, V = U[4].detach(), U[others].detach()
    step = lfh.newton_step(u[None], V, s[4][others][None], 5.0)[0]
    bound = V.T @ V / 8 + torch.eye(3) / 5
    torch.testing.assert_close(bound @ step, gradient[4])

    def of_row(row):
        return lfh.log_posterior(torch.cat([U[:4].detach(), row[None], U[5:].detach()]), s, 5.0)

    hessian = torch.autograd.functional.hessian(of_row, u)
    assert float(torch.linalg.eigvalsh(hessian + bound).min()) >= -1e-12  # −bound is below the Hessian


def test_likelihood_never_falls_with_all_columns():
    """With all columns drawn the rows move one after the other, and no step may lower the likelihood."""
    y = np.random.default_rng(8).integers(0, 3, 25)
    S = from_labels(y)
    s = torch.from_numpy((y[:, None] == y[None, :]).astype(float))
    U = torch.from_numpy(np.random.default_rng(9).standard_normal((25, 4)))
    values = [float(lfh.log_posterior(U, s, 30.0))]
    for _ in range(10):
        lfh.update_factors(U, S, torch.arange(25), 30.0)
        values.append(float(lfh.log_posterior(U, s, 30.0)))
    assert (np.diff(values) >= 0).all()
    assert values[-1] > 0.3 * values[0]  # both negative


def test_likelihood_of_rows_outside_the_columns_never_falls():
    y = np.random.default_rng(10).integers(0, 3, 40)
    S = from_labels(y)
    U = torch.from_numpy(np.random.default_rng(11).standard_normal((40, 4)))
    columns = torch.tensor([3, 8, 20, 21, 33])
    V, s = U[columns].clone(), torch.from_numpy((y[:, None] == y[columns.numpy()]).astype(float))

    def likelihood(U):
        Theta = U @ V.T / 2
        return 2 * (s * Theta - torch.nn.functional.softplus(Theta)).sum(1) - U.square().sum(1) / 60

    before = likelihood(U)
    lfh.update_factors(U, S, columns, 30.0)
    outside = ~torch.isin(torch.arange(40), columns)
    assert (likelihood(U)[outside] >= before[outside] - 1e-12).all()


@pytest.mark.parametrize("bad", [{"beta": 0}, {"n_iter": 0}, {"n_columns": 0}])
def test_rejects_bad_parameters(bad, blobs):
    with pytest.raises(ValueError, match=next(iter(bad))):
        LFH(n_anchors=60, **bad).fit(*blobs)
