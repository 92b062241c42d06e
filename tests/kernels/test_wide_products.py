"""Products of 16-bit matrices in fp32, compared with fp64."""

from __future__ import annotations

import pytest
import torch

from ascend_adapt.kernels import wide_products
from ascend_adapt.kernels.wide_products import add_product, are_fused, product

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def matrices(device, rows=48, inner=512, columns=40):
    torch.manual_seed(0)
    left = torch.randn(inner, rows, device=device, dtype=torch.bfloat16).t()
    return left, torch.randn(inner, columns, device=device, dtype=torch.bfloat16)


@pytest.mark.parametrize("device", DEVICES)
def test_a_product_in_fp32(device):
    left, right = matrices(device)
    exact = left.double() @ right.double()
    made = product(left, right, torch.float32)
    assert made.dtype == torch.float32
    bound = 1e-5 if are_fused(left.device) else 5e-3
    assert (made - exact).abs().max() < bound * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("blocks", [0, 2, 4])
@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_of_products(device, blocks, dtype):
    """The sum starts with whatever was in memory; its blocks of rows may be apart."""
    left, right = matrices(device)
    shape = (blocks, len(left) // blocks, right.shape[1]) if blocks else (len(left), right.shape[1])
    memory = torch.full((*shape[:-2], 3, *shape[-2:]), float("nan"), dtype=dtype, device=device)
    total = memory[..., 1, :, :]
    add_product(total, left, right, overwrite=True)
    add_product(total, left, right)
    exact = (2 * (left.double() @ right.double())).view(shape)
    bound = 1e-5 if are_fused(left.device) and dtype == torch.float32 else 1e-2
    assert (total - exact).abs().max() < bound * exact.abs().max()
    assert memory.isnan().sum() == 2 * total.numel()  # nothing else was written


def test_fp32_matrices_are_summed_in_16_bits(monkeypatch):
    """fp32 weights with gradients reduced in bf16: torch has no such product, also where others are fused."""
    monkeypatch.setattr(wide_products, "are_fused", lambda device: True)
    left, right = (each.float() for each in matrices("cpu"))
    total = torch.zeros(len(left), right.shape[1], dtype=torch.bfloat16)
    add_product(total, left, right, overwrite=True)
    assert torch.equal(total, (left @ right).bfloat16())
    add_product(total, left, right)
    assert torch.equal(total, ((left @ right).bfloat16() + left @ right).bfloat16())
