"""Write the golden files: one of every kind of file, as version 0.1.0 (commit 7a67e2d) wrote them.

Run with that version installed: ``python tests/golden/make.py``. The files are read by every later version.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dish import DISH, DeepDISH, HammingIndex
from dish.baselines import REGISTRY
from dish.web.journal import Journal

HERE = Path(__file__).parent
X, y = load_digits(return_X_y=True)
X = X[:400].astype(np.float32) / 16
y = y[:400]

expected = {}
models = {
    "dish": DISH(n_bits=20, n_anchors=40),
    "dish_linear": DISH(n_bits=16, kernel="linear", similar_weight=4.0),
    "deep": DeepDISH(n_bits=16, net="mlp", n_iter=1, epochs=2, device="cpu"),
    "pca_itq": REGISTRY["pca_itq"](n_bits=16),
    "sdh": REGISTRY["sdh"](n_bits=16, n_anchors=40),
    "lsh": REGISTRY["lsh"](n_bits=16),
}
for name, model in models.items():
    model.fit(X, y).save(HERE / f"{name}.dish")
    expected[name] = model.transform(X[:50])

index = HammingIndex(n_bits=20)
index.add(models["dish"].transform(X), ids=[f"row {i}" for i in range(400)], labels=[str(c) for c in y])
index.remove(["row 7", "row 8"])
index.save(HERE / "index.dish")
distances, ids = index.search(expected["dish"], k=5)
expected |= {"index_distances": distances, "index_ids": np.array(ids, str)}

DISH(n_bits=16, n_anchors=40, n_iter=2, checkpoint=HERE / "checkpoint").fit(X, y)
journal = Journal(HERE / "index.dish.journal")
for i in range(3):
    code = expected["dish"][i].tobytes().hex()
    journal.append({"ids": [f"new {i}"], "codes": code, "labels": [str(y[i])]})
journal.close()
np.savez_compressed(HERE / "expected.npz", **expected)
