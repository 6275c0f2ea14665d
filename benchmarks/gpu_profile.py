"""Profile of a fit on a GPU: stages, steps of the H-step, kernels and Python functions by time.

    python benchmarks/gpu_profile.py                         # all fits of benchmarks/gpu.py, by both methods
    python benchmarks/gpu_profile.py "several labels" parts   # some parts
    python benchmarks/gpu_profile.py --brief                  # stages and steps only
    python benchmarks/gpu_profile.py parts                    # single operations: products, solves, draws, launches

Each fit runs three times: the second is timed, the third is profiled. Without a GPU, a few rows as a check.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dish import cbcd
from gpu import DEVICE, METHODS, overlapping, several_labels, synchronize
from scale import M, R, rows_on_gpu

ON_GPU = DEVICE == "cuda"
BRIEF = False
ROWS = 1_280_000 if ON_GPU else 2_000


def profile(name: str, X: torch.Tensor, y: np.ndarray, n_bits: int) -> None:
    """Print profiles of fits by both methods."""
    for method, kind in METHODS.items():
        print(f"\n=== {name}, {method}, {tuple(X.shape)}, {n_bits} bits", flush=True)

        def fit(kind: Any = kind) -> Any:
            hasher = kind(n_bits=n_bits, n_anchors=M, device=DEVICE).fit(X, y)
            synchronize()
            return hasher

        with counted_steps() as steps:
            fit()
        start = time.perf_counter()
        hasher = fit()
        shown = {stage: round(s, 4) for stage, s in hasher.timings_.items()}
        seconds = time.perf_counter() - start
        print(f"{seconds:.3f} s, outside stages {seconds - sum(hasher.timings_.values()):.3f}: {shown}")
        print("sweeps, as (steps, rows moved):", steps.found, flush=True)
        if ON_GPU and not BRIEF:
            print(kernels(fit))
        if not BRIEF:
            print(functions(fit), flush=True)


class counted_steps:
    """Records steps and flips of all sweeps in a ``with`` block."""

    def __enter__(self) -> counted_steps:
        self.found: list[tuple[int, int]] = []
        self.sweep = cbcd.sweep

        def sweep(*args: Any, **kwargs: Any) -> cbcd.Sweep:
            done = self.sweep(*args, **kwargs)
            self.found.append((done.steps, done.flips))
            return done

        cbcd.sweep = sweep
        return self

    def __exit__(self, *_: object) -> None:
        cbcd.sweep = self.sweep


def kernels(fit: Callable[[], Any]) -> str:
    """Kernels by time, with their number of calls."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as recorded:
        fit()
    rows = [(e.self_device_time_total, e.count, e.key) for e in recorded.key_averages()]
    total, count = sum(row[0] for row in rows), sum(row[1] for row in rows)
    lines = [f"kernels: {count:,} in {total / 1e6:.3f} s"]
    lines += [
        f"{s / 1e3:9.1f} ms {n:7,} × {s / max(n, 1):8.1f} µs  {key[:110]}" for s, n, key in sorted(rows)[:-31:-1]
    ]
    return "\n".join(lines)


def functions(fit: Callable[[], Any]) -> str:
    """Python functions by cumulative and by own time."""
    watch, out = cProfile.Profile(), io.StringIO()
    watch.runcall(fit)
    for order in ("cumulative", "tottime"):
        pstats.Stats(watch, stream=out).sort_stats(order).print_stats(45 if order == "cumulative" else 25)
    lines = [line for line in out.getvalue().splitlines() if line[:1] == " " and "random listing" not in line]
    return "\n".join(line[:150] for line in lines if line.strip())


# --- single operations ---


def timed(name: str, work: Callable[[], Any], repeats: int = 20) -> None:
    """Print the microseconds of one call."""
    for _ in range(2):
        work()
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronize()
    print(f"{1e6 * (time.perf_counter() - start) / repeats:12.1f} µs  {name}", flush=True)


