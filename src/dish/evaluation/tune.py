"""Recommend parameters of DISH for given rows: fit on some rows, score on held-out ones, within a time limit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes, metrics
from dish.checks import check_integer, check_number, check_random_state
from dish.errors import InputError
from dish.hasher import as_rows
from dish.io.rows import not_finite
from dish.labels import plain_labels
from dish.posterior.dish import DISH
from dish.similarity.labelled import check_labels

CANDIDATES: dict[str, tuple[Any, ...]] = {
    "n_bits": (32, 128, 16, 256),
    "n_anchors": (3000, 300),
    "kernel": ("linear",),
}
DEFAULTS: dict[str, Any] = DISH().get_params()
MIN_ROWS = 20  # enough for a split
TOLERANCE = 0.01  # MAP that shorter codes may lose
SLACK = 1.5  # a fit may take this many times its expected time


@dataclass
class Trial:
    """One setting and its scores."""

    parameter: str  # the one that differs from the defaults, or "defaults", or "together"
    params: dict[str, Any]  # all parameters, defaults included
    bytes: int
    map: float
    precision_at_10: float
    seconds: float  # fit time
    n_train: int  # rows it learned from

    @property
    def value(self) -> Any:
        """The value of ``parameter``."""
        return self.params.get(self.parameter, "")


@dataclass
class Recommendation:
    """The recommended parameters, all settings that were tried, and those for which there was no time."""

    params: dict[str, Any]
    trials: list[Trial]
    not_tried: list[tuple[str, Any]]
    n_rows: int  # rows used, of which n_train for training
    n_train: int
    seconds: float
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The recommendation as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{'parameter':<15}{'value':>8}{'bytes':>7}{'MAP':>8}{'P@10':>8}{'fit, s':>9}"]
        for t in self.trials:
            lines.append(
                f"{t.parameter:<15}{t.value!s:>8}{t.bytes:>7}{t.map:>8.3f}{t.precision_at_10:>8.3f}{t.seconds:>9.2f}"
            )
        given = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return "\n".join([*lines, *self.notes, f"DISH({given})"])


def recommend(
    X: Any,
    y: Any,
    *,
    seconds: float = 120,
    candidates: Mapping[str, Sequence[Any]] | None = None,
    max_rows: int = 20_000,
    random_state: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> Recommendation:
    """Recommend parameters of ``DISH`` for labelled rows. The command is ``dish tune``.

    A random sample of at most ``max_rows`` rows is split: 60 % for training, the rest for queries and their database.
    First one parameter at a time differs from the defaults, then all improvements are tried together. Of the code
    lengths that are nearly as good as the best, the shortest is recommended.

    Parameters
    ----------
    X, y : rows (n, d) and labels
        The same as for ``DISH.fit``, in memory or memory-mapped.
    seconds : float
        Approximate time limit. The defaults are always tried.
    candidates : dict, optional
        Parameter of DISH → values to try.
    max_rows, random_state : int
        Largest sample; seed of the sample and of every fit.
    report : callable
        Gets progress, one line at a time, for example ``print``.

    Returns
    -------
    Recommendation
        ``params`` for the fit, and all ``trials``; ``print`` shows both as a table.

    Examples
    --------
    >>> import dish
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> found = dish.recommend(X[:500], y[:500], candidates={"n_bits": (16, 32)}, seconds=60)
    >>> hasher = dish.DISH(**found.params)
    """
    check_number("seconds", seconds, low=0, strict=True)
    start = time.perf_counter()
    X = X if isinstance(X, np.ndarray) else np.asarray(as_rows(X))
    (y,) = plain_labels(y)
    _check(X, y, random_state)
    rng = np.random.default_rng(random_state)
    n = min(X.shape[0], check_integer("max_rows", max_rows, low=100))
    picked = np.sort(rng.permutation(X.shape[0])[:n])
    held_out = HeldOut(_finite_rows(X, picked), y[picked], rng, random_state)
    report(f"{n:,} of {X.shape[0]:,} rows: {held_out.n_train:,} for training, the others for scoring")
    found = _search(held_out, CANDIDATES if candidates is None else candidates, start + seconds, report)
    found.n_rows, found.seconds = n, time.perf_counter() - start
    found.notes = _notes(found, X.shape[0], seconds)
    return found


def _check(X: Any, y: Any, random_state: int) -> None:
    """Refuse rows and labels that cannot be split and learned."""
    if X.ndim != 2 or X.shape[0] != y.shape[0]:
        raise InputError(f"X must be (n, d), and y must have n labels; got {X.shape} and {y.shape}")
    if X.shape[0] < MIN_ROWS:
        raise InputError(f"X has {X.shape[0]} rows, too few to hold some out; it needs at least {MIN_ROWS}")
    check_labels(y)
    check_random_state(random_state)


def _finite_rows(X: Any, picked: NDArray[np.intp]) -> NDArray[Any]:
    """The picked rows, or an error that names the first with NaN or infinity."""
    rows = np.asarray(X[picked])
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        raise not_finite(int(picked[(~np.isfinite(rows)).any(1).argmax()]), X)
    return rows


def _search(
    held_out: HeldOut, candidates: Mapping[str, Sequence[Any]], deadline: float, report: Callable[[str], None]
) -> Recommendation:
    """Try the defaults, one parameter at a time, and all improvements together; stop before the deadline."""
    settings = list(_settings(candidates, held_out.n_train))
    report("first fit: compiles its kernels, once per installation")
    held_out.warm_up()
    trials = [held_out.trial("defaults", {})]
    report(f"defaults: MAP {trials[0].map:.3f} in {trials[0].seconds:.1f} s")
    not_tried: list[tuple[str, Any]] = []
    for name, value in settings:
        if time.perf_counter() + SLACK * _expected(DEFAULTS | {name: value}, trials) > deadline:
            not_tried.append((name, value))
            continue
        trials.append(held_out.trial(name, {name: value}))
        report(f"{name}={value}: MAP {trials[-1].map:.3f} in {trials[-1].seconds:.1f} s")
    together = _helped(trials)
    if len(together) > 1 and time.perf_counter() + SLACK * max(t.seconds for t in trials) < deadline:
        trials.append(held_out.trial("together", together))
        together = together if trials[-1].map == max(t.map for t in trials) else _best_alone(trials)
    elif len(together) > 1:
        together = _best_alone(trials)
    params = {"n_bits": _shortest(trials)} | {k: v for k, v in together.items() if k != "n_bits"}
    return Recommendation(params, trials, not_tried, 0, held_out.n_train, 0.0)


class HeldOut:
    """Training rows, and held-out queries and database rows to score on."""

    def __init__(self, X: NDArray[Any], y: Any, rng: np.random.Generator, seed: int) -> None:
        order = rng.permutation(len(X))
        n_train, n_queries = int(0.6 * len(X)), max(1, min(1000, len(X) // 10))
        train, query, base = np.split(order, [n_train, n_train + n_queries])
        self.train, self.queries, self.base = ((X[rows], y[rows]) for rows in (train, query, base))
        self.n_train, self.seed = n_train, seed

    def warm_up(self) -> None:
        """Compile the kernels, so that no trial's time includes it."""
        X, y = (part[:500] for part in self.train)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            DISH(n_bits=16, n_anchors=50, random_state=self.seed).fit(X, y)

    def trial(self, parameter: str, params: dict[str, Any]) -> Trial:
        """Fit and score one setting."""
        hasher = DISH(**(DEFAULTS | params | {"random_state": self.seed}))
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="n_anchors")  # about the sample, not about all rows
            hasher.fit(*self.train)
        seconds = time.perf_counter() - start
        (Xq, yq), (X, y) = self.queries, self.base
        scores = metrics.evaluate(
            hasher.transform(Xq), yq, hasher.transform(X), y, n_bits=hasher.n_bits, at=(min(10, len(X)),)
        )
        (precision,) = scores.precision_at.values()
        n_bytes = codes.n_bytes(hasher.n_bits)
        return Trial(parameter, DEFAULTS | params, n_bytes, scores.map, precision, seconds, self.n_train)


