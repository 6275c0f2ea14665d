"""A tiny network and pictures it can learn."""

import numpy as np
import torch
from torch import nn

from dish import DeepDISH, metrics


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


def smooth(**params):
    """Without batch norm: what a row gives does not depend on the rest of its batch."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(128, 16), nn.Tanh())
    return tiny(net=nn.Sequential(*layers), n_iter=1, epochs=2, augment=True, lr=0.02, **params)


def tiny(**params):
    torch.manual_seed(0)
    given = {"n_bits": 16, "net": Tiny(), "epochs": 6, "n_iter": 2, "batch_size": 32, "augment": False}
    return DeepDISH(**{**given, "device": "cpu", **params})


def rival(kind, **params):
    torch.manual_seed(0)
    given = {"n_bits": 16, "net": Tiny(), "epochs": 15, "batch_size": 32, "augment": False, "device": "cpu"}
    return kind(**{**given, **params})


def score(hasher, X, y, Xq, yq):
    return metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y)
