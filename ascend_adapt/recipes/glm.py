"""Recipe of GLM: translates options of pretrain_glm.py and finetune_glm.py, or shell files, into a TrainConfig.

Source of the derivations: THUDM/GLM@4f61ed72 arguments.py, configure_data.py, train_utils.py, pretrain_glm.py and
finetune_glm.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascend_adapt.config.batches import resolve_batch
from ascend_adapt.config.glm_config import CHOICES, Cloze, GlmVocabulary
from ascend_adapt.config.partition import balanced_stages, padded
from ascend_adapt.config.train_config import (
    Batch,
    Checkpoint,
    Init,
    Logging,
    LossScale,
    Model,
    OptimizerConfig,
    Parallel,
    Precision,
    Schedule,
    TrainConfig,
)
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import deepspeed_json, glm_samples
from ascend_adapt.recipes.command_line import OwnOptions, parse, resume_schedule, take_own_options
from ascend_adapt.recipes.glm_ignored import IGNORED, IN_FINETUNING, IN_PRETRAINING
from ascend_adapt.recipes.glm_shell import started
from ascend_adapt.recipes.options import UNKNOWN, Options
from ascend_adapt.recipes.parallel_sizes import check_ranks
from ascend_adapt.recipes.recipe import Recipe
from ascend_adapt.recipes.stages import read_stages
from ascend_adapt.recipes.vocabulary import read_vocabulary
from ascend_adapt.whole_numbers import whole_number

VERSIONS = ("4f61ed7",)
_BLOCK_SYMBOLS, _TASK_MASKS = 6, 2
_STD = 0.02


def read(argv: Sequence[str]) -> Recipe:
    """Return the recipe of GLM's arguments, which may begin with its shell files.

    ``--pipeline-model-parallel-size`` and ``--token-cache`` are options of this package, not of GLM.

    Raises:
        ConfigError: an argument is unknown or invalid.
    """
    command = started(argv)
    own, rest = take_own_options(command.words)
    pipeline, rest = _taken("--pipeline-model-parallel-size", rest)
    cache, rest = _taken("--token-cache", rest)
    version, given, problems = parse("glm", rest, VERSIONS, own.upstream_version)

    def build(world_size: int) -> tuple[TrainConfig, list[str]]:
        finetunes = given.get("finetune") and given.get("task")
        ignored = {**IGNORED, **(IN_FINETUNING if finetunes else IN_PRETRAINING)}
        options = Options(version, given, ignored, problems)
        config = _config(options, own, world_size, pipeline=pipeline, cache=cache)
        return config, options.notes()

    return Recipe(
        "glm",
        version.source,
        build,
        save=given.get("save"),
        ranks_per_node=command.ranks_per_node,
        nodes=command.nodes,
        hostfile=command.hostfile,
    )


def _taken(name: str, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of an option, None if it is not given, and the other arguments."""
    spelled = [word.partition("=")[0].replace("_", "-") for word in words]
    if name not in spelled:
        return None, list(words)
    place = spelled.index(name)
    _, equals, value = words[place].partition("=")
    if equals:
        return value, [*words[:place], *words[place + 1 :]]
    if place + 1 == len(words):
        raise ConfigError(f"{name}: has no value, expected one — add it")
    return words[place + 1], [*words[:place], *words[place + 2 :]]


def _config(
    options: Options, own: OwnOptions, world_size: int, *, pipeline: str | None = None, cache: str | None = None
) -> TrainConfig:
    attempt = options.attempt
    options.require("num_layers", "hidden_size", "num_attention_heads")
    attempt(_check_kind, options)
    file = attempt(_deepspeed, options)
    parallel = attempt(_parallel, options, own, world_size, file, pipeline)
    batch = attempt(_batch, options, parallel, file)
    vocabulary = attempt(glm_samples.vocabulary, options)
    finetunes = bool(options("finetune") and options("task"))
    cloze = attempt(glm_samples.cloze, options, vocabulary, batch) if finetunes else None
    iterations = attempt(_iterations, options, cloze, batch, parallel)
    experiment = _experiment(options)
    return options.build(
        dialect="glm",
        model=attempt(_model, options, vocabulary, Parallel() if parallel is UNKNOWN else parallel),
        parallel=parallel,
        batch=batch,
        optimizer=attempt(_optimizer, options, file),
        schedule=attempt(_schedule, options, iterations, file),
        precision=attempt(_precision, options, file),
        data=attempt(glm_samples.data, options, vocabulary, cloze, cache),
        logging=Logging(
            format=own.log_format or "glm",
            interval=options("log_interval"),
            tensorboard=os.path.join(options("summary_dir"), experiment) if options("summary_dir") else None,
        ),
        checkpoint=attempt(_checkpoint, options, own, cloze, batch, parallel, experiment),
        iterations=iterations,
        eval_interval=0 if finetunes else options("eval_interval", 0),
        eval_iterations=options("eval_iters", 0),
        exit_interval=own.exit_interval,
        seed=options("seed"),
        check_for_nan_in_loss_and_grad=own.check_for_nan_in_loss_and_grad,
        cloze=cloze,
    )


