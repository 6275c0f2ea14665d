"""The paper's tables as data: the numbers it reports, and the runs that reproduce them.

The numbers are those of Zhang, Li, Guo and Zhang, "Scalable Discrete Supervised Hash Learning with Asymmetric Matrix
Factorization": MAP by code length, and training time in seconds where the paper gives one.
"""

from __future__ import annotations

from dataclasses import dataclass

from dish.experiments.bench import FLOATS, Run


@dataclass(frozen=True)
class Line:
    """A row of a table: a method, its training size, and the paper's numbers (None: not in the paper)."""

    label: str
    method: str
    n_train: int | None = None  # None: the whole database
    map: tuple[float | None, ...] = ()
    seconds: float | None = None
    params: tuple[tuple[str, object], ...] = ()
    bits: tuple[int, ...] | None = None  # None: all code lengths of the table


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its data set, code lengths and lines."""

    title: str
    data: str
    bits: tuple[int, ...]
    time_bits: int  # the code length of the time column
    lines: tuple[Line, ...]
    cut: int | None = None
    n_queries: int | None = None
    n_database: int | None = None
    note: str = ""
    deep: bool = False  # trains networks, which takes hours without a GPU

    def runs(self, methods: list[str], trials: int, data: str | None = None) -> list[Run]:
        """All runs of the table, for those methods that exist here."""
        return [
            self.run(line, r, trial, data)
            for line in self.lines
            if line.method in methods
            for r in (line.bits or self.bits)
            for trial in range(trials)
        ]

    def run(self, line: Line, bits: int, trial: int, data: str | None = None) -> Run:
        """The run of one cell. A float ranking has the same run at all code lengths."""
        if line.method in FLOATS and line.bits:
            bits = line.bits[0]
        sizes = self.n_queries, self.n_database
        return Run(data or self.data, line.method, bits, line.n_train, trial, line.params, self.cut, *sizes)


BALANCED = (("similar_weight", 10.0),)  # the paper's setting for 1,000 classes
WHITENED = (("n_steps", 20), ("whiten", True))  # KSH's objective, minimised by better steps than its authors'


def _floats(n_train: int | None, bits: int) -> tuple[Line, ...]:
    """Lines of the float rankings, whose runs are stored under one code length."""
    return tuple(Line(name[0].upper() + name[1:], method, n_train, bits=(bits,)) for method, name in FLOATS.items())


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
            Line("CCA-ITQ", "cca_itq", None, (0.301, 0.323, 0.328, 0.334), 25.4),
            Line("LFH", "lfh", None),
            Line("COSDISH", "cosdish", None),
            Line("KSH", "ksh", None, (0.405, 0.439, 0.468, 0.474), 16415),
            Line("KSH, whitened steps", "ksh", None, params=WHITENED),
            Line("FastH", "fasth", None, (0.394, 0.427, 0.451, 0.457), 1045),
            Line("SDH", "sdh", None, (0.414, 0.442, 0.470, 0.474), 76.0),
            Line("DISH", "dish", None),
            Line("DISH, 4,000 anchors", "dish", None, params=(("n_anchors", 4000),), bits=(64,)),
            Line("DISH-K", "dish_k", None, (0.446, 0.474, 0.486, 0.491), 83.1),
            Line("DISH-K, 4,000 anchors", "dish_k", None, params=(("n_anchors", 4000),), bits=(64,)),
        ),
        note="1,000 queries, 59,000 database rows, all encoded by the learned hash function. The whitened steps "
        "of KSH are our addition. Our GIST differs from the authors': its constants were chosen by the MAP of DISH "
        "on a quarter of the images, so compare differences between methods as well.",
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
        note="Measured on the synthetic stand-in unless --data names a folder with the real NUS-WIDE. Its MAP cannot "
        "be compared with the paper's; its training times can.",
    ),
    "table7": PaperTable(
        "Table 7. ImageNet, 4096-d features: MAP and training time",
        "synthetic_imagenet",
        (32, 64, 128, 256),
        128,
        (
            *_floats(100_000, 32),
            Line("DGH", "dgh", 100_000, (0.044, 0.077, 0.108, 0.135), 121.5),
            Line("CCA-ITQ", "cca_itq", 100_000, (0.096, 0.183, 0.271, 0.340), 421.0),
            Line("KSH", "ksh", 100_000, (0.131, 0.219, 0.282, 0.319), 9686),
            Line("SDH", "sdh", 100_000, (0.133, 0.219, 0.284, 0.325), 5831),
            Line("DISH", "dish", 100_000),
            Line("DISH-K", "dish_k", 100_000, (0.176, 0.250, 0.313, 0.357), 257.3, params=BALANCED),
            Line("DISH-K, 4,000 anchors", "dish_k", 100_000, params=(("n_anchors", 4000), *BALANCED)),
            Line("DISH-K-Full", "dish_k", None, (None, None, 0.417, None), 2050, params=BALANCED, bits=(128,)),
            Line("LSH", "lsh", 100_000),
        ),
        n_queries=1000,
        n_database=100_000,
        note="Measured on the synthetic stand-in unless --data names real features (the paper's have an l2 MAP of "
        "0.306), with 1,000 of the queries and 100,000 of the database rows. Kernel methods have 1,000 anchors "
        "unless noted.",
    ),
}

DEEP_BITS = (12, 24, 32, 48)
TUNED = {  # networks that start from ImageNet weights
    net: (("batch_size", 128 if net == "efficientnet_lite0" else 64), *params, ("net", net), ("weights", "imagenet"))
    for net, params in {
        "alexnet": (("epochs", 20), ("lr", 0.02)),
        "vgg16": (("epochs", 12), ("lr", 0.02)),
        "efficientnet_lite0": (("epochs", 8), ("lr", 0.3)),
    }.items()
}
RIVAL = (("epochs", 240),)  # as many epochs as DISH-D's four rounds of 60

TABLES["table4"] = PaperTable(
    "Table 4. CIFAR-10 images, deep methods, 5,000 training images: MAP and training time",
    "cifar10",
    DEEP_BITS,
    48,
    (
        Line("CNNH+, 6conv", "cnnh", 5000, (0.633, 0.625, 0.649, 0.654), params=RIVAL),
        Line("SFHC, 6conv (paper: NIN)", "sfhc", 5000, (0.552, 0.566, 0.558, 0.581), params=RIVAL),
        Line("CNNBH, 6conv", "cnnbh", 5000, (0.633, 0.647, 0.648, 0.647), params=RIVAL),
        Line("DHN, 6conv", "dhn", 5000, params=RIVAL),
        Line("FTDE, 6conv", "ftde", 5000, params=RIVAL),
        Line("DISH-D, 6conv", "dish_d", 5000, (0.667, 0.686, 0.690, 0.695)),
        Line("DISH-D, AlexNet", "dish_d", 5000, (None, None, None, 0.791), params=TUNED["alexnet"], bits=(48,)),
        Line("DISH-D, VGG-16", "dish_d", 5000, (None, None, None, 0.857), params=TUNED["vgg16"], bits=(48,)),
        Line("DISH-D, EfficientNet-Lite0", "dish_d", 5000, params=TUNED["efficientnet_lite0"], bits=(48,)),
    ),
    note="1,000 queries, 59,000 database images. 6conv has batch norm and starts from random weights. AlexNet and "
    "VGG-16 start from ImageNet convolutions, with new fully connected layers. Runs shared a GPU, so times are upper "
    "bounds.",
    deep=True,
)
TABLES["table6"] = PaperTable(
    "Table 6. Training time on CIFAR-10, VGG-16",
    "cifar10",
    (48,),
    48,
    (Line("DISH-D, VGG-16", "dish_d", 5000, (0.857,), 4 * 3600, params=TUNED["vgg16"]),),
    note="The paper used a GeForce GTX TITAN X (SFHC 174 h, FTDE 15 h, DISH-D 4 h).",
    deep=True,
)
TABLES["table8"] = PaperTable(
    "Table 8. DisturbBinaryCodes: the fraction α of flipped bits, 6conv",
    "cifar10",
    (64,),
    64,
    tuple(
        Line(f"DISH-D, α = {alpha}", "dish_d", 5000, (value,), params=(("alpha", alpha),))
        for alpha, value in ((0.0, 0.687), (0.1, 0.681), (0.2, 0.699), (0.3, 0.699), (0.4, 0.706), (0.5, 0.326))
    ),
    deep=True,
)


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
