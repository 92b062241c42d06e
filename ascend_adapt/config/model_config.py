"""Model configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from ascend_adapt.config.checks import DEEPEST, LARGEST, at_least, divides, of_type, one_of, size
from ascend_adapt.errors import ConfigError

POSITIONS = ("learned", "block", "rotary", "none")
NORMS = ("layernorm", "rmsnorm")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu")
INITS = ("normal", "xavier_uniform", "xavier_normal", "orthogonal")


@dataclass(frozen=True)
class Init:
    """Weight initialisation: N(0, std) for ``normal``; ``gain`` scales ``orthogonal``.

    xavier and orthogonal use the shape [out, in] of the full tensor, not of a rank's shard.
    """

    kind: str = "normal"
    std: float = 0.02
    gain: float = 1.0

    def __post_init__(self) -> None:
        one_of("init", self.kind, INITS)
        at_least("init std", self.std, 0)


@dataclass(frozen=True)
class Model:
    """GPT decoder architecture.

    ``vocab_size`` counts the tokenizer's ids, ``padded_vocab_size`` the rows of the embedding. ``num_query_groups`` is
    the number of key and value heads. ``positions`` "block" is GLM's: one learned embedding of the position, and one of
    the position inside a blank. Rotary embedding applies to ``rotary_fraction`` of each head, half-split style.
    With ``parallel_residual`` a block is x + attention(norm1(x)) + mlp(norm2(x)); with ``shared_norm`` norm2 is norm1.
    ``ffn_hidden_size`` is the width after the gate for swiglu and geglu. LayerNorm has a bias, RMSNorm has none.
    RMSNorm divides by sqrt(mean(x^2) + eps); with ``rms_eps_on_root`` by sqrt(mean(x^2)) + eps.
    """

    vocab_size: int
    padded_vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_query_groups: int
    head_dim: int
    ffn_hidden_size: int
    max_positions: int
    positions: str = "learned"
    rotary_fraction: float = 1.0
    rotary_base: float = 10000.0
    parallel_residual: bool = False
    shared_norm: bool = False
    norm: str = "layernorm"
    norm_eps: float = 1e-5
    rms_eps_on_root: bool = False
    activation: str = "gelu"
    tied_embeddings: bool = True
    attention_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    embedding_init: Init = field(default_factory=Init)
    init: Init = field(default_factory=Init)
    output_init: Init = field(default_factory=Init)
    head_init: Init = field(default_factory=Init)

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.type != "Init":
                of_type(one.name, getattr(self, one.name), str(one.type))
            if one.type == "int":
                size(one.name, getattr(self, one.name), DEEPEST if one.name == "num_layers" else LARGEST)
        one_of("positions", self.positions, POSITIONS)
        one_of("norm", self.norm, NORMS)
        one_of("activation", self.activation, ACTIVATIONS)
        at_least("norm_eps", self.norm_eps, 0)
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)}, expected at least 0 and below 1 — correct it")
        if self.vocab_size > self.padded_vocab_size:
            raise ConfigError(
                f"vocabulary: {self.vocab_size} ids, expected at most padded_vocab_size = {self.padded_vocab_size} — "
                "enlarge the padded size"
            )
        divides("num_heads", self.num_heads, "num_query_groups", self.num_query_groups)
        if self.positions == "rotary":
            if not 0 < self.rotary_base < math.inf:
                raise ConfigError(f"rotary_base: {self.rotary_base}, expected a finite number above 0 — correct it")
            if not 0 < self.rotary_fraction <= 1:
                raise ConfigError(
                    f"rotary_fraction: {self.rotary_fraction}, expected above 0 and at most 1 — correct it"
                )
            if self.rotary_dim % 2:
                raise ConfigError(
                    f"rotary_fraction: {self.rotary_fraction} of {self.head_dim} is {self.rotary_dim} dimensions, "
                    "expected an even number — choose a fraction that gives one"
                )
        if self.rms_eps_on_root and self.norm != "rmsnorm":
            raise ConfigError(f"rms_eps_on_root: True with {self.norm}, expected rmsnorm — leave it out")
        if self.shared_norm and not self.parallel_residual:
            raise ConfigError("shared_norm: True without parallel_residual, expected both — set both or neither")

    @property
    def rotary_dim(self) -> int:
        """Number of dimensions of each head with rotary embedding."""
        return int(self.head_dim * self.rotary_fraction)

    @property
    def position_tables(self) -> int:
        """Number of learned position embeddings, each [max_positions, H]."""
        return {"learned": 1, "block": 2}.get(self.positions, 0)

    @property
    def has_dropout(self) -> bool:
        """Whether training uses dropout."""
        return self.hidden_dropout > 0 or self.attention_dropout > 0

    @property
    def gated(self) -> bool:
        """Whether the MLP is gated."""
        return self.activation in ("swiglu", "geglu")
