"""The spectral start on a GPU: one bit after another, each the same CUDA graph, and nothing waits for the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dish.cuda.graph import CudaGraph
from dish.lazy import Tensor, torch

SQUARINGS = 30  # of a matrix: a billion steps of the power method


class DeviceBits:
    """What ``Relaxation`` does for every bit, ``best`` and ``deflate``, in tensors of fixed sizes on the device.

    A bit that adds nothing to the basis leaves its row of zeros, where the host's basis would not grow.
    """

    def __init__(self, Bt: Any, T: Any, p: int, n: int, device: torch.device) -> None:
        """The first p rows of Bt and T are in use, the others are zero: room for the bits."""
        self.length = n**0.5
        self.Bt, self.T = torch.as_tensor(Bt, device=device), torch.as_tensor(T, device=device)
        self.bit, self.place = (torch.tensor([number], device=device) for number in (0, p))  # of the next row
        every = torch.arange(len(self.T), dtype=torch.float64, device=device)
        self.draws = torch.cos(every) + 2  # no symmetry that an eigenvector could be orthogonal to
        self.start = torch.where(every < p, self.draws, 0)
        self.recorded = CudaGraph(device)

    def solve(self, r: int, bit: Callable[[], None]) -> None:
        """Do the work of a bit r times: what it leaves, ``keep`` puts in its place."""
        for _ in range(r):
            self.recorded(bit)

    def keep(self, row: Tensor, table: Tensor) -> None:
        """Row k of a table is of bit k."""
        table.index_copy_(0, self.bit, row[None])

    def best(self) -> Tensor:
        """x (m,) of the next bit, of length √n."""
        x = leading_eigenvector(self.T, self.start) @ self.Bt
        return self.length * torch.sign(x.take(x.abs().argmax())) * x

    def deflate(self, v: Tensor) -> None:
        """T − ttᵀ with t = Bᵀv; what of v lies outside B is added to the basis."""
        rest = v.clone()
        for _ in range(2):  # twice is enough (Gram–Schmidt)
            rest -= (self.Bt @ rest) @ self.Bt
        length = rest.norm()
        new = length > 1e-8 * v.norm()
        self.Bt.index_copy_(0, self.place, torch.where(new, rest / length, 0)[None])
        self.start.index_copy_(0, self.place, torch.where(new, self.draws[self.place], 0))
        self.bit += 1
        self.place += 1
        t = self.Bt @ v
        self.T.addr_(t, t, alpha=-1)


def leading_eigenvector(T: Tensor, start: Tensor) -> Tensor:
    """Eigenvector of the largest eigenvalue of a symmetric matrix: of (T + σI)ᵗ start with t = 2³⁰.

    Products of small matrices take a GPU no longer than those with vectors, of which there would be a hundred.
    ``start`` is 0 where rows and columns of T are.
    """
    A = T / T.norm().clamp(min=1e-300) + torch.diag((start != 0).to(T))  # σ: the eigenvalues are 0 … 2
    for i in range(SQUARINGS):
        A = A @ A
        if i % 5 == 4:
            A = A / A.norm()
    x = A @ start
    return x / x.norm()
