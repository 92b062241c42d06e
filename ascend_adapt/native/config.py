"""One training run as data, whatever dialect it was written in: frozen, validated, and importable without torch.

A dialect is translated into this once, in ``ascend_adapt.recipes``. Nothing here is None because it was left out: a
recipe fills in its dialect's own defaults, so two runs with equal configurations train alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ascend_adapt.errors import ConfigError

POSITIONS = ("learned", "rotary", "none")
NORMS = ("layernorm", "rmsnorm")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu")
INITS = ("normal", "xavier_uniform", "xavier_normal", "orthogonal")
RECOMPUTE = ("none", "full", "selective")
OPTIMIZERS = ("adam", "adamw", "sgd")
DECAYED = ("matrices", "not_bias_or_norm")
SCHEDULES = ("megatron", "neox-v2", "neox", "oneflow")
DECAY_STYLES = ("constant", "linear", "cosine", "exponential", "inverse-square-root", "WSD")
WSD_STYLES = ("exponential", "linear", "cosine", "minus_sqrt")
DTYPES = ("fp32", "fp16", "bf16")
LOG_FORMATS = ("megatron", "bigscience", "deepspeed", "mcore", "neox", "glm", "oneflow", "json")
FLOPS = ("paper", "mcore", "neox-v2")


@dataclass(frozen=True)
class Init:
    """How one kind of weight is filled: N(0, std) for ``normal``, times ``gain`` for ``orthogonal``.

    xavier and orthogonal look at the shape [out, in] of the whole tensor, never at a rank's part of it.
    """

    kind: str = "normal"
    std: float = 0.02
    gain: float = 1.0

    def __post_init__(self) -> None:
        _one_of("init", self.kind, INITS)
        _at_least("init std", self.std, 0)


@dataclass(frozen=True)
class Model:
    """A decoder of the GPT family.

    ``vocab_size`` counts the tokenizer's ids, ``padded_vocab_size`` the rows of the table. ``num_query_groups`` is the
    number of key and value heads. ``rotary_fraction`` of each head is turned, in the half-split style. With
    ``parallel_residual`` a block is x + attention(norm1(x)) + mlp(norm2(x)); with ``shared_norm`` norm2 is norm1.
    ``ffn_hidden_size`` is the width after the gate for swiglu and geglu. Biases of norms exist where layernorm does.
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
    activation: str = "gelu"
    tied_embeddings: bool = True
    attention_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    softmax_in_fp32: bool = True
    embedding_init: Init = field(default_factory=Init)
    init: Init = field(default_factory=Init)
    output_init: Init = field(default_factory=Init)
    head_init: Init = field(default_factory=Init)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_query_groups", "head_dim"):
            _at_least(name, getattr(self, name), 1)
        _at_least("ffn_hidden_size", self.ffn_hidden_size, 1)
        _at_least("max_positions", self.max_positions, 1)
        _one_of("positions", self.positions, POSITIONS)
        _one_of("norm", self.norm, NORMS)
        _one_of("activation", self.activation, ACTIVATIONS)
        _at_least("norm_eps", self.norm_eps, 0)
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)}, expected at least 0 and below 1 — correct it")
        if self.vocab_size > self.padded_vocab_size:
            raise ConfigError(
                f"vocabulary: {self.vocab_size} ids, expected at most the table's {self.padded_vocab_size} rows — "
                "enlarge the padded size"
            )
        _divides("num_heads", self.num_heads, "num_query_groups", self.num_query_groups)
        if self.positions == "rotary":
            if not 0 < self.rotary_fraction <= 1:
                raise ConfigError(
                    f"rotary_fraction: {self.rotary_fraction}, expected above 0 and at most 1 — correct it"
                )
            if self.rotary_dim % 2:
                raise ConfigError(
                    f"rotary_fraction: {self.rotary_fraction} of {self.head_dim} is {self.rotary_dim} dimensions, "
                    "expected an even number — choose a fraction that gives one"
                )
        if self.shared_norm and not self.parallel_residual:
            raise ConfigError("shared_norm: True without parallel_residual, expected both — set both or neither")

    @property
    def rotary_dim(self) -> int:
        """Dimensions of each head that are turned."""
        return int(self.head_dim * self.rotary_fraction)

    @property
    def gated(self) -> bool:
        """Whether the activation multiplies two halves."""
        return self.activation in ("swiglu", "geglu")


