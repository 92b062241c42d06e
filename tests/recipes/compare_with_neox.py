"""Compare what GPT-NeoX itself derives from its configuration files with what the recipe does.

    python tests/recipes/compare_with_neox.py VERSION CHECKOUT

VERSION newest needs gpt-neox@ea7aefd8, VERSION v2.0 needs @6edf2418, which closes the docstring because of which the
tag itself is not valid Python. Every file under configs that the recipe reads goes through upstream's NeoXArgs, as for
32 devices. Missing packages are stand-ins, and so is the tokenizer. Exit code 1 if any value differs.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import logging
import sys
from pathlib import Path
from unittest import mock

import deepspeed  # noqa: F401, before the stand-ins, which it would find

from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes import neox

DEVICES = 32
STOOD_IN = ("apex", "boto3", "comet_ml", "flash_attn", "lm_dataformat", "mup", "sentencepiece", "tiktoken", "wandb")
OF_A_PATCH = {("newest", "1B.yml", "precision"): ("fp16", "bf16")}
"""Where the recipe follows an adapted run and not upstream alone: plugins/gpt_neox/bfloat16.py."""
PRECISIONS = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32", None: "fp32"}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name in STOOD_IN else None

    def create_module(self, spec):
        module = mock.MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module):
        pass


def upstreams(args) -> dict[str, object]:
    return {
        "batch": (args.train_batch_size, args.train_micro_batch_size_per_gpu, args.gradient_accumulation_steps),
        "precision": PRECISIONS[args.precision],
        "zero_stage": args.zero_stage,
        "clip_grad": float(args.clip_grad or 0),
        "lr": (args.lr, args.min_lr, args.lr_decay_style, args.warmup * (args.lr_decay_iters or args.train_iters)),
        "weight_decay": args.weight_decay,
        "dropout": (args.hidden_dropout, args.attention_dropout),
        "model": (args.num_layers, args.hidden_size, getattr(args, "num_kv_heads", None) or args.num_attention_heads),
        "tied": not args.no_weight_tying,
        "positions": (args.pos_emb, args.rotary_pct, args.max_position_embeddings, args.gpt_j_residual),
        "iterations": (args.train_iters, args.eval_interval, args.eval_iters, args.seed, args.split),
        "recompute": args.checkpoint_activations,
    }


def ours(config: TrainConfig) -> dict[str, object]:
    model, schedule = config.model, config.schedule
    return {
        "batch": (config.batch.total, config.batch.micro, config.batch.accumulation),
        "precision": config.precision.dtype,
        "zero_stage": config.parallel.zero_stage,
        "clip_grad": config.optimizer.clip_grad,
        "lr": (schedule.lr, schedule.min_lr, schedule.style, schedule.warmup),
        "weight_decay": config.optimizer.weight_decay,
        "dropout": (model.hidden_dropout, model.attention_dropout),
        "model": (model.num_layers, model.hidden_size, model.num_query_groups),
        "tied": model.tied_embeddings,
        "positions": (model.positions, model.rotary_fraction, model.max_positions, model.parallel_residual),
        "iterations": (config.iterations, config.eval_interval, config.eval_iterations, config.seed, config.data.split),
        "recompute": config.parallel.recompute == "full",
    }


def main(version: str, checkout: Path) -> int:
    sys.path.insert(0, str(checkout))
    sys.meta_path.append(StandIns())
    sys.modules["megatron.tokenizer"] = mock.MagicMock()
    from megatron.neox_arguments import NeoXArgs, arguments

    # It looks for the version of flash-attn, and sends what is printed to a file.
    arguments.version = lambda name: "9.0"
    NeoXArgs.enable_logging = lambda self: None
    logging.disable(logging.CRITICAL)
    compared, differing, refused = 0, 0, 0
    for path in sorted((checkout / "configs").rglob("*.yml")):
        text = path.read_text()
        has_data = "data-path" in text or "data_path" in text
        files = [str(path), *([] if has_data else [str(checkout / "configs" / "local_setup.yml")])]
        try:
            config, _ = neox.read([*files, "--vocab-size", "50257", "--upstream-version", version]).build(DEVICES)
        except ConfigError as error:
            refused += 1
            print(f"{path.name}: {error}")
            continue
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = upstreams(NeoXArgs.from_ymls(files, overwrite_values={"global_num_gpus": DEVICES}))
        compared += 1
        for name, value in ours(config).items():
            if value != theirs[name] and OF_A_PATCH.get((version, path.name, name)) != (theirs[name], value):
                differing += 1
                print(f"{path.name}: {name}: upstream {theirs[name]}, here {value}")
    print(f"{compared} files compared, {differing} values differ; {refused} files are refused")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
