"""Fixes for DeepSpeed checkpoints: loading with torch 2.6 and newer, and loading weights without optimizer states."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from ascend_adapt import Call, Symptom, wrap
from ascend_adapt.whole_numbers import whole_number

from ..checkpoint_allow_list import DEEPSPEED, allowed

ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"


@wrap(
    "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine:TorchCheckpointEngine.load",
    name="load_full_checkpoints",
    requires=("deepspeed>=0.7,<0.16", "torch>=2.6"),
    why="torch 2.6 only reads weights by default, and refuses DeepSpeed's own classes in its checkpoints",
    until="support for DeepSpeed 0.15 ends",
    without="crash",
    symptom=Symptom("torch.load(path, map_location=map_location)"),
)
def load_checkpoint_file(call: Call) -> Any:
    """Load a checkpoint file; only allow the classes that DeepSpeed saves and those of Megatron's arguments."""
    with allowed(*DEEPSPEED):
        return call.proceed()


@wrap(
    "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine:TorchCheckpointEngine.load",
    name="restricted_unpickling",
    requires=("deepspeed>=0.16", "torch>=2.6"),
    why="these releases unpickle any class in a checkpoint, and cannot load their own checkpoints under "
    "torch's TORCH_FORCE_WEIGHTS_ONLY_LOAD=1",
    until="DeepSpeed allows the classes that it saves, and only reads weights",
    without="crash",
    symptom=Symptom("torch.load(path, map_location=map_location, weights_only=False)"),
)
def load_restricted(call: Call) -> Any:
    """Load a checkpoint file; if torch is set to load weights only, also allow the classes that DeepSpeed saves."""
    with allowed(*DEEPSPEED):
        return call.proceed()


@wrap(
    f"{ENGINE}._load_zero_checkpoint",
    requires="deepspeed>=0.7.5,<0.10.2",
    why="with load_optimizer_states=False, it still opens the optimizer files, which published weights lack",
    until="support for DeepSpeed 0.10.1 ends",
    without="crash",
    symptom=Symptom(reason="the fault is a missing check for the files, which 0.7.4 has"),
)
def skip_optimizer_states(call: Call) -> Any:
    """Return False if no optimizer file exists; the engine then copies its fp32 weights from the model.

    ZeRO-3 keeps its weights in these files, so it cannot continue without them.
    """
    engine = call.instance
    needs_states = call["load_optimizer_states"] or engine.load_universal_checkpoint()
    if not needs_states and not engine.zero_optimization_partition_weights():
        bf16 = engine.bfloat16_enabled()
        names = (engine._get_all_zero_checkpoint_names(call["load_dir"], call["tag"], one) for one in (bf16, not bf16))
        if not any(os.path.exists(name) for group in names for name in group):
            return False
    return call.proceed()


@wrap(
    f"{ENGINE}.load_checkpoint",
    requires="deepspeed>=0.6",
    why="an optimizer without loaded states keeps its old fp32 master weights, and its first step overwrites "
    "the loaded weights with them: with load_optimizer_states=False in fp16 without ZeRO, and from 0.10.2 to 0.12.6 in "
    "ZeRO-1 and ZeRO-2; from 0.18.0 to 0.18.4 in bf16 without ZeRO, for which these releases save no states",
    until="DeepSpeed refreshes the master weights whenever it loads weights",
    without="wrong numbers",
    symptom=Symptom(
        "load_optimizer_states and self.optimizer is not None and not has_zero_optimizer_state",
        "load_optimizer_states and self.optimizer is not None and not self.zero_optimization()",
        at=f"{ENGINE}._load_checkpoint",
    ),
)
def refresh_master_weights(call: Call) -> Any:
    """Copy the master weights from the model if weights were loaded but no optimizer states.

    If states were requested, a warning is logged. ZeRO-3 is not changed: its weights are in the optimizer files.
    """
    refresh = getattr(call.instance.optimizer, "refresh_fp32_params", None)
    if refresh is None or call.instance.zero_optimization_partition_weights():
        return call.proceed()
    # If either method is called, the engine has refreshed the master weights itself.
    with (
        _calls_of(call.instance, "_load_zero_checkpoint") as of_zero,
        _calls_of(call.instance.optimizer, "load_state_dict") as own,
    ):
        result = call.proceed()
    if result[0] is not None and not of_zero and not own:
        refresh()  # a second time with load_module_only=True; older engines do so for fp16 only
        if call["load_optimizer_states"] and not call["load_module_only"]:
            logging.getLogger("ascend_adapt").warning(
                "%s: has no optimizer states (DeepSpeed 0.18.0 to 0.18.4 saves none for bf16 without ZeRO), expected "
                "them — training continues from its weights with new optimizer states; save with another release",
                result[0],
            )
    return result


