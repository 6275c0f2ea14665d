"""What a network gets at once, not by steps: its first outputs, and batch norm's averages in the end."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from dish.deep.data import Problem
from dish.deep.model import HashingNet

REGRESSED = 20_000  # rows by which the first outputs are fitted, at most
SETTLED, BATCH = 10_000, 256  # and batch norm's averages, so many rows at a time
BATCH_NORMS = nn.modules.batchnorm._BatchNorm  # all kinds of it


def regress(problem: Problem, model: HashingNet, targets: Tensor, rows: Tensor | None = None) -> None:
    """Let the outputs begin as the ridge regression of targets (n, R) on Φ, by some rows or all.

    The first steps of random outputs would spoil what a network with weights knows.
    """
    some = _some(problem, rows, REGRESSED)
    Phi, T = replace(problem, rows=problem.rows[some]).seen_by(model).rows.double(), targets[some].double()
    mean, mean_T = Phi.mean(0), T.mean(0)
    G = (Phi - mean).T @ (Phi - mean)
    ridge = G.diagonal().mean().clamp(min=1e-12)  # near the best for 20 to 200 rows of each of ten classes
    G.diagonal().add_(ridge)
    W = torch.linalg.solve(G, (Phi - mean).T @ (T - mean_T))  # (D, R)
    outputs = model.hash
    assert isinstance(outputs, nn.Linear)
    with torch.no_grad():
        outputs.weight.copy_(W.T)
        outputs.bias.copy_(mean_T - mean @ W)


def settle(problem: Problem, model: HashingNet, rows: Tensor | None = None) -> None:
    """Let batch norm average over the images of some rows as they are; in training it saw changed ones."""
    some = _some(problem, rows, SETTLED)
    layers = [layer for layer in model.eval().modules() if isinstance(layer, BATCH_NORMS)]
    kept = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
        layer.train()
    with torch.no_grad():
        for part in some.tensor_split(-(-len(some) // BATCH)):
            model(model.prepare(problem.rows[part]))
    for layer, momentum in zip(layers, kept, strict=True):
        layer.momentum = momentum
        layer.eval()
    problem.ranks.broadcast(model.buffers())


def _some(problem: Problem, rows: Tensor | None, most: int) -> Tensor:
    """Numbers of at most so many of some rows or all, drawn, on the device."""
    n = problem.n if rows is None else len(rows)
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(problem.seed))[:most]
    return (drawn if rows is None else rows[drawn]).to(problem.device)
