"""
Drift: are new rows still like the training rows?
=================================================

A model keeps a profile of the rows that it learned from. ``drift`` compares new rows with it, without labels.
Here the sensor moves more and more, and ``recentre`` adapts the model.
"""

import copy

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dish import DISH, metrics
from dish.evaluation.drift import drift

X, y = load_digits(return_X_y=True)
X, Xq, y, yq = train_test_split(X.astype(np.float32), y, test_size=600, stratify=y, random_state=0)
hasher = DISH(n_bits=32, n_anchors=300).fit(X, y)
found = drift(hasher, Xq)
print(f"score {found.score:.3f}, rows of no known class {found.unknown:.0%}, compared with {found.source}")

# %%
# Every pixel becomes brighter by the same amount. The score rises, and MAP falls; after ``recentre``, both
# are as before.

shifts = [0, 1, 2, 3, 4, 6]
scores, before, after = [], [], []
database = hasher.transform(X, labels=y)
for shift in shifts:
    moved = Xq + shift
    scores.append(drift(hasher, moved).score)
    before.append(metrics.mean_average_precision(hasher.transform(moved), yq, database, y))
    adapted = copy.deepcopy(hasher).recentre(moved)
    after.append(metrics.mean_average_precision(adapted.transform(moved), yq, database, y))

# %%
# The codes of labels in the database stay valid.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(shifts, scores, "o-")
left.axhline(0.1, color="grey", linestyle="--")
left.text(3, 0.12, "a limit for alarms", color="grey")
left.set(xlabel="shift of every pixel", ylabel="drift score", ylim=(0, 1))
right.plot(shifts, before, "o-", label="as it was")
right.plot(shifts, after, "s-", label="after recentre")
right.set(xlabel="shift of every pixel", ylabel="MAP", ylim=(0, 1.05))
right.legend()
plt.show()
