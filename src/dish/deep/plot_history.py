"""How a training went, as a picture. matplotlib by its objects: no state of the process changes."""

from __future__ import annotations

import io
import os
from pathlib import Path

from dish.io.atomic import write_atomically

History = list[dict[str, float]]  # one entry per pass: round, epoch, loss and perhaps held_out


def draw(history: History, path: str | os.PathLike[str]) -> None:
    """Losses pass by pass, of held-out rows too where they are known, and where rounds begin: .png, .svg or .pdf."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ModuleNotFoundError("drawing the curves needs matplotlib: pip install 'dish-hash[plot]'") from None

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    passes = range(1, len(history) + 1)
    axis.plot(passes, [epoch["loss"] for epoch in history], label="loss of the training rows")
    held = [(i, epoch["held_out"]) for i, epoch in zip(passes, history, strict=True) if "held_out" in epoch]
    if held:
        axis.plot(*zip(*held, strict=True), label="loss of held-out rows")
    for i, epoch in zip(passes, history, strict=True):
        if epoch["epoch"] == 0:
            axis.axvline(i - 0.5, color="0.8", linewidth=1, zorder=0)
    axis.set(xlabel="passes over the rows (a grey line: a round begins)", ylabel="loss")
    axis.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix.lstrip(".") or "png")
    write_atomically(path, buffer.getvalue())
