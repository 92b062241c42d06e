"""The minimal GPT (``bench.gpu.peers.minimal_gpt``) under DDP and under FSDP2, both compiled; torch of the machine.

DDP: fp32 weights, the module compiled after DDP has wrapped it, autocast to bf16, gradients reduced in fp32. FSDP2:
fp32 shards, bf16 weights, gradients reduced in fp32; each block is compiled and sharded, and reshards after forward, as
in torchtitan.
"""

from __future__ import annotations

from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.peers import loop, minimal_gpt


def ddp(config: Any, clock: Clock) -> None:
    """Train under DistributedDataParallel, compiled."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from ascend_adapt.native import device as devices

    loop.start_ranks(clock.on_cpu)
    device = devices.of_this_rank()
    model = minimal_gpt.model_of(config)
    compiled = torch.compile(DistributedDataParallel(model, gradient_as_bucket_view=True))

    def loss_of(tokens: Any) -> Any:
        with torch.autocast(device.type, torch.bfloat16):
            return compiled(tokens)

    loop.train(config, clock, model, loss_of)


def fsdp2(config: Any, clock: Clock) -> None:
    """Train under fully_shard, block by block."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    loop.start_ranks(clock.on_cpu)
    model = minimal_gpt.model_of(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    loop.train(config, clock, model, model)
