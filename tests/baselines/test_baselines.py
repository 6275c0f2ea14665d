"""The registry of rivals, and what several supervised rivals must do alike."""

import inspect
import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from dish import baselines, codes, metrics, similarity
from dish.baselines import REGISTRY
from helpers.rivals import map_of

WITHOUT_PAPER = {"sign", "whitened_itq", "logistic_class", "logistic_lsh"}
QUICK = {"mlh": {"n_iter": 4}}
SUPERVISED = [
    *("cca_itq", "whitened_itq", "bre", "mlh", "ksh", "tsh", "fasth", "sdh", "hc_sdh", "fssh", "lfh", "cosdish"),
    *("logistic_class", "logistic_lsh"),
]


def make(name, **params):
    if "n_anchors" in REGISTRY[name]().get_params():
        params = {"n_anchors": 60, **params}
    return REGISTRY[name](**QUICK.get(name, {}), **params)


def test_registry_is_a_lazy_mapping():
    assert baselines.__all__ == ["REGISTRY"]
    assert len(REGISTRY) == len(list(REGISTRY)) == len({kind.__name__ for kind in REGISTRY.values()})
    assert "sdh" in REGISTRY
    assert "no_such_method" not in REGISTRY
    with pytest.raises(KeyError):
        REGISTRY["no_such_method"]
    with pytest.raises(KeyError):
        REGISTRY["_pca"]


def test_registry_names_are_available_without_torch():
    code = "import sys, dish.baselines as b; print('sdh' in b.REGISTRY, len(b.REGISTRY) > 30, 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "True", "False"]


@pytest.mark.parametrize("name", REGISTRY)
def test_only_n_bits_and_net_are_positional(name):
    (_, first, *rest) = inspect.signature(REGISTRY[name].__init__).parameters.values()
    assert first.name == "n_bits"
    assert [p.name for p in rest if p.kind is not inspect.Parameter.KEYWORD_ONLY] in ([], ["net"])


@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in WITHOUT_PAPER])
def test_module_cites_the_paper(name):
    doc = inspect.getmodule(REGISTRY[name]).__doc__
    assert re.search(r'"[^"]{15,}"', doc)  # a title
    assert re.search(r"(19|20)\d\d|arXiv", doc)


@pytest.mark.parametrize("name", SUPERVISED)
def test_ranks_separable_groups_correctly(name, groups):
    assert map_of(make(name, n_bits=24).fit(*groups[:2]), *groups) > 0.95


MULTILABEL_MAP = {"logistic_class": 0.8, "ksh": 0.97, "sdh": 0.97, "fasth": 0.97}  # at least; 0.9 for all others


@pytest.mark.parametrize("name", SUPERVISED)
def test_learns_from_multilabel_rows_dense_or_sparse(name, label_sets, all_steps):
    X, Y = label_sets
    dense, sparse = (make(name, n_bits=16).fit(X, Z).transform(X) for Z in (Y, sp.csr_array(Y)))
    np.testing.assert_array_equal(dense, sparse)
    assert metrics.mean_average_precision(dense, Y, dense, Y) > MULTILABEL_MAP.get(name, 0.9)


@pytest.mark.parametrize("name", ["ksh", "sdh"])
def test_one_hot_labels_give_the_same_codes_as_classes(name, blobs):
    X, y = blobs
    classes, matrix = (make(name, n_bits=12).fit(X, Z) for Z in (y, np.eye(3, dtype=int)[y]))
    same = np.unpackbits(classes.transform(X), axis=1) == np.unpackbits(matrix.transform(X), axis=1)
    assert same.mean() > 0.99  # sums in another order may change a few bits


@pytest.mark.parametrize("name", SUPERVISED)
def test_rejects_missing_or_useless_labels(name, blobs):
    X, y = blobs
    hasher = make(name)
    with pytest.raises(ValueError, match="requires y"):
        hasher.fit(X)
    with pytest.raises(ValueError, match="1 class"):
        hasher.fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match=r"119.*120|120.*119"):
        hasher.fit(X, y[:-1])


@pytest.mark.parametrize("name", ["sdh", "fasth", "hc_sdh", "fssh"])
def test_rejects_a_similarity_where_labels_are_needed(name, blobs):
    X, _ = blobs
    with pytest.raises(ValueError, match="not a LowRank"):
        make(name).fit(X, similarity.LowRank(X, X))


@pytest.mark.parametrize("name", ["tsh", "lfh", "cosdish"])
def test_learned_codes_separate_the_classes(name, groups):
    X, y, _, _ = groups
    learned = make(name, n_bits=24).fit(X, y).codes_
    assert learned.shape == (400, 3)
    distance, same = codes.hamming(learned, learned), y[:, None] == y[None, :]
    assert distance[same].mean() < 3
    assert distance[~same].mean() > 8
