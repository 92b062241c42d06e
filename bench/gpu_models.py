"""Times one training job on one GPU; gpu_kernels.py starts it twice, with and without enable().

``python bench/gpu_models.py MODEL [--adapt] [--compile] [--micro-batch N] [--steps N]`` prints one JSON line.
Needs megatron-core, or deepspeed and transformers. Random tokens; dropout 0.1 as in both code bases.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

LAYERS, HIDDEN, HEADS, LENGTH, VOCABULARY = 24, 1024, 16, 1024, 50257
WARM_UP = 4


def megatron(batch: int, compiled: bool) -> tuple[Callable[[], Any], int]:
    """Unmodified Megatron-core: local layer spec, its DDP, its mixed-precision optimizer, the loader's causal mask."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(1, 1)
    torch.manual_seed(1234)  # its position embeddings are initialised on the CPU
    model_parallel_cuda_manual_seed(1234)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        masked_softmax_fusion=False,  # its extension modules come with apex
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        gradient_accumulation_fusion=False,
        attention_softmax_in_fp32=True,
    )
    padded = -(-VOCABULARY // 128) * 128
    model: Any = GPTModel(config, get_gpt_layer_local_spec(), padded, LENGTH, share_embeddings_and_output_weights=True)
    model = model.cuda().bfloat16()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    settings = OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, clip_grad=1.0)
    optimizer = get_megatron_optimizer(settings, [model])
    tokens = random_tokens(batch, LENGTH + 1)
    places = torch.arange(LENGTH, device="cuda").expand(batch, LENGTH).contiguous()

    def step() -> Any:
        model.zero_grad_buffer()
        optimizer.zero_grad()
        mask = torch.tril(torch.ones(1, 1, LENGTH, LENGTH, device="cuda")) < 0.5
        loss = model(tokens[:, :-1].contiguous(), places, mask, labels=tokens[:, 1:].contiguous()).float().mean()
        loss.backward()
        finalize_model_grads([model])
        optimizer.step()
        return loss.detach()

    return step, sum(each.numel() for each in model.parameters())


def hugging_face(batch: int, compiled: bool) -> tuple[Callable[[], Any], int]:
    """Unmodified DeepSpeed ZeRO-1 around transformers' GPT-2, its default attention (SDPA)."""
    import deepspeed
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, n_embd=HIDDEN, n_head=HEADS))
    parameters = sum(each.numel() for each in model.parameters())
    config = {
        "train_micro_batch_size_per_gpu": batch,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
    }
    if compiled:
        model = torch.compile(model)
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    tokens = random_tokens(batch, LENGTH)

    def step() -> Any:
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step, parameters


MODELS = {"megatron": megatron, "hugging_face": hugging_face}


def random_tokens(*shape: int) -> Any:
    """The same tokens in every run."""
    import torch

    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(0)).cuda()


def busy_ms(step: Callable[[], Any], steps: int = 2) -> float:
    """Return the GPU busy time of a step in milliseconds: the sum of its kernels' times."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    spans = [event.time_range for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(span.end - span.start for span in spans) / steps / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--adapt", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29577")
    status = None
    if options.adapt:
        import ascend_adapt

        ascend_adapt.enable()
    import torch

    torch.cuda.set_device(0)
    step, parameters = MODELS[options.model](options.micro_batch, options.compile)
    losses = [step() for _ in range(WARM_UP)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(options.steps):
        start = time.perf_counter()
        losses.append(step())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**30
    if options.adapt:
        status = {each.patch: each.state for each in ascend_adapt.status().outcomes if each.state != "skipped"}
    middle = statistics.median(seconds)
    tokens = options.micro_batch * LENGTH
    # Forward and backward of every parameter, and of the scores, without the saving of causal masks.
    work = tokens * (6 * parameters + 12 * LAYERS * HIDDEN * LENGTH)
    result = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "step_ms": middle * 1e3,
        "busy_ms": busy_ms(step),
        "tflops": work / middle / 1e12,
        "peak_gib": peak,
        "losses": [float(loss) for loss in losses],
        "status": status,
    }
    print(json.dumps(result))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
