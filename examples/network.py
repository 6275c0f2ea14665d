"""
A network learns codes of images
================================

``DeepDISH`` trains a network and the codes together. Here a small convolutional network learns 8 × 8 digits
in a few epochs; real images need a larger network, more epochs and better a GPU.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from dish import DeepDISH, metrics

X, y = load_digits(return_X_y=True)
images = np.repeat((X * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1), 3, axis=3)  # (n, 8, 8, 3)
images, queries, y, yq = train_test_split(images, y, test_size=300, stratify=y, random_state=0)

# %%
# Any module that returns the last hidden layer (n, D) will do. The named networks, such as ``net="6conv"``,
# are built in.

torch.manual_seed(0)
network = nn.Sequential(
    *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(1024, 64), nn.ReLU()),
)
deep = DeepDISH(n_bits=16, net=network, image_size=8, epochs=3, n_iter=1, augment=False, mirror=False)
deep.fit(images, y)
database, codes = deep.transform(images, labels=y), deep.transform(queries)
print("MAP of 16 bits:", round(metrics.mean_average_precision(codes, yq, database, y), 3))

# %%
# The loss of every epoch, and the bits of 300 queries, sorted by digit: rows of a digit have nearly the same
# code.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot([epoch["loss"] for epoch in deep.history_], "o-")
left.set(xlabel="epoch, all rounds", ylabel="loss", ylim=(0, None))
right.imshow(
    np.unpackbits(codes[np.argsort(yq, kind="stable")], axis=1), cmap="Greys", aspect="auto", interpolation="none"
)
right.set(xlabel="bit", ylabel="digit", yticks=[30 * d + 15 for d in range(10)])
right.set_yticklabels(range(10))
plt.show()
