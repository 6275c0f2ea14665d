"""A sweep on a GPU as one launch of the kernel in ``sweep.cu``: the host waits once per sweep."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

from dish.cbcd.columns import Sweep, check_objective
from dish.cbcd.torch_columns import DeviceColumns
from dish.cuda.compile import can_compile, launch
from dish.lazy import Tensor, torch
from dish.similarity import Classes, LabelCounts, Similarity, n_labels

SOURCES = tuple(Path(__file__).with_name(name) for name in ("blocks.cu", "sweep.cu"))
THREADS = 1024  # of a block; and the bins of a histogram
ROOM = 10_000  # numbers of 4 bytes that a block may share beside its own 5 KB: 48 KB are sure to be there


class Sizes(ctypes.Structure):
    """``Sizes`` of the kernel."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("n", "r", "labels", "words", "max_steps")),
        *((name, ctypes.c_double) for name in ("w", "lam")),
    ]


class Memory(ctypes.Structure):
    """``Memory`` of the kernel: where its arrays are."""

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


def can_fuse(H: DeviceColumns, S: Similarity) -> bool:
    """Whether the kernel can sweep these columns: on a GPU, for S = w YYᵀ − 1 of not too many labels."""
    known = isinstance(S, Classes | LabelCounts) and H.n < 1 << 29
    return known and can_compile(H.device) and shared_numbers(S, H.r) <= ROOM


def shared_numbers(S: Similarity, r: int) -> int:
    """Numbers that a block shares: a sum per label, sums of any four bits of a code, a sum per bit."""
    return n_labels(S) + 128 * -(-r // 32) + r + 1


class FusedSweep:
    """The arrays of a sweep over the columns of H, which stay where they are from one sweep to the next."""

    def __init__(self, H: DeviceColumns, S: Similarity, blocks: int) -> None:
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
    def on(cls, H: DeviceColumns, S: Similarity) -> FusedSweep:
        """That of the sweep before, if it had the same rows."""
        if not isinstance(H.steps, cls) or H.steps.S.diag is not S.diag:
            most = torch.cuda.get_device_properties(H.device).multi_processor_count
            H.steps = cls(H, S, min(most, -(-H.n // THREADS)))
        return H.steps

    def __call__(
        self, H: DeviceColumns, q: Tensor, lam: float, max_steps: int, result: Sweep, start: Any = None
    ) -> None:
        """Sweep over all columns of H; the values of the columns and the counts go to ``result``."""
        q = q.contiguous()
        self.sizes.lam, self.sizes.max_steps = lam, max_steps
        self.counts.zero_()
        self.found.zero_()
        places = {name: array.data_ptr() for name, array in self.arrays.items() if array is not None}
        (start or _launch)(self.sizes, Memory(signs=H.Ht.data_ptr(), q=q.data_ptr(), **places), self.blocks, q)
        found = torch.cat([self.found.double(), self.values]).cpu().numpy()
        steps, flips, bad = map(int, found[:3])
        if bad:
            check_objective(bad - 1, math.nan)  # or infinite: the kernel does not say which
        result.steps += steps
        result.flips += flips
        result.hSh[:], result.qh[:] = found[3 : 3 + H.r], found[3 + H.r :]


def _launch(sizes: Sizes, memory: Memory, blocks: int, q: Tensor) -> None:
    linear = "double" if q.dtype == torch.float64 else "float"
    kernel = SOURCES, f"-DLINEAR={linear} --fmad=false"  # products and sums round as torch's do
    shared = 4 * (sizes.labels + 128 * -(-sizes.r // 32) + sizes.r + 1)
    launch(kernel, q.device, blocks, THREADS, sizes, memory, shared=shared, together=True)
