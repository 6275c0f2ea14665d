"""Float32 products on tensor cores, which keep 11 binary digits of every factor (TF32)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dish.lazy import Tensor, torch

Parts = tuple[Tensor, ...]  # terms of a sum


@contextmanager
def tf32() -> Iterator[None]:
    """Allow TF32 for float32 products on a GPU inside, and restore the caller's setting."""
    products = torch.backends.cuda.matmul
    name, value = ("fp32_precision", "tf32") if hasattr(products, "fp32_precision") else ("allow_tf32", True)
    before = getattr(products, name)  # torch 2.9 renamed the setting
    setattr(products, name, value)
    try:
        yield
    finally:
        setattr(products, name, before)


def worth_splitting(X: Tensor) -> bool:
    """Whether products with X are faster in parts: float32 on a GPU."""
    return X.device.type == "cuda" and X.dtype == torch.float32


def split(X: Tensor) -> tuple[Tensor, Tensor]:
    """X as a sum of two terms: the digits that TF32 keeps, and the rest."""
    high = X.view(torch.int32).bitwise_and(-(1 << 13)).view(torch.float32)
    return high, X - high


def add_product(out: Tensor, A: Parts, B: Parts, alpha: float = 1.0) -> Tensor:
    """Add alpha A B to ``out`` in place, with float32 accuracy, for factors split into parts.

    The smallest of the four partial products is omitted. This takes half the time of a product without tensor cores.
    """
    with tf32():
        for i, a in enumerate(A):
            for b in B[: len(B) - i]:
                out.addmm_(a, b, alpha=alpha)
    return out