def parts() -> None:
    """Time products in several precisions, small solves and random draws."""

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=dtype)

    print("\n=== single operations", flush=True)
    U, W, X, A = draw(1024, 1000), draw(1000, 1000), draw(16384, 4096), draw(4096, 1000)
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        timed(f"(1024, 1000) @ (1000, 1000), {precision}", lambda: U @ W)
        timed(f"(1000, 1024) @ (1024, 1000), {precision}", lambda: U.T @ U)
        timed(f"(1024, 1000) @ (1000, 100), {precision}", lambda: U @ W[:, :100])
        timed(f"(16384, 4096) @ (4096, 1000), {precision}", lambda: X @ A, 5)
    torch.set_float32_matmul_precision("highest")
    split = [part.bfloat16() for part in (X, X - X.bfloat16().float())]
    for dtype in (torch.bfloat16, torch.float16):
        timed(f"the same in {dtype}", lambda dtype=dtype: split[0].to(dtype) @ A.to(dtype), 5)
    for p in (128, 229, 384):
        T = draw(p, p, dtype=torch.float64)
        timed(f"({p}, {p}) squared, float64", lambda T=T: T @ T)
    T, C = draw(384, 384, dtype=torch.float64), draw(1000, 256, dtype=torch.float64)
    G = C.T @ C
    timed("norm of (384, 384) float64", lambda: T.norm())
    timed("QR of (1000, 256) float64", lambda: torch.linalg.qr(C), 3)
    timed("Cholesky of (256, 256) float64", lambda: torch.linalg.cholesky_ex(G))
    timed("triangular solve, (256, 256) and 1000", lambda: torch.linalg.solve_triangular(G, C.T, upper=False))
    timed("SVD of (1000, 101) float64", lambda: torch.linalg.svd(C[:, :101], full_matrices=False), 3)
    timed("eigh of (101, 101) float64", lambda: torch.linalg.eigh(G[:101, :101]), 3)
    timed("eigh of (256, 256) float64", lambda: torch.linalg.eigh(G), 3)
    timed("randperm of 1.28 M", lambda: torch.randperm(1_280_000, device=DEVICE), 5)
    rng = np.random.RandomState(0)
    timed("randperm of 1.28 M on the host", lambda: rng.permutation(1_280_000), 3)
    timed("choice of 1,024 of 16,384 on the host", lambda: rng.choice(16384, 1024, replace=False))
    host = torch.randn(1 << 24)
    timed("64 MB to the device", lambda: host.to(DEVICE), 5)
    timed("64 MB to the device by way of pinned memory", lambda: host.pin_memory().to(DEVICE, non_blocking=True), 5)
    if ON_GPU:
        pinned = host.pin_memory()
        timed("64 MB of pinned memory to the device", lambda: pinned.to(DEVICE, non_blocking=True), 5)
        barriers()


BARRIERS = r"""
extern "C" __global__ void __launch_bounds__(1024, 1) barriers(unsigned int* count, long long* out, int repeats) {
    unsigned int target = 0;
    for (int i = 0; i < repeats; ++i) {
        target += gridDim.x;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(count, 1u);
            while (*(volatile unsigned int*)count < target) { }
            __threadfence();
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = target;
}
"""


def barriers(repeats: int = 1000) -> None:
    """Time a barrier over all blocks of a kernel, the least cost of a step inside one launch."""
    import ctypes

    start = time.perf_counter()
    kernel = torch.cuda._compile_kernel(BARRIERS, "barriers")
    print(f"{time.perf_counter() - start:.3f} s to compile; kernel: {type(kernel)}, {vars(kernel)}", flush=True)
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.zeros(blocks, dtype=torch.int64, device=DEVICE)
    count = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for _ in range(3):
        count.zero_()
        synchronize()
        start = time.perf_counter()
        kernel((blocks, 1, 1), (1024, 1, 1), [count, out, repeats])
        synchronize()
        print(f"{1e6 * (time.perf_counter() - start) / repeats:.2f} µs a barrier, {out[0]}", flush=True)
    count.zero_()
    values = [ctypes.c_void_p(count.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_int(repeats)]
    pointers = (ctypes.c_void_p * 3)(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchCooperativeKernel
    status = launch(kernel.func, blocks, 1, 1, 1024, 1, 1, 0, stream, pointers)
    synchronize()
    print(f"cooperative launch: status {status}, {out[0]}", flush=True)


# --- command line ---


def one_label(name: str, make: Callable[[], tuple[torch.Tensor, np.ndarray]]) -> None:
    """Profile a few rows, then all."""
    X, y = make()
    few = 10_000 if ON_GPU else 1_000
    profile(f"{name}, few rows", X[:few], y[:few], R)
    profile(name, X, y, R)


PARTS: dict[str, Callable[[], None]] = {
    "parts": parts,
    "several labels": lambda: profile("several labels", *several_labels(60_000 if ON_GPU else 1_500), 64),
    "imagenet": lambda: one_label("imagenet", rows_on_gpu if ON_GPU else lambda: overlapping(ROWS, classes=300)),
    "overlapping": lambda: one_label("overlapping", lambda: overlapping(ROWS)),
}


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; none: all")
    parser.add_argument("--brief", action="store_true", help="stages and steps only")
    given = parser.parse_args()
    global BRIEF
    BRIEF = given.brief
    for part in given.parts or PARTS:
        try:
            PARTS[part]()
        except Exception:  # continue with the other parts
            traceback.print_exc()


if __name__ == "__main__":
    main()
