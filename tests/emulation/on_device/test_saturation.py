"""Arithmetic of a saturating device; tests/emulation/test_saturation.py runs this file on one."""

from __future__ import annotations

import os

import pytest
import torch
from torch_npu.npu import utils

from ascend_adapt.errors import OperatorLimit

NPU = torch.device("npu:0")
LARGEST = 65504.0


def half(*values):
    return torch.tensor(values, dtype=torch.half, device=NPU)


def test_overflow_gives_the_largest_finite_value():
    utils.clear_npu_overflow_flag()
    assert (half(60000, -60000) * 2).tolist() == [LARGEST, -LARGEST]
    assert utils.get_npu_overflow_flag()
    utils.clear_npu_overflow_flag()
    assert not utils.get_npu_overflow_flag()


def test_nan_is_zero():
    assert (half(0.0) / 0).tolist() == [0.0]
    assert torch.sqrt(half(-1.0)).tolist() == [0.0]
    assert utils.npu_check_overflow(half(1.0))
    assert not utils.npu_check_overflow(half(1.0))  # reading clears it


def test_in_place_and_out():
    tensor = half(60000)
    tensor.mul_(4)
    out = half(0)
    torch.mul(half(60000), 4, out=out)
    torch._foreach_mul_([other := half(60000)], 4)
    assert tensor.tolist() == out.tolist() == other.tolist() == [LARGEST]


def test_a_grad_scaler_finds_no_inf():
    weight = half(1.0).requires_grad_()
    utils.clear_npu_overflow_flag()
    (weight * 60000 * 4).sum().backward()
    assert torch.isfinite(weight.grad).all()
    assert utils.get_npu_overflow_flag()


def test_unscaling_asks_the_flag_as_the_kernel_of_op_plugin_does():
    def unscale():
        gradient, found = half(4.0), torch.zeros(1, device=NPU)
        torch._amp_foreach_non_finite_check_and_unscale_([gradient], found, torch.full((1,), 0.5, device=NPU))
        return gradient.item(), found.item(), utils.get_npu_overflow_flag()

    utils.clear_npu_overflow_flag()
    assert unscale() == (2.0, 0.0, False)
    half(60000).mul_(4)
    assert unscale() == (4.0, 1.0, False)


def test_moving_a_constant_does_not_overflow():
    utils.clear_npu_overflow_flag()
    masked = half(1.0, 2.0).masked_fill(torch.tensor([True, False], device=NPU), float("-inf"))
    assert masked.tolist() == [float("-inf"), 2.0]
    assert not utils.get_npu_overflow_flag()


def test_bfloat16():
    if os.environ["ASCEND_ADAPT_EMULATED_SOC"] != "Ascend910A":
        largest = torch.finfo(torch.bfloat16).max
        assert (torch.full((1,), largest, dtype=torch.bfloat16, device=NPU) * 2).tolist() == [largest]
        return
    with pytest.raises(OperatorLimit, match=r"aten::ones: a tensor is bfloat16, expected: no tensor"):
        torch.ones(2, dtype=torch.bfloat16, device=NPU) + 1
