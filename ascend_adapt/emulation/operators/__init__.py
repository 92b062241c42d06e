"""Kernels of torch_npu's operators (``npu::``) for the emulated device; only ranks import this module, after torch_npu.

Each file holds one family of operators: reference arithmetic on CPU tensors that share the npu tensors' memory. The
limits of the operators are in npu_limits. A call that a real NPU rejects, or for which it silently returns a wrong
result, raises OperatorLimit and is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ascend_adapt.emulation import graphs
from ascend_adapt.emulation.operators import (
    activations,
    adam,
    aten_gradients,
    bmm,
    boxes,
    casts,
    collective_products,
    convolution,
    cross_entropy,
    dropout,
    expert_choice,
    expert_routing,
    float_status,
    gelu,
    grouped_matmul,
    layer_norm,
    linear,
    linear_cross_entropy,
    masked_softmax,
    products,
    quantised,
    recurrent,
    ring_attention,
    rms_norm,
    roi_align,
    rotary,
    slicing,
    swiglu,
    sync_batch_norm,
    token_permutation,
    transpose,
)
from ascend_adapt.emulation.operators.fusion_attention import kernels as attention_kernels
from ascend_adapt.emulation.operators.kernel import OperatorKernel, boxed, kernels_of, on_device
from ascend_adapt.emulation.registration import override, own_kernel

FAMILIES: tuple[ModuleType, ...] = (
    attention_kernels,
    ring_attention,
    masked_softmax,
    rms_norm,
    layer_norm,
    rotary,
    swiglu,
    gelu,
    cross_entropy,
    linear_cross_entropy,
    adam,
    casts,
    bmm,
    linear,
    dropout,
    transpose,
    aten_gradients,
    float_status,
    recurrent,
    products,
    grouped_matmul,
    token_permutation,
    expert_choice,
    expert_routing,
    quantised,
    slicing,
    activations,
    convolution,
    sync_batch_norm,
    boxes,
    roi_align,
    collective_products,
)

# torch_npu's code for these operators is kept: it calls operators that have a kernel here, or reads its own records.
KEPT = (
    *("npu_format_cast", "npu_format_cast.Tensor", "get_npu_format", "get_storage_size", "npu_change_data_ptr"),
    *("npu_gather_backward", "dropout_with_byte_mask"),
)
# Since 2.13, torch_npu's code for these operators calls the operator with an underscore, which has the gradient.
_KEPT_WITH_UNDERSCORE = ("npu_moe_token_unpermute", "npu_moe_token_unpermute_with_routing_map")

_library: torch.library.Library | None = None


def register() -> list[str]:
    """Override torch_npu's kernels in this process, and return the names of the supported operators.

    A second call has no effect. Operators that the installed torch_npu does not have are skipped.
    """
    global _library
    entries = [entry for family in FAMILIES for entry in kernels_of(family)]
    schemas = {entry.operator: _schema(entry.operator) for entry in entries}
    if _library is None:
        _library = torch.library.Library("npu", "IMPL")
        for entry in entries:
            schema = schemas[entry.operator]
            kernel = None if schema is None else _kernel(entry, schema)
            if kernel is not None:
                override(_library, entry.operator, kernel, entry.dispatch_key)
    kept = (*KEPT, *(name for name in _KEPT_WITH_UNDERSCORE if schemas[f"_{name}"] is not None))
    return [f"npu::{name}" for name in (*schemas, *kept) if schemas.get(name, _schema(name)) is not None]


def _kernel(entry: OperatorKernel, schema: torch.FunctionSchema) -> Callable[..., Any] | None:
    """Return the function to register; None if it only checks the arguments of a kernel that this torch cannot call."""
    if entry.is_composed:
        return on_device(entry, schema)
    if not entry.only_checks:
        return graphs.recorded(boxed(entry, schema))
    own = own_kernel(f"npu::{entry.operator}", entry.dispatch_key)
    return None if own is None else graphs.recorded(on_device(entry, schema, own))


def _schema(operator: str) -> torch.FunctionSchema | None:
    base, _, overload = operator.partition(".")
    packet = getattr(torch.ops.npu, base, None)
    found = getattr(packet, overload or "default", None)
    schema: torch.FunctionSchema | None = None if found is None else found._schema
    return schema
