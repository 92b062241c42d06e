"""CUDA extensions of Megatron-LM's legacy models, which every training run loads."""

from __future__ import annotations

from ascend_adapt import Call, Symptom, wrap

from .releases import LEGACY


@wrap(
    "megatron.legacy.fused_kernels:load",
    host=LEGACY,
    why="it runs nvcc to get its version, but builds nothing; without the CUDA toolkit, nvcc is missing",
    until="support for Megatron-LM 0.16 ends",
    without="crash",
    symptom=Symptom(reason="the source archives of megatron-core do not contain megatron.legacy"),
)
def no_cuda_extensions(call: Call) -> None:
    """Build nothing."""
