"""Train a small GPT on Megatron-core's public names, written as for GPUs: nothing here knows of an NPU."""

import argparse
import os
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="prefix of a .bin and .idx")
parser.add_argument("--tensor-parallel", type=int, default=1)
parser.add_argument("--pipeline-parallel", type=int, default=1)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--hidden", type=int, default=128)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--sequence", type=int, default=64)
parser.add_argument("--micro-batch", type=int, default=2)
parser.add_argument("--micro-batches", type=int, default=2)
parser.add_argument("--vocabulary", type=int, default=50304)
parser.add_argument("--bf16", action="store_true")
known = parser.parse_args()

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
parallel_state.initialize_model_parallel(known.tensor_parallel, known.pipeline_parallel)
torch.manual_seed(1234)
model_parallel_cuda_manual_seed(1234)

dtype = torch.bfloat16 if known.bf16 else torch.float32
config = TransformerConfig(
    num_layers=known.layers,
    hidden_size=known.hidden,
    num_attention_heads=known.heads,
    tensor_model_parallel_size=known.tensor_parallel,
    pipeline_model_parallel_size=known.pipeline_parallel,
    pipeline_dtype=dtype,
    params_dtype=dtype,
    bf16=known.bf16,
    use_cpu_initialization=True,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    recompute_granularity="full",
    recompute_method="uniform",
    recompute_num_layers=1,
)
model = GPTModel(
    config=config,
    transformer_layer_spec=get_gpt_layer_local_spec(),
    vocab_size=known.vocabulary,
    max_sequence_length=known.sequence,
    pre_process=parallel_state.is_pipeline_first_stage(),
    post_process=parallel_state.is_pipeline_last_stage(),
    share_embeddings_and_output_weights=True,
).cuda()
if known.bf16:
    model = model.bfloat16()
distribution = DistributedDataParallelConfig(use_distributed_optimizer=True)
model = DistributedDataParallel(config, distribution, model)
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-3, bf16=known.bf16, params_dtype=dtype, use_distributed_optimizer=True),
    [model],
)
config.grad_scale_func = optimizer.scale_loss
config.finalize_model_grads_func = finalize_model_grads

text = IndexedDataset(known.data)


def batches():
    """Yield tokens [B, S] and labels [B, S], documents one after the other, all ranks of a model the same."""
    tokens, document, need = [], 0, known.micro_batch * known.sequence + 1
    while True:
        while len(tokens) < need:
            tokens.extend(int(token) for token in text[document])
            document = (document + 1) % len(text)
        taken = torch.tensor(tokens[:need]).cuda()
        del tokens[: need - 1]
        yield taken[:-1].view(known.micro_batch, -1), taken[1:].view(known.micro_batch, -1)


def loss_of(losses):
    """Return the mean loss of a micro batch, and what is reported."""
    loss = losses.float().mean()
    return loss, {"loss": loss.detach().clone()}


def forward(data, model):
    """Return what the model says of the next micro batch, and how the loss follows from it."""
    tokens, labels = next(data)
    positions = torch.arange(known.sequence, device=tokens.device).expand_as(tokens)
    future = torch.ones(1, 1, known.sequence, known.sequence, dtype=torch.bool, device=tokens.device).triu(1)
    return model(tokens, positions, future, labels=labels), partial(loss_of)


data = batches()
for step in range(known.steps):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    reported = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=data,
        model=[model],
        num_microbatches=known.micro_batches,
        seq_length=known.sequence,
        micro_batch_size=known.micro_batch,
        forward_only=False,
    )
    _, norm, _ = optimizer.step()
    if reported and parallel_state.get_tensor_model_parallel_rank() == 0:
        loss = torch.stack([one["loss"] for one in reported]).mean()
        print(f"step {step} loss: {loss.item():.6f} norm: {float(norm):.5f}", flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
