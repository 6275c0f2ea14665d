"""MathJax in the site itself: the file that sets formulas, and its fonts, from the package sphinx-mathjax-offline."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

FILES = "tex-chtml.js", "output/chtml/fonts/woff-v2"  # the package has 24 MB; these are all that a page loads


def copy_mathjax(app: Any, error: Exception | None) -> None:
    """Copy MathJax to the pages."""
    if error is not None:
        return
    package = Path(importlib.import_module("sphinx-mathjax-offline").__file__ or "").parent / "static/mathjax"
    for name in FILES:
        source, target = package / name, Path(app.outdir) / "_static/mathjax" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, target)


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.config.mathjax_path = "mathjax/tex-chtml.js"
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