@contextlib.contextmanager
def _calls_of(owner: Any, name: str) -> Iterator[list[bool]]:
    """Yield a list with one entry per call of the method."""
    calls: list[bool] = []
    method = getattr(owner, name)

    def recording(*args: Any, **kwargs: Any) -> Any:
        calls.append(True)
        return method(*args, **kwargs)

    setattr(owner, name, recording)
    try:
        yield calls
    finally:
        delattr(owner, name)


@wrap(
    f"{ENGINE}.load_checkpoint",
    requires="deepspeed>=0.18.5",
    why="a BF16_Optimizer without ZeRO (bf16 in the pipeline engine) saves its states in one file per rank, as ZeRO "
    "does, but they are looked up in the model's file: no job resumes, KeyError: 0",
    until="DeepSpeed locates the states by the optimizer, not by the ZeRO stage",
    without="crash",
    symptom=Symptom("has_zero_optimizer_state = self.zero_optimization()", at=f"{ENGINE}._load_checkpoint"),
)
def bf16_optimizer_states_per_rank(call: Call) -> Any:
    """Read the states of a BF16_Optimizer from ZeRO's files, as DeepSpeed did up to 0.17.5."""
    with _as_zero(call.instance):
        return call.proceed()


@wrap(
    f"{ENGINE}.save_checkpoint",
    requires="deepspeed>=0.18.5",
    why="the parameter shapes of a BF16_Optimizer are not saved, which zero_to_fp32.py and universal checkpoints need",
    until="DeepSpeed locates the states by the optimizer, not by the ZeRO stage",
    without="crash",
    symptom=Symptom("zero_optimizer_state = self.zero_optimization()", at=f"{ENGINE}._save_checkpoint"),
)
def save_bf16_param_shapes(call: Call) -> Any:
    """Save the parameter shapes of a BF16_Optimizer as for ZeRO, as DeepSpeed did up to 0.18.4."""
    with _as_zero(call.instance):
        return call.proceed()


INFORMATION = "universal_checkpoint_info"


@wrap(
    f"{ENGINE}._save_moe_checkpoint",
    requires="deepspeed>=0.19.3",
    why="it expects universal_checkpoint_info of a model to be its dictionary, but Megatron-DeepSpeed's models have a "
    "method of that name and pass its result in client_state, which is refused, so no mixture of experts can be saved",
    until="DeepSpeed stores its dictionary under a name of its own",
    without="crash",
    symptom=Symptom("dict(universal_checkpoint_info)"),
)
def megatron_universal_checkpoint_info(call: Call) -> Any:
    """Save the universal_checkpoint_info that the caller passes, if the model has a method of that name."""
    model = call.instance.module
    if not callable(getattr(model, INFORMATION, None)):
        return call.proceed()
    call["client_state"] = state = dict(call["client_state"] or {})
    setattr(model, INFORMATION, state.pop(INFORMATION, None))
    try:
        return call.proceed()
    finally:
        delattr(model, INFORMATION)


@wrap(
    "deepspeed.runtime.model_checkpointing.utils:create_universal_parallel_info",
    requires="deepspeed>=0.17.1",
    why="only DeepSpeed's launcher sets CROSS_SIZE and CROSS_RANK (number and rank of hosts); under other launchers, "
    "checkpoint writers fail",
    until="DeepSpeed also counts hosts under torchrun",
    without="crash",
    symptom=Symptom("os.environ[CROSS_SIZE]"),
)
def checkpoint_writer_hosts(call: Call) -> Any:
    """Set both variables from those of torchrun and ascend-run."""
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    ranks, local_ranks, host = (whole_number(os.environ.get(name)) for name in names)
    if ranks and local_ranks and host is not None:
        os.environ.setdefault("CROSS_SIZE", str(ranks // local_ranks))
        os.environ.setdefault("CROSS_RANK", str(host))
    return call.proceed()


@contextlib.contextmanager
def _as_zero(engine: Any) -> Iterator[None]:
    """Make an engine with a BF16_Optimizer report ZeRO partitions, which it has at every stage."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

    if not isinstance(engine.optimizer, BF16_Optimizer):
        yield
        return
    engine.zero_optimization = lambda: True
    try:
        yield
    finally:
        del engine.zero_optimization
