"""
Hybrid search: codes first, float vectors second
================================================

A search for the nearest *items*, not for items of the same class: short codes select a shortlist, and the
float vectors order it. The data are **synthetic**: 20,000 vectors in clusters.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs

from dish import HammingIndex
from dish.baselines import REGISTRY

X, _ = make_blobs(20_100, 64, centers=500, cluster_std=4.0, random_state=0)
X, Xq = X[:20_000].astype(np.float32), X[20_000:].astype(np.float32)

# %%
# What the search should find: the ten nearest rows by cosine.


def unit(rows):
    """Rows of length one."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


nearest = np.argsort(-(unit(Xq) @ unit(X).T), axis=1)[:, :10]

# %%
# No labels are needed: PCA-ITQ learns codes that keep neighbours together. ``attach_vectors`` also takes the
# path of an .npy file, of which a search reads only the rows of its shortlist.

hasher = REGISTRY["pca_itq"](n_bits=64).fit(X)
index = HammingIndex(n_bits=64)
index.add(hasher.transform(X))
index.attach_vectors(X)
queries = hasher.transform(Xq)


def recall(ids):
    """Share of the ten nearest rows that were found."""
    return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids.tolist(), nearest.tolist(), strict=True)])


plain = recall(index.search(queries, k=10)[1])
shortlists, recalls, milliseconds = [10, 30, 100, 300, 1000, 3000], [], []
index.search(queries, k=10, rescore="float", query_vectors=Xq, shortlist=10)  # the first call prepares the index
for shortlist in shortlists:
    start = time.perf_counter()
    _, ids = index.search(queries, k=10, rescore="float", query_vectors=Xq, shortlist=shortlist)
    milliseconds.append(1000 * (time.perf_counter() - start) / len(Xq))
    recalls.append(recall(ids))

# %%

fig, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
axes.semilogx(shortlists, recalls, "o-", label="codes, then float vectors")
axes.axhline(plain, color="grey", linestyle="--", label="codes alone")
for x, value, ms in zip(shortlists, recalls, milliseconds, strict=True):
    axes.annotate(f"{ms:.2g} ms", (x, value), (0, -16), textcoords="offset points", ha="center", fontsize=8)
axes.set(
    xlabel="rows in the shortlist (time per query below each point)",
    ylabel="recall of the ten nearest",
    ylim=(0, 1.05),
)
axes.legend()
plt.show()
