"""DeepDISH on CIFAR-10: 5,000 training images, 1,000 queries, 59,000 in the database.

Several runs at a time share one GPU; every finished run is added to OUTPUT/deep_codewords.json (definition, MAP,
seconds, environment), and runs that are there already are not run again.

    python benchmarks/deep_codewords.py main ablation --jobs 12 --output out      # 6conv, 4 lengths, 3 trials; parts
    python benchmarks/deep_codewords.py recipe --jobs 12 --output out             # no queries: held-out images only
    python benchmarks/deep_codewords.py rivals --bits 12,48 --trials 1 --output out
    python benchmarks/deep_codewords.py nets large --jobs 4 --output out          # pre-trained, 48 bits
    python benchmarks/deep_codewords.py alone --jobs 1 --output out               # the seconds of one run
    python benchmarks/deep_codewords.py main --set codewords.MARGIN=0.3           # with another constant

"recipe" and "net_recipe" train on 4,000 of the 5,000 training images and score the other 1,000, half against half:
constants of the method are chosen by them, never by queries. "large" trains on the 50,000 images that are its
database, and the 10,000 of the test set are queries. ``--keep`` stores the cosines of the first trial of "main"
(NAME.npz). Needs the CIFAR-10 images in the cache folder (``dish.datasets.load_cifar10``); "nets" and "large" also
the weights (NET.pth or NET_conv.pth in the folder weights/ there, or their packages).
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deep_recipes import NET_RECIPES, RECIPES
from dish import machine, metrics, registry
from dish.datasets import Dataset, load_cifar10
from dish.experiments.bench import write_json

EPOCHS = 240  # in total, for every method
RATE = 0.05  # chosen for ours; DISHD keeps its own, 0.1; rivals have those of deep_rates.json
RATES = Path(__file__).parent / "results" / "deep_rates.json"
RIVALS = ("adsh", "orthohash", "greedyhash", "dish_d", "cnnh", "hashnet", "dtsh", "csq", "dpn")
PARAMS: dict[str, dict[str, Any]] = {"dish_d": {"n_iter": 3, "epochs": EPOCHS // 4}}
MIXED = "orthohash, mixup 0.5"
METHODS = {MIXED: "mixed_orthohash:MixedOrthoHash"}  # run → method, where they differ
BITS = (12, 24, 32, 48)
NETS: dict[str, dict[str, Any]] = {  # batch size, epochs in total, and the learning rate for networks with new layers
    "alexnet": {"batch_size": 64, "lr": 0.02, "epochs": 80},
    "vgg16": {"batch_size": 64, "lr": 0.02, "epochs": 48},
    "efficientnet_lite0": {"batch_size": 128, "epochs": 32},
    "efficientnet_lite2": {"batch_size": 128, "epochs": 32},
}


Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """One fit: a method, its parameters, and constants of its modules that differ ("module.NAME": value)."""

    group: str
    name: str
    method: str = "deep_dish"
    bits: int = 48
    trial: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    held_out: bool = False  # score training images that were left out, not queries
    n_train: int = 5000  # 50,000: the large protocol
    chosen: dict[str, Any] = field(default_factory=dict)  # those that the command line asked for
    also: tuple[int, ...] = ()  # other lengths by the same network, which does not depend on the length up to 64 bits

    @property
    def key(self) -> str:
        """The key of the run in the file of results; "chosen" are constants of the command line."""
        chosen = "".join(f", {name}={value}" for name, value in self.chosen.items())
        return f"{self.group}/{self.name}{chosen}/{self.bits}/{self.trial}"


def ours(group: str, name: str, rounds: int = 4, epochs: int = EPOCHS, **others: Any) -> Run:
    """A run of DeepDISH with this many rounds, and epochs in total."""
    params = {"n_iter": rounds - 1, "epochs": epochs // rounds, **others.pop("params", {})}
    return Run(group, name, params=params, **others)


def main_runs(bits: tuple[int, ...], trials: int) -> list[Run]:
    """The table: every length and trial."""
    return [ours("main", "dish_d codewords", bits=bits[-1], trial=i, also=bits[:-1]) for i in range(trials)]


def ablation_runs() -> list[Run]:
    """Each part left out, at 48 bits."""
    variants: dict[str, dict[str, Any]] = {
        "no mixed images": {"constants": {"scratch.mixup": 0.0}},
        "batch norm's averages as training left them": {"constants": {"scratch.recalibrate": False}},
        "sampled by straight lines": {"constants": {"augment.SAMPLING": "bilinear"}},
        "no margin": {"constants": {"codewords.MARGIN": 0.0}},
        "no batch norm": {"constants": {"codewords.NORM": False}},
        "one cycle, plain frame": {"constants": {"codewords.MIN_ROWS": 10**9}},
        "a frame, no errors carried": {"constants": {"heads.MAX_CLASSES_PER_BIT": 0.0}},
        "random codewords": {"constants": {"h_step.MAX_START_SWEEPS": 0, "fixed": True}},
        "Hadamard codewords": {"constants": {"hadamard": True, "fixed": True}},
    }
    return [ours("ablation", name, **how) for name, how in variants.items()]


def recipe_runs(trials: int) -> list[Run]:
    """Constants by held-out training images."""
    return [
        ours("recipe", name, trial=i, held_out=True, constants=constants)
        for i in range(trials)
        for name, constants in RECIPES.items()
    ]


def net_recipe_runs(trials: int) -> list[Run]:
    """The same for a network with weights, in 24 passes."""
    runs = []
    for i in range(trials):
        for name, changed in NET_RECIPES.items():
            constants = {key: value for key, value in changed.items() if "." in key}
            run = tuned("recipe", "efficientnet_lite0", i, 24, held_out=True, constants=constants)
            params = {key: value for key, value in changed.items() if "." not in key}
            runs.append(replace(run, name=f"efficientnet_lite0, {name}", params={**run.params, **params}))
    return runs


def net_runs(nets: tuple[str, ...], trials: int) -> list[Run]:
    """Networks with ImageNet weights, 48 bits; the slowest first."""
    return [tuned("nets", net, i) for i in range(trials) for net in reversed(nets)]


def tuned(group: str, net: str, trial: int, passes: int | None = None, **others: Any) -> Run:
    """A pre-trained network trained towards codewords in four rounds."""
    params = {**NETS[net], "net": net, "weights": "imagenet"}
    usual = params.pop("epochs")
    return ours(group, net, epochs=passes or usual, trial=trial, params=params, **others)


def large_runs(trials: int) -> list[Run]:
    """Ten times the images in 12 epochs, at the learning rate that was most accurate for 16,000 images."""
    runs = [tuned("large", "efficientnet_lite0", i, 12, n_train=50_000) for i in range(trials)]
    return [replace(run, name="efficientnet_lite0, 12 passes", params={**run.params, "lr": 0.3}) for run in runs]


def rival_runs(methods: tuple[str, ...], bits: tuple[int, ...], trials: int) -> list[Run]:
    """The other methods with as many epochs; OrthoHash, the closest one, also with mixed images, as ours has them."""
    names = (*methods, *([MIXED] if "orthohash" in methods else []))
    rates = json.loads(RATES.read_text())["chosen"] if RATES.exists() else {}

    def params(name: str) -> dict[str, Any]:
        rate = rates.get("orthohash" if name == MIXED else name, RATE)
        return PARAMS.get(name, {"epochs": EPOCHS, "lr": rate})

    return [
        Run("rivals", name, METHODS.get(name, name), r, i, params(name))
        for i in range(trials)
        for r in bits
        for name in names
    ]


def alone_runs() -> list[Run]:
    """One run with the GPU to itself, for its time; a short one warms up first."""
    return [ours("alone", "warm-up", epochs=8), ours("alone", "one run alone")]


def change(constants: dict[str, Any]) -> None:
    """Set constants of the modules of ``dish.deep`` in this process, which ends with the run."""
    from dish.deep import augment, codewords, h_step, heads, training

    modules = {"augment": augment, "codewords": codewords, "training": training, "heads": heads, "h_step": h_step}
    for name, value in constants.items():
        if name == "hadamard":
            codewords.start_codes = hadamard_codes  # type: ignore[assignment]
        elif name == "fixed":
            codewords.h_step = lambda S, F, packed, nu: (packed, 0)
        elif name.split(".")[0] in ("scratch", "pretrained"):
            kind, field_ = name.upper().split(".")[0], name.split(".")[1]
            setattr(codewords, kind, replace(getattr(codewords, kind), **{field_: value}))
        else:
            module, constant = name.split(".")
            if not hasattr(modules[module], constant):
                raise ValueError(f"{name} is not a constant of dish")
            setattr(modules[module], constant, value)


def hadamard_codes(S: Any, n_bits: int, seed: int) -> NDArray[np.uint8]:
    """Codes whose codewords are rows of a Hadamard matrix, of which n_bits columns are kept."""
    from dish.baselines._centres import centres

    side = 1 << max(n_bits - 1, S.n_groups).bit_length()
    columns = np.random.RandomState(seed).permutation(side)[:n_bits]
    table = centres(S.n_groups, side, seed)[:, columns] > 0
    return np.packbits(table[S.row_group.cpu().numpy()], axis=1)


def work(run: Run, jobs: int, keep: Path | None) -> dict[str, Any]:
    """Fit, encode, score."""
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = "weights" not in run.params  # trying kernels for so many layers takes a minute
    change(run.constants)
    others = keep_heads(run.also)
    data = load_cifar10()
    train, query, base = parts_of(run, data)
    hasher = registry.find(run.method)(n_bits=run.bits, random_state=run.trial, **run.params)
    start = time.perf_counter()
    hasher.fit(data.X[train], data.y[train])
    seconds = time.perf_counter() - start
    found = scores(hasher, data, query, base, None if run.held_out else keep, run)
    if run.held_out:  # each half is the database once
        swapped = scores(hasher, data, base, query, None, run)
        found |= {name: (value + swapped[name]) / 2 for name, value in found.items() if isinstance(value, float)}
    done = {"fit_s": seconds, "stages_s": hasher.timings_, "runs_at_a_time": jobs}
    scored = {r: scores(with_head(hasher, others[r]), data, query, base, None, run) for r in run.also}
    return {**asdict(run), **found, **done, "commit": machine.commit(), "others": scored}


def keep_heads(lengths: tuple[int, ...]) -> dict[int, Any]:
    """A dictionary that the next fit fills with heads of other lengths, fitted to the same held-out rows."""
    from dish.deep.codewords import CodewordFit

    kept: dict[int, Any] = {}
    fit_head = CodewordFit.fit_head

    def fit_all(self: CodewordFit, C: Any) -> Any:
        for r in lengths:
            other = copy.copy(self)
            other.n_bits = r
            kept[r] = fit_head(other, C)
        return fit_head(self, C)

    CodewordFit.fit_head = fit_all  # type: ignore[method-assign]
    return kept


def with_head(hasher: Any, head: Any) -> Any:
    """The hasher with codes of another length, for the last codewords that its network was trained towards."""
    hasher.model_.head, hasher.n_bits = head.with_codewords(hasher.model_.head.C), head.V.shape[1]
    hasher.fit_params_ = {**hasher.fit_params_, "n_bits": hasher.n_bits}
    return hasher


def parts_of(run: Run, data: Dataset) -> tuple[Rows, Rows, Rows]:
    """Indices of the training images, the queries and the database of a run."""
    if run.n_train == 50_000:
        return np.arange(50_000), np.arange(50_000, 60_000), np.arange(50_000)
    split = data.split(run.trial, run.n_train)
    if not run.held_out:
        return split.train, split.query, split.database
    held = np.random.default_rng(run.trial).permutation(len(split.train)) < len(split.train) // 5
    query, base = np.array_split(split.train[held], 2)
    return split.train[~held], query, base


def scores(hasher: Any, data: Dataset, query: Any, base: Any, keep: Path | None, run: Run) -> dict[str, Any]:
    """MAP of the codes; for a posterior head also that of its probabilities, and their accuracy."""
    start = time.perf_counter()
    codes = [hasher.transform(data.X[rows]) for rows in (query, base)]
    seconds = time.perf_counter() - start
    y = [data.y[rows] for rows in (query, base)]
    within = metrics.precision_within_radius(codes[0], y[0], codes[1], y[1], 2)
    found: dict[str, Any] = {"encode_s": seconds, "map": mean_ap(codes, y), "precision_within_2": within}
    if hasattr(hasher.model_.head, "V"):
        found["carries_errors"] = hasher.model_.head.kind == "error_diffusion"
    if run.method == "adsh":
        found |= learned_codes(hasher, data, query, base, codes)
    head = hasher.model_.head
    if not hasattr(head, "V") or "weights" in run.params:  # large networks are not asked twice
        return found
    f = [outputs(hasher, data.X[rows]) for rows in (query, base)]
    p = [head.probabilities(each) for each in f]
    found["accuracy"] = float((p[0].argmax(1).cpu().numpy() == y[0]).mean())
    found["map_floats"] = float_map(p, y)
    found["beta"] = float(head.beta.mean())
    if f[0].shape[1] == hasher.n_bits:
        found["map_signs_of_outputs"] = mean_ap([np.packbits((each >= 0).cpu().numpy(), axis=1) for each in f], y)
    if keep is not None and run.trial == 0 and run.group == "main":
        cosine = [(each @ head.C.T / each.norm(dim=1, keepdim=True)).half().cpu().numpy() for each in f]
        arrays = {"query": cosine[0], "base": cosine[1], "y_query": y[0], "y_base": y[1], "beta": head.beta.cpu()}
        np.savez_compressed(keep / f"{run.group}_{run.bits}.npz", **arrays, V=head.V.cpu(), offset=head.offset.cpu())
    return found


def learned_codes(hasher: Any, data: Dataset, query: Any, base: Any, codes: list[Any]) -> dict[str, float]:
    """MAP against the learned codes of the training images alone, and with the other images hashed by the network."""
    train = data.split(hasher.random_state, 5000).train
    place, y = np.searchsorted(base, train), data.y
    mixed = codes[1].copy()
    mixed[place] = hasher.codes_
    return {
        "map_learned": mean_ap([codes[0], hasher.codes_], [y[query], y[train]]),
        "map_mixed": mean_ap([codes[0], mixed], [y[query], y[base]]),
    }


def outputs(hasher: Any, X: NDArray[Any]) -> Any:
    """The outputs (n, R) of the network, for images or vectors without augmentation."""
    import torch

    model = hasher.model_.eval()
    device = model.mean.device
    with torch.no_grad():
        parts = [model(model.prepare(torch.tensor(X[i : i + 512], device=device)))[1] for i in range(0, len(X), 512)]
    return torch.cat(parts).float()


def mean_ap(codes: list[NDArray[np.uint8]], y: list[NDArray[Any]]) -> float:
    """MAP over the whole ranking."""
    return float(metrics.mean_average_precision(codes[0], y[0], codes[1], y[1]))


def float_map(p: list[Any], y: list[NDArray[Any]]) -> float:
    """MAP of the ranking by p(x)·p(x′), the upper limit for codes."""
    P = [each.cpu().numpy() for each in p]
    return float(metrics.product_mean_average_precision(P[0], y[0], P[1], y[1], device=p[0].device))


def by_length(run: Run, result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """One result per length; those of other lengths name the run whose network they use."""
    others = result.pop("others")
    found = {run.key: result}
    for r, scored in others.items():
        found[replace(run, bits=r).key] = {**result, **scored, "bits": r, "also": (), "network_of": run.key}
    return found


GROUPS = ("main", "ablation", "recipe", "net_recipe", "rivals", "nets", "large", "alone")


def wanted(args: argparse.Namespace) -> list[Run]:
    """The runs of the groups that were asked for."""
    bits = tuple(int(r) for r in args.bits.split(","))
    methods = tuple(args.methods.split(","))
    made = {
        "main": lambda: main_runs(bits, args.trials),
        "ablation": ablation_runs,
        "recipe": lambda: recipe_runs(args.trials),
        "net_recipe": lambda: net_recipe_runs(args.trials),
        "nets": lambda: net_runs(tuple(args.nets.split(",")), args.trials),
        "large": lambda: large_runs(args.trials),
        "rivals": lambda: rival_runs(methods, bits, args.trials),
        "alone": alone_runs,
    }
    chosen = {name: json.loads(value) for name, value in (each.split("=") for each in args.set)}
    runs = [run for group in args.groups for run in made[group]()]
    return [replace(run, constants={**chosen, **run.constants}, chosen=chosen) for run in runs]


def main() -> None:
    """Run what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="+", choices=GROUPS)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--bits", default=",".join(map(str, BITS)))
    parser.add_argument("--methods", default=",".join(RIVALS))
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--set", action="append", default=[], metavar="MODULE.NAME=VALUE", help="a constant for all")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--keep", action="store_true", help="store the cosines of the first trial of main")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "deep_codewords.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    results["environment"] = machine.environment()
    todo = [run for run in wanted(args) if "map" not in results["runs"].get(run.key, {})]
    keep = args.output if args.keep else None
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(work, run, min(args.jobs, len(todo)), keep): run for run in todo}
        for future in as_completed(futures):
            run = futures[future]
            try:
                results["runs"] |= by_length(run, future.result())
            except Exception as error:  # the other runs go on, and the file says what went wrong
                results["runs"][run.key] = {**asdict(run), "failed": f"{type(error).__name__}: {error}"}
            done = results["runs"][run.key]
            shown = {k: done[k] for k in ("map", "map_floats", "accuracy", "fit_s", "failed") if k in done}
            print(run.key, shown, flush=True)
            write_json(path, results)


if __name__ == "__main__":
    main()
