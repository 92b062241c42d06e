"""npu tensors and CPU tensors over the same memory."""

from __future__ import annotations

import gc

import pytest
import torch

from ascend_adapt.emulation.host_memory import as_cpu, as_npu

NPU = torch.device("npu:0")


def test_an_alias_shares_memory_and_keeps_the_view():
    whole = torch.zeros(4, 6, device=NPU)
    view = whole.t()[1:3]
    alias = as_cpu(view)
    assert (alias.device.type, alias.shape, alias.stride()) == ("cpu", view.shape, view.stride())
    assert alias.storage_offset() == view.storage_offset()
    alias.fill_(2)
    assert whole.sum().item() == 16
    whole.fill_(3)
    assert alias.unique().tolist() == [3]


def test_aliases_of_one_tensor_overlap_as_its_views_do():
    tensor = torch.arange(6.0, device=NPU)
    first, second = as_cpu(tensor[:4]), as_cpu(tensor[2:])
    first[3] = -1
    assert second[1] == -1


def test_the_memory_lives_as_long_as_the_alias():
    before = torch.npu.memory_allocated(0)
    alias = as_cpu(torch.full((1000,), 7.0, device=NPU))
    view = alias[10:20]
    del alias
    gc.collect()
    assert torch.npu.memory_allocated(0) > before
    assert view.tolist() == [7.0] * 10
    del view
    gc.collect()
    assert torch.npu.memory_allocated(0) == before


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex64])
def test_every_kind_of_element(dtype):
    tensor = torch.ones(3, device=NPU).to("cpu").to(dtype).to(NPU)
    assert as_cpu(tensor).dtype == dtype
    assert as_cpu(tensor).tolist() == torch.ones(3, dtype=dtype).tolist()


def test_conjugate_and_negative_bits():
    values = torch.tensor([1 + 2j])
    tensor = values.to(NPU)
    assert as_cpu(tensor.conj()).tolist() == [1 - 2j]
    assert as_cpu(tensor.conj().imag).tolist() == [-2.0]


def test_nothing_to_share():
    assert as_cpu(torch.empty(0, 3, device=NPU)).shape == (0, 3)
    here = torch.ones(2)
    assert as_cpu(here) is here


def test_a_result_keeps_its_strides():
    result = torch.arange(6.0).view(2, 3).t()
    moved = as_npu(result, torch.device("npu:1"))
    assert (moved.device, moved.stride()) == (torch.device("npu:1"), result.stride())
    assert moved.cpu().equal(result)


def test_operators_work_while_torchs_constructors_are_replaced(monkeypatch):
    """As inside deepspeed.zero.Init, which creates every tensor on the device, in one dtype."""
    original = torch.empty, torch.tensor
    for name, constructor in zip(("empty", "tensor"), original, strict=True):

        def on_the_device(*args, constructor=constructor, **kwargs):
            return constructor(*args, **{"device": "npu", **kwargs}).to(torch.bfloat16)

        monkeypatch.setattr(torch, name, on_the_device)
    x = original[1]([1.0, 2.0, 3.0], device="npu")
    assert torch.add(x, x, out=original[0](0, device="npu")).tolist() == [2, 4, 6]
    assert x.clone().normal_().dtype == torch.float32
