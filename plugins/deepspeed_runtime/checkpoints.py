"""Checkpoints of DeepSpeed's own: read whole on a torch of today, and weights without the optimizer's states."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import Iterator
from typing import Any

from ascend_adapt import Symptom, wrap

from ..checkpoint_allow_list import DEEPSPEED, allowed

ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"


@wrap(
    "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine:TorchCheckpointEngine.load",
    requires=("deepspeed>=0.7,<0.16", "torch>=2.6"),
    why="torch 2.6 reads weights only by default, and refuses the classes of DeepSpeed's own in its checkpoints",
    until="support for DeepSpeed 0.15 ends",
    without="crash",
    symptom=Symptom("torch.load(path, map_location=map_location)"),
)
def load_whole_checkpoints(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read a file with the classes that DeepSpeed and Megatron's arguments have, and no others."""
    with allowed(*DEEPSPEED):
        return wrapped(*args, **kwargs)


@wrap(
    f"{ENGINE}._load_zero_checkpoint",
    requires="deepspeed>=0.7.5,<0.10.2",
    why="load_optimizer_states=False opens the files of the states all the same, which published weights lack",
    until="support for DeepSpeed 0.10.1 ends",
    without="crash",
    symptom=Symptom(reason="what is not there is the check for the files that 0.7.4 has"),
)
def states_not_asked_for(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return False, after which the engine takes its fp32 weights from the model's, where none of the files is there.

    ZeRO-3's weights are in these files: without them there is nothing to go on with.
    """
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    whole = given.get("load_optimizer_states", True) or instance.load_universal_checkpoint()
    if not whole and not instance.zero_optimization_partition_weights():
        bf16 = instance.bfloat16_enabled()
        names = (
            instance._get_all_zero_checkpoint_names(given["load_dir"], given["tag"], one) for one in (bf16, not bf16)
        )
        if not any(os.path.exists(name) for group in names for name in group):
            return False
    return wrapped(*args, **kwargs)


@wrap(
    f"{ENGINE}.load_checkpoint",
    requires="deepspeed>=0.6",
    why="an optimizer for which nothing is loaded keeps the fp32 weights that it had, and its first step puts them in "
    "the place of what was loaded: with load_optimizer_states=False of fp16 without ZeRO, and from 0.10.2 to 0.12.6 of "
    "ZeRO-1 and ZeRO-2; from 0.18.0 to 0.18.4, which save no states of bf16 without ZeRO, of that",
    until="DeepSpeed refreshes them whenever it loads weights",
    without="wrong numbers",
    symptom=Symptom(
        "load_optimizer_states and self.optimizer is not None and not has_zero_optimizer_state",
        "load_optimizer_states and self.optimizer is not None and not self.zero_optimization()",
        at=f"{ENGINE}._load_checkpoint",
    ),
)
def fp32_weights_follow(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take the optimizer's fp32 weights from the model's, where weights were loaded and nothing for the optimizer.

    Where its states were asked for, that is said. ZeRO-3 is left alone: a model's weights are in the files of its
    optimizer.
    """
    refresh = getattr(instance.optimizer, "refresh_fp32_params", None)
    if refresh is None or instance.zero_optimization_partition_weights():
        return wrapped(*args, **kwargs)
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    # After either the engine has refreshed them itself, if there was nothing to load.
    with _noting(instance, "_load_zero_checkpoint") as of_zero, _noting(instance.optimizer, "load_state_dict") as own:
        result = wrapped(*args, **kwargs)
    if result[0] is not None and not of_zero and not own:
        refresh()  # with load_module_only=True a second time, but older engines do so for fp16 alone
        if given.get("load_optimizer_states", True) and not given.get("load_module_only", False):
            logging.getLogger("ascend_adapt").warning(
                "%s: holds no states of this optimizer (DeepSpeed 0.18.0 to 0.18.4 saves none of bf16 without ZeRO), "
                "expected them — training goes on from its weights with new states; save with another release",
                result[0],
            )
    return result


@contextlib.contextmanager
def _noting(owner: Any, name: str) -> Iterator[list[bool]]:
    """Yield a list that is empty until the method of that name is called."""
    calls: list[bool] = []
    method = getattr(owner, name)

    def noting(*args: Any, **kwargs: Any) -> Any:
        calls.append(True)
        return method(*args, **kwargs)

    setattr(owner, name, noting)
    try:
        yield calls
    finally:
        delattr(owner, name)


@wrap(
    f"{ENGINE}.load_checkpoint",
    requires="deepspeed>=0.18.5",
    why="the states of a BF16_Optimizer without ZeRO, which bf16 in the pipeline engine has, are in a file of each "
    "rank, as ZeRO's, and are looked for in the model's: nothing can be resumed, it ends in KeyError: 0",
    until="DeepSpeed asks its optimizer, and not the stage, where the states are",
    without="crash",
    symptom=Symptom("has_zero_optimizer_state = self.zero_optimization()", at=f"{ENGINE}._load_checkpoint"),
)
def bf16_states_of_each_rank(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read the states of a BF16_Optimizer as those of ZeRO, as DeepSpeed did up to 0.17.5."""
    with _as_zero(instance):
        return wrapped(*args, **kwargs)


@wrap(
    f"{ENGINE}.save_checkpoint",
    requires="deepspeed>=0.18.5",
    why="beside the file of each rank the shapes of a BF16_Optimizer's parameters are left out, without which "
    "zero_to_fp32.py and universal checkpoints cannot be made of them",
    until="DeepSpeed asks its optimizer, and not the stage, where the states are",
    without="crash",
    symptom=Symptom("zero_optimizer_state = self.zero_optimization()", at=f"{ENGINE}._save_checkpoint"),
)
def bf16_shapes_are_saved(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Save what describes the states of a BF16_Optimizer as ZeRO's, as DeepSpeed did up to 0.18.4."""
    with _as_zero(instance):
        return wrapped(*args, **kwargs)


@wrap(
    "deepspeed.runtime.model_checkpointing.utils:create_universal_parallel_info",
    requires="deepspeed>=0.17.1",
    why="CROSS_SIZE and CROSS_RANK, the machines, are set by DeepSpeed's own launcher only: a checkpoint writer fails",
    until="DeepSpeed counts machines under torchrun too",
    without="crash",
    symptom=Symptom("os.environ[CROSS_SIZE]"),
)
def machines_of_checkpoint_writers(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Set them as that launcher does, from what torchrun and ascend-run set."""
    told = [os.environ.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
    if all(word.isdecimal() for word in told):
        ranks, ranks_here, machine = map(int, told)
        os.environ.setdefault("CROSS_SIZE", str(ranks // ranks_here))
        os.environ.setdefault("CROSS_RANK", str(machine))
    return wrapped(*args, **kwargs)


@contextlib.contextmanager
def _as_zero(engine: Any) -> Iterator[None]:
    """Let an engine with a BF16_Optimizer say that it has ZeRO's partitions: it has, whatever the stage."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

    if not isinstance(engine.optimizer, BF16_Optimizer):
        yield
        return
    engine.zero_optimization = lambda: True
    try:
        yield
    finally:
        del engine.zero_optimization
