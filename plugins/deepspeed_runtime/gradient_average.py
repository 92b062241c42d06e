"""Average of the gradients over the data-parallel ranks in ZeRO-1 and ZeRO-2, skipped if there is one rank."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.average_tensor",
    requires="deepspeed>=0.17.2",
    devices=("cuda", "npu"),
    why="with one data-parallel rank it looks up each parameter's owner, divides by one and reduces over one rank",
    until="DeepSpeed skips the average with one data-parallel rank",
    without="slower",
    symptom=Symptom(reason="the fault is a missing condition; before 0.17.2 the bucket is in other attributes"),
)
def skip_average_of_one_rank(call: Call) -> Any:
    """Do nothing if DeepSpeed would only divide the gradients by one and reduce them over one rank."""
    return None if _is_identity(call.instance, call["tensor"], call["communication_data_type"]) else call.proceed()


def _is_identity(optimizer: Any, tensor: Any, dtype: Any) -> bool:
    from deepspeed import comm

    adds_to_partition = getattr(optimizer, "_use_compact_grad_partition_buffer", None)  # in fp32; since 0.19.8
    return (
        comm.get_world_size(group=optimizer.dp_process_group) == 1
        and optimizer.sequence_parallel_size == 1
        and optimizer.reduce_scatter
        and not optimizer.has_moe_layers
        and not optimizer.ipg_buckets[dtype].has_moe_params
        and not optimizer.overlap_comm  # which also synchronizes streams
        and not optimizer.cpu_offload
        and tensor.dtype == dtype  # nothing is rounded
        and not (adds_to_partition and any(map(adds_to_partition, range(len(optimizer.bit16_groups)))))
    )