@dataclass(frozen=True)
class Parallel:
    """Ranks along each axis; tensor is the innermost, then data, then pipeline (a rank is (pp * dp + d) * tp + t).

    ``stages`` is how many layers each stage has, in model order: pipeline * virtual_stages numbers; stage s lives on
    pipeline rank s % pipeline. ``recompute_layers`` is how many layers share one stored activation.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    virtual_stages: int = 1
    stages: tuple[int, ...] = ()
    sequence: bool = False
    zero_stage: int = 0
    offload_optimizer: bool = False
    offload_parameters: bool = False
    recompute: str = "none"
    recompute_layers: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "virtual_stages", "recompute_layers"):
            _at_least(name, getattr(self, name), 1)
        _one_of("recompute", self.recompute, RECOMPUTE)
        _one_of("zero_stage", self.zero_stage, (0, 1, 2, 3))
        if self.virtual_stages > 1 and self.pipeline < 2:
            raise ConfigError(
                f"virtual_stages: {self.virtual_stages} on {self.pipeline} pipeline rank, expected at least 2 ranks — "
                "raise the pipeline size or leave the virtual stages out"
            )
        if self.zero_stage > 1 and self.pipeline > 1:
            raise ConfigError(
                f"zero_stage: {self.zero_stage} with {self.pipeline} pipeline stages, expected stage 0 or 1 — "
                "a pipeline keeps its gradients whole until the last micro batch; lower the stage or use no pipeline"
            )

    @property
    def world_size(self) -> int:
        """Ranks of the whole run."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True)
class Batch:
    """Samples of one step: ``total`` = micro * accumulation * data ranks.

    ``rampup`` is (first global size, increment, samples over which it grows), or None. While it grows, accumulation is
    what the size of the step makes it.
    """

    micro: int
    accumulation: int
    total: int
    rampup: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("micro", "accumulation", "total"):
            _at_least(f"{name} batch", getattr(self, name), 1)


@dataclass(frozen=True)
class Optimizer:
    """Adam (``decoupled`` decay is AdamW's) or SGD; ``decayed`` says which weights decay.

    ``matrices``: all but biases and one-dimensional weights (Megatron). ``not_bias_or_norm``: all but biases and the
    weights of norms (GPT-NeoX and OneFlow; the same tensors in these models).
    """

    kind: str = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.01
    decoupled: bool = True
    decayed: str = "matrices"
    clip_grad: float = 1.0

    def __post_init__(self) -> None:
        _one_of("optimizer", self.kind, OPTIMIZERS)
        _one_of("decayed", self.decayed, DECAYED)
        _at_least("clip_grad", self.clip_grad, 0)
        _at_least("weight_decay", self.weight_decay, 0)


@dataclass(frozen=True)
class Schedule:
    """Learning rate by progress; ``native.schedules`` computes it as ``dialect`` does.

    ``warmup`` and ``decay`` are counted in ``unit`` ("samples" or "iterations"), warmup may be fractional. Weight decay
    goes from ``start_weight_decay`` to ``end_weight_decay`` over ``weight_decay_over``, if they are given.
    A run that goes on from a checkpoint takes up its progress there, in this schedule.
    """

    dialect: str
    lr: float
    min_lr: float = 0.0
    style: str = "linear"
    unit: str = "samples"
    warmup: float = 0.0
    decay: float = 0.0
    init_lr: float = 0.0
    wsd_style: str = "exponential"
    wsd_decay: float = 0.0
    start_weight_decay: float | None = None
    end_weight_decay: float | None = None
    weight_decay_style: str = "constant"
    weight_decay_over: float = 0.0

    def __post_init__(self) -> None:
        _one_of("schedule", self.dialect, SCHEDULES)
        _one_of("decay style", self.style, DECAY_STYLES)
        _one_of("WSD style", self.wsd_style, WSD_STYLES)
        _one_of("unit", self.unit, ("samples", "iterations"))
        _at_least("lr", self.lr, 0)
        _at_least("min_lr", self.min_lr, 0)
        _at_least("warmup", self.warmup, 0)
        if self.min_lr > self.lr:
            raise ConfigError(f"min_lr: {self.min_lr}, expected at most lr = {self.lr} — lower it")
        _one_of("weight decay style", self.weight_decay_style, ("constant", "linear", "cosine"))
        if self.decay <= 0:
            raise ConfigError(f"decay length: {self.decay:g} {self.unit}, expected above 0 — name the iterations")
        if self.warmup >= self.decay and self.style != "constant":
            raise ConfigError(
                f"warmup: {self.warmup:g} {self.unit}, expected below the decay length {self.decay:g} — shorten it"
            )


