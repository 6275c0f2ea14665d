"""
A new class, without encoding the database again
================================================

A database has codes of nine digits; then the tenth arrives. A fit with ``compatible_with`` keeps the codes of
the known labels bit by bit, so that the database stays as it is.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dish import DISH, metrics

X, y = load_digits(return_X_y=True)
X, Xq, y, yq = train_test_split(X.astype(np.float32), y, test_size=300, stratify=y, random_state=0)
known = y < 9
old = DISH(n_bits=32, n_anchors=300).fit(X[known], y[known])
database = old.transform(X[known], labels=y[known])

# %%
# The new model: codes of labels stay, and the nines get a code far from all others.

new = DISH(n_bits=32, n_anchors=300).fit(X, y, compatible_with=old)
print("codes of known labels are equal:", (new.transform(X[known], labels=y[known]) == database).all())
grown = np.concatenate([database, new.transform(X[~known], labels=y[~known])])
labels = np.concatenate([y[known], y[~known]])

# %%
# Queries of every digit, encoded by the old and the new model, against the grown database.

scores = {
    name: [
        metrics.mean_average_precision(hasher.transform(Xq[yq == c]), yq[yq == c], grown, labels) for c in range(10)
    ]
    for name, hasher in (("old model", old), ("new model", new))
}
fig, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for shift, (name, values) in zip((-0.2, 0.2), scores.items(), strict=True):
    axes.bar(np.arange(10) + shift, values, 0.38, label=name)
axes.set(xlabel="digit of the query", ylabel="MAP", xticks=range(10), ylim=(0, 1.25))
axes.legend(ncols=2)
plt.show()
