"""Memory estimate: parameters and bytes of each rank, from the configuration alone."""

from __future__ import annotations

from ascend_adapt.config.buckets import BUCKET
from ascend_adapt.config.train_config import Model, Parallel, TrainConfig

_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def block_parameters(model: Model, tensor: int = 1) -> int:
    """Number of parameters of one block on one of ``tensor`` tensor-parallel ranks."""
    hidden, inner = model.hidden_size, model.ffn_hidden_size // tensor
    heads, groups = model.num_heads // tensor, model.num_query_groups // tensor
    rows, width = model.head_dim * (heads + 2 * groups), model.head_dim * heads
    norms = (1 if model.shared_norm else 2) * _norm_parameters(model)
    attention = rows * hidden + width * hidden + rows * model.attention_bias + hidden * model.output_bias
    into = (2 if model.gated else 1) * inner
    mlp = into * hidden + inner * hidden + (into + hidden) * model.mlp_bias
    return norms + attention + mlp


def total_parameters(model: Model) -> int:
    """Number of parameters of the model; a tied embedding counts once."""
    tables = (1 if model.tied_embeddings else 2) * model.padded_vocab_size * model.hidden_size
    return model.num_layers * block_parameters(model) + tables + _position_parameters(model) + _norm_parameters(model)


def rank_parameters(model: Model, parallel: Parallel, pipeline_rank: int) -> int:
    """Number of parameters on one tensor-parallel rank of a pipeline rank, before ZeRO shards them."""
    last = parallel.pipeline - 1
    layers = sum(parallel.stages[pipeline_rank :: parallel.pipeline])
    count = layers * block_parameters(model, parallel.tensor)
    table = model.padded_vocab_size // parallel.tensor * model.hidden_size
    if pipeline_rank == 0:
        count += table + _position_parameters(model)
    if pipeline_rank == last:
        # The first and the last stage of a pipeline both hold a tied embedding.
        count += _norm_parameters(model) + (table if last or not model.tied_embeddings else 0)
    return count


def memory_bytes(config: TrainConfig, pipeline_rank: int) -> dict[str, int]:
    """Device memory of a rank in this pipeline stage: bytes by purpose, and their ``total``.

    Master weights and optimizer states are fp32 and sharded by ZeRO. ``parameters`` are the master weights and the
    gathered or cast weights. ``activations`` is an estimate after Korthikanti et al. 2022 (arXiv 2205.05198), without
    the S x S scores, which no kernel stores, plus the fp32 logits of one micro batch on the last stage.
    """
    model, parallel, precision = config.model, config.parallel, config.precision
    own = rank_parameters(model, parallel, pipeline_rank)
    shards = parallel.data if parallel.zero_stage else 1
    element = _BYTES[precision.dtype]
    masters = 4 * -(-own // shards)
    is_sharded = parallel.data > 1 or precision.dtype != "fp32"
    gathered = 0
    if is_sharded and (shards > 1 or precision.dtype != "fp32"):
        layers = sum(parallel.stages[pipeline_rank :: parallel.pipeline])
        block = block_parameters(model, parallel.tensor)
        # ZeRO-3 holds two gathered buckets of blocks at a time, one of them prefetched.
        kept = min(2 * max(1, BUCKET // block), layers) if parallel.zero_stage == 3 else layers
        gathered = element * (own - (layers - kept) * block)
    moments = {"sgd": 1}.get(config.optimizer.kind, 2)
    optimizer = 4 * moments * -(-own // shards)
    if parallel.offload_optimizer:
        masters = optimizer = 0
    # Accumulated gradients of this rank, or the fp32 gradients of the master weights; 16-bit gradients exist for one
    # bucket at a time.
    summed = _BYTES[precision.reduce] * -(-own // (parallel.data if parallel.zero_stage >= 2 else 1))
    gradients = max(summed, 4 * -(-own // shards))
    parts = {
        "parameters": masters + gathered,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": _activation_bytes(config, pipeline_rank, element),
    }
    return {**parts, "total": sum(parts.values())}


def _activation_bytes(config: TrainConfig, pipeline_rank: int, element: int) -> int:
    model, parallel, batch = config.model, config.parallel, config.batch
    layers = sum(parallel.stages[pipeline_rank :: parallel.pipeline])
    in_flight = min(parallel.pipeline - pipeline_rank, batch.accumulation) if parallel.pipeline > 1 else 1
    tokens = batch.micro * config.data.seq_length
    cut = parallel.tensor
    whole_cut = cut if parallel.sequence else 1
    residual = tokens * model.hidden_size * element // whole_cut
    # A block stores the inputs of norms, attention and MLP; query, key, value and attention output; MLP intermediates.
    width = model.head_dim * (2 * model.num_heads + 2 * model.num_query_groups)
    inner = (3 if model.gated else 2) * model.ffn_hidden_size
    block = 4 * residual + tokens * (width + inner) * element // cut
    if parallel.recompute == "full":
        kept = residual * -(-layers // parallel.recompute_layers) * in_flight + block * parallel.recompute_layers
    else:
        kept = block * layers * in_flight
    if pipeline_rank == parallel.pipeline - 1:
        kept += 4 * tokens * model.padded_vocab_size // cut
    return kept


def _norm_parameters(model: Model) -> int:
    return model.hidden_size if model.norm == "rmsnorm" else 2 * model.hidden_size


def _position_parameters(model: Model) -> int:
    return model.position_tables * model.max_positions * model.hidden_size