@dataclass(frozen=True)
class LossScale:
    """fp16's loss scale; ``fixed`` is a number, or None for a scale that moves.

    ``rule`` says whose: after ``hysteresis`` overflows Megatron halves at each further one until the scale has grown,
    DeepSpeed halves at each; both grow it after ``window`` good steps. A skipped step does not advance the schedule.
    """

    fixed: float | None = None
    initial: float = 2.0**32
    minimum: float = 1.0
    window: int = 1000
    hysteresis: int = 2
    rule: str = "megatron"

    def __post_init__(self) -> None:
        _one_of("loss scale rule", self.rule, ("megatron", "deepspeed"))


@dataclass(frozen=True)
class Precision:
    """``dtype`` of weights and activations; masters and optimizer states are fp32; ``reduce`` is the gradients'."""

    dtype: str = "fp32"
    reduce: str = "fp32"
    loss_scale: LossScale = field(default_factory=LossScale)

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("reduce", self.reduce, DTYPES)


@dataclass(frozen=True)
class Data:
    """Token files and the order they are read in.

    ``train``, ``valid`` and ``test`` are prefixes, or weights and prefixes in turn; with ``valid`` and ``test`` empty
    ``split`` cuts ``train``. ``order`` is a dialect of ``ascend_adapt.data``. ``eod`` is the id that ends a document,
    needed only by the three masks.
    """

    train: tuple[str, ...]
    seq_length: int
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    split: str = "969,30,1"
    order: str = "megatron-v2"
    sampler: str = "single"
    seed: int = 1234
    num_workers: int = 2
    eod: int | None = None
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    weight_by_documents: float | None = None
    drop_last_partial_validation: bool = True
    tokenizer_type: str = "GPT2BPETokenizer"
    vocab_file: str | None = None
    merge_file: str | None = None
    cache: str | None = None

    def __post_init__(self) -> None:
        _at_least("seq_length", self.seq_length, 1)
        _at_least("num_workers", self.num_workers, 0)
        _one_of("sampler", self.sampler, ("single", "cyclic"))


@dataclass(frozen=True)
class Logging:
    """What is told of the run; ``interval`` in iterations."""

    format: str = "megatron"
    interval: int = 100
    flops: str = "paper"
    tensorboard: str | None = None
    tensorboard_interval: int = 1
    wandb_project: str | None = None
    wandb_name: str | None = None
    wandb_group: str | None = None
    wandb_entity: str | None = None
    log_params_norm: bool = False
    log_num_zeros: bool = False
    table: bool = False

    def __post_init__(self) -> None:
        _one_of("log format", self.format, LOG_FORMATS)
        _one_of("flops", self.flops, FLOPS)
        _at_least("log interval", self.interval, 1)


@dataclass(frozen=True)
class Checkpoint:
    """Where weights come from and go to; saved every ``interval`` iterations (0: at the end only), and at ``steps``."""

    save: str | None = None
    load: str | None = None
    interval: int = 0
    steps: tuple[int, ...] = ()
    at_end: bool = True
    finetune: bool = False
    load_optimizer: bool = True
    load_rng: bool = True
    save_optimizer: bool = True
    save_rng: bool = True
    keep_last: int | None = None


