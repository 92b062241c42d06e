"""Devices, memory, streams and events of the emulated CANN, through torch_npu; 2 devices of 64 MiB."""

from __future__ import annotations

import gc

import pytest
import torch

from ascend_adapt.emulation import library

LIMIT = 64 << 20


def free_bytes(device=0):
    gc.collect()
    torch.npu.empty_cache()
    return torch.npu.mem_get_info(device)[0]


def test_device_properties():
    assert library.is_emulated()
    assert torch.npu.is_available()
    assert torch.npu.device_count() == 2
    assert torch.npu.get_device_name(0) == "Ascend910B2"
    assert torch.npu.get_device_properties(0).total_memory == LIMIT


def test_a_device_beyond_the_last():
    with pytest.raises(RuntimeError, match=r"(?s)Invalid device|the emulated machine has 2"):
        torch.npu.set_device(2)


def test_memory_is_what_the_device_has():
    before = free_bytes()
    block = torch.empty(20 << 20, dtype=torch.uint8, device="npu:0")
    assert before - torch.npu.mem_get_info(0)[0] >= block.numel()
    assert torch.npu.mem_get_info(1)[0] <= LIMIT
    del block
    assert free_bytes() == before


def test_out_of_memory_is_torch_npus_own_error():
    before = free_bytes()
    with pytest.raises(
        torch.OutOfMemoryError, match=r"NPU out of memory. Tried to allocate 98.00 MiB \(NPU 0; 64.00 MiB total"
    ):
        torch.empty(96 << 20, dtype=torch.uint8, device="npu:0")
    assert free_bytes() == before
    assert torch.ones(3, device="npu:0").sum().item() == 3


def test_cached_memory_is_freed_before_an_allocation_fails():
    free_bytes()
    first = torch.empty(40 << 20, dtype=torch.uint8, device="npu:0")
    del first
    assert torch.empty(50 << 20, dtype=torch.uint8, device="npu:0").numel() == 50 << 20
    free_bytes()


def test_peak_memory_is_that_of_the_caching_allocator():
    free_bytes()
    torch.npu.reset_peak_memory_stats(0)
    base = torch.npu.memory_allocated(0)
    block = torch.empty(4 << 20, dtype=torch.uint8, device="npu:0")
    del block
    assert 0 <= torch.npu.max_memory_allocated(0) - base - (4 << 20) <= 512


def test_events_measure_time():
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.randn(300, 300, device="npu:0") @ torch.randn(300, 300, device="npu:0")
    end.record()
    end.synchronize()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 10_000


def test_streams():
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        assert torch.npu.current_stream() == side
        tensor = torch.ones(2, device="npu:0")
    torch.npu.current_stream().wait_stream(side)
    tensor.record_stream(torch.npu.current_stream())
    torch.npu.synchronize()
    assert side.query()
    assert tensor.tolist() == [1.0, 1.0]


def test_pinned_memory():
    pinned = torch.ones(4).pin_memory()
    assert pinned.is_pinned()
    assert not torch.ones(4).is_pinned()
    assert pinned.to("npu:0", non_blocking=True).tolist() == [1.0] * 4


def test_saved_and_loaded(tmp_path):
    torch.save({"weight": torch.arange(3.0, device="npu:1")}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", map_location="npu:0")
    assert (loaded["weight"].device.index, loaded["weight"].tolist()) == (0, [0.0, 1.0, 2.0])


def test_the_overflow_flag_is_cleared():
    from torch_npu.npu import utils

    assert not utils.npu_check_overflow(torch.ones(2, device="npu:0"))
