"""Which parameters suit these rows: fits on some of them, judged by rows that were held out, within a given time."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dish import codes, metrics
from dish.checks import check_integer, check_number
from dish.errors import InputError
from dish.hasher import as_rows
from dish.kernel.dish import DISH
from dish.labels import as_array, is_tags, tag_matrix

DEFAULTS: dict[str, Any] = {"n_bits": 64, "n_anchors": 1000, "similar_weight": "auto", "loss": "auto"}
KNOBS: dict[str, tuple[Any, ...]] = {
    "n_bits": (32, 128, 16, 256),
    "n_anchors": (3000, 300),
    "loss": ("ridge",),
    "similar_weight": (2.0, 10.0),
}
LEAST = 20  # rows that can be split
ENOUGH = 0.01  # MAP that shorter codes may lose
SLOWER = 1.5  # a fit may take that much longer than its likeness to earlier ones says


@dataclass
class Trial:
    """One setting and how it did. ``knob`` is the parameter that differs from the defaults."""

    knob: str
    params: dict[str, Any]
    bytes: int
    map: float
    precision_at_10: float
    seconds: float  # of the fit

    @property
    def value(self) -> Any:
        """Of the knob."""
        return self.params.get(self.knob, "")


@dataclass
class Recommendation:
    """What suits the rows, and every setting that was tried; ``not_tried`` are those there was no time for."""

    params: dict[str, Any]
    trials: list[Trial]
    not_tried: list[tuple[str, Any]]
    n_rows: int  # that settings were judged on
    n_train: int
    seconds: float
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{'knob':<15}{'value':>8}{'bytes':>7}{'MAP':>8}{'P@10':>8}{'fit, s':>9}"]
        for t in self.trials:
            lines.append(
                f"{t.knob:<15}{t.value!s:>8}{t.bytes:>7}{t.map:>8.3f}{t.precision_at_10:>8.3f}{t.seconds:>9.2f}"
            )
        given = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return "\n".join([*lines, *self.notes, f"DISH({given})"])


def recommend(
    X: Any,
    y: Any,
    *,
    seconds: float = 120,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    max_rows: int = 20_000,
    random_state: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> Recommendation:
    """Parameters of ``DISH`` that suit rows with labels, judged by rows that were held out.

    At most ``max_rows`` rows are drawn. Of them, 60 % are learned from; the others are queries and the database they
    search, so that neither was seen. One parameter at a time leaves the defaults, then those that helped are tried
    together. Of code lengths that are nearly as good, the shortest is recommended. ``dish tune`` is the command.

    Parameters
    ----------
    X, y : rows (n, d) and labels
        As ``DISH.fit`` takes them, in memory or memory-mapped.
    seconds : float
        Time to spend, about. The defaults are always tried.
    knobs : dict, optional
        Parameter → values to try: some of ``n_bits``, ``n_anchors``, ``similar_weight`` and ``loss``.
    max_rows, random_state : int
        Rows to draw, at most; seed of the draw and of every fit.
    report : callable
        Is told what happens, a line at a time: ``report=print``.

    Returns
    -------
    Recommendation
        ``params`` are those to fit with, ``trials`` what was tried; ``print`` shows both as a table.

    Examples
    --------
    >>> import dish
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> found = dish.recommend(X[:500], y[:500], knobs={"n_bits": (16, 32)}, seconds=60)
    >>> hasher = dish.DISH(**found.params)
    """
    check_number("seconds", seconds, low=0, strict=True)
    start = time.perf_counter()
    X = X if isinstance(X, np.ndarray) else np.asarray(as_rows(X))
    (y,) = tag_matrix(y) if is_tags(y) else (y if sp.issparse(y) else as_array(y),)
    if X.ndim != 2 or X.shape[0] != y.shape[0]:
        raise InputError(f"X must be rows (n, d) and y have a label for each; got {X.shape} and {y.shape}")
    if X.shape[0] < LEAST:
        raise InputError(f"X has {X.shape[0]} rows, too few to hold some out: it needs at least {LEAST}")
    rng = np.random.default_rng(random_state)
    n = min(X.shape[0], check_integer("max_rows", max_rows, low=100))
    picked = np.sort(rng.permutation(X.shape[0])[:n])
    judge = Judge(np.asarray(X[picked], np.float32), y[picked], rng, random_state)
    report(f"{n:,} of {X.shape[0]:,} rows: learning from {judge.n_train:,}, judging by the others")
    found = _search(judge, KNOBS if knobs is None else knobs, start + seconds, report)
    found.n_rows, found.seconds = n, time.perf_counter() - start
    found.notes = _notes(found, X.shape[0], seconds)
    return found


def _search(
    judge: Judge, knobs: Mapping[str, Sequence[Any]], deadline: float, report: Callable[[str], None]
) -> Recommendation:
    """Try the defaults, one knob at a time, and what helped together; stop before the deadline."""
    settings = list(_settings(knobs, judge.n_train))
    report("the first fit, which may have to compile, once per installation")
    judge.warm_up()
    trials = [judge.trial("defaults", {})]
    report(f"defaults: MAP {trials[0].map:.3f} in {trials[0].seconds:.1f} s")
    not_tried: list[tuple[str, Any]] = []
    for knob, value in settings:
        if time.perf_counter() + SLOWER * _expected(DEFAULTS | {knob: value}, trials) > deadline:
            not_tried.append((knob, value))
            continue
        trials.append(judge.trial(knob, {knob: value}))
        report(f"{knob}={value}: MAP {trials[-1].map:.3f} in {trials[-1].seconds:.1f} s")
    together = _helped(trials)
    if len(together) > 1 and time.perf_counter() + SLOWER * max(t.seconds for t in trials) < deadline:
        trials.append(judge.trial("together", together))
        together = together if trials[-1].map == max(t.map for t in trials) else _best_alone(trials)
    elif len(together) > 1:
        together = _best_alone(trials)
    params = {"n_bits": _shortest(trials)} | {k: v for k, v in together.items() if k != "n_bits"}
    return Recommendation(params, trials, not_tried, 0, judge.n_train, 0.0)


class Judge:
    """Rows to learn from, and held-out queries and database rows to score by."""

    def __init__(self, X: NDArray[Any], y: Any, rng: np.random.Generator, seed: int) -> None:
        order = rng.permutation(len(X))
        n_train, n_queries = int(0.6 * len(X)), max(1, min(1000, len(X) // 10))
        train, query, base = np.split(order, [n_train, n_train + n_queries])
        self.train, self.queries, self.base = ((X[rows], y[rows]) for rows in (train, query, base))
        self.n_train, self.seed = n_train, seed

    def warm_up(self) -> None:
        """The first fit of a process compiles: no trial's time should include that."""
        X, y = (part[:500] for part in self.train)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            DISH(n_bits=16, n_anchors=50, random_state=self.seed).fit(X, y)

    def trial(self, knob: str, params: dict[str, Any]) -> Trial:
        """Fit and score one setting."""
        hasher = DISH(**(DEFAULTS | params), random_state=self.seed)
        start = time.perf_counter()
        with warnings.catch_warnings():
            for text in ("n_anchors", "ridge"):  # of a part of the rows: the fit of all of them will say
                warnings.filterwarnings("ignore", message=text)
            hasher.fit(*self.train)
        seconds = time.perf_counter() - start
        (Xq, yq), (X, y) = self.queries, self.base
        scores = metrics.evaluate(
            hasher.transform(Xq), yq, hasher.transform(X), y, n_bits=hasher.n_bits, at=(min(10, len(X)),)
        )
        (precision,) = scores.precision_at.values()
        return Trial(knob, DEFAULTS | params, codes.n_bytes(hasher.n_bits), scores.map, precision, seconds)


