"""Copies of gradients into the communication bucket of ZeRO-1, and from there into the partition of ZeRO-1 and ZeRO-2.

DeepSpeed copies one gradient at a time. Here the copies are deferred, and one operation makes all of them: those into
the bucket before it is reduced, those into the partition afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ascend_adapt import Symptom, wrap

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_DECLARED: dict[str, Any] = {
    "devices": ("cuda", "npu"),
    "why": "it copies one gradient at a time, so training is launch-bound on a fast device",
    "until": "DeepSpeed copies the gradients of a bucket in a few operations",
    "without": "slower",
}
_INTO_PARTITION = {"requires": ("deepspeed>=0.6.0", "torch>=2.1"), **_DECLARED}
_INTO_BUCKET = {"requires": ("deepspeed>=0.17.2", "torch>=2.1"), **_DECLARED}

# Attributes of the optimizer with the parameters whose copies are deferred: (parameter, group) for the bucket, and
# parameters for the partition.
_FOR_BUCKET, _FOR_PARTITION = "_ascend_adapt_for_bucket", "_ascend_adapt_for_partition"


@wrap(
    f"{_OPTIMIZER}.reduce_gradients",
    symptom=Symptom(
        "bucket.elements += param.numel()", at=f"{_OPTIMIZER}.reduce_independent_p_g_buckets_and_remove_grads"
    ),
    **_INTO_BUCKET,
)
def batched_copies_to_bucket(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reduce all gradients. Each full bucket is filled in one operation."""
    if not _is_plain(instance) or instance.partition_gradients or len(instance.ipg_buckets) > 1:
        return wrapped(*args, **kwargs)
    with _deferring(instance, _FOR_BUCKET):
        return wrapped(*args, **kwargs)


@wrap(
    f"{_OPTIMIZER}.reduce_independent_p_g_buckets_and_remove_grads",
    symptom=Symptom("bucket.elements += param.numel()"),
    **_INTO_BUCKET,
)
def deferred_copy_to_bucket(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Defer the copy. If the bucket is full, or the gradient needs more than a copy, do the deferred copies first."""
    deferred = instance.__dict__.get(_FOR_BUCKET)
    if deferred is None or kwargs:
        return wrapped(*args, **kwargs)
    param, group = args
    (bucket,) = instance.ipg_buckets.values()
    filled = bucket.elements + deferred.elements + param.numel()
    if filled <= instance.reduce_bucket_size and _is_ordinary(param):
        deferred.append((param, group))
        deferred.elements += param.numel()
        return None
    if deferred:
        _copy_to_bucket(instance, deferred)
    return wrapped(*args, **kwargs)


@wrap(
    f"{_OPTIMIZER}.reduce_ipg_grads",
    symptom=Symptom(reason="the fault is in copy_grads_in_partition, which it calls in a loop"),
    **_INTO_PARTITION,
)
def batched_copies_to_partition(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Reduce the bucket, then copy the gradients of this rank's partition in one operation."""
    if deferred := instance.__dict__.get(_FOR_BUCKET):
        _copy_to_bucket(instance, deferred)
    if not _is_plain(instance):
        return wrapped(*args, **kwargs)
    with _deferring(instance, _FOR_PARTITION) as deferred:
        result = wrapped(*args, **kwargs)
    if deferred:
        _copy_to_partition(instance, deferred)
    return result


@wrap(
    f"{_OPTIMIZER}.copy_grads_in_partition",
    symptom=Symptom("new_grad_tensor.copy_(param.grad.view(-1))", "new_grad_tensor.copy_(grad_reduc.view(-1))"),
    **_INTO_PARTITION,
)
def deferred_copy_to_partition(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Defer the copy, unless DeepSpeed has yet to allocate the partition, or the gradient is in it already."""
    deferred = instance.__dict__.get(_FOR_PARTITION)
    if deferred is None or kwargs or instance.grads_in_partition is None or _in_compact_buffer(instance, *args[1:]):
        return wrapped(*args, **kwargs)
    return deferred.append(args[0])


class _Deferred(list[Any]):
    """Parameters whose gradients are not copied yet. ``elements`` is the size of those for the bucket."""

    elements = 0


@contextlib.contextmanager
def _deferring(optimizer: Any, attribute: str) -> Iterator[_Deferred]:
    deferred = _Deferred()
    setattr(optimizer, attribute, deferred)
    try:
        yield deferred
    finally:
        delattr(optimizer, attribute)


def _is_plain(optimizer: Any) -> bool:
    """Return whether DeepSpeed makes gradients contiguous, and copies them on the device and the current stream."""
    return bool(optimizer.contiguous_gradients) and not optimizer.overlap_comm and not optimizer.cpu_offload


def _is_ordinary(param: Any) -> bool:
    """Return whether DeepSpeed only copies the gradient, and does nothing else with it or its bucket."""
    from deepspeed.moe.utils import is_moe_param

    return param.numel() > 0 and getattr(param, "ds_grad_is_ready", True) and not is_moe_param(param)


def _in_compact_buffer(optimizer: Any, *group: int) -> bool:
    """Return whether the reduction has added the gradient to the partition in fp32 (from DeepSpeed 0.19.8 on)."""
    return bool(group) and optimizer._use_compact_grad_partition_buffer(*group)


def _copy_to_bucket(optimizer: Any, deferred: _Deferred) -> None:
    (bucket,) = optimizer.ipg_buckets.values()
    gradients = [optimizer.get_gradient_for_reduction(param) for param, _ in deferred]
    _copy_into(gradients, bucket.buffer[bucket.index].narrow(0, bucket.elements, deferred.elements))
    bucket.elements += deferred.elements
    bucket.grads += gradients
    bucket.params += [(group, param.param_idx_in_group, optimizer.get_param_id(param)) for param, group in deferred]
    deferred.clear()
    deferred.elements = 0


def _copy_to_partition(optimizer: Any, deferred: _Deferred) -> None:
    if hasattr(optimizer, "get_gradient_for_reduction"):  # from 0.10.1 on
        gradients = [optimizer.get_gradient_for_reduction(param) for param in deferred]
    else:
        gradients = [param.grad for param in deferred]
    elements = sum(each.numel() for each in gradients)
    _copy_into(gradients, optimizer.grads_in_partition.narrow(0, optimizer.grads_in_partition_offset, elements))
    optimizer.grads_in_partition_offset += elements


def _copy_into(gradients: list[Any], space: Any) -> None:
    """Copy the gradients into ``space``, which has their total size, and make them its slices."""
    import torch

    with torch.no_grad():
        copies = torch._utils._unflatten_dense_tensors(space, gradients)
        torch._foreach_copy_(copies, gradients)
    for gradient, copy in zip(gradients, copies, strict=True):
        gradient.data = copy
