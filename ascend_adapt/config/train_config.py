"""Training configuration, the same for every dialect: frozen, validated, and importable without torch.

``ascend_adapt.recipes`` translates each dialect into it once. A recipe fills in the defaults of its dialect, so
two runs with equal configurations train in the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ascend_adapt import extensions
from ascend_adapt.config.checks import Problems, at_least, check_split, divides, one_of
from ascend_adapt.config.glm_config import BlankInfilling as BlankInfilling
from ascend_adapt.config.glm_config import Cloze as Cloze
from ascend_adapt.config.glm_config import GlmVocabulary as GlmVocabulary
from ascend_adapt.config.model_config import Init as Init
from ascend_adapt.config.model_config import Model as Model
from ascend_adapt.config.profile_config import Profile as Profile
from ascend_adapt.config.text_samples import TextSamples
from ascend_adapt.errors import ConfigError

RECOMPUTE = ("none", "full", "selective")
OPTIMIZERS = ("adam", "adamw", "sgd")
DECAY_STYLES = ("constant", "linear", "cosine", "exponential", "inverse-square-root", "WSD")
WSD_STYLES = ("exponential", "linear", "cosine", "minus_sqrt")
DTYPES = ("fp32", "fp16", "bf16")
RESUME_SCHEDULES = ("match", "override", "checkpoint")
LOSS_MEANS = ("micro_batches", "tokens")
FLOPS = ("paper", "mcore", "neox-v2")
# Entry point groups; a third party's dialect registers its schedules and log formats there.
SCHEDULES = "ascend_adapt.schedules"
LOG_FORMATS = "ascend_adapt.log_formats"


@dataclass(frozen=True)
class Parallel:
    """Parallelism: ranks along each axis. Rank = (pipeline * data ranks + data) * tensor ranks + tensor.

    ``stages`` is the number of layers of each stage, in model order: pipeline * virtual_stages numbers; stage s is on
    pipeline rank s % pipeline. ``recompute_layers`` is the number of layers per activation checkpoint.
    ``offload_optimizer`` keeps master weights and optimizer states in host memory.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    virtual_stages: int = 1
    stages: tuple[int, ...] = ()
    sequence: bool = False
    zero_stage: int = 0
    offload_optimizer: bool = False
    recompute: str = "none"
    recompute_layers: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "virtual_stages", "recompute_layers"):
            at_least(name, getattr(self, name), 1)
        one_of("recompute", self.recompute, RECOMPUTE)
        one_of("zero_stage", self.zero_stage, (0, 1, 2, 3))
        if self.virtual_stages > 1 and self.pipeline < 2:
            raise ConfigError(
                f"virtual_stages: {self.virtual_stages} on {self.pipeline} pipeline rank, expected at least 2 ranks — "
                "increase the pipeline size or omit the virtual stages"
            )
        if self.zero_stage > 1 and self.pipeline > 1:
            raise ConfigError(
                f"zero_stage: {self.zero_stage} with {self.pipeline} pipeline stages, expected stage 0 or 1 — "
                "a pipeline cannot shard its gradients before the last micro batch; lower the stage or use no pipeline"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks of the run."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True)
class Batch:
    """Batch sizes in samples: ``total`` = micro * accumulation * data-parallel size.

    ``rampup`` is (start size, increment, samples), or None. During the ramp-up, the accumulation of a step follows from
    its global batch size.
    """

    micro: int
    accumulation: int
    total: int
    rampup: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("micro", "accumulation", "total"):
            at_least(f"{name} batch", getattr(self, name), 1)


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam, AdamW (``decoupled`` weight decay) or SGD.

    Weight decay applies to matrices only, not to biases and norm weights, as in Megatron, GPT-NeoX and OneFlow.
    """

    kind: str = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.01
    decoupled: bool = True

    clip_grad: float = 1.0

    def __post_init__(self) -> None:
        one_of("optimizer", self.kind, OPTIMIZERS)

        for name, beta in zip(("first beta", "second beta"), self.betas, strict=True):
            if not 0 <= beta < 1:
                raise ConfigError(f"{name} of Adam: {beta}, expected at least 0 and below 1 — correct it")
        if self.clip_grad != math.inf:
            at_least("clip_grad", self.clip_grad, 0)
        at_least("eps of Adam", self.eps, 0)
        at_least("weight_decay", self.weight_decay, 0)


@dataclass(frozen=True)
class Schedule:
    """Learning rate schedule; ``ascend_adapt.config.schedules`` computes it by the formula of ``dialect``.

    ``warmup`` and ``decay`` are counted in ``unit`` ("samples" or "iterations"); warmup may be fractional. Weight decay
    changes from ``start_weight_decay`` to ``end_weight_decay`` over ``weight_decay_over``, if they are given.
    ``Checkpoint.resume_schedule`` determines the schedule of a resumed run.
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
        one_of("schedule", self.dialect, extensions.names(SCHEDULES, "megatron"))
        one_of("decay style", self.style, DECAY_STYLES)
        one_of("WSD style", self.wsd_style, WSD_STYLES)
        one_of("unit", self.unit, ("samples", "iterations"))
        at_least("lr", self.lr, 0)
        at_least("min_lr", self.min_lr, 0)
        at_least("warmup", self.warmup, 0)
        if self.min_lr > self.lr:
            raise ConfigError(f"min_lr: {self.min_lr}, expected at most lr = {self.lr} — lower it")
        one_of("weight decay style", self.weight_decay_style, ("constant", "linear", "cosine"))
        if self.decay <= 0:
            raise ConfigError(f"decay length: {self.decay:g} {self.unit}, expected above 0 — set the iterations")
        if self.warmup >= self.decay and self.style != "constant":
            raise ConfigError(
                f"warmup: {self.warmup:g} {self.unit}, expected below the decay length {self.decay:g} — shorten it"
            )


@dataclass(frozen=True)
class LossScale:
    """Loss scaling for fp16; ``fixed`` is a static scale, or None for a dynamic one.

    ``rule`` selects the upstream: after ``hysteresis`` overflows Megatron halves the scale at each further overflow
    until it has grown again; DeepSpeed halves it at each. Both double it after ``window`` steps without overflow. A
    skipped step does not advance the schedule.
    """

    fixed: float | None = None
    initial: float = 2.0**32
    minimum: float = 1.0
    window: int = 1000
    hysteresis: int = 2
    rule: str = "megatron"

    def __post_init__(self) -> None:
        one_of("loss scale rule", self.rule, ("megatron", "deepspeed"))
        for name, value in (("initial", self.initial), ("fixed", self.fixed)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} loss scale: {value}, expected a finite number above 0 — correct it")
        at_least("loss scale window", self.window, 1)


@dataclass(frozen=True)
class Precision:
    """Mixed precision: ``dtype`` of compute weights and activations, ``reduce`` for gradient reduction.

    Master weights and optimizer states are fp32. fp16 and bf16 cannot be combined: bf16 gradients overflow in fp16, and
    fp16 gradients lose three bits in bf16.
    """

    dtype: str = "fp32"
    reduce: str = "fp32"
    loss_scale: LossScale = field(default_factory=LossScale)

    def __post_init__(self) -> None:
        one_of("dtype", self.dtype, DTYPES)
        one_of("reduce", self.reduce, DTYPES)
        if {self.dtype, self.reduce} == {"fp16", "bf16"}:
            raise ConfigError(f"reduce: {self.reduce!r}, expected 'fp32' or {self.dtype!r} — choose one of them")


@dataclass(frozen=True)
class Data:
    """Token datasets and their sample order.

    ``train``, ``valid`` and ``test`` are prefixes, or alternating weights and prefixes; if ``valid`` and ``test`` are
    empty, ``split`` divides ``train``. ``order`` is a dialect of ``ascend_adapt.data``. ``eod`` is the end-of-document
    id, needed only for ``reset_position_ids``, ``reset_attention_mask`` and ``eod_mask_loss``. With
    ``blanks`` (GLM) they are .jsonl files or folders of them, tokenized once, next to the files or in
    ``cache``.
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
    blanks: BlankInfilling | None = None

    def __post_init__(self) -> None:
        at_least("seq_length", self.seq_length, 1)
        at_least("num_workers", self.num_workers, 0)
        one_of("sampler", self.sampler, ("single", "cyclic"))
        at_least("seed", self.seed, 0)
        if not (self.valid or self.test):
            check_split(self.split)


@dataclass(frozen=True)
class Logging:
    """Logging; ``interval`` is in iterations.

    ``loss_mean``: the logged loss is the mean over micro batches, or over unmasked tokens. The gradient is always that
    of the mean over micro batches.
    """

    format: str = "megatron"
    interval: int = 100
    flops: str = "paper"
    loss_mean: str = "micro_batches"
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
        one_of("log format", self.format, extensions.names(LOG_FORMATS, "megatron"))
        one_of("flops", self.flops, FLOPS)
        one_of("loss mean", self.loss_mean, LOSS_MEANS)
        at_least("log interval", self.interval, 1)


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoints, saved every ``interval`` iterations (0: at the end only), and at ``steps``.

    With ``asynchronous``, training continues while a copy in host memory is written. ``keep_last`` is the number of
    checkpoints to keep; older ones are deleted. ``resume_schedule``: if the schedule or the weight decay differs from
    the checkpoint's, raise an error ("match"), use the configured values ("override") or those of the checkpoint
    ("checkpoint").
    """

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
    asynchronous: bool = True
    resume_schedule: str = "match"

    def __post_init__(self) -> None:
        at_least("save interval", self.interval, 0)
        one_of("resume schedule", self.resume_schedule, RESUME_SCHEDULES)
        if self.keep_last is not None:
            at_least("checkpoints to keep", self.keep_last, 1)


@dataclass(frozen=True)
class TrainConfig:
    """Configuration of one run. ``eval_interval`` 0 disables evaluation; ``exit_interval`` stops the run after a save.

    ``exit_signals``: which of SIGUSR1 and SIGUSR2 save a checkpoint and stop the run; the others save and continue.
    ``compile``: compile the transformer blocks with torch.compile. ``eval_only``: evaluate and do not train. ``cloze``:
    the task to finetune on; of ``data``, only the lengths are then used. ``text_samples``: texts to generate at each
    evaluation. ``check_for_nan_in_loss_and_grad``: end the run at the first NaN or Inf that a lower loss scale cannot
    prevent.
    """

    dialect: str
    model: Model
    parallel: Parallel
    batch: Batch
    optimizer: OptimizerConfig
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
    exit_signals: tuple[str, ...] = ()
    seed: int = 1234
    check_for_nan_in_loss_and_grad: bool = True
    compile: bool = False
    profile: Profile = field(default_factory=Profile)
    cloze: Cloze | None = None
    eval_only: bool = False
    text_samples: TextSamples | None = None

    def for_evaluation(self) -> TrainConfig:
        """Return the configuration that evaluates the checkpoint of ``load``, without training or saving.

        Raises:
            ConfigError: there is no checkpoint to load, or nothing to evaluate.
        """
        if self.checkpoint.load is None:
            raise ConfigError("--eval-only: without --load, expected the checkpoint to evaluate — add --load")
        if not (self.eval_interval and self.eval_iterations):
            raise ConfigError(
                f"--eval-only: with eval interval {self.eval_interval} and {self.eval_iterations} eval iterations, "
                "expected both above 0 — set them as for training"
            )
        weights = replace(
            self.checkpoint, save=None, load_optimizer=False, load_rng=False, resume_schedule="checkpoint"
        )
        return replace(self, checkpoint=weights, eval_only=True)

    def __post_init__(self) -> None:
        problems = Problems()
        for name in ("iterations", "eval_interval", "eval_iterations", "seed"):
            with problems:
                at_least(name, getattr(self, name), 0)
        for check in (
            self._check_tensor_parallel,
            self._check_stages,
            self._check_profile,
            self._check_batch,
            self._check_positions,
            self._check_blanks,
            self._check_text_samples,
        ):
            with problems:
                check()
        problems.raise_all()

    @property
    def rows_per_sample(self) -> int:
        """Number of batch rows per sample: for a cloze task with several answers, one row per answer."""
        return 1 if self.cloze is None else self.cloze.rows

    def _check_tensor_parallel(self) -> None:
        model, tensor, problems = self.model, self.parallel.tensor, Problems()
        for name, value in (
            ("num_heads", model.num_heads),
            ("hidden_size", model.hidden_size),
            ("ffn_hidden_size", model.ffn_hidden_size),
            ("padded_vocab_size", model.padded_vocab_size),
            ("num_query_groups", model.num_query_groups),
        ):
            with problems:
                divides(name, value, "tensor parallel size", tensor)
        if self.parallel.sequence:
            with problems:
                divides("seq_length", self.data.seq_length, "tensor parallel size (sequence parallel)", tensor)
        problems.raise_all()

    def _check_stages(self) -> None:
        parallel = self.parallel
        if len(parallel.stages) != parallel.pipeline * parallel.virtual_stages:
            raise ConfigError(
                f"stages: {len(parallel.stages)}, expected {parallel.pipeline} pipeline ranks x "
                f"{parallel.virtual_stages} virtual stages — set the number of layers of each"
            )
        if sum(parallel.stages) != self.model.num_layers or min(parallel.stages) < 0:
            raise ConfigError(
                f"stages: {parallel.stages}, expected numbers of at least 0 whose sum is {self.model.num_layers}, the "
                "number of layers — correct them"
            )

    def _check_profile(self) -> None:
        if self.profile.first > self.iterations:
            raise ConfigError(
                f"profile: iteration {self.profile.first}, expected at most {self.iterations}, the run's last "
                "iteration — choose earlier ones"
            )
        ranks = self.parallel.world_size
        for rank in self.profile.ranks if self.profile.is_on else ():
            if rank >= ranks:
                raise ConfigError(
                    f"profile: rank {rank}, expected below {ranks}, the number of ranks — choose other ranks"
                )

    def _check_batch(self) -> None:
        batch, parallel = self.batch, self.parallel
        in_a_step = batch.micro * batch.accumulation * parallel.data
        if batch.total != in_a_step:
            raise ConfigError(
                f"batch: {batch.total}, expected micro {batch.micro} x accumulation {batch.accumulation} x "
                f"data-parallel size {parallel.data} = {in_a_step} — correct one of them"
            )
        if parallel.virtual_stages > 1:
            divides("accumulation", batch.accumulation, "pipeline size (virtual stages)", parallel.pipeline)

    def _check_positions(self) -> None:
        model = self.model
        if model.positions == "learned" and self.data.seq_length > model.max_positions:
            raise ConfigError(
                f"seq_length: {self.data.seq_length}, expected at most max_positions = {model.max_positions} — "
                "raise the positions or shorten the samples"
            )
        if model.positions == "block" and self.data.seq_length >= model.max_positions:
            raise ConfigError(
                f"seq_length: {self.data.seq_length}, expected at most {model.max_positions - 1}, the positions of the "
                "model — raise the positions or shorten the samples"
            )

    def _check_blanks(self) -> None:
        if (self.data.blanks or self.cloze) and self.model.positions != "block":
            raise ConfigError(
                f"positions: {self.model.positions!r} with blanks, expected 'block' — a GLM model has block positions"
            )
        if self.data.blanks and self.data.blanks.short_seq_prob and self.parallel.pipeline > 1:
            raise ConfigError(
                f"short_seq_prob: {self.data.blanks.short_seq_prob} with {self.parallel.pipeline} pipeline stages, "
                "expected 0 — micro batches of a pipeline have one shape; leave it out, or use no pipeline"
            )

    def _check_text_samples(self) -> None:
        if self.text_samples is None:
            return
        parallel, data = self.parallel, self.data
        wrong = {
            f"{parallel.pipeline} pipeline stages, none of which has the full model": parallel.pipeline > 1,
            "sequence parallelism, which divides a sequence of one token over ranks": parallel.sequence,
            "a finetuning task, whose model only scores answers": self.cloze is not None,
            "no evaluations (eval interval 0)": not self.eval_interval,
            "no tokenizer given": data.blanks is None
            and data.vocab_file is None
            and data.tokenizer_type != "CharLevelTokenizer",
        }
        if problems := [what for what, is_so in wrong.items() if is_so]:
            raise ConfigError(
                f"--sample-prompts: with {' and '.join(problems)}, expected none of these — change these settings, or "
                "omit --sample-prompts and run ascend-adapt generate on a checkpoint"
            )
