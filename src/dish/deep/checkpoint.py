"""The state of a deep fit after a round, in one file, from which the same fit can resume."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dish.deep.data import Problem
from dish.deep.model import HashingNet, load_state, state_arrays
from dish.errors import InputError, RankError
from dish.io import modelfile

LEFT_OUT = ("checkpoint", "verbose", "device", "random_state")  # parameters that do not change what is learned
# Parameters that checkpoints of version 0.1 do not know, and with which their fits are resumed.
LATER = {"head": "paper", "freeze": False, "accumulate": 1, "patience": None, "carry": True}


@dataclass
class State:
    """A fit after so many rounds: what ``_learn`` needs to resume, beside the network."""

    round: int
    codes: NDArray[np.uint8]
    seed: int
    agreement: list[float] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # of an optimiser that lasts for several rounds
    momentum: list[NDArray[np.float32]] = field(default_factory=list)
    top: dict[str, NDArray[Any]] = field(default_factory=dict)  # what comes on top of the network in the end


class Checkpoint:
    """A file written by the first process and read by it: the others get its state by message."""

    def __init__(self, path: Any, params: dict[str, Any], problem: Problem) -> None:
        self.path = Path(path or "")
        self.problem, self.ranks = problem, problem.ranks
        alone = self.ranks.world == 1
        self.fingerprint = "" if alone and path is None else fingerprint(params, problem)
        self._check_ranks()
        self.wanted = bool(self.ranks.gather(torch.tensor([path is not None]))[0, 0])  # by the first process

    def _check_ranks(self) -> None:
        told = self.ranks.gather_arrays(np.array(self.fingerprint))
        if any(str(other) != self.fingerprint for other in told):
            raise RankError(
                "X, y and parameters: every process of a deep fit needs all rows and labels and the same parameters, "
                "but those of these processes differ"
            )

    def write(self, state: State, model: HashingNet) -> None:
        """Keep a state."""
        if not self.wanted:
            return
        with self.ranks.raise_together():
            if self.ranks.first:
                content = {
                    "round": state.round,
                    "seed": state.seed,
                    "fingerprint": self.fingerprint,
                    "history": state.history,
                    "agreement": state.agreement,
                    "rates": state.rates,
                }
                arrays = {"codes": state.codes, **state_arrays(model, "model.")}
                arrays |= {f"momentum.{i}": a for i, a in enumerate(state.momentum)}
                arrays |= {f"top.{name}": a for name, a in state.top.items()}
                modelfile.save(self.path, "checkpoint", content, arrays)

    def read(self, model: HashingNet) -> State | None:
        """The state of a former fit, its network put into ``model``; None if there is none."""
        if not self.wanted:
            return None
        state: State | None = None
        with self.ranks.raise_together():
            if self.ranks.first and self.path.exists():
                state = self._read(self.path, model)
        return self._share(state, model)

    def _read(self, path: Path, model: HashingNet) -> State:
        kind, content, arrays = modelfile.read(path)
        if kind != "checkpoint" or content.get("fingerprint") != self.fingerprint:
            raise InputError(
                f"checkpoint {path} belongs to other data or parameters: remove it, or name another file"
            )
        load_state(model, arrays, "model.")
        return State(
            round=int(content["round"]),
            codes=arrays["codes"],
            seed=content.get("seed", self.problem.seed),
            agreement=content.get("agreement", []),
            history=content["history"],
            rates=content.get("rates", []),
            momentum=[arrays[f"momentum.{i}"] for i in range(sum(k.startswith("momentum.") for k in arrays))],
            top={k.removeprefix("top."): a for k, a in arrays.items() if k.startswith("top.")},
        )

    def _share(self, state: State | None, model: HashingNet) -> State | None:
        """The first process's state, on all of them: whether one sees the file does not matter."""
        if self.ranks.world == 1:
            return state
        arrays: list[NDArray[Any]] = [] if state is None else [state.codes, *state.momentum, *state.top.values()]
        apart = {"codes": None, "momentum": None, "top": None}
        told: dict[str, Any] = {} if state is None else {**vars(state), **apart}
        names = [] if state is None else list(state.top)
        shared = self.ranks.gather_arrays(np.array(json.dumps([len(arrays), names, told])))[0]
        count, names, rest = json.loads(str(shared))
        if count == 0:
            return None
        none = np.zeros(0, np.uint8)
        packed, *others = [self.ranks.gather_arrays(arrays[i] if arrays else none)[0] for i in range(count)]
        n_momentum = len(others) - len(names)
        self.ranks.broadcast(model.state_dict().values())
        top = dict(zip(names, others[n_momentum:], strict=True))
        return State(**{**rest, "codes": packed, "momentum": others[:n_momentum], "top": top})


def fingerprint(params: dict[str, Any], problem: Problem) -> str:
    """Of parameters, seed and data: a fit resumes only from a checkpoint of its own.

    Without a ``random_state`` any seed will do: the fit takes that of the checkpoint.
    """
    left_out = {*LEFT_OUT, *(k for k, v in LATER.items() if params.get(k) == v)}
    described: dict[str, Any] = {k: describe(v) for k, v in params.items() if k not in left_out}
    described["seed"] = problem.seed if params.get("random_state") is not None else None
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for tensor in (problem.rows, problem.targets):
        for part in tensor.split(4096):
            digest.update(part.cpu().numpy())
    return digest.hexdigest()


def describe(value: Any) -> str:
    """A parameter as text that is the same in every process.

    A module is known by its class, its layers and the shapes of its tensors, not by their values: those it started
    from are in the checkpoint no more, and need not be drawn again to resume.
    """
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    if not isinstance(value, nn.Module):
        return text
    kind = type(value)
    shapes = [
        (name, None if nn.parameter.is_lazy(tensor) else tuple(tensor.shape))
        for name, tensor in value.state_dict(keep_vars=True).items()
    ]
    return f"{kind.__module__}.{kind.__qualname__} {text} {shapes}"
