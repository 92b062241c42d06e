"""Tensor-parallel layers that communicate nothing, as plain torch operations.

Megatron-core implements them as autograd functions in Python. On a fast GPU, their overhead on the host exceeds the
time of a small model's matmuls.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from ascend_adapt import Call, Patch, Symptom, wrap

from .. import call_arguments
from .releases import HOST, REQUIRES

_LINEAR = (
    *("input", "weight", "bias", "gradient_accumulation_fusion", "allreduce_dgrad", "sequence_parallel"),
    *("grad_output_buffer", "wgrad_deferral_limit", "tp_group", "gtp_remat_size"),
)


@wrap(
    "megatron.core.tensor_parallel.layers:linear_with_grad_accumulation_and_async_allreduce",
    bodies=("f0864ab4b5f3b007", "c01aa9f62ae1ea0d", "6fc03a3c7a8996bb", "49bbbd78c172ce3a"),
    requires=REQUIRES,
    host=HOST,
    devices=("cuda", "npu"),
    why="its autograd function in Python takes longer on the host than its matmuls on the device",
    until="Megatron-core calls torch's linear if it neither communicates nor fuses gradient accumulation",
    without="slower",
    symptom=Symptom(
        "torch.matmul(total_input, weight.t())",
        at="megatron.core.tensor_parallel.layers:LinearWithGradAccumulationAndAsyncCommunication.forward",
    ),
)
def plain_linear(call: Call) -> Any:
    """Return torch's linear, which has the same matmuls. It adds a bias before rounding to 16 bits, not after."""
    given = call_arguments.known(_LINEAR, call)
    if given is None or "bias" not in given or given.get("gradient_accumulation_fusion"):
        return call.proceed()
    if given.get("allreduce_dgrad") or given.get("sequence_parallel") or given.get("gtp_remat_size", 1) != 1:
        return call.proceed()
    if given.get("grad_output_buffer") is not None:
        return call.proceed()
    import torch

    x, weight, bias = given["input"], given["weight"], given["bias"]
    if torch.is_autocast_enabled(x.device.type) or (bias is not None and bias.dtype != x.dtype):
        return call.proceed()  # there, the result has the dtype of the bias
    return torch.nn.functional.linear(x, weight, bias)


def _region(name: str, function: str, *bodies: str) -> Patch:
    """Return the patch of a function that enters or leaves a tensor-parallel region."""

    @wrap(
        f"megatron.core.tensor_parallel.mappings:{name}_tensor_model_parallel_region",
        name=f"skip_{name}_region_of_one_rank",
        bodies=bodies,
        requires=REQUIRES,
        host=HOST,
        devices=("cuda", "npu"),
        why="in a group of one rank it only calls an autograd function in Python that changes nothing",
        until="Megatron-core returns the input in a group of one rank",
        without="slower",
        symptom=Symptom(f"{function}.apply(input_, group)", f"{function}.apply(input_)"),
    )
    def region(call: Call) -> Any:
        """Return the input in a group of one rank."""
        given = call_arguments.known(("input_", "group"), call)
        if given is None or "input_" not in given:
            return call.proceed()
        group = given.get("group")
        if group is None:
            group = _parallel_state().get_tensor_model_parallel_group(check_initialized=False)
        return given["input_"] if group is not None and group.size() == 1 else call.proceed()

    return region


@functools.cache
def _parallel_state() -> Any:
    return importlib.import_module("megatron.core.parallel_state")


REGIONS = (
    _region("copy_to", "_CopyToModelParallelRegion", "0990e89451444f2c", "1b62fd8c0124d016"),
    _region("reduce_from", "_ReduceFromModelParallelRegion", "7e6fb7b179b06b7a", "81453c3adddb124c"),
    _region("scatter_to", "_ScatterToModelParallelRegion", "4536c1d00a285d57", "48366523663ab6b4"),
    _region("gather_from", "_GatherFromModelParallelRegion", "d2f9979408b2cdb9", "0077199a373e86a5"),
)
