"""Momentum steps of the logistic regression on a GPU: two products and three kernels each, ten per graph."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from dish.cuda.compile import launch
from dish.cuda.graph import CudaGraph
from dish.cuda.tf32 import tf32
from dish.lazy import Tensor, torch

KERNEL = (Path(__file__).with_name("steps.cu"),), ""
THREADS, UPDATE_BLOCKS = 256, 512  # threads per block, and blocks of the kernel that updates W
STEPS_PER_GRAPH = 10
GATHER, EXCESS, UPDATE = range(3)  # phases of the kernel


class Step(ctypes.Structure):
    """The kernel's ``struct Step``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("U", "weight", "group", "first", "of", "order", "t")),
        *((name, ctypes.c_void_p) for name in ("batch", "scores", "gradient", "W", "move")),
        *((name, ctypes.c_int) for name in ("m", "wide", "labels", "labels_wide", "size", "updates", "one_label")),
        *((name, ctypes.c_float) for name in ("rate", "decay", "momentum")),
    ]


class FusedSteps:
    """Momentum steps on W (m, l) and b (l,), whose rate falls to 0, in tensors at fixed addresses.

    Products use TF32: its rounding error is negligible compared with minibatch noise.
    """

    def __init__(self, rows: Any, W: Tensor, b: Tensor, order: Tensor, **constants: float) -> None:
        """``order`` (updates, size): row indices of every batch; ``constants``: rate, decay and momentum."""
        (m, l), (updates, size) = W.shape, order.shape  # noqa: E741
        wide, labels_wide = (-(-width // 8) * 8 for width in (m + 1, l))  # tensor cores need multiples of 4
        new = W.new_zeros
        self.W, self.b = new(wide, labels_wide), b
        self.W[:m, :l], self.W[m, :l] = W, b
        self.batch, self.scores, self.gradient = new(size, wide), new(size, labels_wide), torch.zeros_like(self.W)
        self.t = torch.zeros((), dtype=torch.int32, device=W.device)
        first, of = rows.group_labels_csr
        arrays = {"U": rows.U, "weight": rows.weight, "group": rows.S.row_group, "first": first, "of": of}
        arrays |= {"order": order, "t": self.t, "batch": self.batch, "scores": self.scores, "gradient": self.gradient}
        self.arrays = arrays | {"W": self.W, "move": torch.zeros_like(self.W)}
        places = {name: array.data_ptr() for name, array in self.arrays.items() if array is not None}
        sizes = {"m": m, "wide": wide, "labels": l, "labels_wide": labels_wide, "size": size, "updates": updates}
        self.step = Step(one_label=rows.one_label, **places, **sizes, **constants)

    def take(self) -> tuple[Tensor, Tensor]:
        """Run all steps; returns W and b."""
        step, graph = self.step, CudaGraph(self.W.device)
        with tf32():
            self._take(step.updates % STEPS_PER_GRAPH)
            for _ in range(step.updates // STEPS_PER_GRAPH):
                graph(lambda: self._take(STEPS_PER_GRAPH))
        return self.W[: step.m, : step.labels].clone(), self.W[step.m, : step.labels].clone()

    def _take(self, count: int) -> None:
        for ahead in range(count):
            self._launch(GATHER, ahead, self.step.size)
            torch.mm(self.batch, self.W, out=self.scores)
            self._launch(EXCESS, ahead, self.step.size)
            torch.mm(self.batch.T, self.scores, out=self.gradient)
            self._launch(UPDATE, ahead, UPDATE_BLOCKS)
        self.t.add_(count)

    def _launch(self, phase: int, ahead: int, blocks: int) -> None:
        launch(KERNEL, self.W.device, blocks, THREADS, self.step, ctypes.c_int(phase), ctypes.c_int(ahead))
