"""What to install for a feature that needs further packages.

There are two distributions of the same code: ``dish-hash``, and ``dish-hash-encode`` without torch. Installing an
extra of ``dish-hash`` also installs torch. So without torch, hints name ``dish-hash-encode``.
"""

from __future__ import annotations

from importlib.util import find_spec

WHOLE, LIGHT = "dish-hash", "dish-hash-encode"
NEED_TORCH = {"efficientnet", "onnx", "sentence-transformers"}  # extras that LIGHT does not have


def pip_install(*extras: str) -> str:
    """The command that installs extras, such as ``pip install 'dish-hash[tables]'``."""
    light = find_spec("torch") is None and not NEED_TORCH.intersection(extras)
    return f"pip install '{LIGHT if light else WHOLE}[{','.join(extras)}]'"
