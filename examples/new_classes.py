"""
Classes that were not in training
=================================

A hasher learns seven digits and meets all ten. Codes rank known classes better than the float vectors do, and
new ones worse. Rows of new classes can be found by their probabilities.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dish import DISH, metrics
from dish.baselines import REGISTRY

X, y = load_digits(return_X_y=True)
X, Xq, y, yq = train_test_split(X.astype(np.float32), y, test_size=400, stratify=y, random_state=0)
known, known_q = y < 7, yq < 7

# %%
# MAP of queries of the seven known and of the three new digits. ``whitened_itq`` uses labels only to scale
# the features.

hashers = {
    "DISH": DISH(n_bits=64, n_anchors=300).fit(X[known], y[known]),
    "DISH, half of the\nbits for the features": DISH(n_bits=64, n_anchors=300, geometry=32).fit(X[known], y[known]),
    "whitened ITQ": REGISTRY["whitened_itq"](n_bits=64).fit(X[known], y[known]),
}
scores = {}
for name, hasher in hashers.items():
    database, queries = hasher.transform(X), hasher.transform(Xq)
    scores[name] = [metrics.mean_average_precision(queries[q], yq[q], database, y) for q in (known_q, ~known_q)]
scores["float vectors"] = [metrics.l2_mean_average_precision(Xq[q], yq[q], X, y) for q in (known_q, ~known_q)]

# %%
# A row of a new class resembles several classes a little: its probabilities have a high entropy.

p = hashers["DISH"].predict_proba(Xq)
entropy = -(p * np.log2(np.maximum(p, 1e-12))).sum(1)

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
places = np.arange(len(scores))
for shift, which, label in ((-0.2, 0, "known digits"), (0.2, 1, "new digits")):
    left.bar(places + shift, [pair[which] for pair in scores.values()], 0.38, label=label)
left.set(ylabel="MAP", xticks=places, ylim=(0, 1.25))
left.set_xticklabels(scores, fontsize=8)
left.legend(ncols=2)
bins = np.linspace(0, np.log2(7), 25)
right.hist([entropy[known_q], entropy[~known_q]], bins, density=True, label=["known digits", "new digits"])
right.set(xlabel="entropy of the probabilities, bits", ylabel="density")
right.legend()
plt.show()
