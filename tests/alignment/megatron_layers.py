"""Trains a small gated GPT of Megatron-core on random tokens: TENSOR_PARALLEL, and a fault or "none".

Written as for GPUs, as any script on Megatron-core's public names.
"""

import os
import sys

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import layers
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

tensor_parallel, fault = int(sys.argv[1]), sys.argv[2]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
parallel_state.initialize_model_parallel(tensor_parallel)
torch.manual_seed(1234)
model_parallel_cuda_manual_seed(1234)
config = TransformerConfig(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_query_groups=2,
    gated_linear_unit=True,
    activation_func=torch.nn.functional.silu,
    tensor_model_parallel_size=tensor_parallel,
    sequence_parallel=fault == "sequence parallel" and tensor_parallel > 1,
    use_cpu_initialization=True,
    attention_dropout=0.0,
    hidden_dropout=0.0,
)
model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=128, max_sequence_length=16).cuda()
rank = parallel_state.get_tensor_model_parallel_rank()

if fault == "skipped reduce":
    reduce = layers.reduce_from_tensor_model_parallel_region
    skipped = model.decoder.layers[1].mlp.linear_fc2

    def forward(input_):
        layers.reduce_from_tensor_model_parallel_region = lambda x, **_: x
        try:
            return type(skipped).forward(skipped, input_)
        finally:
            layers.reduce_from_tensor_model_parallel_region = reduce

    skipped.forward = forward
if fault == "wrong shard":
    weight = model.decoder.layers[0].self_attention.linear_qkv.weight
    shards = [torch.empty_like(weight) for _ in range(tensor_parallel)]
    torch.distributed.all_gather(shards, weight.detach())
    weight.data.copy_(shards[tensor_parallel - 1 - rank])
if fault == "skipped gradient reduce":
    summed = model.decoder.layers[1].self_attention.linear_qkv
    summed.allreduce_dgrad, summed.disable_grad_reduce = False, True

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
numbers = torch.Generator().manual_seed(0)
for _ in range(2):
    tokens = torch.randint(128, (2, 16), generator=numbers).cuda()
    positions = torch.arange(16, device=tokens.device).expand_as(tokens)
    future = torch.ones(1, 1, 16, 16, dtype=torch.bool, device=tokens.device).triu(1)
    model(tokens, positions, future, labels=tokens.roll(-1, 1)).mean().backward()
    for each in model.parameters():
        if getattr(each, "sequence_parallel", False):
            torch.distributed.all_reduce(each.grad, group=parallel_state.get_tensor_model_parallel_group())
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
