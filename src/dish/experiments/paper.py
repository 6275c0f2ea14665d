"""The paper's tables as data: the numbers it reports, and the runs that reproduce them.

The numbers are those of Zhang, Li, Guo and Zhang, "Scalable Discrete Supervised Hash Learning with Asymmetric Matrix
Factorization": MAP by code length, and where the paper gives them precision within radius 2, MAP with
learned codes as the database, and training time in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dish.errors import InputError
from dish.experiments.bench import FLOATS, Run

UNAVAILABLE = {"nuswide_images": "we could not obtain the images of NUS-WIDE"}  # data set → why it has no runs
FIGURES = {"map": "map", "precision_within_2": "precision", "map_learned_codes": "learned"}  # in run files → in lines


@dataclass(frozen=True)
class Line:
    """A row of a table: a method, its training size, and the paper's numbers by code length (None: not in the paper).

    A line without any number of the paper is our addition.
    """

    label: str
    method: str
    n_train: int | None = None  # None: the whole database
    map: tuple[float | None, ...] = ()
    seconds: float | None = None
    params: tuple[tuple[str, object], ...] = ()
    bits: tuple[int, ...] | None = None  # None: all code lengths of the table
    precision: tuple[float | None, ...] = ()  # within radius 2
    learned: tuple[float | None, ...] = ()  # MAP with the learned codes of the training rows as the database
    data: str | None = None  # None: the data set of the table
    missing: str = ""  # why there is no run; empty: it was not run yet

    def theirs(self, key: str, i: int) -> float | None:
        """The paper's number at the i-th code length; ``key`` is one of ``FIGURES``."""
        numbers: tuple[float | None, ...] = getattr(self, FIGURES[key])
        return numbers[i] if numbers else None


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its data set, code lengths and lines."""

    title: str
    data: str
    bits: tuple[int, ...]
    time_bits: int  # the code length of the time column
    lines: tuple[Line, ...]
    cut: int | None = None
    n_queries: int | None = None  # of a stand-in; real data are used as they are
    n_database: int | None = None
    queries: int = 100  # number of queries per class, for real data without a split
    centred: bool = False  # for real data: subtract the mean of the training rows
    elsewhere: tuple[str, ...] = ()  # other real data sets on which the same methods are measured
    note: str = ""
    deep: bool = False  # trains networks, which takes hours without a GPU

    def runs(self, methods: list[str], trials: int, data: str | None = None) -> list[Run]:
        """All runs of the table that can be done: the method exists, and the data can be had."""
        return [
            self.run(line, r, trial, data)
            for line in self.lines
            if line.method in methods and (data or line.data or self.data) not in UNAVAILABLE
            for r in (line.bits or self.bits)
            for trial in range(trials)
        ]

    def run(self, line: Line, bits: int, trial: int, data: str | None = None) -> Run:
        """The run of one cell. A float ranking has the same run at all code lengths."""
        if line.method in FLOATS and line.bits:
            bits = line.bits[0]
        run = Run(data or line.data or self.data, line.method, bits, line.n_train, trial, line.params, self.cut)
        if data is None:
            return replace(run, n_queries=self.n_queries, n_database=self.n_database)
        return replace(run, centred=self.centred)

    def cells(self, line: Line) -> list[tuple[str, int]]:
        """The numbers of the paper in a line, as keys of a run file with code lengths."""
        wanted = [(i, r) for i, r in enumerate(self.bits) if r in (line.bits or self.bits)]
        found = [(key, r) for key in FIGURES for i, r in wanted if line.theirs(key, i) is not None]
        return found + [("fit_s", self.time_bits)] * (line.seconds is not None)

    def only(
        self,
        methods: Sequence[str] | None = None,
        bits: Sequence[int] | None = None,
        sizes: Sequence[int | None] | None = None,
    ) -> PaperTable:
        """The table of some methods, code lengths and training sizes (None: all)."""
        known = dict.fromkeys(line.method for line in self.lines)
        for name, given, allowed in (("methods", methods, known), ("bits", bits, self.bits)):
            for value in given or ():
                if value not in allowed:
                    raise InputError(f"{name} must be among {', '.join(map(str, allowed))}; got {value}")
        kept = [i for i, r in enumerate(self.bits) if bits is None or r in bits]
        lengths = tuple(self.bits[i] for i in kept)
        timed = self.time_bits in lengths
        lines = tuple(
            replace(line, seconds=line.seconds if timed else None, **_at(line, kept))
            for line in self.lines
            if (methods is None or line.method in methods)
            and (sizes is None or line.n_train in sizes)
            and (line.bits is None or line.method in FLOATS or set(line.bits) & set(lengths))
        )
        if not lines:
            raise InputError("no line of the table has these methods, code lengths and training sizes")
        return replace(self, bits=lengths, time_bits=self.time_bits if timed else lengths[-1], lines=lines)


def _at(line: Line, kept: list[int]) -> dict[str, Any]:
    """The paper's numbers in a line at some of the code lengths."""
    return {name: tuple(getattr(line, name)[i] for i in kept if getattr(line, name)) for name in FIGURES.values()}


