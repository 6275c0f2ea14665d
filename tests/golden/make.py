"""Write the golden files: one file of every kind and format. Later versions must read them and give the same codes.

Run ``python tests/golden/make.py`` only when a format changes before its first release; ``tests/test_golden.py``
reads the files.
"""

import shutil
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dish import DISH, DISHD, DISHK, DeepDISH, HammingIndex
from dish.baselines import REGISTRY
from dish.web.server import open_collection

HERE = Path(__file__).parent
MODELS = {
    "dish": DISH(n_bits=20, n_anchors=40),
    "dish_k": DISHK(n_bits=16, n_anchors=40),
    "dish_k_linear": DISHK(n_bits=16, kernel="linear", similar_weight=4.0),
    "deep_dish": DeepDISH(n_bits=16, net="mlp", n_iter=1, epochs=2, device="cpu"),
    "dish_d": DISHD(n_bits=16, net="mlp", n_iter=1, epochs=2, device="cpu"),
    "pca_itq": REGISTRY["pca_itq"](n_bits=16),
    "sdh": REGISTRY["sdh"](n_bits=16, n_anchors=40),
    "lsh": REGISTRY["lsh"](n_bits=16),
}


def main():
    for old in HERE.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif old != Path(__file__):
            old.unlink()
    X, y = load_digits(return_X_y=True)
    X, y = X[:400].astype(np.float32) / 16, y[:400]
    expected = {}
    for name, model in MODELS.items():
        model.fit(X, y).save(HERE / f"{name}.dish")
        expected[name] = model.transform(X[:50])
        expected[f"{name} fingerprint"] = np.array(model.fingerprint_)
    DISHK(n_bits=16, n_anchors=40, n_iter=2, checkpoint=HERE / "checkpoint").fit(X, y)

    index = HammingIndex(n_bits=20, model=MODELS["dish"].fingerprint_)
    index.add(MODELS["dish"].transform(X), ids=[f"row {i}" for i in range(400)], labels=[str(c) for c in y])
    index.remove(["row 7", "row 8"])
    index.save(HERE / "index.dish")
    distances, ids = index.search(expected["dish"], k=5)
    expected |= {"index_distances": distances, "index_ids": np.array(ids, str)}

    collection = open_collection(HERE / "dish.dish", HERE / "index.dish", writable=True)
    collection.upsert([f"new {i}" for i in range(3)], expected["dish"][:3], [str(c) for c in y[:3]])
    collection.writer.release()  # the items stay in the journal; collection.close() would write them to the index
    np.savez_compressed(HERE / "expected.npz", **expected)


if __name__ == "__main__":
    main()
