"""
Several labels per row
======================

Digits with three labels each: odd or even, small or large, and whether the digit has a closed loop. A result
is better the more labels it shares with the query.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MultiLabelBinarizer

from dish import DISH, DISHK, metrics


def tags_of(digit):
    """The labels of a digit."""
    return [
        "even" if digit % 2 == 0 else "odd",
        "small" if digit < 5 else "large",
        "loop" if digit in (0, 6, 8, 9) else "no loop",
    ]


X, digits = load_digits(return_X_y=True)
binarizer = MultiLabelBinarizer()
Y = binarizer.fit_transform([tags_of(digit) for digit in digits])  # (n, 6) of 0 and 1
X, Xq, Y, Yq = train_test_split(X.astype(np.float32), Y, test_size=300, random_state=0)
print(list(binarizer.classes_), Y[0])

# %%
# ``DISH`` learns the probability of each label, ``DISHK`` a similarity of label sets.

ours = DISH(n_bits=32, n_anchors=300).fit(X, Y)
paper = DISHK(n_bits=32, n_anchors=300).fit(X, Y)
codes = {
    "DISH": (ours.transform(Xq), ours.transform(X, labels=Y)),
    "DISH-K": (paper.transform(Xq), paper.transform(X)),
}
for name, (queries, database) in codes.items():
    gain = metrics.normalized_discounted_cumulative_gain(queries, Yq, database, Y, k=100)
    print(f"{name}: normalized discounted cumulative gain of the first 100: {gain:.3f}")

# %%
# Rows that share more labels with the query are at a smaller distance.

common = Yq @ Y.T  # (queries, rows): 0 to 3 labels in common
fig, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
for plot, (name, (queries, database)) in zip(axes, codes.items(), strict=True):
    distances = np.unpackbits(queries[:, None] ^ database[None], axis=2).sum(2)
    plot.boxplot([distances[common == k] for k in range(4)], tick_labels=range(4), showfliers=False)
    plot.set(title=name, xlabel="labels in common")
axes[0].set_ylabel("Hamming distance")
plt.show()