def _settings(candidates: Mapping[str, Sequence[Any]], n_train: int) -> Iterator[tuple[str, Any]]:
    """Yield parameters and values to try: first values first, and no more anchors than training rows."""
    for name in candidates:
        if name not in DEFAULTS:
            raise InputError(f"candidates must be parameters of DISH: {', '.join(DEFAULTS)}; got {name!r}")
    for turn in range(max(map(len, candidates.values()), default=0)):
        for name, values in candidates.items():
            if turn < len(values) and values[turn] != DEFAULTS[name]:
                if name == "n_anchors" and values[turn] > n_train:
                    continue
                yield name, values[turn]


def _expected(params: dict[str, Any], trials: list[Trial]) -> float:
    """Expected fit time, from earlier trials. It grows with the number of anchors and of bits."""

    def cost(setting: dict[str, Any]) -> float:
        return max(1.0, setting["n_anchors"] / 1000) * max(1.0, setting["n_bits"] / 64)

    return cost(params) * float(np.median([t.seconds / cost(t.params) for t in trials]))


def _helped(trials: list[Trial]) -> dict[str, Any]:
    """The best value of every parameter that beat the defaults, the code length excepted."""
    best: dict[str, Trial] = {}
    for t in trials[1:]:
        if t.parameter != "n_bits" and t.map > best.get(t.parameter, trials[0]).map:
            best[t.parameter] = t
    return {name: t.value for name, t in best.items()}


def _best_alone(trials: list[Trial]) -> dict[str, Any]:
    """The one parameter that helped most by itself, the code length excepted."""
    best = max((t for t in trials if t.parameter not in ("n_bits", "together")), key=lambda t: t.map)
    return {} if best.parameter == "defaults" else {best.parameter: best.value}


def _shortest(trials: list[Trial]) -> int:
    """The shortest code length whose MAP is within ``TOLERANCE`` of the best."""
    by_length = {t.params["n_bits"]: t.map for t in trials if t.parameter in ("defaults", "n_bits")}
    most = max(by_length.values())
    return min(r for r, value in by_length.items() if value >= most - TOLERANCE)


def _notes(found: Recommendation, n: int, seconds: float) -> list[str]:
    notes = [
        f"scores on held-out rows after training on {found.n_train:,} rows, in {found.seconds:.0f} s; differences "
        "below 0.01 are within the noise of one split"
    ]
    if found.n_rows < n:
        notes.append(f"measured on {found.n_rows:,} of {n:,} rows; on all rows, more anchors may help")
    if found.not_tried:
        missed = ", ".join(f"{name}={value}" for name, value in found.not_tried)
        notes.append(f"not tried within {seconds:.0f} s: {missed}")
    return notes
