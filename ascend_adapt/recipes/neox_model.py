"""Model of a GPT-NeoX configuration.

Sources: EleutherAI/gpt-neox@9610391a and @ea7aefd8 megatron/model (gpt2_model.py, transformer.py, init_functions.py).
"""

from __future__ import annotations

import math

from ascend_adapt.config.partition import padded
from ascend_adapt.config.train_config import Init, Model, Parallel
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.options import Options
from ascend_adapt.recipes.vocabulary import Vocabulary


def read_model(options: Options, vocabulary: Vocabulary, parallel: Parallel, layers: int) -> Model:
    """Return the model with ``layers`` layers that the keys describe.

    Raises:
        ConfigError: sizes are inconsistent, or the model uses something that is not supported.
    """
    hidden, heads = options.size("hidden_size"), options.size("num_attention_heads")
    if hidden % heads:
        raise ConfigError(f"hidden_size: {hidden}, expected a multiple of {heads} heads — change one of them")
    positions = options("pos_emb")
    if positions not in ("learned", "rotary", "none"):
        raise ConfigError(f"pos_emb: {positions!r}, expected learned, rotary or none — no other is supported")
    norm = options("norm")
    if norm not in ("layernorm", "rmsnorm"):
        raise ConfigError(f"norm: {norm!r}, expected layernorm or rmsnorm — no other is supported")
    if norm == "rmsnorm":
        options("use_bias_in_norms")  # an RMSNorm has no bias
    epsilons = {"layernorm": options("layernorm_epsilon"), "rmsnorm": options("rms_norm_epsilon")}
    activation, ffn = _activation(options, hidden)
    attention_bias, mlp_bias = options("use_bias_in_attn_linear", True), options("use_bias_in_mlp", True)
    weights, outputs = (
        read_init(options, name, hidden, layers) for name in ("init_method", "output_layer_init_method")
    )
    shared = options("gpt_j_tied")
    return Model(
        vocab_size=vocabulary.size,
        padded_vocab_size=padded(vocabulary.size, options("make_vocab_size_divisible_by"), parallel.tensor),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_query_groups=options("num_kv_heads", heads),
        head_dim=hidden // heads,
        ffn_hidden_size=ffn,
        max_positions=options.size("max_position_embeddings"),
        positions=positions,
        rotary_fraction=options("rotary_pct"),
        rotary_base=float(options("rotary_emb_base")),
        parallel_residual=options("gpt_j_residual"),
        shared_norm=shared and options("gpt_j_residual"),
        norm=norm,
        norm_eps=epsilons[norm],
        rms_eps_on_root=norm == "rmsnorm" and options.version.name == "v2.0",
        activation=activation,
        tied_embeddings=not options("no_weight_tying"),
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=mlp_bias,
        hidden_dropout=options("hidden_dropout"),
        attention_dropout=options("attention_dropout"),
        embedding_init=weights,
        init=weights,
        output_init=outputs,
        head_init=weights,
    )


def check_attention(options: Options) -> int:
    """Return the number of layers, after checking that each of them computes plain attention.

    Raises:
        ConfigError: a layer is not attention (mamba, rwkv) or is sparse attention, or the counts do not match
        num_layers.
    """
    layers = options.size("num_layers")
    stated = options("attention_config", [[["global"], layers]])
    if all(isinstance(one, str) for one in stated):  # upstream takes one name per layer as well
        kinds, count = set(stated), len(stated)
    else:
        try:
            kinds = {str(kind) for types, _ in stated for kind in types}
            count = sum(len(types) * (layers // len(types) if times == "all" else times) for types, times in stated)
        except (TypeError, ValueError, ZeroDivisionError):
            raise ConfigError(
                f"attention_config: {stated}, expected lists of kinds and their counts — correct it"
            ) from None
    if others := sorted(kinds & {"mamba", "rwkv"}):
        raise ConfigError(
            f"attention_config: {' and '.join(others)} layers, expected global or flash — the native trainer supports "
            "only transformer layers; run GPT-NeoX itself under ascend-run"
        )
    if count != layers:
        raise ConfigError(f"attention_config: {count} layers, expected num_layers {layers} — correct one of them")
    if kinds - {"global", "flash"}:
        raise ConfigError(
            f"attention_config: {', '.join(sorted(kinds - {'global', 'flash'}))}, expected global or flash — the "
            "native trainer supports no other"
        )
    return layers


def _activation(options: Options, hidden: int) -> tuple[str, int]:
    """Return the activation and the hidden width of the MLP.

    A gated MLP has two thirds of the width, rounded up to a multiple: ParallelMLP of gpt-neox@ea7aefd8
    megatron/model/transformer.py.
    """
    kind, tanh = options("activation"), options("bias_gelu_fusion")
    width = options("intermediate_size", int(options("expansion_factor", 4) * hidden))
    multiple = options("mlp_multiple_of", 1)
    known = {"gelu": "gelu_tanh" if tanh else "gelu", "relu": "relu", "silu": "silu", "swiglu": "swiglu"}
    if kind not in known:
        raise ConfigError(f"activation: {kind!r}, expected one of {', '.join(known)} — no other is supported")
    if tanh and options("onnx_safe"):
        raise ConfigError("onnx_safe: given together with bias_gelu_fusion, expected one of them — remove one")
    if kind == "swiglu":
        return known[kind], math.ceil(int(width * 2 / 3) // 2 / multiple) * multiple
    return known[kind], math.ceil(width / (2 * multiple)) * 2 * multiple if multiple > 1 else width


def read_init(options: Options, name: str, hidden: int, layers: int) -> Init:
    """Return the initialisation that the key ``name`` selects, as in upstream's megatron/model/init_functions.py."""
    kind, sigma = options(name), options("init_method_std")
    normal = {
        "normal": sigma,
        "scaled_normal": sigma / math.sqrt(2.0 * layers),
        "single_residual_scaled_normal": sigma / math.sqrt(layers),
        "small_init": math.sqrt(2 / (5 * hidden)),
        "wang_init": 2 / layers / math.sqrt(hidden),
    }
    if kind in normal:
        return Init("normal", normal[kind])
    if kind == "scaled_orthogonal":
        return Init("orthogonal", gain=math.sqrt(2 / layers))
    if kind == "orthogonal":
        # Upstream passes its flag use_mup as the number of layers, and divides by it.
        raise ConfigError(
            f"{name}: 'orthogonal' divides by zero upstream, expected another method — use scaled_orthogonal"
        )
    return Init(kind)
