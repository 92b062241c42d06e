"""Device properties that CUDA code reads on a CPU and on an NPU; the values make scripts take a branch that works."""

from __future__ import annotations

from typing import Any

from .profiling import returning

# 8.0 is the first compute capability with bf16; it enables no code path for Hopper or Blackwell.
CAPABILITY = (8, 0)
# Fields of torch.cuda's device properties for which the device reports no value.
PROPERTIES: dict[str, Any] = {
    "major": CAPABILITY[0],
    "minor": CAPABILITY[1],
    "warp_size": 1,
    "max_threads_per_multi_processor": 1,
    "max_threads_per_block": 1,
    "regs_per_multiprocessor": 0,
    "shared_memory_per_block": 0,
    "shared_memory_per_block_optin": 0,
    "shared_memory_per_multiprocessor": 0,
    "L2_cache_size": 0,
    "clock_rate": 0,
    "memory_clock_rate": 0,
    "memory_bus_width": 0,
    "is_integrated": False,
    "is_multi_gpu_board": False,
    "gcnArchName": "",
    "uuid": "",
}
CUDNN: dict[str, Any] = {
    "is_available": returning(True),
    # The first cuDNN for this compute capability is 8; scripts check the version without using cuDNN.
    "version": returning(8900),
    "is_acceptable": returning(True),
}
# Programs split this version to compare it; in a build of torch without CUDA, it is None.
VERSION: dict[str, Any] = {"cuda": "12.4"}
NCCL: dict[str, Any] = {"version": returning((2, 21, 5)), "is_available": returning(True)}
# Values that NVIDIA's management library measures and no other device reports.
MEASUREMENTS = dict.fromkeys(
    ("device_memory_used", "memory_usage", "temperature", "power_draw", "clock_rate"), returning(0)
)


class _PlanCache:
    """Cache of cuFFT's plans, which other devices do not have; its size is kept and has no effect."""

    size, max_size = 0, 4096

    def clear(self) -> None:
        """Do nothing: no plan is kept."""

    def __getitem__(self, device: Any) -> _PlanCache:
        return self


BACKENDS: dict[str, Any] = {
    "is_built": returning(True),
    "cufft_plan_cache": _PlanCache(),
    # cuSOLVER and MAGMA are libraries for GPUs.
    "preferred_linalg_library": returning(None),
}
ALLOCATOR: dict[str, Any] = {"get_allocator_backend": returning("native")}