def _check_kind(options: Options) -> None:
    if not options("block_lm"):
        raise ConfigError("--block-lm: not given, but required — the native trainer supports only blank infilling")
    kind = options("tokenizer_type")
    if kind != "GPT2BPETokenizer":
        raise ConfigError(
            f"--tokenizer-type: {kind}, expected GPT2BPETokenizer — the native trainer supports no other tokenizer of "
            "GLM"
        )
    if options("finetune") and options("task"):
        if not options("cloze_eval"):
            raise ConfigError("--cloze-eval: not given, but required — the native trainer has no classification head")
        if options("task").lower() not in CHOICES:
            raise ConfigError(
                f"--task: {options('task')!r}, expected one of {', '.join(CHOICES)} — choose one of these"
            )


def _deepspeed(options: Options) -> dict[str, Any]:
    """Return the content of the DeepSpeed file; empty without --deepspeed."""
    path = options("deepspeed_config")
    if not options("deepspeed"):
        if path is not None:
            raise ConfigError("--deepspeed_config: without --deepspeed, expected both — GLM would not read the file")
        return {}
    if path is None:
        raise ConfigError("--deepspeed: without --deepspeed_config, expected both — pass the file")
    content = deepspeed_json.read_file(path)
    optimizer = content.get("optimizer")
    if not isinstance(optimizer, dict) or str(optimizer.get("type")).lower() not in ("adam", "adamw"):
        raise ConfigError(
            f"deepspeed_config {path!r}: optimizer {optimizer!r}, expected type Adam — GLM reads the optimizer from "
            "this file"
        )
    if not isinstance(optimizer.get("params", {}), dict):
        raise ConfigError(f"deepspeed_config {path!r}: optimizer.params is not an object — correct it")
    return content


def _number(file: dict[str, Any], name: str, otherwise: float) -> float:
    value = file.get("optimizer", {}).get("params", {}).get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"deepspeed_config: optimizer.params.{name} {value!r}, expected a number — correct it")
    return float(value)


def _parallel(options: Options, own: OwnOptions, world_size: int, file: dict[str, Any], stated: str | None) -> Parallel:
    tensor = options.size("model_parallel_size")
    pipeline = 1 if stated is None else whole_number(stated)
    if pipeline is None:
        raise ConfigError(f"--pipeline-model-parallel-size: {stated!r}, expected a number — correct it")
    pipeline = max(pipeline, 1)
    check_ranks(world_size, {"model parallel": tensor, "pipeline": pipeline}, "--nproc")
    virtual, stages = read_stages(own, options.size("num_layers"), pipeline, balanced_stages)
    zero, offload = deepspeed_json.zero_stage(file.get("zero_optimization"))
    return Parallel(
        tensor=tensor,
        pipeline=pipeline,
        data=world_size // tensor // pipeline,
        virtual_stages=virtual,
        stages=stages,
        zero_stage=zero,
        offload_optimizer=offload,
        recompute="full" if options("checkpoint_activations") else "none",
        recompute_layers=options("checkpoint_num_layers"),
    )


def _batch(options: Options, parallel: Parallel, file: dict[str, Any]) -> Batch:
    # If the file sets no accumulation, there is none, even if the command line sets it.
    micro = file.get("train_micro_batch_size_per_gpu", options("batch_size"))
    accumulation = file.get("gradient_accumulation_steps", 1) if file else options("gradient_accumulation_steps")
    for name, value in (("batch size", micro), ("gradient accumulation", accumulation)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name}: {value!r}, expected an integer — correct it")
    total = file.get("train_batch_size")
    return resolve_batch(parallel.data, total if isinstance(total, int) else None, micro, accumulation)


def _model(options: Options, vocabulary: GlmVocabulary, parallel: Parallel) -> Model:
    hidden, heads, layers = (options.size(name) for name in ("hidden_size", "num_attention_heads", "num_layers"))
    if hidden % heads:
        raise ConfigError(f"hidden_size: {hidden}, expected a multiple of {heads} heads — change one of them")
    special = _BLOCK_SYMBOLS + _TASK_MASKS * vocabulary.task_mask + vocabulary.decoder_mask
    ids = read_vocabulary("GPT2BPETokenizer", vocabulary.vocab_file, None).size + special
    weights = Init(std=_STD)
    return Model(
        vocab_size=ids,
        # Unlike Megatron's, it need not be a multiple of the model-parallel size.
        padded_vocab_size=padded(ids, options("make_vocab_size_divisible_by"), 1),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_query_groups=heads,
        head_dim=hidden // heads,
        ffn_hidden_size=4 * hidden,
        max_positions=options.size("max_position_embeddings") + 1,
        positions="block",
        activation="gelu_tanh",
        hidden_dropout=options("hidden_dropout"),
        attention_dropout=options("attention_dropout"),
        embedding_init=weights,
        init=weights,
        output_init=Init(std=_STD / math.sqrt(2.0 * layers)),
        head_init=weights,
    )


