"""The logistic regression with many classes: a closed form, then steps that compute the logits of some classes only.

A class has few rows, so that what all classes have in common matters most. If classes are Gaussian with one
covariance, and their means are Gaussian too, the probabilities of the classes are a softmax of linear functions, and
sums over rows give it (``gaussian_classifier``). Gradient steps then change it where rows say otherwise.

A full softmax costs rows · m · l per step. Here a step has the classes of its rows, and random others that stand for
all the rest: their exponentials are multiplied by the number of classes that each stands for. So the sum of
exponentials, and with it the gradient, has the right expectation (up to the ratio of two estimates).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dish.encoder import row_blocks
from dish.lazy import Tensor, torch
from dish.posterior.projection import steps_threads
from dish.progress import progress

BATCH = 256  # rows per step: a row visit costs as many products as its step has classes
NEGATIVES = 256  # classes per step that stand for all others
RATE = 13.0  # of a row, over ‖u‖² + BATCH: a class has few rows, so that its steps must be long
SMALL = 1e-6  # scale at which W is multiplied by it, so that nothing overflows
BLOCK = 1 << 14


def gaussian_classifier(rows: Any, indices: Any) -> tuple[Tensor, Tensor]:
    """W (m, l) and b (l,) for Gaussian classes with the covariance S_w and means that vary with the covariance S_b.

    ``rows`` are ``WhitenedRows``. In coordinates in which S_w = I and S_b is diagonal, λ, the mean of n rows shrinks
    by nλ/(nλ + 1), and what n rows leave open about it, λ/(nλ + 1), adds to the covariance. ``m`` pseudo rows keep
    S_w well conditioned.
    """
    picked = rows.local(indices)[0]
    S, k = rows.S.rows(picked), rows.U.shape[1]
    blocks = ((part, rows.U[picked[part]]) for part in row_blocks(len(picked), BLOCK))
    sums = S.group_totals(blocks, rows.ranks)  # (l, m)
    scatter = sum((rows.U[picked[part]].T @ rows.U[picked[part]]).double() for part in row_blocks(len(picked), BLOCK))
    sizes = torch.bincount(S.row_group.long(), minlength=S.n_groups).double()
    scatter, sizes = rows.ranks.sum(scatter, sizes)
    n, present, size = len(indices), int((sizes > 0).sum()), sizes[:, None]
    mean = sums.sum(0) / n
    means = sums / size.clamp(min=1) - mean  # (l, m)
    scatter -= n * torch.outer(mean, mean)
    between = means.T @ (size * means)
    prior = float(scatter.diagonal().mean()) / n
    S_w = (scatter - between + k * prior * torch.eye(k).to(scatter)) / (n - present + k)
    S_b = between / n - S_w * (present - 1) / n
    L = torch.linalg.cholesky(S_w)
    half = torch.linalg.solve_triangular(L, S_b, upper=False)
    lam, Q = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.T, upper=False))
    lam, P = lam.clamp(min=0), torch.linalg.solve_triangular(L.T, Q, upper=True)
    shrunk = size * lam / (size * lam + 1) * (means @ P)
    variance = 1 + (lam / (size * lam + 1)).mean(0)
    W = P @ (shrunk / variance).T
    b = -(shrunk.square() / variance).sum(1) / 2 - mean @ W
    return W.to(rows.U), b.to(rows.U)


def sampled_steps(
    rows: Any, W: Tensor, b: Tensor, order: Any, rng: np.random.RandomState, decay: float
) -> tuple[Tensor, Tensor]:
    """W (m, l) and b (l,) after plain gradient steps on the rows ``order``; the rate falls to 0.

    Logits are UW + b + log q, q being the frequencies of the classes, which the returned b includes. Steps have no
    momentum, so that each changes only the classes that it has; the decay of all classes is one factor. It also acts
    on b: a start that is too certain then becomes less so. ``decay`` is per row.
    """
    W, b, scale = W.T.contiguous(), b.clone(), 1.0  # (l, m): a step reads rows; both are to be multiplied by scale
    log_q = rows.frequencies().clamp(min=1e-9).log()
    count = -(-len(order) // BATCH)
    rate, products = RATE / (rows.mean_square + BATCH), BATCH * (BATCH + NEGATIVES) * W.shape[1]
    with steps_threads(products), progress("regression", count, counts=1) as step:
        for t, picked in enumerate(rows.in_batches(order, BATCH, count)):
            label = rows.groups(order[t * BATCH : (t + 1) * BATCH])  # of all processes
            classes, n_present = some_classes(label, len(b), rng)
            U, own = rows.U[picked], rows.S.row_group[picked].long()
            W_c, b_c = W[classes], b[classes]
            z = torch.addmm(log_q[classes] + scale * b_c, U, W_c.T, alpha=scale)
            excess = sampled_excess(z, classes, n_present, own, len(b))
            if rows.has_outliers:
                excess.mul_(rows.weight[picked, None])
            grad_W, grad_b = rows.ranks.sum(excess.T @ U, excess.sum(0))
            now = rate * (1 - t / count)
            scale /= 1 + now * decay * len(label)
            W.index_copy_(0, classes, W_c.sub_(grad_W.to(W), alpha=now / scale))
            b.index_copy_(0, classes, b_c.sub_(grad_b.to(b), alpha=now / scale))
            if scale < SMALL:
                W, b, scale = W.mul_(scale), b.mul_(scale), 1.0
            step(1)
    return W.mul_(scale).T.contiguous(), b.mul_(scale).add_(log_q)


def some_classes(label: Tensor, l: int, rng: np.random.RandomState) -> tuple[Tensor, int]:  # noqa: E741
    """Distinct classes: those of ``label``, sorted, then random others; and the number of the former."""
    present = torch.unique(label)
    drawn = torch.from_numpy(rng.permutation(l)[:NEGATIVES]).to(label.device)
    return torch.cat([present, drawn[~torch.isin(drawn, present)]]), len(present)


def sampled_excess(z: Tensor, classes: Tensor, n_present: int, label: Tensor, l: int) -> Tensor:  # noqa: E741
    """p − Y (rows, c) from logits z of some classes (c,); those after ``n_present`` stand for all others."""
    if n_present < len(classes):
        z[:, n_present:] += math.log((l - n_present) / (len(classes) - n_present))
    p = torch.softmax(z, 1)
    own = torch.searchsorted(classes[:n_present], label)[:, None]
    return p.scatter_add_(1, own, p.new_full((), -1.0).expand(own.shape))
