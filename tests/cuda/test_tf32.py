"""Float32 products in parts that TF32 keeps exactly."""

from contextlib import suppress

import torch

from dish.cuda import tf32


def test_the_two_parts_of_a_matrix_add_up_to_it():
    X = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    high, low = tf32.split(X)
    assert torch.equal(high + low, X)
    assert not (high.view(torch.int32) & 0x1FFF).any()  # 13 digits that TF32 would drop
    assert (low.abs() <= X.abs() / 1024).all()


def test_a_product_of_parts_is_the_product():
    draw = torch.Generator().manual_seed(0)
    A, B, C = (torch.randn(*shape, generator=draw) for shape in ((20, 30), (30, 8), (20, 8)))
    out = C.clone()
    assert tf32.add_product(out, tf32.split(A), tf32.split(B), alpha=0.5) is out
    torch.testing.assert_close(out, C + 0.5 * A @ B, rtol=1e-5, atol=1e-4)


def test_the_callers_setting_is_restored():
    products = torch.backends.cuda.matmul
    name = "fp32_precision" if hasattr(products, "fp32_precision") else "allow_tf32"
    before = getattr(products, name)
    inside = []
    with suppress(RuntimeError), tf32.tf32():
        inside.append(getattr(products, name))
        raise RuntimeError
    assert inside in (["tf32"], [True])
    assert getattr(products, name) == before


def test_only_float32_on_a_gpu_is_split():
    assert not tf32.worth_splitting(torch.zeros(2))
    assert not tf32.worth_splitting(torch.zeros(2, dtype=torch.float64))
