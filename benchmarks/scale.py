"""DISH-K fits of up to 1.28 million synthetic rows × 4096: on a GPU, on the CPU from a file, by several processes.

python benchmarks/scale.py gpu              on a machine with a GPU: results/scale_gpu.json
python benchmarks/scale.py cpu              from a memory-mapped file of 21 GB: results/scale_cpu.json
python benchmarks/scale.py ranks            two processes and one: results/scale_ranks.json
python benchmarks/scale.py kills            20 fits killed at random moments: results/scale_kills.json
python benchmarks/scale.py plot             results/scale.svg from the first two
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from dish import DISHK, load, machine, metrics
from dish.datasets.synthetic import SyntheticImageNet
from dish.experiments import bench
from dish.io.data_cache import cache_folder
from scale_plot import plot

RESULTS = Path(__file__).parent / "results"
N, R, M = 1_280_000, 128, 1000
SIZES = (10_000, 40_000, 160_000, 640_000, N)
PARAMS = {"n_bits": R, "n_iter": 5, "similar_weight": 10.0}
SETTING = {"data": "synthetic_imagenet (synthetic)", "d": 4096, "classes": 1000, "r": R, "n_iter": 5, "w": 10}


def held_out() -> tuple[Any, Any]:
    """1,000 queries from the same model, from a block after the last training row."""
    X, y = SyntheticImageNet(N + 10_000).block(N // SyntheticImageNet.ROWS)
    return X[:1000], y[:1000]


def score(hasher: DISHK, X: Any, y: Any) -> float:
    """MAP of the queries against at most 100,000 of the rows."""
    step = max(1, len(y) // 100_000)
    Xq, yq = held_out()
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X[::step]), y[::step])


def floors(n: int, m: int, hasher: DISHK, gemm: float, copy: float, *, gpu: bool) -> dict[str, float]:
    """Least seconds of each stage: its products at the measured rate, or its bytes at the measured bandwidth."""
    t, d, r = hasher.n_iter_, 4096, R
    passes = t + 1  # the last sweep changed nothing and is not counted
    steps = 2 * r * passes  # at least: per bit one step, and one that changes nothing
    bytes_a_step = n * (r // 8 + r // 8 + (60 if gpu else 28))  # H twice; group, q, sim (a GPU rereads it), column
    return {
        "features": max(2 * n * d * m / gemm, n * (d + m) * 4 / copy),
        "gram": max(1.25 * n * m * m / gemm, n * m * 4 / copy),
        "start": 2 * n * m * r / gemm,
        "linear term": passes * max(2 * n * m * r / gemm, n * m * 4 / copy),
        "H-step": steps * bytes_a_step / copy,
        "F-step": t * max(2 * n * m * r / gemm, n * m * 4 / copy),
    }


def with_floors(hasher: DISHK, floor: dict[str, float]) -> dict[str, Any]:
    """Each stage: measured seconds, floor, and their ratio."""
    return {
        name: {"s": s, "floor_s": floor.get(name), "ratio": s / floor[name] if floor.get(name) else None}
        for name, s in hasher.timings_.items()
    }


# --- GPU ---


def on_gpu() -> None:
    """All sizes on the GPU; the largest also from host memory, with 4,000 anchors, and compared with the CPU."""
    import torch

    gemm, copy = gpu_ceilings()
    print(f"float32 products {gemm / 1e12:.0f} TFLOP/s, copies {copy / 1e12:.2f} TB/s", flush=True)
    start = time.perf_counter()
    X, y = rows_on_gpu()
    print(f"rows made in {time.perf_counter() - start:.1f} s", flush=True)
    DISHK(**PARAMS, n_anchors=M, device="cuda").fit(X[:20_000], y[:20_000])  # libraries load, kernels compile
    rows = []
    for n in SIZES:
        hasher, seconds, memory = timed_gpu_fit(X[:n], y[:n], M, 3)
        rows.append(
            {"n": n, "seconds": min(seconds), "all_s": seconds, "gpu_bytes": memory, "n_iter": hasher.n_iter_}
        )
        print(rows[-1], flush=True)
    stages = with_floors(hasher, floors(N, M, hasher, gemm, copy, gpu=True))
    content = {"what": "fit on a GPU", "setting": SETTING, "gemm_flops": gemm, "copy_bytes_s": copy, "sizes": rows}
    content |= {"stages": stages, "map": score(hasher, X, y)}
    print(json.dumps(stages, indent=1), content["map"], flush=True)
    hasher, seconds, memory = timed_gpu_fit(X, y, 4000, 2)
    content["m4000"] = {"seconds": min(seconds), "all_s": seconds, "gpu_bytes": memory, "map": score(hasher, X, y)}
    content["m4000"]["stages"] = with_floors(hasher, floors(N, 4000, hasher, gemm, copy, gpu=True))
    print(content["m4000"], flush=True)
    content["beside_cpu"] = beside_cpu(X[:100_000], y[:100_000])
    print(content["beside_cpu"], flush=True)
    host = X.cpu()
    del X
    torch.cuda.empty_cache()
    hasher, seconds, memory = timed_gpu_fit(host, y, M, 2)
    content["from_host"] = {"seconds": min(seconds), "all_s": seconds, "gpu_bytes": memory, "stages": hasher.timings_}
    print(content["from_host"], flush=True)
    bench.write_json(RESULTS / "scale_gpu.json", content | {"environment": machine.environment()})


def timed_gpu_fit(X: Any, y: Any, m: int, repeats: int) -> tuple[DISHK, list[float], int]:
    """The fastest of a few fits, all their seconds, and the GPU memory beyond X at the peak."""
    import torch

    best, seconds = None, []
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        hasher = DISHK(**PARAMS, n_anchors=m, device="cuda").fit(X, y)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        if seconds[-1] == min(seconds):
            best = hasher
    assert best is not None
    return best, seconds, torch.cuda.max_memory_allocated() - before


def beside_cpu(X: Any, y: Any) -> dict[str, Any]:
    """Codes of a GPU fit and a CPU fit of the same rows: the share of equal bits, and both MAPs."""
    on_gpu = DISHK(**PARAMS, n_anchors=M, device="cuda").fit(X, y)
    start = time.perf_counter()
    rows = X.cpu().numpy()
    on_cpu = DISHK(**PARAMS, n_anchors=M, device="cpu").fit(rows, y)
    seconds = time.perf_counter() - start
    equal = [
        float((np.unpackbits(a) == np.unpackbits(b)).mean())
        for a, b in ((on_gpu.codes_, on_cpu.codes_), (on_gpu.transform(rows), on_cpu.transform(rows)))
    ]
    maps = {"map_gpu": score(on_gpu, rows, y), "map_cpu": score(on_cpu, rows, y)}
    return {"n": len(y), "equal_bits_learned": equal[0], "equal_bits_encoded": equal[1], "cpu_s": seconds, **maps}


def rows_on_gpu() -> tuple[Any, Any]:
    """The synthetic rows, generated on the GPU from the same latent variables."""
    import torch

    data = SyntheticImageNet(N)
    W = torch.from_numpy(data._model[2]).cuda()
    mean = torch.from_numpy(data._mean).cuda()
    X = torch.empty(N, data.N_FEATURES, device="cuda")
    labels = []
    for i in range(data.n_blocks):
        y, Z = data._latent(i)
        block = (torch.from_numpy(Z).cuda() @ W - data.SHIFT).clamp_(min=0).sub_(mean)
        X[i * data.ROWS : (i + 1) * data.ROWS] = block / block.norm(dim=1, keepdim=True)
        labels.append(y)
    return X, np.concatenate(labels)


def gpu_ceilings() -> tuple[float, float]:
    """Measured rates of float32 products (FLOP/s) and of copies (bytes read and written per second)."""
    import torch

    A = torch.randn(8192, 8192, device="cuda")
    B = torch.randn(1 << 30, device="cuda")
    C = torch.empty_like(B)
    return 2 * 8192**3 / cuda_seconds(lambda: A @ A), 8 * len(B) / cuda_seconds(lambda: C.copy_(B))


def cuda_seconds(work: Any) -> float:
    """Median seconds of ``work`` on the GPU."""
    import torch

    times = []
    for i in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) / 1e3)
    return float(np.median(times))


# --- CPU ---


def on_cpu() -> None:
    """All sizes from a memory-mapped file, each in its own process."""
    path = cache_folder() / "synthetic_imagenet.npy"
    SyntheticImageNet(N).write(path)
    rows = []
    for n in SIZES:
        done = subprocess.run([sys.executable, __file__, "one", str(n)], capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print({k: v for k, v in rows[-1].items() if k != "stages"}, flush=True)
    content = {
        "what": "fit on the CPU from a memory-mapped float32 file",
        "setting": SETTING | {"m": M},
        "sizes": rows,
    }
    bench.write_json(
        RESULTS / "scale_cpu.json", content | {"environment": machine.environment("kernel", "cbcd", "parallel")}
    )


def one_cpu_fit(n: int) -> None:
    """Fit the first n rows of the file in this process; print a line of JSON."""
    import torch

    A = torch.randn(4096, 4096)
    start = time.perf_counter()
    for _ in range(4):
        A @ A
    gemm = 4 * 2 * 4096**3 / (time.perf_counter() - start)
    big = torch.randn(1 << 26)
    start = time.perf_counter()
    big.clone()
    copy = 8 * len(big) / (time.perf_counter() - start)
    del A, big
    X = np.load(cache_folder() / "synthetic_imagenet.npy", mmap_mode="r")[:n]
    y = SyntheticImageNet(n).labels()
    DISHK(n_bits=16, n_anchors=50, n_iter=1, device="cpu").fit(np.array(X[:5000]), y[:5000])  # compile
    peak = machine.PeakMemory()
    start = time.perf_counter()
    hasher = DISHK(**PARAMS, n_anchors=M, device="cpu").fit(X, y)
    seconds = time.perf_counter() - start
    memory = peak.start + peak.bytes()
    line = {"n": n, "seconds": seconds, "peak_bytes": memory, "n_iter": hasher.n_iter_, "map": score(hasher, X, y)}
    line |= {"gemm_flops": gemm, "copy_bytes_s": copy}
    line["stages"] = with_floors(hasher, floors(n, M, hasher, gemm, copy, gpu=False))
    print(json.dumps(line))


# --- processes ---


def ranks() -> None:
    """Two processes with one thread each, and one process with two, on the same rows, in turn."""
    n = 320_000
    seconds: dict[str, list[float]] = {"one": [], "two": []}
    results: list[dict[str, Any]] = []
    codes: dict[str, Any] = {}
    for _ in range(3):
        for name, world in (("one", 1), ("two", 2)):
            found, codes[name] = start_ranks(n, world)
            seconds[name].append(max(one["seconds"] for one in found))
            results += found
    equal = float((np.unpackbits(codes["one"]) == np.unpackbits(codes["two"])).mean())
    overhead = min(seconds["two"]) / min(seconds["one"]) - 1
    sent = {}
    for rows in (n // 4, n // 2, n):
        found, _ = start_ranks(rows, 2)
        sent[str(rows)] = {k: found[0][k] for k in ("bytes", "messages", "steps", "n_iter")}
    content = {
        "what": "two processes with one thread each beside one process with two",
        "setting": SETTING | {"m": M, "n": n},
        "seconds": seconds,
        "overhead": overhead,
        "equal_bits": equal,
        "sent": sent,
        "stages": {"one": results[-3]["stages"], "two": results[-1]["stages"]},
    }
    print(json.dumps(content, indent=1))
    bench.write_json(
        RESULTS / "scale_ranks.json", content | {"environment": machine.environment("kernel", "cbcd", "parallel")}
    )


def start_ranks(n: int, world: int) -> tuple[list[dict[str, Any]], Any]:
    """The same fit by ``world`` processes on this machine: the measurements of each, and the codes."""
    threads = str(max(1, 2 // world))
    with tempfile.TemporaryDirectory() as folder:
        base = {**os.environ, "WORLD_SIZE": str(world), "DISH_STORE": f"{folder}/store", "GLOO_SOCKET_IFNAME": "lo"}
        base |= {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        started = [
            subprocess.Popen(
                [sys.executable, __file__, "rank", str(n), f"{folder}/codes.npy"],
                env=base | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        lines = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
        return lines, np.load(f"{folder}/codes.npy")


def one_rank(n: int, path: str) -> None:
    """Run this process's share of a fit and print a line of JSON. The first process writes the codes."""
    from dish import cbcd, parallel

    steps, sweep = [], cbcd.sweep

    def counted(*args: Any, **kwargs: Any) -> Any:
        done = sweep(*args, **kwargs)
        steps.append(done.steps)
        return done

    cbcd.sweep = counted
    with parallel.from_environment() as ranks:
        mine = ranks.my_rows(n)
        whole = np.load(cache_folder() / "synthetic_imagenet.npy", mmap_mode="r")
        X, y = np.array(whole[mine]), SyntheticImageNet(n).labels()[mine]
        DISHK(n_bits=16, n_anchors=50, n_iter=1).fit(X[:4096], y[:4096])  # compile
        steps.clear()
        made = parallel.Ranks.__init__
        groups: list[parallel.Ranks] = []

        def kept(self: Any, *args: Any) -> None:
            made(self, *args)
            groups.append(self)

        parallel.Ranks.__init__ = kept  # type: ignore[method-assign]
        ranks.barrier()
        start = time.perf_counter()
        hasher = DISHK(**PARAMS, n_anchors=M).fit(X, y)
        ranks.barrier()
        seconds = time.perf_counter() - start
        codes = np.concatenate(ranks.gather_arrays(hasher.codes_))
        if ranks.first:
            np.save(path, codes)
    sent = {"bytes": sum(g.bytes for g in groups), "messages": sum(g.messages for g in groups)}
    line = {"seconds": seconds, "n_iter": hasher.n_iter_}
    print(json.dumps(line | sent | {"steps": sum(steps), "stages": hasher.timings_}))


