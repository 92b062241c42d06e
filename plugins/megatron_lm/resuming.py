"""Fixes for checkpoints of Megatron-core's distributed optimizer with torch's Adam, without apex and TransformerEngine.

torch's Adam has one step counter per parameter.
"""

from __future__ import annotations

import copyreg
import importlib.util
import inspect
from typing import Any

from ascend_adapt import Call, Symptom, wrap

from .. import call_arguments
from .releases import HOST, REQUIRES

DISTRIBUTED = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"


@wrap(
    f"{DISTRIBUTED}.state_dict",
    requires=REQUIRES,
    host=HOST,
    why="without apex and TransformerEngine, no job resumes, because it reads the step of an optimizer without state",
    until="Megatron-core treats an empty state as step 0",
    without="crash",
    symptom=Symptom("steps = list(set([s['step'].item() for s in inner_state_dict['state'].values()]))"),
)
def optimizer_step_without_state(call: Call) -> Any:
    """Return the optimizer state; before the first step of torch's optimizer, add step 0."""
    import torch

    inner = call.instance.optimizer
    if type(inner) not in (torch.optim.Adam, torch.optim.AdamW) or inner.state:
        return call.proceed()
    parameters = [parameter for group in inner.param_groups for parameter in group["params"]]
    inner.state.update({parameter: {"step": torch.tensor(0.0)} for parameter in parameters[:1]})
    try:
        return call.proceed()
    finally:
        inner.state.clear()


@wrap(
    f"{DISTRIBUTED}._set_main_param_and_optimizer_states",
    requires=REQUIRES,
    host=HOST,
    why="without apex and TransformerEngine, it expects a saved step for each parameter, but none is saved; 0.19 "
    "uses the step of placeholder values, so that a resumed job counts its steps from 0 again",
    until="Megatron-core copies only states that the checkpoint has",
    without="wrong numbers",
    symptom=Symptom("dst_tensors[key].copy_(tensors[key])"),
)
def resume_optimizer_step(call: Call) -> Any:
    """Set the state of a parameter and keep the loaded step; run under no_grad, which 0.19 lacks for fp32 shards."""
    import torch

    given = call_arguments.expected("megatron_lm.resume_optimizer_step", ("model_param", "tensors"), call)
    parameter, tensors, optimizer = given["model_param"], given["tensors"], call.instance
    if parameter in getattr(optimizer, "model_param_group_index_map", ()):
        group, order = optimizer.model_param_group_index_map[parameter]
        state = optimizer.optimizer.state.get(optimizer.optimizer.param_groups[group]["params"][order], {})
        if "step" in state:
            tensors = {**tensors, "step": state["step"]}
    with torch.no_grad():
        return call.wrapped(parameter, tensors)


@wrap(
    f"{DISTRIBUTED}.load_state_dict",
    requires=REQUIRES,
    host=HOST,
    why="without apex and TransformerEngine, all parameters of a resumed job share and increment one step tensor",
    until="Megatron-core gives each parameter its own step tensor",
    without="wrong numbers",
    symptom=Symptom("s['step'] = step"),
)
def step_per_parameter(call: Call) -> Any:
    """Load the state, and give each parameter its own step tensor."""
    import torch

    result = call.proceed()
    for state in getattr(call.instance.optimizer, "state", {}).values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()
    return result


@wrap(
    "megatron.core.dist_checkpointing.strategies.filesystem_async:_write_item",
    requires=("megatron-core>=0.12,<0.13", "torch>=2.7"),
    host=HOST,
    why="since torch 2.7, this function of torch requires a format, which Megatron-core 0.12 does not pass",
    until="support for Megatron-core 0.12 ends",
    without="crash",
    symptom=Symptom(
        "_write_item(*transform_list, stream, data, write_item, storage_key)",
        at="megatron.core.dist_checkpointing.strategies.filesystem_async",
    ),
)
def write_item_format(call: Call) -> Any:
    """Write an item, by default in the format of torch.save."""
    if len(call.args) < 6 and "serialization_format" in inspect.signature(call.wrapped).parameters:
        from torch.distributed.checkpoint.filesystem import SerializationFormat

        call.kwargs = {"serialization_format": SerializationFormat.TORCH_SAVE, **call.kwargs}
    return call.proceed()


@wrap(
    "megatron.core.utils:get_te_version",
    requires="megatron-core>=0.12,<0.13",
    host=HOST,
    why="loading a checkpoint imports TransformerEngine to get its version, even if it is not installed",
    until="support for Megatron-core 0.12 ends",
    without="crash",
    symptom=Symptom(reason="later releases have the same import inside try"),
)
def te_version_or_0(call: Call) -> Any:
    """Return the version of TransformerEngine, or 0.0.0 if it is not installed, as later releases do."""
    from packaging.version import Version

    return call.proceed() if importlib.util.find_spec("transformer_engine") else Version("0.0.0")


@wrap(
    "torch.distributed.checkpoint.filesystem:_FileSystemWriter.finish",
    requires=("megatron-core>=0.12,<0.15", "torch>=2.9,<2.13"),
    host=HOST,
    why="Megatron-core adds an attribute to the metadata and needs it to load, but torch 2.9 to 2.12 write a copy "
    "without it, so no job resumes (pytorch issue 162948)",
    until="support for Megatron-core 0.14 ends",
    without="crash",
    symptom=Symptom(
        "metadata.mcore_data = dict(ChainMap(*(plan.mcore_data for plan in all_plans)))",
        at="megatron.core.dist_checkpointing.strategies.torch:MCoreSavePlanner.create_global_plan",
    ),
)
def keep_megatron_metadata(call: Call) -> Any:
    """Write the metadata with all attributes. The file is as written by torch 2.8, and loads without a patch."""
    call["metadata"] = _with_attributes(call["metadata"])
    return call.proceed()


def _with_attributes(metadata: Any) -> Any:
    """Return a copy of the metadata whose extra attributes survive dataclasses.replace; it pickles as the original."""
    plain, extra = type(metadata), vars(metadata).copy()

    class KeepsAttributes(plain):  # type: ignore[misc,valid-type]
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            self.__dict__.update({name: value for name, value in extra.items() if name not in fields})

        def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
            return copyreg._reconstructor, (plain, object, None), self.__dict__  # type: ignore[attr-defined]

    copied = KeepsAttributes.__new__(KeepsAttributes)
    copied.__dict__.update(extra)
    return copied
