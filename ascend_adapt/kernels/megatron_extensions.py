"""Megatron's fused softmax extensions on any device, with the exact masking of each fork.

The functions are those of the extensions: ``forward(x, scale)``, ``forward(x, mask, scale)``, ``backward(grad, y,
scale)`` and ``get_batch_per_block(sq, sk, b, np)``; ``scale`` is a number or a one-element tensor. Unlike some
extensions, backward never writes to its arguments, and any float dtype and length is accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels.operators.masked_softmax import EXACT, FINITE, FINITE_ZEROED, masked_softmax_as

MODULES = ("scaled_masked_softmax_cuda", "scaled_upper_triang_masked_softmax_cuda", "scaled_softmax_cuda")
FILLS = {
    # EleutherAI/gpt-neox@9610391a (v2.0) megatron/fused_kernels/scaled_masked_softmax.h
    "gpt-neox": FINITE,
    # NVIDIA/Megatron-LM@be473a5b (v2.0) to 3860e995 (v2.6) megatron/fused_kernels/scaled_masked_softmax.h
    "megatron-lm-2": FINITE,
    # NVIDIA/Megatron-LM@2360d732 (23.04), and since cd126362 Apex's: NVIDIA/apex@6424da3b csrc/megatron
    "megatron-lm": FINITE_ZEROED,
    # deepspeedai/Megatron-DeepSpeed@4efb479d megatron/fused_kernels/scaled_masked_softmax.h
    "megatron-deepspeed": FINITE_ZEROED,
    # bigscience-workshop/Megatron-DeepSpeed@8387ae17 megatron/fused_kernels/scaled_masked_softmax.h
    "bigscience-megatron-deepspeed": EXACT,
}
"""Fill value of masked-out scores in each fork."""


def fill_module(module: ModuleType, fork: str, *, numerics: str | None = None) -> None:
    """Fill ``module``, named like one of MODULES, with that extension's functions.

    Args:
        module: an empty module.
        fork: one of FILLS.
        numerics: ``upstream`` gives the results of the fork's extension. With ``exact``, masked entries and fully
            masked rows are exactly 0. None stands for ASCEND_ADAPT_NUMERICS, else upstream.

    Raises:
        KernelArgumentError: the module, fork or numerics is unknown.
    """
    if fork not in FILLS:
        raise KernelArgumentError(f"fork {fork!r}: expected one of {', '.join(FILLS)} — correct it")
    numerics = numerics or os.environ.get("ASCEND_ADAPT_NUMERICS") or "upstream"
    if numerics not in ("upstream", "exact"):
        raise KernelArgumentError(f"numerics {numerics!r}: expected upstream or exact — correct it")
    vars(module).update(functions(module.__name__, EXACT if numerics == "exact" else FILLS[fork], numerics))


def functions(name: str, fill: str, numerics: str = "upstream") -> dict[str, Callable[..., Any]]:
    """Return the functions of one of MODULES, by name."""

    def rounded(scale: Any, x: torch.Tensor) -> float:
        # In the extensions, forward rounds the scale to the dtype of the scores, and backward uses it in fp32.
        return float(scale) if numerics == "exact" else float(torch.tensor(float(scale), dtype=x.dtype))

    def masked(x: torch.Tensor, mask: torch.Tensor, scale: Any) -> torch.Tensor:
        _check_dims(name, x=(x, 4), mask=(mask, 4))
        # The extension's mask is uint8, and only the value 1 masks.
        masked_out = mask if mask.dtype == torch.bool else mask == 1
        with torch.no_grad():
            return _tensor(masked_softmax_as(fill, x, masked_out=masked_out, scale=rounded(scale, x)))

    def causal(x: torch.Tensor, scale: Any) -> torch.Tensor:
        _check_dims(name, x=(x, 3))
        if x.shape[1] != x.shape[2]:
            raise KernelArgumentError(f"{name}: x has shape {list(x.shape)}, expected [B * N, S, S] — reshape it")
        with torch.no_grad():
            return _tensor(masked_softmax_as(EXACT, x, causal=True, scale=rounded(scale, x)))

    def plain(x: torch.Tensor, scale: Any) -> torch.Tensor:
        with torch.no_grad():
            return _tensor(masked_softmax_as(EXACT, x, scale=rounded(scale, x)))

    if name == "scaled_masked_softmax_cuda":
        return {"forward": masked, "backward": backward, "get_batch_per_block": get_batch_per_block}
    if name == "scaled_upper_triang_masked_softmax_cuda":
        return {"forward": causal, "backward": backward}
    if name == "scaled_softmax_cuda":
        return {"forward": plain, "backward": backward}
    raise KernelArgumentError(f"module {name!r}: expected one of {', '.join(MODULES)} — correct it")


def backward(output_grads: torch.Tensor, softmax_results: torch.Tensor, scale: Any) -> torch.Tensor:
    """Softmax gradient: return the gradient of the scores, computed in fp32 and rounded once."""
    if output_grads.shape != softmax_results.shape:
        raise KernelArgumentError(
            f"output_grads {list(output_grads.shape)}, softmax_results {list(softmax_results.shape)}: expected one "
            "shape — pass the results of the same forward"
        )
    factor, dtype = float(scale), softmax_results.dtype
    if factor == 1.0:
        return _tensor(torch._softmax_backward_data(output_grads.to(dtype), softmax_results, -1, dtype))
    exact = torch.promote_types(dtype, torch.float32)
    grads, results = output_grads.to(exact), softmax_results.to(exact)
    return _tensor(torch._softmax_backward_data(grads, results, -1, exact).mul_(factor).to(dtype))


def get_batch_per_block(query_seq_len: int, key_seq_len: int, batches: int, attn_heads: int) -> int:
    """Return the rows per CUDA block of 128 threads. Callers use the kernel only for multiples of this number.

    Source: NVIDIA/Megatron-LM@3860e995 megatron/fused_kernels/scaled_masked_softmax.h get_batch_per_block.
    """
    columns = 1 << max(0, key_seq_len - 1).bit_length()
    warp = min(columns, 32)
    return 128 // warp * (2 if columns <= 128 else 1)


def _check_dims(name: str, **tensors: tuple[torch.Tensor, int]) -> None:
    for argument, (tensor, dims) in tensors.items():
        if tensor.dim() != dims:
            raise KernelArgumentError(
                f"{name}: {argument} has shape {list(tensor.shape)}, expected {dims} axes — reshape it"
            )


def _tensor(value: Any) -> torch.Tensor:
    result: torch.Tensor = value
    return result