@dataclass(frozen=True)
class TrainConfig:
    """One run. ``eval_interval`` 0 evaluates never; ``exit_interval`` stops after a save, None does not."""

    dialect: str
    model: Model
    parallel: Parallel
    batch: Batch
    optimizer: Optimizer
    schedule: Schedule
    precision: Precision
    data: Data
    logging: Logging
    checkpoint: Checkpoint
    iterations: int
    train_samples: int | None = None
    eval_interval: int = 1000
    eval_iterations: int = 100
    exit_interval: int | None = None
    exit_duration_minutes: float | None = None
    seed: int = 1234

    def __post_init__(self) -> None:
        model, parallel, batch = self.model, self.parallel, self.batch
        _at_least("iterations", self.iterations, 0)
        for name, value in (
            ("num_heads", model.num_heads),
            ("hidden_size", model.hidden_size),
            ("ffn_hidden_size", model.ffn_hidden_size),
            ("padded_vocab_size", model.padded_vocab_size),
        ):
            _divides(name, value, "tensor parallel size", parallel.tensor)
        groups, tensor = model.num_query_groups, parallel.tensor
        if groups % tensor:
            raise ConfigError(
                f"num_query_groups: {groups}, expected a multiple of tensor parallel size {tensor} — change one of them"
            )
        if parallel.sequence:
            _divides("seq_length", self.data.seq_length, "tensor parallel size (sequence parallel)", tensor)
        if len(parallel.stages) != parallel.pipeline * parallel.virtual_stages:
            raise ConfigError(
                f"stages: {len(parallel.stages)}, expected {parallel.pipeline} pipeline ranks x "
                f"{parallel.virtual_stages} virtual stages — give each its number of layers"
            )
        if sum(parallel.stages) != model.num_layers:
            raise ConfigError(
                f"stages: {sum(parallel.stages)} layers in all, expected {model.num_layers} — correct {parallel.stages}"
            )
        if batch.total != batch.micro * batch.accumulation * parallel.data:
            raise ConfigError(
                f"batch: {batch.total}, expected micro {batch.micro} x accumulation {batch.accumulation} x data ranks "
                f"{parallel.data} = {batch.micro * batch.accumulation * parallel.data} — correct one of them"
            )
        if parallel.virtual_stages > 1:
            _divides("accumulation", batch.accumulation, "pipeline size (virtual stages)", parallel.pipeline)
        if model.positions == "learned" and self.data.seq_length > model.max_positions:
            raise ConfigError(
                f"seq_length: {self.data.seq_length}, expected at most max_positions = {model.max_positions} — "
                "raise the positions or shorten the samples"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data, as config.yaml has it."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TrainConfig:
        """Return the configuration that ``to_dict`` gave.

        Raises:
            ConfigError: a name that is unknown or missing, or a value that does not fit.
        """
        config: TrainConfig = _built(cls, data, "config")
        return config


_PARTS: dict[str, type] = {
    "Batch": Batch,
    "Checkpoint": Checkpoint,
    "Data": Data,
    "Init": Init,
    "Logging": Logging,
    "LossScale": LossScale,
    "Model": Model,
    "Optimizer": Optimizer,
    "Parallel": Parallel,
    "Precision": Precision,
    "Schedule": Schedule,
}


def even_stages(num_layers: int, pipeline: int, virtual_stages: int = 1) -> tuple[int, ...]:
    """Return the layers of each stage where all have as many, as Megatron cuts a model.

    Raises:
        ConfigError: the layers cannot be divided so.
    """
    stages = pipeline * virtual_stages
    _divides("num_layers", num_layers, "pipeline stages", stages)
    return (num_layers // stages,) * stages


def balanced_stages(num_layers: int, pipeline: int) -> tuple[int, ...]:
    """Return the layers of each stage, the first ones one more where they do not divide.

    So does DeepSpeed 0.19.8 runtime/utils.py partition_balanced with one weight for each layer.

    Raises:
        ConfigError: more stages than layers.
    """
    if num_layers < pipeline:
        raise ConfigError(f"num_layers: {num_layers}, expected at least one for each of {pipeline} stages — add layers")
    each, more = divmod(num_layers, pipeline)
    return (each + 1,) * more + (each,) * (pipeline - more)


def padded(vocab_size: int, multiple: int, tensor: int) -> int:
    """Return the rows of an embedding table: the vocabulary, up to a multiple of ``multiple`` * ``tensor``."""
    step = multiple * tensor
    return -(-vocab_size // step) * step


def _built(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: {data!r}, expected names and values — write it as config.yaml has it")
    fields = {one.name: str(one.type) for one in dataclasses.fields(kind)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}, expected {', '.join(fields)} — correct the names")
    values = {}
    for name, value in data.items():
        if fields[name] in _PARTS:
            value = _built(_PARTS[fields[name]], value, f"{where}.{name}")
        values[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}, expected every name without a default — add it") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def _one_of(name: str, value: object, choices: Collection[object]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{name}: {value!r}, expected one of {', '.join(map(str, choices))} — choose one the native trainer has"
        )


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"{name}: {value}, expected at least {least} — correct it")


def _divides(name: str, value: int, by_name: str, by: int) -> None:
    if value % by:
        raise ConfigError(f"{name}: {value}, expected a multiple of {by_name} {by} — change one of them")
