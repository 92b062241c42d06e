"""Equivalent options of the dialects, to suggest the right one when the user gives an option of another dialect."""

from __future__ import annotations

from collections.abc import Container

# One row for each meaning: its names in GPT-NeoX's files, on Megatron's command line and on OneFlow-GPT's.
_SAME = """
    checkpoint_factor --save-interval
    train_batch_size --global-batch-size
    train_micro_batch_size_per_gpu --micro-batch-size
    gradient_accumulation_steps --num-accumulation-steps
    model_parallel_size --tensor-model-parallel-size --model-parallel-size
    pipe_parallel_size --pipeline-model-parallel-size
    checkpoint_activations --checkpoint-activations --recompute-activations
    checkpoint_num_layers --recompute-num-layers
    gradient_clipping --clip-grad
    optimizer --optimizer
    warmup --lr-warmup-fraction --lr-warmup-iters
    pos_emb --position-embedding-type
    norm --normalization
    rotary_pct --rotary-percent
    rotary_emb_base --rotary-base
    layernorm_epsilon --layernorm-epsilon --norm-epsilon
    num_kv_heads --num-query-groups --num-key-value-heads
    intermediate_size --ffn-hidden-size
    no_weight_tying --untie-embeddings-and-output-weights
    data_path --data-path --dataset
    train_data_paths --train-data-path
    valid_data_paths --valid-data-path
    test_data_paths --test-data-path
    init_method_std --init-method-std
"""
# Schedule and precision, which are sections in GPT-NeoX's files.
_IN_A_SECTION = {
    "lr": '"optimizer": {"params": {"lr": ...}}',
    "adam_beta1": '"optimizer": {"params": {"betas": ...}}',
    "adam_beta2": '"optimizer": {"params": {"betas": ...}}',
    "adam_eps": '"optimizer": {"params": {"eps": ...}}',
}


def same_options(dialect: str, name: str, known: Container[str]) -> str | None:
    """Return the option of ``dialect`` that is equivalent to ``name`` in another dialect; None if unknown."""
    plain = _plain(name)
    if dialect == "neox" and plain in _IN_A_SECTION:
        return _IN_A_SECTION[plain]
    for row in _SAME.split("\n"):
        names = row.split()
        if plain in map(_plain, names):
            return next((one for one in names if one in known and one != name), None)
    return None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
