"""Small files in the official layout of NUS-WIDE."""

import numpy as np


def write_nuswide(root, Y, counts):
    """Write labels (n, concepts) of 0 and 1, named c00 for the last column, and counts (n, 500)."""
    n, concepts = Y.shape
    (root / "Groundtruth" / "AllLabels").mkdir(parents=True)
    (root / "ImageList").mkdir()
    (root / "Low_Level_Features").mkdir()
    for j in range(concepts):
        file = root / "Groundtruth" / "AllLabels" / f"Labels_c{concepts - 1 - j:02d}.txt"
        file.write_text("".join(f"{v}\n" for v in Y[:, j]))
    (root / "ImageList" / "Imagelist.txt").write_text("".join(f"actor\\{i:04d}_{i}.jpg\n" for i in range(n)))
    np.savetxt(root / "Low_Level_Features" / "BoW_int.dat", counts, "%d", newline=" \n")
