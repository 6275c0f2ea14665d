"""What a checkpoint holds of a kernel fit, and what identifies the fit: its parameters, labels and rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.io.checkpoint import Checkpoint, FitState, checksum, fit_fingerprint
from dish.io.rows import RowSource
from dish.lazy import torch
from dish.parallel import Ranks
from dish.similarity import Similarity

LEFT_OUT = ("checkpoint", "verbose", "device", "memory_budget", "n_iter")  # may differ in the fit that resumes
ADDED = {"take_back": True}  # newer than the first checkpoints: with this value, fingerprints are the old ones


@dataclass(frozen=True)
class KernelState:
    """A kernel fit after an iteration."""

    codes: NDArray[np.uint8]  # of the rows of this process
    W: NDArray[Any]
    objective: NDArray[np.float64]
    anchors: NDArray[Any]
    mean: NDArray[Any]
    random: tuple[Any, ...]  # state of the generator, as ``RandomState.get_state`` returns it


def save_state(checkpoint: Checkpoint, state: KernelState) -> None:
    """Write a state to the checkpoint."""
    name, keys, *rest = state.random
    assert name == "MT19937"
    arrays = {
        "W": state.W,
        "objective": state.objective,
        "anchors": state.anchors,
        "mean": state.mean,
        "random": np.asarray(keys),
    }
    checkpoint.save(FitState(len(state.objective), {"random": rest}, arrays, state.codes))


def load_state(checkpoint: Checkpoint, n: int, width: int) -> KernelState | None:
    """The last state, with the codes (n, width) of this process's rows; None if there is none."""
    saved = checkpoint.load((n, width))
    if saved is None:
        return None
    with checkpoint.parsing():
        arrays, random = saved.arrays, ("MT19937", saved.arrays["random"], *saved.values["random"])
        np.random.RandomState().set_state(random)
        W, mean, objective = arrays["W"], arrays["mean"], arrays["objective"]
        if -(-W.shape[1] // 8) != width or mean.shape != W.shape[:1] or objective.shape != (saved.step,):
            raise InputError(f"W, mean and objective have the shapes {W.shape}, {mean.shape}, {objective.shape}")
        if {a.dtype.kind for a in (W, mean, objective)} != {"f"}:
            raise InputError("W, mean and objective must be floats")
        assert saved.codes is not None
        return KernelState(saved.codes, W, objective, arrays["anchors"], mean, random)


def fingerprint(
    method: str, params: dict[str, Any], rows: RowSource, S: Similarity, rng: np.random.RandomState, ranks: Ranks
) -> str:
    """A fingerprint of all that decides the codes; ``rng`` is the generator before anything was drawn from it."""
    first, n = ranks.offset_and_total(len(rows))
    counted = {k: v for k, v in params.items() if k not in LEFT_OUT and not (k in ADDED and v == ADDED[k])}
    known = {name: _stable(name, value, rows, rng) for name, value in counted.items()}
    shapes = {"n": n, "d": rows.shape[1], "dtype": str(rows.dtype)}
    sums = {"X": checksum(rows.blocks(), first, ranks), "labels": checksum([S.row_group], first, ranks)}
    return fit_fingerprint(method, known | shapes | sums | {"S": probe(S)}, ranks)


def probe(S: Similarity) -> NDArray[np.float64]:
    """P_g z (g,) for a fixed z: different for similarities that differ between groups of rows."""
    z = torch.cos(torch.arange(len(S.Rt(S.diag)), dtype=torch.float64, device=S.diag.device))
    values: NDArray[np.float64] = S.P(z).cpu().numpy()
    return values


def _stable(name: str, value: Any, rows: RowSource, rng: np.random.RandomState) -> Any:
    """A parameter by its value, never by its address in memory."""
    if name in ("init", "anchors") and not isinstance(value, str):
        return np.asarray(value)
    if name == "random_state" and not isinstance(value, int):
        _, keys, place, *_ = rng.get_state()
        return f"{hashlib.sha256(np.asarray(keys).tobytes()).hexdigest()} {place}"
    if name == "kernel" and callable(value):
        return f"function {_values(value, rows)}"
    return value


def _values(kernel: Any, rows: RowSource) -> list[str]:
    """What a kernel function returns for a few fixed rows."""
    draws = np.random.default_rng(0).random((5, rows.shape[1])).astype(str(rows.dtype).removeprefix("torch."))
    return [f"{value:.5g}" for value in np.ravel(np.asarray(kernel(draws[:3], draws[3:]), np.float64))]
