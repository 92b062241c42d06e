"""Unmodified DeepSpeed (0.19.8) ZeRO-1 around transformers' GPT-2 with its default attention (SDPA), without and with
``ascend_adapt.enable()``.

bf16 with fp32 master weights, and DeepSpeed's default AdamW; on a CPU, to test this file, torch's AdamW.
"""

from __future__ import annotations

import os
from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.peers import hugging_face, loop


def plain(config: Any, clock: Clock, *, compiled: bool = False) -> None:
    """Train as in a user's script, with the model under torch.compile if ``compiled``."""
    loop.start_ranks(clock.on_cpu)
    if clock.on_cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import torch

    if clock.on_gpu:  # DeepSpeed cannot read "9.0a", which an image may set
        os.environ["TORCH_CUDA_ARCH_LIST"] = "{}.{}".format(*torch.cuda.get_device_capability())
    import deepspeed

    settings = {
        "train_micro_batch_size_per_gpu": config.batch.micro,
        "gradient_accumulation_steps": config.batch.accumulation,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": loop.LR, "weight_decay": loop.WEIGHT_DECAY, "torch_adam": not clock.on_gpu},
        },
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
    }
    model = hugging_face.model_of(config)
    if compiled:
        model = torch.compile(model)
    engine, *_ = deepspeed.initialize(model=model, config=settings, model_parameters=model.parameters())

    def step(parts: list[Any]) -> Any:
        losses = []
        for tokens in parts:
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    loop.steps(config, clock, step)
