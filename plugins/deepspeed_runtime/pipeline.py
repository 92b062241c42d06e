"""Fixes for pipeline parallelism: gradients, partition metadata, results of evaluation, timers."""

from __future__ import annotations

import inspect
import math
from typing import Any

from ascend_adapt import Call, Patch, Symptom, add, rewrite, wrap

ENGINE = "deepspeed.runtime.pipe.engine:PipelineEngine"
FROM_META = "deepspeed.runtime.utils:PartitionedTensor.from_meta"

# The tail is [grad, grad of the mask]; later, the last element is popped as the gradient of the mask. Without the None,
# this removes the gradient itself. PipelineEngine._INSTRUCTION_MAP holds the same function object, so it changes too.
keep_missing_grads = rewrite(
    f"{ENGINE}._exec_send_grads",
    old="[elt.grad for elt in inputs[1:] if elt.grad is not None]",
    new="[elt.grad for elt in inputs[1:]]",
    name="keep_missing_grads",
    requires="deepspeed>=0.6,<0.11.2",
    why="with model parallelism and a mask between stages, the gradient is popped instead of "
    "the mask's gradient: IndexError",
    until="support for DeepSpeed 0.11.1 ends (fixed by pull request 2538)",
    without="crash",
)


@wrap(
    FROM_META,
    requires="deepspeed>=0.6",
    why="a backend that sends int64 as int32 delivers int32 metadata, which fails the assertion on its dtype",
    until="no backend narrows int64",
    without="crash",
    symptom=Symptom("assert meta.dtype == torch.long"),
)
def widen_partition_metadata(call: Call) -> Any:
    """Convert int32 metadata to int64, after checking that no value was changed by narrowing."""
    import torch

    meta = call["meta"]
    if meta.dtype == torch.int32:
        check_partition_metadata(meta.tolist())
        call["meta"] = meta.long()
    return call.proceed()


def check_partition_metadata(meta: list[int]) -> None:
    """Check partition metadata for consistency: [N, d_1 .. d_N, parts, rank, 0, end_1 .. end_parts].

    Raises:
        OverflowError: narrowing changed a value.
    """
    dims = meta[1 : 1 + meta[0]]
    ends = meta[3 + meta[0] :]
    if min(meta) < 0 or ends != sorted(ends) or math.prod(dims) != ends[-1]:
        raise OverflowError(
            f"partition metadata {meta}: a tensor of {dims} has {math.prod(dims)} elements, but its parts end at "
            f"{ends[-1]} — the backend narrowed int64 and changed values; use smaller micro batches, or send int64"
        )


@wrap(
    FROM_META,
    requires="deepspeed>=0.6",
    why="the default device is evaluated at import, possibly before the accelerator is set",
    until="DeepSpeed evaluates the default in the call",
    without="crash",
    symptom=Symptom("'cuda'", "get_accelerator().device_name()"),
)
def partition_on_current_device(call: Call) -> Any:
    """Use the device of the received data, unless the caller passes a device."""
    if len(call.args) < 4 and "device" not in call.kwargs:
        call.kwargs["device"] = call["local_part"].device
    return call.proceed()


def takes_return_logits(eval_batch: Any) -> str:
    """Return why the patch is not needed if ``eval_batch`` has the parameter, else ``""``."""
    return "eval_batch accepts return_logits" if "return_logits" in inspect.signature(eval_batch).parameters else ""


@wrap(
    f"{ENGINE}.eval_batch",
    requires="deepspeed>=0.6,<0.6.3",
    unless=takes_return_logits,
    why="GPT-NeoX passes return_logits=, an argument that does not exist before 0.6.3",
    until="support for DeepSpeed 0.6.1 ends",
    without="crash",
)
def eval_batch_with_logits(call: Call) -> Any:
    """Return (loss, logits of the last micro batch or None) if logits are requested, as 0.6.3 does."""
    if not call.kwargs.pop("return_logits", False):
        return call.proceed()
    engine = call.instance
    engine._ascend_adapt_keeps_outputs, engine._ascend_adapt_outputs = True, None
    try:
        return call.proceed(), engine._ascend_adapt_outputs
    finally:
        del engine._ascend_adapt_keeps_outputs, engine._ascend_adapt_outputs


@wrap(
    f"{ENGINE}._exec_forward_pass",
    requires="deepspeed>=0.6,<0.6.3",
    why="eval_batch_with_logits needs the last stage's outputs, which are freed before eval_batch returns",
    until="support for DeepSpeed 0.6.1 ends",
    without="crash",
    symptom=Symptom(reason="the method is only replaced for eval_batch_with_logits"),
)
def keep_last_outputs(call: Call) -> None:
    """Keep the outputs of the last stage while eval_batch_with_logits runs."""
    engine = call.instance
    call.proceed()
    if getattr(engine, "_ascend_adapt_keeps_outputs", False) and engine.is_last_stage():
        engine._ascend_adapt_outputs = engine.pipe_buffers["outputs"][call["buffer_id"]]


@add(
    f"{ENGINE}.set_has_attention_mask",
    requires="deepspeed>=0.6,<0.6.3",
    why="GPT-NeoX calls it unconditionally, but the method does not exist before 0.6.3",
    until="support for DeepSpeed 0.6.1 ends",
    without="crash",
)
def set_has_attention_mask(self: Any, value: bool) -> None:
    """Set has_bool_tensors, which before 0.6.3 selects the same branches as the new attribute."""
    self.has_bool_tensors = value


def _timed_once(method: str) -> Patch:
    @wrap(
        f"{ENGINE}.{method}",
        name=f"backward_timer_{method.split('_')[1]}",
        requires="deepspeed>=0.18.3",
        why="with wall_clock_breakdown, all stages but the last time their backward pass, and since 0.18.3 hooks "
        "also time it: AssertionError: bwd_microstep timer has already been started",
        until="DeepSpeed's pipeline engine leaves its timers to the hooks",
        without="crash",
        symptom=Symptom("self._backward_prologue", at="deepspeed.runtime.engine:DeepSpeedEngine.forward"),
    )
    def timed_once(call: Call) -> None:
        """Skip the hooks' backward timers, except on the last stage; the other stages time the pass themselves."""
        (names,) = (*call.args, *call.kwargs.values())
        timers = call.instance.engine_timers
        of_backward = names is timers.backward_timers or names is timers.backward_inner_timers
        if call.instance.is_last_stage() or not of_backward:
            call.proceed()

    return timed_once


TIMERS = tuple(map(_timed_once, ("_start_timers", "_stop_timers")))
