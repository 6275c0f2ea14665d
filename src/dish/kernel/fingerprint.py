"""A fit in one number: a checkpoint is resumed only by a fit with the same parameters, labels and shapes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish.errors import InputError
from dish.io.checkpoint import checksum
from dish.io.rows import RowSource
from dish.lazy import torch
from dish.parallel import Ranks
from dish.similarity import Similarity

LEFT_OUT = ("checkpoint", "verbose", "device", "memory_budget", "n_iter")  # a resumed fit may have others


def fingerprint(
    params: dict[str, Any], rows: RowSource, S: Similarity, rng: np.random.RandomState, ranks: Ranks
) -> str:
    """SHA-256 over all that decides the codes, the same on all processes and in every run.

    ``rng`` is the generator of the fit before anything was drawn from it.
    """
    first, n = ranks.offset_and_total(len(rows))
    known = {name: _stable(name, value, rows, rng) for name, value in params.items() if name not in LEFT_OUT}
    probe = torch.cos(torch.arange(len(S.Rt(S.diag)), dtype=torch.float64, device=S.diag.device))
    known["labels"] = checksum(S.row_group.cpu().numpy(), first, ranks)
    known |= {"S": digest(S.P(probe).cpu().numpy()), "n": n, "d": rows.shape[1], "dtype": str(rows.dtype)}
    number = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    if len({str(each) for each in ranks.gather_arrays(np.array(number))}) > 1:
        raise InputError("the processes of this fit have different parameters: start all of them with the same")
    return number


def _stable(name: str, value: Any, rows: RowSource, rng: np.random.RandomState) -> Any:
    """A parameter by what it is, never by where it lies in memory."""
    if isinstance(value, np.generic):
        value = value.item()
    if name in ("init", "anchors"):
        return value if isinstance(value, str) else digest(np.asarray(value))
    if name == "random_state" and not isinstance(value, int):
        _, keys, place, *_ = rng.get_state()
        return f"{digest(np.asarray(keys))} {place}"
    if name == "kernel" and callable(value):
        return f"function {_values(value, rows)}"
    return repr(value)


def _values(kernel: Any, rows: RowSource) -> list[str]:
    """A kernel function by what it returns for a few fixed rows."""
    draws = np.random.default_rng(0).random((5, rows.shape[1])).astype(str(rows.dtype).removeprefix("torch."))
    return [f"{value:.5g}" for value in np.ravel(np.asarray(kernel(draws[:3], draws[3:]), np.float64))]


def digest(array: NDArray[Any]) -> str:
    """SHA-256 of the bytes of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
