"""A plot of the losses of a fit. It uses matplotlib without pyplot, so no global state changes."""

from __future__ import annotations

import io
import os
from pathlib import Path

from dish.install import pip_install
from dish.io.atomic import write_atomically

History = list[dict[str, float]]  # one entry per epoch: round, epoch, loss, and held_out if it was computed


def draw(history: History, path: str | os.PathLike[str]) -> None:
    """Plot the training loss and, if known, the held-out loss of every epoch, as .png, .svg or .pdf."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ModuleNotFoundError(f"plotting needs matplotlib: {pip_install('plot')}") from None

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    epochs = range(1, len(history) + 1)
    axis.plot(epochs, [epoch["loss"] for epoch in history], label="training loss")
    held = [(i, epoch["held_out"]) for i, epoch in zip(epochs, history, strict=True) if "held_out" in epoch]
    if held:
        axis.plot(*zip(*held, strict=True), label="held-out loss")
    for i, epoch in zip(epochs, history, strict=True):
        if epoch["epoch"] == 0:
            axis.axvline(i - 0.5, color="0.8", linewidth=1, zorder=0)
    axis.set(xlabel="epoch (grey lines: start of a round)", ylabel="loss")
    axis.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix.lstrip(".") or "png")
    write_atomically(path, buffer.getvalue())
