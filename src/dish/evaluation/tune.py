"""Recommend a method and its parameters for given rows: successive halving, scored on held-out rows, within a time
limit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dish import codes, metrics, registry
from dish.checks import check_integer, check_number, check_random_state
from dish.errors import InputError
from dish.hasher import as_rows
from dish.io.rows import not_finite
from dish.labels import plain_labels
from dish.posterior.dish import DISH
from dish.similarity.labelled import check_labels

CANDIDATES: dict[str, tuple[Any, ...]] = {
    "method": ("dish_k", "pca_itq"),
    "n_bits": (32, 128, 16, 256),
    "geometry": (0, 32),
    "kernel": ("linear",),
    "n_anchors": (3000,),
}
DEFAULTS: dict[str, Any] = DISH().get_params()
MIN_ROWS = 20  # enough for a split
TOLERANCE = 0.01  # MAP that a change must gain, and every doubling of the code length
SLACK = 1.5  # a fit may take this many times its expected time
GROWTH = 3  # every round has this many times the rows of the one before
FEWEST, PER_CLASS = 400, 5  # rows of the first round, and per class


@dataclass(frozen=True)
class Setting:
    """A method and the parameters that differ from its defaults."""

    parameter: str  # what it is about: "defaults", "method", a parameter of DISH, or "together"
    method: str = "dish"
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> Any:
        """The value of ``parameter``."""
        return self.method if self.parameter == "method" else self.params.get(self.parameter, "")

    @property
    def n_bits(self) -> int:
        """The code length."""
        return int(self.params.get("n_bits", DEFAULTS["n_bits"]))


@dataclass
class Trial:
    """One setting and its scores."""

    parameter: str  # as in ``Setting``
    method: str
    params: dict[str, Any]  # all parameters of DISH, defaults included; of other methods, those that were given
    bytes: int
    map: float
    precision_at_10: float
    seconds: float  # fit time
    n_train: int  # rows it learned from
    setting: Setting = field(repr=False)

    @property
    def value(self) -> Any:
        """The value of ``parameter``."""
        return self.setting.value

    @property
    def score(self) -> float:
        """MAP, less what a change must gain to be recommended."""
        changes = len(self.setting.params.keys() - {"n_bits"}) + (self.method != "dish")
        doublings = np.log2(self.setting.n_bits / DEFAULTS["n_bits"])
        return self.map - TOLERANCE * (changes + float(doublings))


@dataclass
class Recommendation:
    """The recommended method and parameters, all trials, and the settings for which there was no time."""

    method: str
    params: dict[str, Any]
    trials: list[Trial]
    not_tried: list[tuple[str, Any]]
    n_rows: int  # rows used, of which n_train for training
    n_train: int
    seconds: float
    notes: list[str] = field(default_factory=list)

    def hasher(self) -> Any:
        """A hasher of the recommended method with the recommended parameters, to be fitted."""
        return registry.find(self.method)(**self.params)

    def to_dict(self) -> dict[str, Any]:
        """The recommendation as JSON values."""
        found = asdict(self)
        for trial in found["trials"]:
            del trial["setting"]
        return found

    def __str__(self) -> str:
        lines = [f"{'rows':<8}{'parameter':<11}{'value':>9}{'bytes':>7}{'MAP':>8}{'P@10':>8}{'fit, s':>9}"]
        for t in self.trials:
            scores = f"{t.bytes:>7}{t.map:>8.3f}{t.precision_at_10:>8.3f}{t.seconds:>9.2f}"
            lines.append(f"{t.n_train:<8}{t.parameter:<11}{t.value!s:>9}{scores}")
        given = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return "\n".join([*lines, *self.notes, f"{registry.find(self.method).__name__}({given})"])


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
    """Recommend a method and parameters for labelled rows. The command is ``dish tune``.

    A random sample of at most ``max_rows`` rows is split: 60 % for training, the rest for queries and their database.
    All settings first learn from few of the training rows: ``DISH`` with its defaults, with one change at a time, and
    with all changes that helped; ``DISHK``; PCA-ITQ. The best learn again from three times as many rows, and so on,
    as long as there is time. The best setting of the last round is recommended. A change must gain 0.01 of MAP to be
    recommended, and so must every doubling of the code length.

    Parameters
    ----------
    X, y : rows (n, d) and labels
        The same as for ``DISH.fit``, in memory or memory-mapped.
    seconds : float
        Approximate time limit. The defaults are always tried.
    candidates : dict, optional
        Parameter of DISH → values to try; "method" → names of other methods, such as "dish_k" and "pca_itq".
    max_rows, random_state : int
        Largest sample; seed of the sample and of every fit.
    report : callable
        Gets progress, one line at a time, for example ``print``.

    Returns
    -------
    Recommendation
        ``hasher()`` for the fit, ``method`` and ``params``, and all ``trials``; ``print`` shows them as a table.

    Examples
    --------
    >>> import dish
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> found = dish.recommend(X[:500], y[:500], candidates={"n_bits": (16, 32)}, seconds=60)
    >>> hasher = found.hasher()
    """
    check_number("seconds", seconds, low=0, strict=True)
    start = time.perf_counter()
    settings = list(_settings(CANDIDATES if candidates is None else candidates))
    held_out, n, n_all = _held_out(X, y, max_rows, random_state)
    report(f"{n:,} of {n_all:,} rows: {held_out.n_train:,} for training, the others for scoring")
    report("first fit: compiles its kernels, once per installation")
    held_out.warm_up()
    search = Search(held_out, time.perf_counter() + seconds, report)
    best = search.run(settings)
    params = {"n_bits": best.setting.n_bits, **best.setting.params}
    not_tried = [(s.parameter, s.value) for s in search.not_tried]
    used, notes = time.perf_counter() - start, [*search.notes(seconds), *_notes(best, n, n_all)]
    return Recommendation(best.method, params, search.trials, not_tried, n, held_out.n_train, used, notes)


def _held_out(X: Any, y: Any, max_rows: int, random_state: int) -> tuple[HeldOut, int, int]:
    """A sample of the rows, split; its size and that of the data."""
    X = X if isinstance(X, np.ndarray) else np.asarray(as_rows(X))
    (y,) = plain_labels(y)
    _check(X, y, random_state)
    rng = np.random.default_rng(random_state)
    n = min(X.shape[0], check_integer("max_rows", max_rows, low=100))
    picked = np.sort(rng.permutation(X.shape[0])[:n])
    return HeldOut(_finite_rows(X, picked), y[picked], rng, random_state), n, X.shape[0]


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


def _settings(candidates: Mapping[str, Sequence[Any]]) -> Iterator[Setting]:
    """Yield the settings to try: other methods, then the first values of all parameters, and so on."""
    for name in candidates:
        if name not in DEFAULTS and name != "method":
            raise InputError(f"candidates must be method or parameters of DISH: {', '.join(DEFAULTS)}; got {name!r}")
    for method in candidates.get("method", ()):
        registry.find(method)
        yield Setting("method", method)
    candidates = {name: values for name, values in candidates.items() if name != "method"}
    for turn in range(max(map(len, candidates.values()), default=0)):
        for name, values in candidates.items():
            if turn < len(values) and values[turn] != DEFAULTS.get(name):
                yield Setting(name, params={name: values[turn]})


class HeldOut:
    """Training rows, and held-out queries and database rows to score on."""

    def __init__(self, X: NDArray[Any], y: Any, rng: np.random.Generator, seed: int) -> None:
        order = rng.permutation(len(X))
        n_train, n_queries = int(0.6 * len(X)), max(1, min(1000, len(X) // 10))
        train, query, base = np.split(order, [n_train, n_train + n_queries])
        self.train, self.queries, self.base = ((X[rows], y[rows]) for rows in (train, query, base))
        self.n_train, self.seed = n_train, seed

    def sizes(self) -> list[int]:
        """How many training rows the rounds have."""
        y = self.train[1]
        n_classes = len(np.unique(y)) if y.ndim == 1 else y.shape[1]
        least, sizes = max(FEWEST, PER_CLASS * n_classes), [self.n_train]
        while (fewer := sizes[0] // GROWTH) >= least and len(np.unique(y[:fewer], axis=0)) > 1:
            sizes.insert(0, fewer)
        return sizes

    def warm_up(self) -> None:
        """Compile the kernels, so that no trial's time includes it."""
        X, y = (part[:500] for part in self.train)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            DISH(n_bits=16, n_anchors=50, random_state=self.seed).fit(X, y)

    def trial(self, setting: Setting, n: int) -> Trial:
        """Fit one setting to the first n training rows, and score it."""
        hasher = registry.find(setting.method)(**setting.params, random_state=self.seed)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="n_anchors|the codes of")  # of few rows, not of all
            hasher.fit(*(part[:n] for part in self.train))
        seconds = time.perf_counter() - start
        (Xq, yq), (X, y) = self.queries, self.base
        scores = metrics.evaluate(
            hasher.transform(Xq), yq, hasher.transform(X), y, n_bits=hasher.n_bits, at=(min(10, len(X)),)
        )
        (precision,) = scores.precision_at.values()
        params = (DEFAULTS if setting.method == "dish" else {}) | dict(setting.params)
        n_bytes = codes.n_bytes(hasher.n_bits)
        return Trial(setting.parameter, setting.method, params, n_bytes, scores.map, precision, seconds, n, setting)


