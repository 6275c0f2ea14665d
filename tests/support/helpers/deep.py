"""A small network, and images that it can learn to tell apart."""

import numpy as np
import torch
from torch import nn

from dish import metrics
from dish.deep import DISHD, DeepDISH
from dish.deep.data import DeepFitData, read_labels
from dish.parallel import ALONE


def patches(n, seed, n_classes=4, side=16):
    """Noisy stripes: a class is a colour and a direction. uint8 (n, side, side, 3) and labels (n,)."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n)
    wave = np.sin(np.arange(side))
    across, down = np.broadcast_to(wave, (side, side)), np.broadcast_to(wave[:, None], (side, side))
    stripes = np.where((y % 2 == 0)[:, None, None], across, down)
    colour = np.array([[60, 20, 0], [0, 20, 60]])[y // 2 % 2]
    x = 127 + colour[:, None, None] + 40 * stripes[..., None] + rng.normal(0, 25, (n, side, side, 3))
    return x.clip(0, 255).astype(np.uint8), y


def label_sets(y):
    """Labels (n, 3) of 0 and 1 for the classes of ``patches``."""
    return np.stack([y % 2 == 0, y % 2 == 1, y // 2 == 1], 1).astype(int)


class Tiny(nn.Module):
    """Two small convolutions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        )

    def forward(self, x):
        return self.layers(x)


def tiny(kind=DeepDISH, **params):
    """A deep hasher with the small network."""
    torch.manual_seed(0)
    given = {"n_bits": 16, "net": Tiny(), "epochs": 6, "batch_size": 32, "augment": False, "device": "cpu"}
    if kind in (DeepDISH, DISHD):
        given["n_iter"] = 2
    return kind(**{**given, **params})


def smooth(kind=DISHD, **params):
    """A hasher without batch norm: the outputs of a row do not depend on the rest of its batch."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(128, 16), nn.Tanh())
    return tiny(kind, net=nn.Sequential(*layers), n_iter=1, epochs=2, augment=True, lr=0.02, **params)


def score(hasher, X, y, Xq, yq):
    """MAP of the codes of queries against those of the training rows."""
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y)


def fit_data(X, y, seed=0):
    """What a fit of X and y learns from, on the CPU."""
    S, labels = read_labels(y, len(X), "DeepDISH", graded=True, similarity=True)
    return DeepFitData(torch.as_tensor(X), labels, S, seed, torch.device("cpu"), ALONE)


def batch(multilabel):
    """Outputs F (7, 6) of a batch, which rows share a label (7, 7), and the labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=(7, 3)).astype(np.float32) if multilabel else rng.integers(3, size=7)
    F = torch.from_numpy(rng.standard_normal((7, 6)))
    share = labels @ labels.T > 0 if multilabel else labels[:, None] == labels
    return F, share, torch.from_numpy(labels)
