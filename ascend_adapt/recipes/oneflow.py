"""Recipe of OneFlow-GPT: translates its command line into a TrainConfig.

Source of the derivations: Oneflow-Inc/OneFlow-Benchmark@de4698a7 LanguageModeling/GPT/oneflow_gpt (config.py, model.py,
optimizer.py, training.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ascend_adapt.config.batches import resolve_batch
from ascend_adapt.config.partition import even_stages, padded
from ascend_adapt.config.train_config import (
    Batch,
    Checkpoint,
    Data,
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
from ascend_adapt.recipes.command_line import OwnOptions, parse, resume_schedule, take_own_options
from ascend_adapt.recipes.options import UNKNOWN, Options
from ascend_adapt.recipes.parallel_sizes import check_ranks, tensor_and_pipeline
from ascend_adapt.recipes.recipe import Recipe
from ascend_adapt.recipes.stages import read_stages

VERSIONS = ("gpt",)

IGNORED = {
    "the kernels choose precision and placement themselves": """
        bias_dropout_fusion bias_gelu_fusion multihead_attention_fusion scale_tril_softmax_dropout_fusion""",
    "softmax is always computed in fp32, which needs no scaling by layer": "apply_query_key_layer_scaling",
    "the launcher starts the ranks": "ctrl_port",
    "it sets what upstream logs": "log profile_transformer_layer",
}


def read(argv: Sequence[str]) -> Recipe:
    """Return the recipe of oneflow_gpt.training's arguments.

    Raises:
        ConfigError: an argument is unknown or invalid.
    """
    own, rest = take_own_options(argv)
    # The guide mentions it, but upstream's parser does not have the option.
    rest = [word for word in rest if word != "--use-rdma"]
    version, given, problems = parse("oneflow", rest, VERSIONS, own.upstream_version)
    options = Options(version, given, IGNORED)
    several = options.attempt(_several_hosts, options, otherwise={})

    def build(world_size: int) -> tuple[TrainConfig, list[str]]:
        options = Options(version, given, IGNORED, problems)
        options.attempt(_several_hosts, options)
        options("num_gpus_per_node")  # counts as read: the launcher has started this number of ranks
        config = _config(options, own, world_size)
        notes = []
        if not options("use_external_dataset"):
            notes.append(
                "samples are in Megatron's order for this seed, because numpy does not have OneFlow's random generator"
            )
        return config, notes + options.notes()

    save, per_node = options("save"), options("num_gpus_per_node")
    return Recipe("oneflow", version.source, build, save=save, ranks_per_node=per_node, **several)


def _several_hosts(options: Options) -> dict[str, Any]:
    """Return the hosts of a multi-host run; empty for a single host."""
    nodes, ips = options("num_nodes"), options("node_ips", [])
    ips = ips.split(",") if isinstance(ips, str) else ips
    if nodes > 1 and len(ips) < nodes:
        raise ConfigError(f"--node-ips: {len(ips)} addresses, expected one for each of {nodes} nodes — add them")
    return {"nodes": nodes, "node_ips": tuple(ips[:nodes])} if nodes > 1 else {}


def _config(options: Options, own: OwnOptions, world_size: int) -> TrainConfig:
    attempt = options.attempt
    parallel = attempt(_parallel, options, own, world_size)
    batch = attempt(_batch, options, parallel)
    iterations = attempt(_iterations, options, batch)
    vocabulary = own.vocab_size or options("vocab_size")
    return options.build(
        dialect="oneflow",
        model=attempt(_model, options, vocabulary, Parallel() if parallel is UNKNOWN else parallel),
        parallel=parallel,
        batch=batch,
        optimizer=attempt(_optimizer, options),
        schedule=attempt(_schedule, options),
        precision=attempt(_precision, options),
        data=attempt(_data, options),
        logging=Logging(
            format=own.log_format or "oneflow",
            interval=options("log_interval"),
            table=options("metric_print_format") == "table",
        ),
        checkpoint=attempt(_checkpoint, options, own),
        iterations=iterations,
        eval_interval=0,
        exit_interval=own.exit_interval,
        seed=options("seed"),
        check_for_nan_in_loss_and_grad=own.check_for_nan_in_loss_and_grad,
    )


def _batch(options: Options, parallel: Parallel) -> Batch:
    return resolve_batch(
        parallel.data, options("global_batch_size"), options("micro_batch_size"), options("num_accumulation_steps")
    )


def _precision(options: Options) -> Precision:
    return Precision(
        dtype="fp16" if options("fp16") else "fp32",
        loss_scale=LossScale(
            fixed=options("loss_scale"),
            initial=float(options("initial_loss_scale")),
            window=int(options("loss_scale_window")),
            hysteresis=1,
        ),
    )


def _data(options: Options) -> Data:
    split = options("split")
    return Data(
        train=(options.required("dataset"),),
        seq_length=options("seq_length"),
        split=split if isinstance(split, str) else ",".join(map(str, split)),
        order="megatron-v2",
        seed=options("seed"),
    )


def _checkpoint(options: Options, own: OwnOptions) -> Checkpoint:
    return Checkpoint(
        save=options("save"),
        load=options("load"),
        interval=options("save_interval", 0),
        steps=(0,) if options("save_init") else (),
        at_end=options("save_last"),
        # OneFlow's snapshots hold no schedule to compare with.
        resume_schedule=resume_schedule(own, options, default="override"),
    )


def _parallel(options: Options, own: OwnOptions, world_size: int) -> Parallel:
    tensor, pipeline = tensor_and_pipeline(options)
    check_ranks(world_size, {"tensor": tensor, "pipeline": pipeline}, "--num-gpus-per-node, --num-nodes")
    virtual, stages = read_stages(own, options.size("num_layers"), pipeline, even_stages)
    return Parallel(
        tensor=tensor,
        pipeline=pipeline,
        data=world_size // tensor // pipeline,
        virtual_stages=virtual,
        stages=stages,
        recompute="full" if options("checkpoint_activations") else "none",
    )


def _iterations(options: Options, batch: Batch) -> int:
    iterations, samples = options("train_iters"), options("train_samples")
    if iterations is None and samples is None:
        raise ConfigError("--train-iters, --train-samples: neither is given, expected one of the two — add one")
    if samples is not None and samples % batch.total:
        raise ConfigError(f"--train-samples: {samples}, expected a multiple of the batch {batch.total} — change one")
    return int(iterations if iterations is not None else samples // batch.total)


def _model(options: Options, vocabulary: int, parallel: Parallel) -> Model:
    hidden, heads, layers = (options.size(name) for name in ("hidden_size", "num_attention_heads", "num_layers"))
    if hidden % heads:
        raise ConfigError(f"hidden_size: {hidden}, expected a multiple of {heads} heads — change one of them")
    std, multiple = options("init_method_std"), options("make_vocab_size_divisible_by")
    weights = Init(std=std)
    return Model(
        vocab_size=vocabulary,
        padded_vocab_size=padded(vocabulary, multiple, parallel.tensor) if multiple else vocabulary,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_query_groups=heads,
        head_dim=hidden // heads,
        ffn_hidden_size=4 * hidden,
        max_positions=options("seq_length"),
        # OneFlow's GELU is exact, whether or not it is fused with the bias.
        activation="gelu",
        hidden_dropout=options("hidden_dropout"),
        attention_dropout=options("attention_dropout"),
        embedding_init=weights,
        init=weights,
        output_init=Init(std=std / math.sqrt(2.0 * layers)),
        head_init=weights,
    )


def _optimizer(options: Options) -> OptimizerConfig:
    if options("optimizer") != "adamw":
        raise ConfigError(
            f"--optimizer: {options('optimizer')!r}, expected adamw, the only one that upstream supports — correct it"
        )
    return OptimizerConfig(
        kind="adamw",
        betas=(options("adam_beta1"), options("adam_beta2")),
        eps=options("adam_eps"),
        weight_decay=options("weight_decay"),
        clip_grad=options("clip_grad"),
    )


def _schedule(options: Options) -> Schedule:
    style, decay = options("lr_decay_style"), options("lr_decay_iters")
    if style != "cosine":
        raise ConfigError(
            f"--lr-decay-style: {style!r}, expected cosine, the only one that upstream supports — correct it"
        )
    if decay is None:
        raise ConfigError("--lr-decay-iters: is not given, but cosine decay needs it — add it")
    warmup = options("lr_warmup_iters")
    fraction = options("lr_warmup_fraction")
    if warmup is None and fraction is not None:
        warmup = int(fraction * decay)
    return Schedule(
        dialect="oneflow",
        lr=options("lr"),
        min_lr=options("min_lr"),
        style="cosine",
        unit="iterations",
        warmup=warmup or 0,
        decay=decay,
    )