# --- kills ---


def W(hasher: DISHK) -> Any:
    """The matrix of the linear hash function."""
    return hasher.hash_function_.W


def kills(wanted: int = 20) -> None:
    """Kill fits at random moments and resume them. All must end with the same codes."""
    rng = np.random.default_rng(0)
    n = 60_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        y = rng.integers(0, 50, n)
        centres = rng.standard_normal((50, 32))
        np.save(folder / "X.npy", (rng.standard_normal((n, 32)) + centres[y]).astype(np.float32))
        np.save(folder / "y.npy", y)
        options = ["--bits", "64", "--anchors", "800", "--iter", "12", "--init", "random", "-q"]
        options += ["--method", "dish_k"]
        command = [sys.executable, "-m", "dish", "fit", str(folder / "X.npy"), str(folder / "y.npy"), *options]
        subprocess.run([*command, "-o", str(folder / "whole.dish")], check=True)
        start = time.perf_counter()
        subprocess.run([*command, "-o", str(folder / "whole.dish")], check=True)
        seconds = time.perf_counter() - start
        whole = load(folder / "whole.dish")
        moments, fits, same = [], 0, 0
        while len(moments) < wanted:
            output = folder / f"m{fits}.dish"
            while not output.exists():
                process = subprocess.Popen([*command, "-o", str(output), "--resume"])
                moment = float(rng.uniform(0.2, 1.1) * seconds)
                try:
                    process.wait(timeout=moment)
                except subprocess.TimeoutExpired:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                    moments.append(round(moment, 2))
            found = load(output)
            fits += 1
            same += bool(np.array_equal(found.codes_, whole.codes_) and np.array_equal(W(found), W(whole)))
            print(f"{len(moments)} kills, {fits} fits ended, {same} with the same codes", flush=True)
    content = {
        "what": "fits killed at random moments and resumed",
        "n": n,
        "fit_s": seconds,
        "killed_after_s": moments,
    }
    content |= {"fits_ended": fits, "same_codes_and_W": same, "synthetic": True}
    bench.write_json(
        RESULTS / "scale_kills.json", content | {"environment": machine.environment("kernel", "cbcd", "parallel")}
    )


def main() -> None:
    """Run the chosen part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["gpu", "cpu", "ranks", "kills", "plot", "one", "rank"])
    parser.add_argument("n", nargs="?", type=int)
    parser.add_argument("path", nargs="?")
    args = parser.parse_args()
    work = {"gpu": on_gpu, "cpu": on_cpu, "ranks": ranks, "kills": kills, "plot": lambda: plot(RESULTS)}
    if args.what == "one":
        one_cpu_fit(args.n)
    elif args.what == "rank":
        one_rank(args.n, args.path)
    else:
        work[args.what]()


if __name__ == "__main__":
    main()