class Search:
    """Successive halving: all settings with few rows, the best with more."""

    def __init__(self, held_out: HeldOut, deadline: float, report: Callable[[str], None]) -> None:
        self.held_out, self.deadline, self.report = held_out, deadline, report
        self.trials: list[Trial] = []
        self.not_tried: list[Setting] = []
        self.failed: list[str] = []

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.perf_counter()

    def run(self, settings: list[Setting]) -> Trial:
        """All rounds; returns the best trial of the last one."""
        sizes = self.held_out.sizes()
        pilot = self.round([Setting("defaults")], [0.0], sizes[0])[0]
        while len(sizes) > 1 and self.time_for(len(settings), pilot, sizes[1]):
            sizes = sizes[1:]
        expected = pilot.seconds * sizes[0] / pilot.n_train
        todo = [s for s in settings if s.params.get("n_anchors", 0) <= sizes[0]]  # more would be the same as all rows
        self.not_tried += [s for s in settings if s not in todo]
        if pilot.n_train < sizes[0]:
            pilot = self.round([pilot.setting], [0.0], sizes[0])[0]
        costs = [expected] * len(todo)
        for i, n in enumerate(sizes):
            done = [pilot] if i == 0 else []
            done += self.round(todo, costs, n)
            if i == 0 and (together := _together(done)) is not None and self.left > SLACK * expected:
                done += self.round([together], [0.0], n)
            done.sort(key=lambda t: -t.score)
            self.trials += sorted(done, key=lambda t: t.setting.parameter != "defaults")
            if i + 1 < len(sizes):
                todo, costs = self.survivors(done, sizes[i + 1], last=i + 2 == len(sizes))
            if len(todo) < 2:
                break
        return max((t for t in self.trials if t.n_train == self.trials[-1].n_train), key=lambda t: t.score)

    def time_for(self, n_settings: int, pilot: Trial, n: int) -> bool:
        """Whether half of the time is enough for all settings with n rows."""
        return SLACK * (1 + n_settings) * pilot.seconds * n / pilot.n_train < self.left / 2

    def round(self, settings: list[Setting], costs: list[float], n: int) -> list[Trial]:
        """Trials of the settings for which there is time, with n rows."""
        done: list[Trial] = []
        for setting, cost in zip(settings, costs, strict=True):
            if SLACK * cost > self.left and cost > 0:
                self.not_tried += [setting] if not self.trials else []
                continue
            try:
                trial = self.held_out.trial(setting, n)
            except InputError as error:
                if setting.parameter == "defaults":
                    raise
                self.failed.append(f"{setting.parameter}={setting.value} is not possible: {error}")
                continue
            done.append(trial)
            what = "defaults" if setting.parameter == "defaults" else f"{setting.parameter}={setting.value}"
            self.report(f"{n:,} rows, {what}: MAP {trial.map:.3f} in {trial.seconds:.1f} s")
        return done

    def survivors(self, done: list[Trial], n: int, last: bool) -> tuple[list[Setting], list[float]]:
        """The best settings, as many as there is time for with n rows; no more than half of it if rounds follow."""
        costs = [t.seconds * n / t.n_train for t in done]
        sums = list(accumulate(SLACK * cost for cost in costs))
        count = sum(each <= (self.left if last else self.left / 2) for each in sums)
        if count < 2:
            count = 2 if len(sums) > 1 and sums[1] <= self.left else 0
        return [t.setting for t in done[:count]], costs[:count]

    def notes(self, seconds: float) -> list[str]:
        """What could not be tried."""
        missed = ", ".join(f"{s.parameter}={s.value}" for s in self.not_tried)
        note = f"not tried within {seconds:.0f} s, or with so few rows: {missed}"
        return [*self.failed, note] if missed else self.failed


def _together(done: list[Trial]) -> Setting | None:
    """All changes to DISH that beat the defaults; None if there are fewer than two.

    The share of geometry bits stays the same.
    """
    default, best = done[0], dict[str, Trial]()
    for t in done[1:]:
        if t.method == "dish" and t.score > best.get(t.parameter, default).score:
            best[t.parameter] = t
    params = {name: t.value for name, t in best.items()}
    if len(params) < 2:
        return None
    if "geometry" in params and "n_bits" in params:
        params["geometry"] = params["geometry"] * params["n_bits"] // DEFAULTS["n_bits"]
    return Setting("together", params=params)


def _notes(best: Trial, n: int, n_all: int) -> list[str]:
    """What the scores say, and what not."""
    notes = [
        f"scores on held-out rows after training on up to {best.n_train:,} rows; compare those with the same number "
        "of rows. Differences below 0.01 are within the noise of one split. MAP counts labels only: geometry bits "
        "also order the rows of one label"
    ]
    if n < n_all:
        notes.append(f"measured on {n:,} of {n_all:,} rows; on all rows, more anchors may help")
    return notes
