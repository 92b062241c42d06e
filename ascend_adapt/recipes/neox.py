"""Recipe of GPT-NeoX: translates configuration files of v2.0 and the newest version into a TrainConfig.

Sources of the derivations: EleutherAI/gpt-neox@9610391a and @ea7aefd8 megatron/neox_arguments/arguments.py
(calculate_derived), megatron/training.py (optimizer, schedule).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ascend_adapt.config.batches import resolve_batch
from ascend_adapt.config.partition import balanced_stages
from ascend_adapt.config.train_config import (
    Batch,
    Checkpoint,
    Data,
    Logging,
    Parallel,
    TrainConfig,
)
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import deepspeed_json, neox_optimizer
from ascend_adapt.recipes.command_line import OwnOptions, resume_schedule, take_own_options
from ascend_adapt.recipes.neox_files import converted, parsed, read_files
from ascend_adapt.recipes.neox_ignored import IGNORED
from ascend_adapt.recipes.neox_model import check_attention, read_model
from ascend_adapt.recipes.options import UNKNOWN, Options, Version, choose_version
from ascend_adapt.recipes.parallel_sizes import check_ranks
from ascend_adapt.recipes.recipe import Recipe
from ascend_adapt.recipes.stages import read_stages
from ascend_adapt.recipes.vocabulary import Vocabulary, read_vocabulary

# In order of preference: the first version that has every given key is used. The version of the guides comes first.
VERSIONS = ("v2.0", "newest")

# Switches that the guides' Ascend fork adds to v2.0.
_OF_A_FORK = ("async_tensor_model_parallel_allreduce", "use_triangle_attn")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} — pass one or more YAML files, as for deepy.py")


def read(argv: Sequence[str]) -> Recipe:
    """Return the recipe of deepy.py's arguments: [train.py] [-d FOLDER] FILE ... [--key value ...].

    Raises:
        ConfigError: a file or a key is unknown or invalid.
    """
    own, rest = take_own_options(argv)
    files, folder, overrides = _command_line(rest)
    values = {**read_files(files, folder), **overrides}
    if own.exit_interval is not None:
        values["exit_interval"] = own.exit_interval
    version, given, problems, notes = _given(values, own.upstream_version)
    if not own.upstream_version:
        notes = [f"read as {version.source}; --upstream-version chooses another", *notes]
    hosts = Options(version, given, IGNORED)
    placed = hosts.attempt(_hosts, hosts, "hostfile" in overrides, notes, otherwise={})

    def build(world_size: int) -> tuple[TrainConfig, list[str]]:
        options = Options(version, given, IGNORED, problems)
        options.attempt(_hosts, options, "hostfile" in overrides, [])
        config = _config(options, own, version, world_size)
        total = options("global_num_gpus")
        differs = total not in (None, world_size)
        said = [f"global_num_gpus: {total} is overridden by the job's {world_size} ranks"] if differs else []
        return config, notes + said + options.notes()

    return Recipe("neox", version.source, build, save=hosts("save"), **placed)


def read_options(values: Mapping[str, Any], asked: str | None) -> Options:
    """Return the options that configuration files set; ``asked`` names the version of upstream.

    Raises:
        ConfigError: a key is unknown, or its value has the wrong type.
    """
    known = {name: value for name, value in values.items() if name not in _OF_A_FORK}
    version, given, problems, _ = _given(known, asked)
    if problems:
        raise ConfigError("; ".join(problems))
    return Options(version, given, IGNORED)


def _given(values: Mapping[str, Any], asked: str | None) -> tuple[Version, dict[str, Any], list[str], list[str]]:
    """Return the version that has the given keys, the values of its options, problems, and notes."""

    def accepts(version: Version, name: str) -> bool:
        return not _converted(version, name, values[name])[1]

    names = [name for name in values if name not in _OF_A_FORK]
    version, problems = choose_version("neox", names, VERSIONS, asked, accepts)
    given, notes = {}, []
    for name, value in values.items():
        if name in version.options or name in _OF_A_FORK:
            given[name], wrong, said = _converted(version, name, value)
            problems += wrong
            notes += said
    return version, given, problems, notes


def _converted(version: Version, name: str, value: Any) -> tuple[Any, list[str], list[str]]:
    """Convert a value to its type in this version; return it with problems and notes."""
    notes: list[str] = []
    try:
        return (
            converted(name, value, version.options[name]["type"] if name in version.options else "bool", notes),
            [],
            notes,
        )
    except ConfigError as error:
        return None, [str(error)], []


def _hosts(options: Options, stated: bool, notes: list[str]) -> dict[str, Any]:
    """Return the keys about hosts and ranks; ``stated``: whether the command line names the hostfile."""
    nodes = options("num_nodes")
    nodes = nodes if nodes and nodes > 0 else None
    hosts = {name: options(name) for name in ("hostfile", "include", "exclude")}
    # fetch_hostfile of DeepSpeed's launcher does the same; configs/125M.yml has "/mock_path".
    if hosts["hostfile"] and not stated and not os.path.isfile(hosts["hostfile"]):
        notes.append(
            f"hostfile: {hosts['hostfile']} named by the configuration does not exist, so only this host is used"
        )
        hosts["hostfile"] = None
    total, each = options("global_num_gpus"), options("num_gpus")
    # With a hostfile, its slots determine the number of ranks.
    if each is None and total is not None and not hosts["hostfile"]:
        if total % (nodes or 1):
            raise ConfigError(f"global_num_gpus: {total}, expected a multiple of {nodes} num_nodes — change one")
        each = total // (nodes or 1)
    # With a hostfile, it selects the first num_nodes hosts; without one it has no effect.
    return {**hosts, "ranks_per_node": each, "nodes": nodes if hosts["hostfile"] else None}


def _command_line(argv: Sequence[str]) -> tuple[list[str], str | None, dict[str, Any]]:
    """Return the configuration files, their folder, and the keys set on the command line."""
    parser = _Parser(prog="neox", add_help=False, allow_abbrev=False)
    parser.add_argument("-d", "--conf_dir", "--conf-dir")
    parser.add_argument("-H", "--hostfile")
    known, rest = parser.parse_known_args(list(argv))
    overrides: dict[str, Any] = {"hostfile": known.hostfile} if known.hostfile else {}
    files: list[str] = []
    words = iter(rest)
    for word in words:
        if not word.startswith("--"):
            files.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        value = value if equals else next(words, "true")
        overrides[name.replace("-", "_")] = parsed(value, f"--{name} {value!r}")
    if files and files[0].endswith(".py"):
        files = files[1:]
    if not files:
        raise ConfigError("--native neox: no configuration file — pass one or more YAML files, as for deepy.py")
    return files, known.conf_dir, overrides


def _config(options: Options, own: OwnOptions, version: Version, world_size: int) -> TrainConfig:
    attempt = options.attempt
    options.require("num_layers", "hidden_size", "num_attention_heads", "train_iters", "seq_length")
    attempt(_check_extra, options)
    parallel = attempt(_parallel, options, own, world_size)
    vocabulary = attempt(_vocabulary, options, own, otherwise=Vocabulary(1, None))
    iterations = attempt(options.required, "train_iters")
    lr, optimizer = attempt(neox_optimizer.optimizer, options, otherwise=(UNKNOWN, UNKNOWN))
    return options.build(
        dialect="neox",
        # The rest is checked even if the vocabulary or the layout is wrong.
        model=attempt(
            read_model,
            options,
            vocabulary,
            Parallel() if parallel is UNKNOWN else parallel,
            attempt(check_attention, options),
        ),
        parallel=parallel,
        batch=attempt(_batch, options, parallel),
        optimizer=optimizer,
        schedule=attempt(neox_optimizer.schedule, options, version, lr, iterations),
        precision=attempt(neox_optimizer.precision, options),
        data=attempt(_data, options, vocabulary),
        logging=attempt(_logging, options, own, version),
        checkpoint=attempt(_checkpoint, options, own, iterations),
        iterations=iterations,
        eval_interval=attempt(options, "eval_interval"),
        eval_iterations=attempt(options, "eval_iters"),
        exit_interval=attempt(options, "exit_interval"),
        seed=attempt(options, "seed"),
        check_for_nan_in_loss_and_grad=own.check_for_nan_in_loss_and_grad,
    )


def _batch(options: Options, parallel: Parallel) -> Batch:
    # Without the key, accumulation follows from the batch sizes: upstream's default of 1 may contradict them.
    accumulation = options("gradient_accumulation_steps") if options.is_given("gradient_accumulation_steps") else None
    return resolve_batch(
        parallel.data, options("train_batch_size"), options("train_micro_batch_size_per_gpu"), accumulation
    )


def _vocabulary(options: Options, own: OwnOptions) -> Vocabulary:
    return read_vocabulary(options("tokenizer_type"), options("vocab_file"), own.vocab_size)


def _check_extra(options: Options) -> None:
    """Check the arguments that are passed on to DeepSpeed in addition to its own keys."""
    extra = options("deepspeed_extra_args", {})
    deepspeed_json.check(extra, "deepspeed_extra_args")
    meant = sorted(set(extra) - set(deepspeed_json.without_effect()))
    if meant:
        raise ConfigError(f"deepspeed_extra_args: {', '.join(meant)}, expected these as top-level keys — move them")


def _parallel(options: Options, own: OwnOptions, world_size: int) -> Parallel:
    tensor, pipeline = max(options("model_parallel_size"), 1), max(options("pipe_parallel_size"), 1)
    check_ranks(world_size, {"pipe-parallel-size": pipeline, "model-parallel-size": tensor}, "the ranks")
    method = options("pipe_partition_method")
    if pipeline > 1 and not method.startswith("type:transformer"):
        raise ConfigError(
            f"pipe_partition_method: {method!r}, expected 'type:transformer|mlp' — correct it; the native trainer "
            "splits stages only by layers"
        )
    stage, offload = deepspeed_json.zero_stage(options("zero_optimization"))
    virtual, stages = read_stages(own, options.size("num_layers"), pipeline, balanced_stages)
    return Parallel(
        tensor=tensor,
        pipeline=pipeline,
        data=world_size // tensor // pipeline,
        virtual_stages=virtual,
        stages=stages,
        sequence=options("sequence_parallel", False) and tensor > 1,
        zero_stage=stage,
        offload_optimizer=offload,
        recompute="full" if options("checkpoint_activations") else "none",
        recompute_layers=options("checkpoint_num_layers"),
    )


def _data(options: Options, vocabulary: Vocabulary) -> Data:
    parts = {
        "train": _weighted(options, "train_data_paths", "train_data_weights"),
        "valid": _weighted(options, "valid_data_paths", "valid_data_weights"),
        "test": _weighted(options, "test_data_paths", "test_data_weights"),
    }
    together = options("data_path")
    if (together is None) == (not parts["train"]):
        raise ConfigError(
            "data-path, train-data-paths: expected one of the two — set data-path, or paths for each part"
        )
    missing = [name for name, paths in parts.items() if not paths]
    if together is None and missing:
        raise ConfigError(f"{missing[0]}-data-paths: not given, but the others are — give all three")
    return Data(
        train=(together,) if together is not None else parts["train"],
        valid=parts["valid"],
        test=parts["test"],
        seq_length=options.size("seq_length"),
        split=options("split"),
        order="neox",
        seed=options("seed"),
        num_workers=options("num_workers"),
        eod=vocabulary.end_of_document,
        eod_mask_loss=options("eod_mask_loss"),
        weight_by_documents=options("weighted_sampler_alpha") if options("weight_by_num_documents") else None,
        tokenizer_type=options("tokenizer_type"),
        vocab_file=options("vocab_file"),
        merge_file=options("merge_file"),
    )


def _weighted(options: Options, of_paths: str, of_weights: str) -> tuple[str, ...]:
    paths, weights = options(of_paths) or [], options(of_weights)
    if weights is not None and len(weights) != len(paths):
        raise ConfigError(
            f"{of_weights.replace('_', '-')}: {len(weights)}, expected one for each of {len(paths)} paths — correct "
            "them"
        )
    if options("weight_by_num_documents"):
        return tuple(paths)
    weights = weights or [1.0] * len(paths)
    return tuple(word for path, weight in zip(paths, weights, strict=True) for word in (str(weight), path))


def _logging(options: Options, own: OwnOptions, version: Version) -> Logging:
    wandb = {name: options(name) for name in ("wandb_project", "wandb_run_name", "wandb_group", "wandb_team")}
    if not options("use_wandb", False):
        wandb = dict.fromkeys(wandb)
    return Logging(
        format=own.log_format or "neox",
        interval=options("log_interval", 100),
        flops="neox-v2" if version.name == "v2.0" else "paper",
        tensorboard=options("tensorboard_dir"),
        wandb_project=wandb["wandb_project"],
        wandb_name=wandb["wandb_run_name"],
        wandb_group=wandb["wandb_group"],
        wandb_entity=wandb["wandb_team"],
    )


def _checkpoint(options: Options, own: OwnOptions, iterations: int) -> Checkpoint:
    save, factor, extra = options("save"), options("checkpoint_factor"), options("extra_save_iters", [])
    if save is not None and factor is None and not extra:
        raise ConfigError("save: without checkpoint-factor or extra_save_iters, expected one of them — add it")
    if factor is not None and factor < 1:
        raise ConfigError(f"checkpoint-factor: {factor}, expected at least 1 — correct it")
    if not all(isinstance(step, int) for step in extra):
        raise ConfigError(f"extra_save_iters: {extra}, expected integers — correct them")
    steps = set(extra)
    is_log = options("checkpoint_scale") == "log"
    if is_log and factor is not None:
        if factor < 2:
            raise ConfigError(f"checkpoint-factor: {factor} on a log scale, expected at least 2 — raise it")
        step = factor
        while step < iterations:
            steps.add(int(step))
            step *= factor
    return Checkpoint(
        save=save,
        load=options("load"),
        interval=0 if is_log or factor is None else int(factor),
        steps=tuple(sorted(steps)),
        finetune=options("finetune"),
        load_optimizer=not options("no_load_optim"),
        load_rng=not options("no_load_rng"),
        save_optimizer=not options("no_save_optim"),
        save_rng=not options("no_save_rng"),
        resume_schedule=resume_schedule(own, options),
        keep_last=options("keep_last_n_checkpoints"),
    )
