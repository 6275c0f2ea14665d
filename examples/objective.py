"""
The paper's method, step by step
================================

``DISHK`` alternates between the codes H and the hash function F. The objective never rises.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dish import DISHK, metrics

X, y = load_digits(return_X_y=True)
X, Xq, y, yq = train_test_split(X.astype(np.float32), y, test_size=300, stratify=y, random_state=0)

# %%
# Two starts: the spectral one of the paper, and random codes.

objective, scores = {}, {}
for start in ("spectral", "random"):
    hasher = DISHK(n_bits=32, n_anchors=300, init=start, n_iter=6).fit(X, y)
    objective[start] = hasher.objective_
    scores[start] = metrics.mean_average_precision(hasher.transform(Xq), yq, hasher.transform(X), y)
    print(f"{start}: objective {[round(q) for q in hasher.objective_]}, MAP {scores[start]:.3f}")

# %%

lowest = min(map(min, objective.values()))
fig, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for (start, values), marker in zip(objective.items(), "os", strict=True):
    above = [100 * (q / lowest - 1) for q in values]
    axes.plot(range(1, len(above) + 1), above, marker + "-", label=f"{start} start, MAP {scores[start]:.3f}")
axes.set(xlabel="H-step", ylabel="objective, % above the lowest", xticks=range(1, 7))
axes.legend()
plt.show()