BALANCED = (("similar_weight", 10.0),)  # the paper's setting for 1,000 classes
WHITENED = (("n_steps", 20), ("whiten", True))  # KSH's objective, minimised by better steps than its authors'
AS_PRINTED = (("init", "spectral-literal"), ("ridge", 0.0), ("take_back", False))
TRIPLETS = "not run; its triplets make it the slowest method to train, and GPU time was limited"
IN_MEMORY = "not run yet; FastH needs all rows in memory, `21 GB`"
MULTILABEL = ("mirflickr20k_vgg16", "mediamill", "corel16k001")  # files in benchmarks/results/real
EPOCHS, ROUNDS = 60, 4  # of DISH-D's training: epochs per round by default; the start and three iterations
TUNED = {  # networks that start from ImageNet weights
    net: (("batch_size", 128 if net == "efficientnet_lite0" else 64), *params, ("net", net), ("weights", "imagenet"))
    for net, params in {
        "alexnet": (("epochs", 20), ("lr", 0.02)),
        "vgg16": (("epochs", 12), ("lr", 0.02)),
        "efficientnet_lite0": (("epochs", 8), ("lr", 0.3)),
    }.items()
}


def _rival(net: str = "6conv") -> tuple[tuple[str, object], ...]:
    """A rival's settings: those of DISH-D, with as many epochs as all its rounds together."""
    params: dict[str, Any] = dict(TUNED.get(net, () if net == "6conv" else (("net", net),)))
    return tuple(sorted({**params, "epochs": ROUNDS * params.get("epochs", EPOCHS)}.items()))


def _floats(n_train: int | None, bits: int, l2: tuple[float, ...] = ()) -> tuple[Line, ...]:
    """Lines of the float rankings, whose runs are stored under one code length; ``l2`` is the paper's MAP."""
    return tuple(
        Line(name[0].upper() + name[1:], method, n_train, l2 if method == "l2" else (), bits=(bits,))
        for method, name in FLOATS.items()
    )


def _table6_line(name: str, method: str, data: str, hours: int) -> Line:
    """A training time on CIFAR-10 or NUS-WIDE."""
    on, n_train = ("CIFAR-10", 5000) if data == "cifar10" else ("NUS-WIDE", None)
    params = TUNED["vgg16"] if method == "dish_d" else _rival("vgg16")
    missing = TRIPLETS if method == "sfhc" else ""
    return Line(
        f"{name}, VGG-16, {on}", method, n_train, seconds=3600 * hours, params=params, data=data, missing=missing
    )


