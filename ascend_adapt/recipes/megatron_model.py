"""Model of a Megatron command line.

Sources: Megatron-LM@v2.5 megatron/model, @core_v0.9.0 megatron/training/arguments.py core_transformer_config_from_args;
bigscience Megatron-DeepSpeed@8387ae17 and deepspeedai Megatron-DeepSpeed@4efb479d megatron/arguments.py.
"""

from __future__ import annotations

import math

from ascend_adapt.config.partition import padded
from ascend_adapt.config.train_config import Init, Model, Parallel
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.options import Options
from ascend_adapt.recipes.vocabulary import Vocabulary


def read_model(options: Options, vocabulary: Vocabulary, parallel: Parallel) -> Model:
    """Return the model that a command line describes.

    Raises:
        ConfigError: sizes are inconsistent, or the model uses something that is not supported.
    """
    hidden, heads, layers = (options.size(name) for name in ("hidden_size", "num_attention_heads", "num_layers"))
    if options("kv_channels") is None and hidden % heads:
        raise ConfigError(f"hidden_size: {hidden}, expected a multiple of {heads} heads — change one of them")
    size = options("pad_vocab_size_to")
    if size is not None and size < vocabulary.size:
        raise ConfigError(
            f"vocabulary: {vocabulary.size} ids, expected at most the table's {size} rows of --pad-vocab-size-to — "
            "enlarge it"
        )
    multiple = padded(vocabulary.size, options("make_vocab_size_divisible_by"), parallel.tensor)
    gated = options("swiglu", False)
    ffn = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    bias = options("add_bias_linear", True)
    groups = options("num_key_value_heads", heads)
    if options("group_query_attention", False):
        groups = options("num_query_groups")
    std = options("init_method_std")
    # In older versions only vision models read it; newer ones pass it under a name that raises a TypeError.
    if options.version.name not in ("bigscience", "v2.5") and options("init_method_xavier_uniform", False):
        raise ConfigError("--init-method-xavier-uniform: stops upstream with a TypeError — leave it out")
    weights = Init(std=std)
    normalization = options("normalization", "LayerNorm").lower()
    return Model(
        vocab_size=vocabulary.size,
        padded_vocab_size=multiple if size is None else size,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_query_groups=groups,
        head_dim=options("kv_channels", hidden // heads),
        ffn_hidden_size=options("ffn_hidden_size", ffn),
        max_positions=options("max_position_embeddings", read_seq_length(options)),
        positions=_positions(options),
        rotary_fraction=options("rotary_percent", 1.0),
        rotary_base=float(options("rotary_base", options("rope_theta", 10000.0))),
        norm=normalization,
        norm_eps=options("norm_epsilon", options("layernorm_epsilon", 1e-5)),
        activation="swiglu" if gated else "gelu_tanh" if _is_tanh(options, bias) else "gelu",
        tied_embeddings=not options("untie_embeddings_and_output_weights", False),
        attention_bias=bias or options("add_qkv_bias", False),
        output_bias=bias,
        mlp_bias=bias,
        hidden_dropout=options("hidden_dropout"),
        attention_dropout=options("attention_dropout"),
        embedding_init=Init(std=options("embedding_init_method_std", std)),
        init=weights,
        output_init=Init(std=std / math.sqrt(2.0 * layers)),
        head_init=weights,
    )


def _is_tanh(options: Options, bias: bool) -> bool:
    """Return whether GELU is the tanh approximation, as the GELU fused with the bias always is.

    --onnx-safe requests the exact one, but overrides the fusion only in deepspeedai's fork. Megatron-core reads neither
    it nor --openai-gelu. Sources: ParallelMLP of Megatron-LM@v2.5, bigscience Megatron-DeepSpeed@8387ae17 and
    deepspeedai Megatron-DeepSpeed@4efb479d megatron/model/transformer.py.
    """
    fused = bool(options("bias_gelu_fusion") and bias)
    if options.version.name in ("core_v0.9.0", "newest"):
        return fused
    gives_way = options.version.name == "deepspeed" and options("onnx_safe")
    return bool(options("openai_gelu")) or (fused and not gives_way)


def _positions(options: Options) -> str:
    kind = options("position_embedding_type", "learned_absolute")
    if options("use_rotary_position_embeddings", False):
        kind = "rope"
    known = {
        "learned_absolute": "learned",
        "absolute": "learned",
        "learned": "learned",
        "rope": "rotary",
        "rotary": "rotary",
        "none": "none",
    }
    if kind not in known:
        raise ConfigError(
            f"--position-embedding-type: {kind!r}, expected learned, rotary or none — no other is supported"
        )
    return known[kind]


def read_seq_length(options: Options) -> int:
    """Return the number of tokens of a sample."""
    length, other = options("seq_length"), options("encoder_seq_length")
    if length is not None and other is not None:
        raise ConfigError("--encoder-seq-length: given together with --seq-length, expected one of them — leave it out")
    if length is None and other is None:
        raise ConfigError("--seq-length: required, but not given — add it")
    return int(other if length is None else length)
