"""Train Megatron-core's own GPTModel and the native one from the same weights on the same batches, side by side.

Usage: beside_megatron_core.py MODEL STEPS, with megatron-core importable. Prints its version and the losses and
gradient norms of both as JSON. Model and loss are Megatron-core's, unmodified. Its optimizer cannot be made on a CPU:
torch's AdamW with Megatron's two groups, and torch's clipping, stand for it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from importlib.metadata import version

import torch
import torch.distributed as dist
from small_models import LENGTH, MODELS, batch, config

from ascend_adapt.native import mesh as meshes
from ascend_adapt.native.trainer import Trainer

NAMES = {
    "embedding.word_embeddings": "embedding.words",
    "embedding.position_embeddings": "embedding.positions",
    "decoder.final_layernorm": "final_norm",
    "output_layer": "head",
    "decoder.layers": "layers",
    "input_layernorm": "input_norm",
    "pre_mlp_layernorm": "post_attention_norm",
    "self_attention.linear_qkv": "attention.query_key_value",
    "self_attention.linear_proj": "attention.dense",
    "mlp.linear_fc1": "mlp.dense_h_to_4h",
    "mlp.linear_fc2": "mlp.dense_4h_to_h",
}
LR, DECAY, CLIP = 3e-3, 0.1, 1.0


def megatrons(model):
    """Return Megatron-core's model of the same sizes."""
    # There is no CUDA here: its buffers go where the model is, and without dropout it draws no numbers.
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda self, *_: contextlib.nullcontext()
    parallel_state.initialize_model_parallel()
    norm = "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"
    tanh = functools.partial(torch.nn.functional.gelu, approximate="tanh")
    activation = {"gelu": torch.nn.functional.gelu, "gelu_tanh": tanh, "swiglu": torch.nn.functional.silu}
    settings = TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=model.head_dim,
        ffn_hidden_size=model.ffn_hidden_size,
        normalization=norm,
        layernorm_epsilon=model.norm_eps,
        add_bias_linear=model.mlp_bias,
        gated_linear_unit=model.gated,
        activation_func=activation[model.activation],
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
    )
    return GPTModel(
        config=settings,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization=norm),
        vocab_size=model.padded_vocab_size,
        max_sequence_length=LENGTH,
        position_embedding_type="rope" if model.positions == "rotary" else "learned_absolute",
        rotary_percent=model.rotary_fraction,
        share_embeddings_and_output_weights=model.tied_embeddings,
    )


@torch.no_grad()
def copy(trainer, theirs):
    """Fill Megatron's parameters with ours, by assignment."""
    ours = {one.name: one.local for one in trainer.parameters}
    left = set(ours)
    for name, parameter in theirs.named_parameters():
        mine = name
        for old, new in NAMES.items():
            mine = mine.replace(old, new)
        left.discard(mine)
        values = ours[mine]
        gate = mine.replace("dense_h_to_4h", "gate")
        if gate != mine and gate in ours:
            values = torch.cat([ours[gate], values])
            left.discard(gate)
        parameter.copy_(values)
    assert not left, f"not copied: {left}"


def train_theirs(theirs, settings, steps):
    matrices = [one for one in theirs.parameters() if one.dim() > 1]
    others = [one for one in theirs.parameters() if one.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    losses, norms = [], []
    for number in range(steps):
        told = []
        parts = {name: whole.chunk(settings.batch.accumulation) for name, whole in batch(number, settings).items()}
        for tokens, labels, counted in zip(parts["tokens"], parts["labels"], parts["loss_mask"], strict=True):
            each = theirs(tokens, torch.arange(LENGTH).expand_as(tokens), mask, labels=labels)
            loss = (each * counted).sum() / counted.sum()
            (loss / settings.batch.accumulation).backward()
            told.append(loss.item())
        losses.append(sum(told) / len(told))
        norms.append(torch.nn.utils.clip_grad_norm_(theirs.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def main():
    name, steps = sys.argv[1], int(sys.argv[2])
    settings = config(MODELS[name])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    trainer = Trainer(settings, meshes.single(torch.device("cpu")))
    theirs = megatrons(settings.model)
    copy(trainer, theirs)
    losses, norms = train_theirs(theirs, settings, steps)
    ours = [trainer.step(batch(number, settings), settings.batch.accumulation, LR, DECAY) for number in range(steps)]
    told = {"losses": [step.loss for step in ours], "norms": [step.grad_norm for step in ours]}
    upstream = {"losses": losses, "norms": norms}
    print(json.dumps({"version": version("megatron-core"), "megatron-core": upstream, "native": told}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
