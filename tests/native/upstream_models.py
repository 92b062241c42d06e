"""The models of other code bases, unmodified, of the same sizes as those of small_models; here without CUDA.

There is no device of theirs here, so buffers go where the model is; nothing draws random numbers, so that generators
of CUDA, which they would fork, are not asked for.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from small_models import LENGTH
from upstream_names import own_name

MASK = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()


@dataclass(frozen=True)
class Upstream:
    """A model, how its parameters are called here, and its loss of one micro batch: the mean of labels that count."""

    version: str
    module: torch.nn.Module
    own_name: Callable[[str], str]
    loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def megatron_core(model) -> Upstream:
    """Return Megatron-core's GPTModel, of its local layers."""
    _without_cuda()
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
    module = GPTModel(
        config=settings,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization=norm),
        vocab_size=model.padded_vocab_size,
        max_sequence_length=LENGTH,
        position_embedding_type="rope" if model.positions == "rotary" else "learned_absolute",
        rotary_percent=model.rotary_fraction,
        share_embeddings_and_output_weights=model.tied_embeddings,
    )

    def loss(tokens, labels, counted):
        each = module(tokens, torch.arange(LENGTH).expand_as(tokens), MASK, labels=labels)
        return (each * counted).sum() / counted.sum()

    return Upstream(version("megatron-core"), module, own_name, loss)


def gpt_neox(model) -> Upstream:
    """Return GPT-NeoX's GPT2ModelPipe, made one sequence as it makes it itself without pipeline stages."""
    _without_cuda()
    os.environ.setdefault("LOCAL_RANK", "0")
    import deepspeed
    from deepspeed.runtime.activation_checkpointing import checkpointing
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    from megatron import mpu
    from megatron.model import GPT2ModelPipe
    from megatron.model.gpt2_model import cross_entropy
    from megatron.neox_arguments import NeoXArgs

    checkpointing.CudaRNGStatesTracker.fork = lambda self, *_: contextlib.nullcontext()
    topology = PipeModelDataParallelTopology(num_pp=1, num_mp=1, num_dp=1)
    mpu.initialize_model_parallel(1, topology=topology)
    # v2.0 knows no other width than this one.
    wider = {} if model.ffn_hidden_size == 4 * model.hidden_size else {"intermediate_size": model.ffn_hidden_size}
    arguments = NeoXArgs.from_dict(
        {
            **wider,
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "num_attention_heads": model.num_heads,
            "seq_length": LENGTH,
            "max_position_embeddings": LENGTH,
            "vocab_file": "none",
            "train_micro_batch_size_per_gpu": 1,
            "pos_emb": model.positions,
            "rotary_pct": model.rotary_fraction,
            "no_weight_tying": not model.tied_embeddings,
            "gpt_j_residual": model.parallel_residual,
            "gpt_j_tied": model.shared_norm,
            "output_layer_parallelism": "column",
            "bias_gelu_fusion": model.activation == "gelu_tanh",
            "attention_dropout": 0,
            "hidden_dropout": 0,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
            "precision": "fp32",
            "train_iters": 1,
            "checkpoint_factor": 1,
            "lr_decay_iters": 1,
            "use_cpu_initialization": True,
            "global_num_gpus": 1,
        }
    )
    arguments.padded_vocab_size = model.padded_vocab_size
    module = GPT2ModelPipe(arguments, num_tokentypes=0, parallel_output=True, topology=topology).to_sequential()

    def loss(tokens, labels, counted):
        logits = module((tokens, torch.arange(LENGTH).expand_as(tokens), MASK))
        return cross_entropy(logits, (labels, counted))

    return Upstream(Path(mpu.__file__).parents[2].name, module, own_name, loss)


UPSTREAMS = {"megatron-core": megatron_core, "gpt-neox": gpt_neox}


def _without_cuda() -> None:
    torch.cuda.current_device = lambda: torch.device("cpu")