def _iterations(options: Options, cloze: Cloze | None, batch: Batch, parallel: Parallel) -> int:
    if cloze is not None:
        return cloze.epochs * cloze.micro_batches(batch.micro, parallel.data) // batch.accumulation
    return options.size("train_iters")


def _optimizer(options: Options, file: dict[str, Any]) -> OptimizerConfig:
    if options("optimizer") != "adam":
        raise ConfigError(
            f"--optimizer: {options('optimizer')!r}, expected adam — the native trainer supports no other"
        )
    given = (options("adam_beta1"), options("adam_beta2"), options("adam_eps"))
    decay, clip = options("weight_decay"), options("clip_grad")
    if not file:
        return OptimizerConfig(kind="adamw", betas=given[:2], eps=given[2], weight_decay=decay, clip_grad=clip)
    params = file["optimizer"].get("params", {})
    betas = params.get("betas", (0.9, 0.999))
    if not isinstance(betas, (list, tuple)) or len(betas) != 2:
        raise ConfigError(f"deepspeed_config: optimizer.params.betas {betas!r}, expected two numbers — correct it")
    clip = file.get("gradient_clipping", 0.0)
    if isinstance(clip, bool) or not isinstance(clip, (int, float)):
        raise ConfigError(f"deepspeed_config: gradient_clipping {clip!r}, expected a number — correct it")
    return OptimizerConfig(
        kind="adamw",
        betas=(float(betas[0]), float(betas[1])),
        eps=_number(file, "eps", 1e-8),
        weight_decay=_number(file, "weight_decay", 0.0),
        # DeepSpeed's Adam decouples weight decay by default.
        decoupled=bool(params.get("adam_w_mode", True)),
        clip_grad=float(clip),
    )


def _schedule(options: Options, iterations: int, file: dict[str, Any]) -> Schedule:
    decay = options("lr_decay_iters", iterations)
    lr = _number(file, "lr", options("lr"))
    ratio = options("lr_decay_ratio")
    if not 0 <= ratio <= 1:
        raise ConfigError(f"--lr-decay-ratio: {ratio}, expected 0 to 1 — correct it")
    return Schedule(
        dialect="glm",
        lr=lr,
        min_lr=lr * ratio,
        style=options("lr_decay_style"),
        unit="iterations",
        warmup=options("warmup") * decay,
        decay=max(1, decay),
    )


def _precision(options: Options, file: dict[str, Any]) -> Precision:
    fp16 = options("fp16")
    bf16 = deepspeed_json.is_on(file.get("bf16", {"enabled": False}))
    scale = LossScale(
        fixed=options("loss_scale") or None,
        initial=2.0**32,
        minimum=options("min_scale"),
        window=int(options("loss_scale_window")),
        hysteresis=options("hysteresis"),
    )
    if file:
        theirs = deepspeed_json.is_on(file.get("fp16", {"enabled": False}))
        if theirs != fp16:
            raise ConfigError(
                f"deepspeed_config: fp16 is {'on' if theirs else 'off'}, expected the command line to agree — "
                f"{'add' if theirs else 'leave out'} --fp16, or change the file"
            )
        scale = deepspeed_json.loss_scale(file.get("fp16", {}))
    if fp16 and bf16:
        raise ConfigError("deepspeed_config: fp16 and bf16 are on, expected one — choose one")
    return Precision(dtype="fp16" if fp16 else "bf16" if bf16 else "fp32", loss_scale=scale)


def _experiment(options: Options) -> str:
    """Return the name of the checkpoint folder; upstream appends the time for a new run."""
    load, name = options("load"), options("experiment_name")
    return name if load is None or options("new_save_directory") else Path(os.path.normpath(load)).name


def _checkpoint(
    options: Options, own: OwnOptions, cloze: Cloze | None, batch: Batch, parallel: Parallel, experiment: str
) -> Checkpoint:
    save, load, pretrained = options("save"), options("load"), options("load_pretrained")
    interval = options("save_interval", 0)
    if pretrained is not None and cloze is None:
        raise ConfigError("--load-pretrained: without a --task to finetune on, expected --load — use --load instead")
    if cloze is not None:
        interval = max(options("save_epoch") * cloze.micro_batches(batch.micro, parallel.data) // batch.accumulation, 1)
    return Checkpoint(
        save=None if save is None else os.path.join(save, experiment),
        load=load if load is not None or cloze is None else pretrained,
        interval=interval,
        at_end=cloze is None,
        # In a finetuning run, --finetune only concerns the initial weights.
        finetune=options("finetune") if cloze is None else load is None,
        load_optimizer=not options("no_load_optim"),
        load_rng=not options("no_load_rng"),
        save_optimizer=not options("no_save_optim"),
        save_rng=not options("no_save_rng"),
        resume_schedule=resume_schedule(
            own, options, default="override" if options("no_load_lr_scheduler") else "match"
        ),
    )