TABLES: dict[str, PaperTable] = {
    "table1": PaperTable(
        "Table 1. CIFAR-10, 512-d GIST: MAP and training time",
        "cifar10_gist",
        (16, 32, 64, 96),
        64,
        (
            *_floats(None, 16),
            Line("LSH", "lsh", None),
            Line("SH", "sh", None),
            Line("IsoH", "isoh", None),
            Line("PCA-ITQ", "pca_itq", None, (0.163, 0.169, 0.175, 0.178), 9.6),
            Line("AGH", "agh", None, (0.150, 0.148, 0.141, 0.137), 4.1),
            Line("DGH", "dgh", None, (0.168, 0.173, 0.178, 0.180), 28.3),
            Line("BRE", "bre", 5000),
            Line("MLH", "mlh", 5000),
            Line("TSH", "tsh", 5000),
            Line("KSH", "ksh", 5000, (0.356, 0.390, 0.409, 0.415), 756),
            Line("KSH, whitened steps", "ksh", 5000, params=WHITENED),
            Line("SDH", "sdh", 5000, (0.341, 0.374, 0.397, 0.404), 8.6),
            Line("DISH", "dish", 5000),
            Line("DISH-K", "dish_k", 5000, (0.380, 0.407, 0.420, 0.424), 22.2),
            Line("DISH-K, as printed", "dish_k", 5000, params=AS_PRINTED),
            Line("CCA-ITQ", "cca_itq", None, (0.301, 0.323, 0.328, 0.334), 25.4),
            Line("LFH", "lfh", None, learned=(None, None, 0.618, None)),
            Line("COSDISH", "cosdish", None, learned=(None, None, 0.637, None)),
            Line("KSH", "ksh", None, (0.405, 0.439, 0.468, 0.474), 16415),
            Line("KSH, whitened steps", "ksh", None, params=WHITENED),
            Line("FastH", "fasth", None, (0.394, 0.427, 0.451, 0.457), 1045),
            Line("SDH", "sdh", None, (0.414, 0.442, 0.470, 0.474), 76.0),
            Line("DISH", "dish", None),
            Line("DISH, 4,000 anchors", "dish", None, params=(("n_anchors", 4000),), bits=(64,)),
            Line("DISH-K", "dish_k", None, (0.446, 0.474, 0.486, 0.491), 83.1, learned=(None, None, 0.724, None)),
            Line("DISH-K, as printed", "dish_k", None, params=AS_PRINTED),
            Line("DISH-K, 4,000 anchors", "dish_k", None, params=(("n_anchors", 4000),), bits=(64,)),
        ),
        note="1,000 queries, 59,000 database rows, all encoded by the learned hash function. Our GIST differs from "
        "the authors': its constants were chosen by the MAP of DISH-K on a quarter of the images, so compare "
        "differences between methods as well.",
    ),
    "table2": PaperTable(
        "Table 2. NUS-WIDE, 500-d bag of words: MAP@5000 and training time",
        "synthetic_nuswide",
        (16, 32, 64, 96),
        64,
        (
            *_floats(None, 16),
            Line("DGH", "dgh", None, (0.413, 0.421, 0.428, 0.429), 97.5),
            Line("CCA-ITQ", "cca_itq", None, (0.508, 0.515, 0.522, 0.524), 146.1),
            Line("KSH", "ksh", None, (0.508, 0.523, 0.530, 0.536), 39543),
            Line("SDH", "sdh", None, (0.516, 0.526, 0.531, 0.531), 489.1),
            Line("DISH", "dish", None),
            Line("DISH-K", "dish_k", None, (0.512, 0.524, 0.532, 0.533), 216.7),
            Line("DISH-K, share one", "dish_k", None, params=(("multilabel", "share_one"),), bits=(64,)),
            Line("LSH", "lsh", None),
        ),
        cut=5000,
        elsewhere=MULTILABEL,
        note="Measured on the synthetic stand-in unless --data names the official folder of NUS-WIDE. Its MAP cannot "
        "be compared with the paper's; its training times can.",
    ),
    "table4": PaperTable(
        "Table 4. CIFAR-10 images, deep methods, 5,000 training images: MAP and training time",
        "cifar10",
        (12, 24, 32, 48),
        48,
        (
            Line("CNNH+, 6conv", "cnnh", 5000, (0.633, 0.625, 0.649, 0.654), params=_rival()),
            Line("SFHC, NIN", "sfhc", 5000, (0.552, 0.566, 0.558, 0.581), params=_rival("nin"), missing=TRIPLETS),
            Line("SFHC, 6conv", "sfhc", 5000, params=_rival()),
            Line("CNNBH, 6conv", "cnnbh", 5000, (0.633, 0.647, 0.648, 0.647), params=_rival()),
            Line("DHN, 6conv", "dhn", 5000, params=_rival()),
            Line("FTDE, 6conv", "ftde", 5000, params=_rival()),
            Line("DISH-D, 6conv", "dish_d", 5000, (0.667, 0.686, 0.690, 0.695)),
            Line("DHN, AlexNet", "dhn", 5000, (0.555, 0.594, 0.603, 0.621), params=_rival("alexnet")),
            Line("DISH-D, AlexNet", "dish_d", 5000, (0.758, 0.784, 0.799, 0.791), params=TUNED["alexnet"]),
            Line(
                "SFHC, VGG-16", "sfhc", 5000, (None, 0.677, 0.688, 0.699), params=_rival("vgg16"), missing=TRIPLETS
            ),
            Line("FTDE, VGG-16", "ftde", 5000, (None, 0.760, 0.768, 0.769), params=_rival("vgg16")),
            Line("DISH-D, VGG-16", "dish_d", 5000, (0.841, 0.854, 0.859, 0.857), params=TUNED["vgg16"]),
            Line("DISH-D, EfficientNet-Lite0", "dish_d", 5000, params=TUNED["efficientnet_lite0"], bits=(48,)),
        ),
        note="1,000 queries, 59,000 database images. 6conv has batch norm; it and NIN start from random weights. "
        "AlexNet and VGG-16 start from ImageNet convolutions, with new fully connected layers.",
        deep=True,
    ),
    "table5": PaperTable(
        "Table 5. NUS-WIDE images, deep methods: MAP@5000",
        "nuswide_images",
        (12, 24, 32, 48),
        48,
        (
            Line("DHN, AlexNet", "dhn", None, (0.708, 0.735, 0.748, 0.758), params=_rival("alexnet")),
            Line("DISH-D, AlexNet", "dish_d", None, (0.787, 0.810, 0.810, 0.813), params=TUNED["alexnet"]),
            Line("SFHC, VGG-16", "sfhc", None, (None, 0.718, 0.720, 0.723), params=_rival("vgg16")),
            Line("FTDE, VGG-16", "ftde", None, (None, 0.750, 0.756, 0.760), params=_rival("vgg16")),
            Line("DISH-D, VGG-16", "dish_d", None, (0.833, 0.850, 0.850, 0.856), params=TUNED["vgg16"]),
        ),
        cut=5000,
        elsewhere=MULTILABEL,
        note="The images of NUS-WIDE could not be obtained, so there are only the paper's numbers.",
        deep=True,
    ),
    "table6": PaperTable(
        "Table 6. Training time of deep methods, VGG-16",
        "cifar10",
        (48,),
        48,
        (
            _table6_line("SFHC", "sfhc", "cifar10", 174),
            _table6_line("FTDE", "ftde", "cifar10", 15),
            _table6_line("DISH-D", "dish_d", "cifar10", 4),
            _table6_line("SFHC", "sfhc", "nuswide_images", 365),
            _table6_line("FTDE", "ftde", "nuswide_images", 32),
            _table6_line("DISH-D", "dish_d", "nuswide_images", 9),
        ),
        note="The paper gives hours on a GeForce GTX TITAN X, and no code length. The settings are those of Table 4.",
        deep=True,
    ),
    "table7": PaperTable(
        "Table 7. ImageNet, 4096-d features: MAP and training time",
        "synthetic_imagenet",
        (32, 64, 128, 256),
        128,
        (
            *_floats(100_000, 32, l2=(0.306,) * 4),
            Line("DGH", "dgh", 100_000, (0.044, 0.077, 0.108, 0.135), 121.5),
            Line("CCA-ITQ", "cca_itq", 100_000, (0.096, 0.183, 0.271, 0.340), 421.0),
            Line("KSH", "ksh", 100_000, (0.131, 0.219, 0.282, 0.319), 9686),
            Line("SDH", "sdh", 100_000, (0.133, 0.219, 0.284, 0.325), 5831),
            Line("DISH", "dish", 100_000),
            Line("DISH-K", "dish_k", 100_000, (0.176, 0.250, 0.313, 0.357), 257.3, params=BALANCED),
            Line("DISH-K, 4,000 anchors", "dish_k", 100_000, params=(("n_anchors", 4000), *BALANCED)),
            Line("FastH-Full", "fasth", None, (None, None, 0.390, None), bits=(128,), missing=IN_MEMORY),
            Line("DISH-K-Full", "dish_k", None, (None, None, 0.417, None), 2050, params=BALANCED, bits=(128,)),
            Line("LSH", "lsh", 100_000),
        ),
        n_queries=1000,
        n_database=100_000,
        queries=50,
        centred=True,
        elsewhere=("tinyimagenet_lite0",),
        note="On the synthetic stand-in there are 1,000 queries and 100,000 database rows. With --data, all queries "
        "and database rows are used, and the mean of the training rows is subtracted. Kernel methods have 1,000 "
        "anchors unless noted.",
    ),
    "table8": PaperTable(
        "Table 8. DisturbBinaryCodes: the fraction α of flipped bits, 6conv",
        "cifar10",
        (64,),
        64,
        tuple(
            Line(f"DISH-D, α = {a}", "dish_d", 5000, (found,), params=(("alpha", a),), precision=(precision,))
            for a, found, precision in (
                *((0.0, 0.687, 0.688), (0.1, 0.681, 0.676), (0.2, 0.699, 0.678)),
                *((0.3, 0.699, 0.673), (0.4, 0.706, 0.647), (0.5, 0.326, 0.001)),
            )
        ),
        deep=True,
    ),
}  # fmt: skip


