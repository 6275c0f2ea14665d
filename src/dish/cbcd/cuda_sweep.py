"""A whole sweep on a GPU as one kernel launch (``sweep.cu``). The host waits once per sweep."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

from dish.cbcd.columns import Sweep, check_objective
from dish.cbcd.torch_columns import TorchColumns
from dish.cuda.compile import can_compile, launch
from dish.lazy import Tensor, torch
from dish.similarity import Classes, LabelCounts, Similarity, n_labels

SOURCES = tuple(Path(__file__).with_name(name) for name in ("blocks.cu", "sweep.cu"))
THREADS = 1024  # per block; also the number of histogram bins
ROOM = 10_000  # 4-byte values of dynamic shared memory per block; with 5 KB of static memory this stays below 48 KB


class Sizes(ctypes.Structure):
    """The kernel's ``struct Sizes``."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("n", "r", "labels", "words", "max_steps")),
        *((name, ctypes.c_double) for name in ("w", "lam")),
    ]


class Memory(ctypes.Structure):
    """The kernel's ``struct Memory``: addresses of its arrays."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            *(
                "signs",
                "by_bit",
                "by_row",
                "b",
                "kept",
                "keys",
                "group",
                "first",
                "of",
                "diag",
                "q",
                "u",
                "z",
                "bins",
            ),
            *("part", "moved", "equal", "barrier", "hSh", "qh", "found"),
        )
    ]


def can_sweep(H: TorchColumns, S: Similarity) -> bool:
    """Whether the kernel can sweep these columns: on a GPU, with S = w YYᵀ − 1 and not too many labels."""
    known = isinstance(S, Classes | LabelCounts) and H.n < 1 << 29
    return known and can_compile(H.device) and shared_numbers(S, H.r) <= ROOM


def shared_numbers(S: Similarity, r: int) -> int:
    """Values in shared memory: a sum per label, sums of any four bits of a code, a sum per bit."""
    return n_labels(S) + 128 * -(-r // 32) + r + 1


class CudaSweep:
    """The arrays of sweeps over the columns of H, allocated once."""

    def __init__(self, H: TorchColumns, S: Similarity, blocks: int) -> None:
        assert isinstance(S, Classes | LabelCounts)
        self.S, self.blocks = S, blocks
        n, r, labels, words = H.n, H.r, n_labels(S), -(-H.n // 32)
        self.sizes = Sizes(n, r, labels, words, 0, S.w, 0.0)
        whole = H.Ht.new_zeros(0, dtype=torch.int32).new_empty
        self.counts = whole(2 * (r + 1) + 2 * labels + 3 * THREADS + 1)  # u, z, bins, barrier
        u, z, bins, barrier = self.counts.split([2 * (r + 1), 2 * labels, 3 * THREADS, 1])
        real = torch.empty(5 * blocks + 2 * r, dtype=torch.float64, device=H.device)
        part, self.values = real.split([5 * blocks, 2 * r])  # hSh and qh
        self.found = torch.zeros(3, dtype=torch.int64, device=H.device)
        self.arrays: dict[str, Tensor | None] = {
            "by_bit": whole(r, words),
            "by_row": whole(-(-r // 32), n),
            "b": whole(words),
            "kept": whole(words),
            "keys": torch.empty(n, dtype=torch.int64, device=H.device),
            "group": S.row_group.int().contiguous(),
            "first": None if isinstance(S, Classes) else S.Y_g.crow_indices().int(),
            "of": None if isinstance(S, Classes) else S.Y_g.col_indices().int(),
            "diag": r * S.diag - (r - 1),  # Q_ii
            **{"u": u, "z": z, "bins": bins, "part": part, "moved": whole(blocks), "equal": whole(blocks)},
            **{"barrier": barrier, "hSh": self.values[:r], "qh": self.values[r:], "found": self.found},
        }

    @classmethod
    def on(cls, H: TorchColumns, S: Similarity) -> CudaSweep:
        """The one of the previous sweep if S is the same, else a new one."""
        if not isinstance(H.sweep, cls) or H.sweep.S.diag is not S.diag:
            most = torch.cuda.get_device_properties(H.device).multi_processor_count
            H.sweep = cls(H, S, min(most, -(-H.n // THREADS)))
        return H.sweep

    def __call__(
        self, H: TorchColumns, q: Tensor, lam: float, max_steps: int, result: Sweep, start: Any = None
    ) -> None:
        """Sweep over all columns of H and write to ``result``. ``start`` launches the kernel (tests replace it)."""
        q = q.contiguous()
        self.sizes.lam, self.sizes.max_steps = lam, max_steps
        self.counts.zero_()
        self.found.zero_()
        places = {name: array.data_ptr() for name, array in self.arrays.items() if array is not None}
        (start or _launch)(self.sizes, Memory(signs=H.Ht.data_ptr(), q=q.data_ptr(), **places), self.blocks, q)
        found = torch.cat([self.found.double(), self.values]).cpu().numpy()
        steps, flips, bad = map(int, found[:3])
        if bad:
            check_objective(bad - 1, math.nan)  # or infinity: the kernel does not say which
        result.steps += steps
        result.flips += flips
        result.hSh[:], result.qh[:] = found[3 : 3 + H.r], found[3 + H.r :]


def _launch(sizes: Sizes, memory: Memory, blocks: int, q: Tensor) -> None:
    linear = "double" if q.dtype == torch.float64 else "float"
    kernel = SOURCES, f"-DLINEAR={linear} --fmad=false"  # the same rounding as torch
    shared = 4 * (sizes.labels + 128 * -(-sizes.r // 32) + sizes.r + 1)
    launch(kernel, q.device, blocks, THREADS, sizes, memory, shared=shared, together=True)
