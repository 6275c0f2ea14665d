"""
Few labels
==========

Only some rows have labels; the hasher learns from these alone, and encodes all rows. How many labels per
class are enough to rank better than the float vectors, or than codes without labels?
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dish import DISH, metrics
from dish.baselines import REGISTRY

X, y = load_digits(return_X_y=True)
X, Xq, y, yq = train_test_split(X.astype(np.float32), y, test_size=300, stratify=y, random_state=0)
floats = metrics.l2_mean_average_precision(Xq, yq, X, y)
itq = REGISTRY["pca_itq"](n_bits=32).fit(X)
without = metrics.mean_average_precision(itq.transform(Xq), yq, itq.transform(X), y)

# %%
# The database is encoded without labels, since most are not known.

counts = [2, 4, 8, 16, 32, 64]
scores = []
for count in counts:
    few = np.concatenate([np.flatnonzero(y == c)[:count] for c in range(10)])
    hasher = DISH(n_bits=32, n_anchors=min(300, len(few))).fit(X[few], y[few])
    scores.append(metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y))

# %%

fig, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
axes.semilogx(counts, scores, "o-", label="DISH, 32 bits")
axes.axhline(floats, color="grey", linestyle="--", label="float vectors")
axes.axhline(without, color="tab:orange", linestyle=":", label="PCA-ITQ, 32 bits, no labels")
axes.set(xlabel="labelled rows per class", ylabel="MAP", xticks=counts, ylim=(0, 1))
axes.set_xticklabels(counts)
axes.minorticks_off()
axes.legend(loc="lower right")
plt.show()
