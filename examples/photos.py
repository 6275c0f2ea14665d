"""
Photos: which photo does a tile come from?
==========================================

Two photos that come with scikit-learn are cut into tiles of 32 × 32 pixels. A few colour and texture features
describe a tile. Codes of 16 bits find tiles of the same photo.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_images

from dish import DISH, HammingIndex, metrics

SIDE = 32
photos = [image[: 13 * SIDE, : 20 * SIDE] for image in load_sample_images().images]
tiles = np.concatenate([p.reshape(13, SIDE, 20, SIDE, 3).swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3) for p in photos])
y = np.repeat(["temple", "flower"], 260)

# %%
# Features: means, deviations and edges of the colours in the four quarters of a tile.

quarters = tiles.reshape(-1, 2, SIDE // 2, 2, SIDE // 2, 3).astype(np.float32) / 255
edges = np.abs(np.diff(quarters, axis=2)).mean((2, 4)), np.abs(np.diff(quarters, axis=4)).mean((2, 4))
X = np.concatenate([f.reshape(len(tiles), -1) for f in (quarters.mean((2, 4)), quarters.std((2, 4)), *edges)], axis=1)
held_out = np.random.default_rng(0).permutation(len(X)) % 4 == 0

hasher = DISH(n_bits=16, n_anchors=200).fit(X[~held_out], y[~held_out])
index = HammingIndex(n_bits=16)
index.add(hasher.transform(X[~held_out], labels=y[~held_out]), ids=np.flatnonzero(~held_out))
queries = hasher.transform(X[held_out])
print("MAP:", metrics.mean_average_precision(queries, y[held_out], hasher.transform(X[~held_out]), y[~held_out]))

# %%
# Three tiles of each photo as queries (left), and the first seven tiles that each finds.

shown = [i for photo in ("temple", "flower") for i in np.flatnonzero(held_out & (y == photo))[[5, 25, 45]]]
_, ids = index.search(hasher.transform(X[shown]), k=7)
fig, axes = plt.subplots(6, 8, figsize=(7, 5.4), layout="constrained")
for row, query, found in zip(axes, shown, ids, strict=True):
    for cell, tile in zip(row, [query, *found], strict=True):
        cell.imshow(tiles[tile])
        cell.set(xticks=[], yticks=[])
        colour = "black" if tile == query else "tab:green" if y[tile] == y[query] else "tab:red"
        plt.setp(cell.spines.values(), color=colour, linewidth=3)
axes[0, 0].set_title("query", fontsize=9)
axes[0, 1].set_title("results: green is right", fontsize=9, loc="left")
plt.show()
