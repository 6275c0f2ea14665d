"""A small Tiny ImageNet in the official layout."""

from helpers.photos import draw

WNIDS = ("n01443537", "n02124075", "n07920052")


def write_tinyimagenet(folder):
    """Write three classes with four training images each, six validation images, and one without a label."""
    root, lines = folder / "tiny-imagenet-200", []
    for c, wnid in enumerate(WNIDS):
        for i in range(4):
            draw(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 10 * c + i, side=64)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    for i in range(6):
        draw(root / "val" / "images" / f"val_{i}.JPEG", 100 + i, side=64)
        lines.append(f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t0\t63\t63\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    draw(root / "test" / "images" / "test_0.JPEG", 999, side=64)
    (root / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n")
    return root
