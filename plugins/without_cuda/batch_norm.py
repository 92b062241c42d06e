"""SyncBatchNorm on a CPU, for which torch has no kernels. Source: torch 2.13 nn/modules/_functions.py."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "torch.nn.modules.batchnorm:SyncBatchNorm.forward",
    devices="cpu",
    why="SyncBatchNorm rejects host tensors as soon as a process group exists",
    until="torch synchronizes batch norms over gloo",
    without="crash",
    symptom=Symptom(reason="each release of torch lists other devices in the same check"),
)
def synchronized_batch_norm(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Normalize the input [N, C, ...] by the mean and variance of all ranks' inputs, with synchronized gradients."""
    import torch
    import torch.distributed as dist

    x = args[0] if args else kwargs["input"]
    synchronizes = instance.training and dist.is_available() and dist.is_initialized()
    if x.device.type != "cpu" or not synchronizes:
        return wrapped(*args, **kwargs)
    from torch.distributed.nn.functional import all_reduce

    group = instance.process_group or dist.group.WORLD
    axes, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    count = all_reduce(wide.new_tensor([wide.numel() / wide.shape[1]]), group=group)
    mean = all_reduce(wide.sum(axes), group=group) / count
    centred = wide - mean.view(shape)
    squares = all_reduce(centred.square().sum(axes), group=group)
    if instance.track_running_stats:
        with torch.no_grad():
            instance.num_batches_tracked.add_(1)
            factor = instance.momentum if instance.momentum is not None else 1 / instance.num_batches_tracked.item()
            instance.running_mean.lerp_(mean.to(instance.running_mean.dtype), factor)
            instance.running_var.lerp_((squares / (count - 1)).to(instance.running_var.dtype), factor)
    normed = centred * torch.rsqrt(squares / count + instance.eps).view(shape)
    if instance.affine:
        normed = normed * instance.weight.view(shape) + instance.bias.view(shape)
    return normed.to(x.dtype)


@wrap(
    "torch.nn.parallel.distributed:DistributedDataParallel._passing_sync_batchnorm_handle",
    devices="cpu",
    why="DistributedDataParallel rejects SyncBatchNorm in host memory, where synchronized_batch_norm makes it work",
    until="torch synchronizes batch norms over gloo",
    without="crash",
    symptom=Symptom('self.device_type == "cpu"'),
)
def synchronized_batch_norm_in_data_parallel(call: Call) -> None:
    """Accept SyncBatchNorm in host memory."""
