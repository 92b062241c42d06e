"""How many parameters a rank has, and the bytes it will hold, from the configuration alone."""

from __future__ import annotations

from ascend_adapt.native.config.buckets import BUCKET
from ascend_adapt.native.config.train_config import Model, Parallel, TrainConfig

_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def block_parameters(model: Model, tensor: int = 1) -> int:
    """Return the parameters of one block on one of ``tensor`` ranks."""
    hidden, inner = model.hidden_size, model.ffn_hidden_size // tensor
    heads, groups = model.num_heads // tensor, model.num_query_groups // tensor
    rows, width = model.head_dim * (heads + 2 * groups), model.head_dim * heads
    norms = (1 if model.shared_norm else 2) * _norm_parameters(model)
    attention = rows * hidden + width * hidden + rows * model.attention_bias + hidden * model.output_bias
    into = (2 if model.gated else 1) * inner
    mlp = into * hidden + inner * hidden + (into + hidden) * model.mlp_bias
    return norms + attention + mlp


def total_parameters(model: Model) -> int:
    """Return the parameters of the whole model, a tied table counted once."""
    tables = (1 if model.tied_embeddings else 2) * model.padded_vocab_size * model.hidden_size
    return model.num_layers * block_parameters(model) + tables + _position_parameters(model) + _norm_parameters(model)


def rank_parameters(model: Model, parallel: Parallel, pipeline_rank: int) -> int:
    """Return the parameters of one tensor rank of a pipeline rank, before data ranks cut them."""
    last = parallel.pipeline - 1
    layers = sum(parallel.stages[pipeline_rank :: parallel.pipeline])
    count = layers * block_parameters(model, parallel.tensor)
    table = model.padded_vocab_size // parallel.tensor * model.hidden_size
    if pipeline_rank == 0:
        count += table + _position_parameters(model)
    if pipeline_rank == last:
        # A tied table lies on both ends of a pipeline.
        count += _norm_parameters(model) + (table if last or not model.tied_embeddings else 0)
    return count


def memory_bytes(config: TrainConfig, pipeline_rank: int) -> dict[str, int]:
    """Return the bytes that a rank of this stage holds on its device, by what for, and their ``total``.

    Masters and Adam's two moments are fp32, as ZeRO leaves them; ``parameters`` are the masters and what is gathered or
    cast to compute with. ``activations`` is an estimate: Korthikanti et al. 2022 (arXiv 2205.05198), without the
    S x S scores, which no kernel keeps, plus the logits of one micro batch in fp32 on the last stage.
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
        # Under ZeRO-3 two buckets of blocks are gathered at a time, one of them ahead.
        kept = min(2 * max(1, BUCKET // block), layers) if parallel.zero_stage == 3 else layers
        gathered = element * (own - (layers - kept) * block)
    moments = {"sgd": 1}.get(config.optimizer.kind, 2)
    optimizer = 4 * moments * -(-own // shards)
    offloads = parallel.offload_optimizer or parallel.offload_parameters
    if offloads:
        masters = optimizer = 0
    # Sums of this rank's micro batches, or the masters' gradients, fp32; 16-bit ones are there bucket by bucket.
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
    # Kept by one block: inputs of norms and of the two halves; query, key, value, attention's output; the MLP's inside.
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
    return model.max_positions * model.hidden_size if model.positions == "learned" else 0
