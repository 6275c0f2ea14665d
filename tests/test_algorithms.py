"""A class is one algorithm: no parameter changes the kind of hash function that it learns."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import ParameterGrid
from sklearn.naive_bayes import GaussianNB

from dish import DISH, DISHD, DISHK, DeepDISH
from dish.deep.heads import FrozenHead, Head, PosteriorHead
from dish.encoder import Classifiers, Linear, Posterior
from helpers.deep import Tiny, patches

RNG = np.random.default_rng(0)
Y = np.arange(60) % 3
X = RNG.standard_normal((60, 5)) + 3 * RNG.standard_normal((3, 5))[Y]
SETS = np.eye(3, dtype=int)[Y] | np.eye(3, dtype=int)[(Y + 1) % 3]

SHARED = {  # parameters of DISH and DISHK
    "n_bits": [1, 12, 64],
    "n_anchors": [3, 30],
    "gamma": ["auto", 0.01, 2.0],
    "kernel": ["rbf", "linear", "rbf+linear", lambda X, A: X @ A.T],
    "scale": ["auto", None, np.arange(1.0, 6.0)],
    "anchors": ["random", "kmeans", X[:7]],
    "n_iter": [0, 1, 9],
    "memory_budget": [None, 1, "1GB"],
    "device": ["auto", "cpu"],
    "random_state": [0, 1, None],
}
GRIDS = {
    DISH: {**SHARED, "kernel": ["auto", *SHARED["kernel"]], "geometry": ["auto", 0, 2]},
    DISHK: {
        **SHARED,
        "loss": ["ridge", "hinge", "logistic"],
        "nu": [0.0, 1e-4, 1.0],
        "similar_weight": ["auto", 1.5, 10.0],
        "multilabel": ["count", "share_one", "jaccard"],
        "init": ["spectral", "spectral-literal", "random", np.zeros((60, 1), np.uint8)],
        "ridge": [0.0, 1e-6, 1.0],
        "lam": [0.0, 5.0],
        "take_back": [True, False],
        "checkpoint": [None, "folder"],
        "verbose": [0, 1],
    },
}
FUNCTIONS = {DISH: Posterior, DISHK: Linear}

NETWORKS = {  # parameters of both deep classes
    "n_bits": [1, 12, 64],
    "net": ["mlp", "module"],
    "weights": [None, "file"],
    "epochs": [1, 2],
    "batch_size": [8, 64],
    "lr": ["auto", 0.01],
    "weight_decay": ["auto", 0.0],
    "accumulate": [1, 2],
    "augment": [True, False],
    "mirror": [True, False],
    "image_size": [None, 32],
    "checkpoint": [None, "folder"],
    "device": ["auto", "cpu"],
    "random_state": [0, 1, None],
    "verbose": [0, 1],
    "n_iter": [0, 1, 2],
}
DEEP_GRIDS = {
    DeepDISH: {**NETWORKS, "patience": [None, 1], "error_diffusion": [True, False]},
    DISHD: {
        **NETWORKS,
        "alpha": [0.0, 0.2, 0.3],
        "mu": [0.0, 1.0],
        "nu": [0.0, 1e-4],
        "stop_agreement": [0.5, 0.9999],
    },
}
HEADS = {DeepDISH: PosteriorHead, DISHD: Head}


def each(grids):
    """(class, parameter, values) of all grids."""
    return [
        pytest.param(kind, name, values, id=f"{kind.__name__}-{name}")
        for kind, grid in grids.items()
        for name, values in grid.items()
    ]


@pytest.mark.parametrize("kind", [DISH, DISHK, DeepDISH, DISHD])
def test_the_grid_has_every_parameter(kind):
    others = {"freeze"} if kind is DeepDISH else set()  # tested below
    assert set({**GRIDS, **DEEP_GRIDS}[kind]) | others == set(kind().get_params())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name", "values"), each(GRIDS))
def test_no_parameter_changes_the_kind_of_hash_function(kind, name, values, tmp_path):
    for labels in (Y, SETS):
        for i, params in enumerate(ParameterGrid({name: values})):
            if params.get("checkpoint"):
                params["checkpoint"] = tmp_path / f"{i}{labels.ndim}"
            hasher = kind(**{"n_bits": 8, "n_anchors": 15, "n_iter": 1, **params}).fit(X, labels)
            assert type(hasher.hash_function_) is FUNCTIONS[kind], params
            assert hasher.transform(X).shape == (60, -(-hasher.n_bits // 8))


def test_a_classifier_is_the_one_exception_as_it_is_another_hash_function_by_name():
    assert type(DISHK(4, n_anchors=15, loss=GaussianNB()).fit(X, Y).hash_function_) is Classifiers


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name", "values"), each(DEEP_GRIDS))
def test_no_parameter_changes_the_kind_of_head(kind, name, values, tmp_path):
    images, y = patches(520 if name == "patience" else 48, 0)  # patience needs held-out rows
    torch.save(Tiny().state_dict(), tmp_path / "weights.pt")
    quick = {"n_bits": 8, "epochs": 1, "n_iter": 1, "batch_size": 16, "device": "cpu"}
    if name == "patience":
        quick |= {"error_diffusion": False, "batch_size": 128}
    for i, params in enumerate(ParameterGrid({name: values})):
        vectors = params.get("net") == "mlp"
        params["net"] = "mlp" if vectors else Tiny()
        for path, given in (("checkpoint", tmp_path / f"state {i}"), ("weights", tmp_path / "weights.pt")):
            if params.get(path):
                params[path] = given
        rows = images.reshape(len(images), -1) / 255.0 if vectors else images
        hasher = kind(**{**quick, **params}).fit(rows, y)
        assert type(hasher.model_.head) is HEADS[kind], params
        assert hasher.transform(rows).shape == (len(rows), -(-hasher.n_bits // 8))


def test_freeze_is_DISH_on_features():
    images, y = patches(48, 0)
    hasher = DeepDISH(8, Tiny(), freeze=True, device="cpu").fit(images, y)
    assert type(hasher.model_.head) is FrozenHead