def _settings(knobs: Mapping[str, Sequence[Any]], n_train: int) -> Iterator[tuple[str, Any]]:
    """Knobs and values to try, the first value of every knob first; no more anchors than there are rows."""
    for knob in knobs:
        if knob not in DEFAULTS:
            raise InputError(f"knobs must be some of {', '.join(DEFAULTS)}; got {knob!r}")
    for turn in range(max(map(len, knobs.values()), default=0)):
        for knob, values in knobs.items():
            if turn < len(values) and values[turn] != DEFAULTS[knob]:
                if knob == "n_anchors" and values[turn] > n_train:
                    continue
                yield knob, values[turn]


def _expected(params: dict[str, Any], trials: list[Trial]) -> float:
    """Seconds that a setting may take, by those that were tried: the cost grows with anchors and with bits."""

    def cost(setting: dict[str, Any]) -> float:
        return max(1.0, setting["n_anchors"] / 1000) * max(1.0, setting["n_bits"] / 64)

    return cost(params) * float(np.median([t.seconds / cost(t.params) for t in trials]))


def _helped(trials: list[Trial]) -> dict[str, Any]:
    """For every knob but the code length, the value that did better than the defaults, if one did."""
    best: dict[str, Trial] = {}
    for t in trials[1:]:
        if t.knob != "n_bits" and t.map > max(trials[0].map, best[t.knob].map if t.knob in best else 0.0):
            best[t.knob] = t
    return {knob: t.value for knob, t in best.items()}


def _best_alone(trials: list[Trial]) -> dict[str, Any]:
    """The one knob, apart from the code length, that helped most by itself."""
    best = max((t for t in trials if t.knob not in ("n_bits", "together")), key=lambda t: t.map)
    return {} if best.knob == "defaults" else {best.knob: best.value}


def _shortest(trials: list[Trial]) -> int:
    """The shortest code length that is within ``ENOUGH`` of the best."""
    by_length = {t.params["n_bits"]: t.map for t in trials if t.knob in ("defaults", "n_bits")}
    most = max(by_length.values())
    return min(r for r, value in by_length.items() if value >= most - ENOUGH)


def _notes(found: Recommendation, n: int, seconds: float) -> list[str]:
    notes = [
        f"judged by held-out rows, {found.n_train:,} rows learned from, in {found.seconds:.0f} s; MAP of one split: "
        "differences below 0.01 mean little"
    ]
    if found.n_rows < n:
        notes.append(f"on {found.n_rows:,} of {n:,} rows: with all of them more anchors may pay")
    if found.not_tried:
        missed = ", ".join(f"{knob}={value}" for knob, value in found.not_tried)
        notes.append(f"not tried, for want of time ({seconds:.0f} s): {missed}")
    return notes
