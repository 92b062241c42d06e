"""Flat gradient of ZeRO-1's partition, which is not concatenated if its gradients are adjacent in memory."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap

_OPTIMIZER = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"


@wrap(
    f"{_OPTIMIZER}.get_flat_partition",
    requires="deepspeed>=0.19.2",
    devices=("cuda", "npu"),
    why="the step concatenates gradients that are already in one buffer, in the same order",
    until="DeepSpeed copies the gradients of a partition to their places in its flat gradient",
    without="slower",
    symptom=Symptom("flat_grad_partition = self._get_preflattened_grad_partition(i)", at=f"{_OPTIMIZER}.step"),
)
def flat_gradient_without_copy(call: Call) -> Any:
    """Return DeepSpeed's list of gradients. If it has ``flat_partition``, the step does not concatenate them."""
    gradients = call.proceed()
    return _Gradients(gradients, int(call["partition_size"])) if isinstance(gradients, list) else gradients


class _Gradients(list[Any]):
    """The gradients of a partition with ``size`` elements."""

    def __init__(self, gradients: list[Any], size: int) -> None:
        super().__init__(gradients)
        self.size = size

    @property
    def flat_partition(self) -> Any:
        """The partition, if the gradients are still its slices, in order; else None, as after offload_states()."""
        first = self[0]
        end = first.data_ptr()
        for each in self:
            if each.dtype != first.dtype or each.data_ptr() != end or not each.is_contiguous():
                return None
            end += each.numel() * first.element_size()
        storage = first.untyped_storage()
        elements = (end - first.data_ptr()) // first.element_size()
        if elements != self.size or end > storage.data_ptr() + storage.nbytes():  # two storages are adjacent
            return None
        return first.as_strided((elements,), (1,))
