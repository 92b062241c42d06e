"""Recipe of Megatron-LM and the Megatron-DeepSpeed forks: translates their command line into a TrainConfig.

Sources of the derivations: Megatron-LM@v2.5 and bigscience Megatron-DeepSpeed@8387ae17 megatron/arguments.py,
Megatron-LM@core_v0.9.0 megatron/training/arguments.py (validate_args, core_transformer_config_from_args).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ascend_adapt.config.batches import check_rampup, iterations_for, resolve_batch
from ascend_adapt.config.train_config import (
    Batch,
    Checkpoint,
    Data,
    Logging,
    LossScale,
    OptimizerConfig,
    Parallel,
    Precision,
    TrainConfig,
)
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import deepspeed_json
from ascend_adapt.recipes.command_line import OwnOptions, parse, resume_schedule, take_own_options
from ascend_adapt.recipes.megatron_ignored import IGNORED
from ascend_adapt.recipes.megatron_model import read_model, read_seq_length
from ascend_adapt.recipes.megatron_schedule import read_schedule
from ascend_adapt.recipes.megatron_stages import read_megatron_stages
from ascend_adapt.recipes.options import UNKNOWN, Options
from ascend_adapt.recipes.parallel_sizes import check_ranks, tensor_and_pipeline
from ascend_adapt.recipes.recipe import Recipe
from ascend_adapt.recipes.stages import Stages
from ascend_adapt.recipes.vocabulary import Vocabulary, read_vocabulary

# In order of preference: the first version that has every given option is used. The fork of the guides comes first.
VERSIONS = ("bigscience", "v2.5", "core_v0.9.0", "newest", "deepspeed")

_ORDER = {"bigscience": "bigscience", "v2.5": "megatron-v2", "deepspeed": "megatron-v2"}
_LOG_FORMAT = {"bigscience": "bigscience", "v2.5": "megatron", "deepspeed": "deepspeed"}


def read(argv: Sequence[str]) -> Recipe:
    """Return the recipe of Megatron's arguments.

    Raises:
        ConfigError: an argument is unknown or invalid.
    """
    own, rest = take_own_options(argv)
    version, given, problems = parse("megatron", rest, VERSIONS, own.upstream_version)
    if own.exit_interval is not None:
        given["exit_interval"] = own.exit_interval
    given |= own.stages

    def build(world_size: int) -> tuple[TrainConfig, list[str]]:
        options = Options(version, given, IGNORED, problems)
        notes = [] if own.upstream_version else [f"read as {version.source}; --upstream-version chooses another"]
        config = _config(options, own, world_size, notes)
        return config, notes + options.notes()

    return Recipe("megatron", version.source, build, save=given.get("save"))


def _config(options: Options, own: OwnOptions, world_size: int, notes: list[str]) -> TrainConfig:
    attempt = options.attempt
    options.require("num_layers", "hidden_size", "num_attention_heads", "micro_batch_size", "lr")
    deepspeed = attempt(_deepspeed, options, notes)
    stages = attempt(read_megatron_stages, options, deepspeed)
    parallel = attempt(_parallel, options, world_size, deepspeed, stages)
    batch = attempt(_batch, options, parallel, deepspeed)
    length = attempt(_length, options)
    iterations, samples = attempt(_counted, length, batch, parallel, otherwise=(UNKNOWN, UNKNOWN))
    # The rest is checked even if the vocabulary or the layout is wrong.
    vocabulary = attempt(_vocabulary, options, own, otherwise=Vocabulary(1, None))
    skips_training = options("skip_train", False)
    config = options.build(
        dialect="megatron",
        model=attempt(read_model, options, vocabulary, Parallel() if parallel is UNKNOWN else parallel),
        parallel=parallel,
        batch=batch,
        optimizer=attempt(_optimizer, options, deepspeed),
        schedule=attempt(read_schedule, options, batch, iterations, samples),
        precision=attempt(_precision, options, deepspeed),
        data=attempt(_data, options, vocabulary),
        logging=attempt(_logging, options, own),
        checkpoint=attempt(_checkpoint, options, own),
        iterations=iterations,
        train_samples=samples,
        eval_interval=options("eval_interval", 0),
        eval_iterations=options("eval_iters", 100),
        exit_interval=options("exit_interval"),
        exit_duration_minutes=options("exit_duration_in_mins"),
        exit_signals=attempt(_exit_signals, options),
        seed=options("seed"),
        check_for_nan_in_loss_and_grad=own.check_for_nan_in_loss_and_grad,
    )
    return config.for_evaluation() if skips_training else config


def _exit_signals(options: Options) -> tuple[str, ...]:
    """Return the signals of --exit-signal; SIGTERM and SIGHUP always end a native run after a save."""
    name, is_on = options("exit_signal", "SIGTERM"), options("exit_signal_handler", False)
    if not is_on:
        return ()
    if name not in ("SIGTERM", "SIGUSR1", "SIGUSR2"):
        raise ConfigError(f"--exit-signal: {name}, expected SIGTERM, SIGUSR1 or SIGUSR2 — choose one of them")
    return () if name == "SIGTERM" else (name,)


def _deepspeed(options: Options, notes: list[str]) -> dict[str, Any]:
    """Return the parts of the DeepSpeed file that upstream, or this trainer, uses."""
    path, switched_on = options("deepspeed_config"), options("deepspeed", False)
    stage = options("zero_stage")
    if path is None:
        if switched_on:
            raise ConfigError("--deepspeed: without --deepspeed_config, expected both — pass the file")
        return {"zero_optimization": {"stage": stage}} if options.given.get("zero_stage") else {}
    content = deepspeed_json.read_file(path)
    if switched_on:
        return {**content, "switched_on": True}
    notes.append(
        "--deepspeed_config without --deepspeed: upstream does not read the file; only its zero_optimization "
        "is used, which does not change results"
    )
    return {"zero_optimization": content.get("zero_optimization", {})}


def _parallel(options: Options, world_size: int, deepspeed: dict[str, Any], stages: tuple[int, Stages]) -> Parallel:
    tensor, pipeline = tensor_and_pipeline(options)
    check_ranks(world_size, {"tensor": tensor, "pipeline": pipeline}, "--nproc")
    virtual, layers = stages
    stage, offload = deepspeed_json.zero_stage(deepspeed.get("zero_optimization"))
    if options("use_distributed_optimizer", False):
        stage = max(stage, 1)
    if options("use_torch_fsdp2", False):
        stage = 3
    if options("use_megatron_fsdp", False):
        sharded = ("no_shard", "optim", "optim_grads", "optim_grads_params")
        stage = sharded.index(options("data_parallel_sharding_strategy"))
    recompute, layers_kept = _recompute(options)
    return Parallel(
        tensor=tensor,
        pipeline=pipeline,
        data=world_size // tensor // pipeline,
        virtual_stages=virtual,
        stages=layers,
        sequence=options("sequence_parallel", False) and tensor > 1,
        zero_stage=stage,
        offload_optimizer=offload,
        recompute=recompute,
        recompute_layers=layers_kept,
    )


def _recompute(options: Options) -> tuple[str, int]:
    if options("checkpoint_activations", False):
        return "full", options("checkpoint_num_layers", 1)
    granularity = options("recompute_granularity")
    if options("recompute_activations", False):
        granularity = "selective"
    # "block" recomputes only some of the layers, which only changes memory and time.
    method, layers = options("recompute_method"), options("recompute_num_layers", 1)
    return granularity or "none", layers if method == "uniform" else 1


def _batch(options: Options, parallel: Parallel, deepspeed: dict[str, Any]) -> Batch:
    micro = options.required("micro_batch_size")
    total = options("global_batch_size")
    batch = resolve_batch(parallel.data, total, micro, 1 if total is None else None)
    for name, ours in (
        ("train_batch_size", batch.total),
        ("train_micro_batch_size_per_gpu", batch.micro),
        ("gradient_accumulation_steps", batch.accumulation),
    ):
        theirs = deepspeed.get(name, ours)
        if theirs not in (ours, "auto"):
            raise ConfigError(
                f"deepspeed_config: {name} {theirs}, expected {ours} as on the command line — change one of them"
            )
    rampup = options("rampup_batch_size")
    if rampup is not None:
        if len(rampup) != 3:
            raise ConfigError(
                f"--rampup-batch-size: {rampup}, expected first size, increment and samples — pass three numbers"
            )
        batch = replace(batch, rampup=(int(rampup[0]), int(rampup[1]), int(rampup[2])))
        check_rampup(batch, parallel.data)
    return batch


def _length(options: Options) -> tuple[int | None, int | None]:
    iterations, samples = options("train_iters"), options("train_samples")
    if (iterations is None) == (samples is None):
        raise ConfigError("--train-iters, --train-samples: expected one of the two — pass one")
    if iterations is not None and options("rampup_batch_size") is not None:
        raise ConfigError(
            "--rampup-batch-size: given with --train-iters, expected --train-samples — pass the length of the run in "
            "samples"
        )
    return iterations, samples


def _counted(length: tuple[int, None] | tuple[None, int], batch: Batch, parallel: Parallel) -> tuple[int, int | None]:
    """Return the iterations, and the samples if the run counts samples."""
    iterations, samples = length
    if samples is None:
        assert iterations is not None
        return iterations, None
    return iterations_for(batch, parallel.data, samples), samples


def _vocabulary(options: Options, own: OwnOptions) -> Vocabulary:
    kind = options("tokenizer_type", "GPT2BPETokenizer")
    file = options("vocab_file") or options("tokenizer_model") or options("tokenizer_name_or_path")
    if kind == "NullTokenizer" and own.vocab_size is not None and own.vocab_size > 0:
        return _vocabulary_without_a_file(options, own.vocab_size)
    return read_vocabulary(kind, file, own.vocab_size)


def _vocabulary_without_a_file(options: Options, stated: int) -> Vocabulary:
    """Return the ids of a NullTokenizer; older versions count them without the end-of-document id, which they append.

    Source: Megatron-LM@core_v0.9.0 megatron/training/tokenizer/tokenizer.py, and @d98e8a64
    megatron/core/tokenizers/text/libraries/null_tokenizer.py.
    """
    if options.version.name == "newest":
        return Vocabulary(stated, options("null_tokenizer_eod_id", stated - 1))
    return Vocabulary(stated + 1, stated)


def _optimizer(options: Options, deepspeed: dict[str, Any]) -> OptimizerConfig:
    # DeepSpeed's engine reads clipping from its own file only; without a value there it does not clip.
    clip = deepspeed.get("gradient_clipping", 0.0) if deepspeed.get("switched_on") else options("clip_grad")
    options("clip_grad")
    if isinstance(clip, bool) or not isinstance(clip, (int, float)):
        raise ConfigError(f"deepspeed_config: gradient_clipping {clip!r}, expected a number — correct it")
    kind = options("optimizer")
    if kind not in ("adam", "sgd"):
        raise ConfigError(f"--optimizer: {kind!r}, expected adam or sgd — the native trainer supports no other")
    return OptimizerConfig(
        kind=kind,
        betas=(options("adam_beta1"), options("adam_beta2")),
        eps=options("adam_eps"),
        momentum=options("sgd_momentum"),
        weight_decay=options("weight_decay"),
        decoupled=kind == "adam",
        clip_grad=clip,
    )


def _precision(options: Options, deepspeed: dict[str, Any]) -> Precision:
    fp16, bf16 = options("fp16"), options("bf16")
    if fp16 and bf16:
        raise ConfigError("--fp16, --bf16: both are given, expected one — choose one")
    scale = LossScale(
        fixed=options("loss_scale") or None,  # 0 is dynamic loss scaling, as upstream
        initial=float(options("initial_loss_scale")),
        minimum=options("min_loss_scale"),
        window=int(options("loss_scale_window")),
        hysteresis=options("hysteresis"),
    )
    if deepspeed.get("switched_on"):
        for name, ours in (("fp16", fp16), ("bf16", bf16)):
            theirs = deepspeed_json.is_on(deepspeed.get(name, {"enabled": False}))
            if theirs != ours:
                raise ConfigError(
                    f"deepspeed_config: {name} is {'on' if theirs else 'off'}, expected the command line to agree — "
                    f"{'add' if theirs else 'leave out'} --{name}, or change the file"
                )
        scale = deepspeed_json.loss_scale(deepspeed.get("fp16", {}))
    return Precision(dtype="fp16" if fp16 else "bf16" if bf16 else "fp32", loss_scale=scale)


def _data(options: Options, vocabulary: Vocabulary) -> Data:
    if options("mock_data", False):
        raise ConfigError(
            "--mock-data: the native trainer has no mock data, expected token files — write some with "
            "`ascend-adapt preprocess` and pass them with --data-path"
        )
    train, valid, test = (
        tuple(_words(options(name))) for name in ("train_data_path", "valid_data_path", "test_data_path")
    )
    together = tuple(_words(options("data_path")))
    if bool(together) == bool(train):
        raise ConfigError(
            "--data-path, --train-data-path: expected exactly one of them — pass --data-path, or paths for train, "
            "valid and test"
        )
    name = options.version.name
    return Data(
        train=together or train,
        valid=valid,
        test=test,
        seq_length=read_seq_length(options),
        split=options("split", "969, 30, 1"),
        order=_ORDER.get(name, "mcore"),
        sampler=options("dataloader_type", "single"),
        seed=options("seed"),
        num_workers=options("num_workers"),
        eod=vocabulary.end_of_document,
        reset_position_ids=options("reset_position_ids", False),
        reset_attention_mask=options("reset_attention_mask", False),
        eod_mask_loss=options("eod_mask_loss", False),
        tokenizer_type=options("tokenizer_type", "GPT2BPETokenizer"),
        vocab_file=options("vocab_file") or options("tokenizer_model") or options("tokenizer_name_or_path"),
        merge_file=options("merge_file"),
        cache=options("data_cache_path"),
    )


def _words(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _logging(options: Options, own: OwnOptions) -> Logging:
    name = options.version.name
    return Logging(
        format=own.log_format or _LOG_FORMAT.get(name, "mcore"),
        interval=options("log_interval"),
        flops="mcore" if name in ("core_v0.9.0", "newest") else "paper",
        loss_mean="tokens" if name in ("core_v0.9.0", "newest") else "micro_batches",
        tensorboard=options("tensorboard_dir"),
        tensorboard_interval=options("tensorboard_log_interval", 1),
        wandb_project=options("wandb_project") or None,
        wandb_name=options("wandb_exp_name") or None,
        wandb_entity=options("wandb_entity") or None,
        log_params_norm=options("log_params_norm", False),
        log_num_zeros=options("log_num_zeros_in_grad", False),
    )


def _checkpoint(options: Options, own: OwnOptions) -> Checkpoint:
    save, interval = options("save"), options("save_interval")
    if save is not None and interval is None:
        raise ConfigError("--save: without --save-interval, expected both — add the interval")
    return Checkpoint(
        save=save,
        load=options("load"),
        interval=interval or 0,
        finetune=options("finetune"),
        load_optimizer=not options("no_load_optim", False),
        load_rng=not options("no_load_rng", False),
        save_optimizer=not options("no_save_optim", False),
        save_rng=not options("no_save_rng", False),
        resume_schedule=resume_schedule(own, options),
    )
