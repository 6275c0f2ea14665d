"""
Vectors: codes of digits
========================

Codes of 2 to 8 bytes, learned from labels, compared with codes without labels and with the float vectors (256
bytes). The data are scikit-learn's digits: 8 × 8 pixels, ten classes.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dish import DISH, DISHK, metrics
from dish.baselines import REGISTRY

X, y = load_digits(return_X_y=True)
X, Xq, y, yq = train_test_split(X.astype(np.float32), y, test_size=300, stratify=y, random_state=0)

# %%
# A hasher learns from vectors and labels. Codes are rows of packed bits: 32 bits are four bytes.

hasher = DISH(n_bits=32, n_anchors=300).fit(X, y)
database, queries = hasher.transform(X, labels=y), hasher.transform(Xq)
print(database.shape, database.dtype)
print(metrics.evaluate(queries, yq, database, y))

# %%
# The same for three code lengths and three methods. ``DISHK`` is the paper's method. Labels of the database
# are known, but only codes of ``DISH`` can use them.

methods = {
    "DISH, database with labels": lambda r: DISH(n_bits=r, n_anchors=300),
    "DISH": lambda r: DISH(n_bits=r, n_anchors=300),
    "DISH-K, the paper's": lambda r: DISHK(n_bits=r, n_anchors=300),
    "PCA-ITQ, no labels": lambda r: REGISTRY["pca_itq"](n_bits=r),
}
lengths = [16, 32, 64]
found = {name: [] for name in methods}
for name, make in methods.items():
    for r in lengths:
        hasher = make(r).fit(X, y)
        rows = hasher.transform(X, labels=y) if "with labels" in name else hasher.transform(X)
        found[name].append(metrics.mean_average_precision(hasher.transform(Xq), yq, rows, y))
floats = metrics.l2_mean_average_precision(Xq, yq, X, y)

# %%

fig, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for (name, values), marker in zip(found.items(), "osD^", strict=True):
    axes.plot([r // 8 for r in lengths], values, marker + "-", label=name)
axes.axhline(floats, color="grey", linestyle="--", label="float vectors, 256 bytes")
axes.set(xlabel="bytes per row", ylabel="MAP", xticks=[2, 4, 8], ylim=(0.4, 1.02))
axes.legend(loc="center right")
plt.show()
