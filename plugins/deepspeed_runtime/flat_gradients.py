"""Flat gradient of ZeRO-1's partition, which DeepSpeed concatenates from gradients that are often adjacent already."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


@wrap(
    f"{_OPTIMIZER}.get_flat_partition",
    requires="deepspeed>=0.19.2",
    devices=("cuda", "npu"),
    why="the step concatenates gradients that it has just copied into one buffer in the same order",
    until="DeepSpeed copies the gradients of a partition to their places in its flat gradient",
    without="slower",
    symptom=Symptom("flat_grad_partition = self._get_preflattened_grad_partition(i)", at=f"{_OPTIMIZER}.step"),
)
def adjacent_gradients(call: Call) -> Any:
    """Return DeepSpeed's list of gradients. If they fill a buffer, it is the ``flat_partition`` that the step uses."""
    gradients = call.proceed()
    buffer = getattr(call.instance, "grads_in_partition", None)  # only if gradients are contiguous
    expected = int(call["partition_size"])
    if not isinstance(gradients, list) or buffer is None:
        return gradients
    size, start = buffer.element_size(), gradients[0].data_ptr()
    end, limit = start, buffer.data_ptr() + buffer.numel() * buffer.element_size()
    for each in gradients:
        if each.dtype != buffer.dtype or each.data_ptr() != end or not each.is_contiguous():
            return gradients
        end += each.numel() * size
    if start < buffer.data_ptr() or end > limit or end - start != expected * size:
        return gradients
    return _Adjacent(gradients, buffer.narrow(0, (start - buffer.data_ptr()) // size, expected))


class _Adjacent(list[Any]):
    """Gradients that are slices of ``flat_partition``, in its order and without gaps."""

    def __init__(self, gradients: list[Any], flat_partition: Any) -> None:
        super().__init__(gradients)
        self.flat_partition = flat_partition
