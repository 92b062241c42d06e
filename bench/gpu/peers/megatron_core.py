"""Unmodified Megatron-core (0.19.2): local layer spec, its DDP, its mixed-precision optimizer and, in a pipeline, its
1F1B schedule, without and with ``ascend_adapt.enable()``.

Weights are bf16 with fp32 master weights, gradients are reduced in fp32, the head is tied. The mask is the one of its
data loader. On a CPU, to test this file, it runs only with ``enable()``, because upstream gets its device from CUDA.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from bench.gpu.clock import Clock
from bench.gpu.peers import loop


def plain(config: Any, clock: Clock) -> None:
    """Train as in upstream's training loop; without apex, the local layers do not support sequence parallelism."""
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # upstream requires it
    import torch

    loop.start_ranks(clock.on_cpu)
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig

    shape, length, parallel = config.model, config.data.seq_length, config.parallel
    parallel_state.initialize_model_parallel(parallel.tensor, parallel.pipeline)
    torch.manual_seed(1234)  # its position embeddings are initialised on the CPU
    model_parallel_cuda_manual_seed(1234)
    settings = TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        hidden_dropout=shape.hidden_dropout,
        attention_dropout=shape.attention_dropout,
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        masked_softmax_fusion=False,  # its extension modules come with apex
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        gradient_accumulation_fusion=False,
        attention_softmax_in_fp32=True,
        use_cpu_initialization=clock.on_cpu,
    )
    model: Any = GPTModel(
        settings,
        get_gpt_layer_local_spec(),
        shape.padded_vocab_size,
        length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
    )
    device = "cpu" if clock.on_cpu else "cuda"
    model = model.to(device).bfloat16()
    model = DistributedDataParallel(settings, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=loop.LR, bf16=True, params_dtype=torch.bfloat16, clip_grad=1.0), [model]
    )
    settings.grad_scale_func, settings.finalize_model_grads_func = optimizer.scale_loss, finalize_model_grads
    places = torch.arange(length, device=device).expand(config.batch.micro, length).contiguous()

    def loss_of(output: Any) -> Any:
        loss = output[:, :-1].float().mean()
        return loss, {"loss": loss.detach()}

    def forward(parts: Any, model: Any) -> Any:
        tokens = next(parts)
        mask = torch.tril(torch.ones(1, 1, length, length, device=device)) < 0.5
        return model(tokens, places, mask, labels=tokens.roll(-1, 1)), partial(loss_of)

    def step(parts: list[Any]) -> Any:
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(parts),
            model=[model],
            num_microbatches=len(parts),
            seq_length=length,
            micro_batch_size=config.batch.micro,
            forward_only=False,
        )
        optimizer.step()
        return torch.stack([one["loss"] for one in losses]).mean() if losses else torch.zeros(())

    loop.steps(config, clock, step)