def training_sizes(data: str, method: str) -> list[int | None]:
    """Training sizes of a method in the paper's tables of this data set; the whole database if it is not in any."""
    lines = [line for table in TABLES.values() if table.data == data for line in table.lines if line.method == method]
    return list(dict.fromkeys(line.n_train for line in lines)) or [None]


SENSITIVITY_DATA, SENSITIVITY_TRAIN, SENSITIVITY_BITS = "cifar10_gist", 5000, 64
NUS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
ITERATIONS = (0, 1, 2, 3, 4, 5)
STARTS = ("spectral", "random")


def sensitivity_run(trial: int, **params: object) -> Run:
    """A run of the paper's parameter study: 5,000 training rows, 64 bits."""
    chosen = tuple(sorted(params.items()))
    return Run(SENSITIVITY_DATA, "dish_k", SENSITIVITY_BITS, SENSITIVITY_TRAIN, trial, chosen)


def sensitivity_runs(trials: int) -> list[Run]:
    """All values of ν, and all pairs of a start and a number of iterations."""
    return [
        run
        for trial in range(trials)
        for run in (
            *(sensitivity_run(trial, nu=nu) for nu in NUS),
            *(sensitivity_run(trial, init=start, n_iter=t) for start in STARTS for t in ITERATIONS),
        )
    ]
